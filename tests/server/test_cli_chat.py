"""`parlatory chat` against a scripted peer: through pipes, and on a pseudo terminal."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import termios
import tty
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest
from websockets.asyncio.server import ServerConnection

from parlatory.server import cli_chat
from parlatory.server.cli_chat import chat
from tests.server.test_client_peer import Frame, Peer

C = "echo/a"

pytestmark = pytest.mark.usefixtures("at_once")


def echo(server: Peer) -> Callable[[ServerConnection, Frame], None]:
    """An agent that answers each message in a turn of its own."""

    def send(socket: ServerConnection, frame: Frame) -> None:
        server.on_send(socket, frame)
        turn = len(server.logs[C])
        server.tell("turn", conversation=C, id=turn, state="running")
        server.append(C, f"re {frame['message']['content']}", turn=turn)
        server.tell("turn", conversation=C, id=turn, state="done")

    return send


@contextmanager
def piped(data: bytes, *, close: bool = True) -> Iterator[tuple[TextIO, int]]:
    """Gives an input that holds the data, and its writing end if it is not closed."""
    reading, writing = os.pipe()
    os.write(writing, data)
    if close:
        os.close(writing)
    with os.fdopen(reading) as source:
        yield source, writing
    # The thread of a chat that was interrupted is left in its read; it ends here.
    if not close:
        os.close(writing)


async def run(server: Peer, data: bytes, **fields: float) -> tuple[int, list[str]]:
    output = io.StringIO()
    with piped(data) as (source, _):
        code = await chat(server.url, C, None, input=source, output=output, **fields)
    return code, output.getvalue().splitlines()


async def test_line_by_line(server: Peer) -> None:
    server.append(C, "from before")
    server.on["send"] = echo(server)
    code, lines = await run(server, b"one\n\n  \r\ntwo\r\nthree", quiet_s=600)
    assert code == 0
    assert lines == ["you: one", "agent: re one", "you: two", "agent: re two", "you: three", "agent: re three"]
    assert [frame["message"]["content"] for frame in server.of("send")] == ["one", "two", "three"]


async def test_nothing_to_say(server: Peer) -> None:
    assert await run(server, b"", quiet_s=600) == (0, [])
    assert await run(server, b"\n\n", quiet_s=600) == (0, [])


async def test_long_and_split_lines(server: Peer) -> None:
    server.on["send"] = echo(server)
    reading, writing = os.pipe()
    output = io.StringIO()
    with os.fdopen(reading) as source:
        talking = asyncio.ensure_future(chat(server.url, C, None, input=source, output=output, quiet_s=600))
        for piece in (b"\xc3", b"\xa4 ", b"b\n"):
            os.write(writing, piece)
            await asyncio.sleep(0)
        os.close(writing)
        assert await talking == 0
    assert output.getvalue().splitlines()[0] == "you: ä b"


async def test_an_answer_in_several_rows_is_waited_for(server: Peer) -> None:
    """Until the turn is over, however long it takes."""

    def send(socket: ServerConnection, frame: Frame) -> None:
        server.on_send(socket, frame)
        server.tell("turn", conversation=C, id=1, state="running")
        server.append(C, "first", turn=1)
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, server.append, C, "second")
        loop.call_later(0.06, lambda: server.tell("turn", conversation=C, id=1, state="done"))

    server.on["send"] = send
    assert await run(server, b"hi\n", quiet_s=0.001) == (0, ["you: hi", "agent: first", "agent: second"])


@pytest.mark.parametrize(("end", "code"), [("done", 0), ("stopped", 0), ("error", 2)])
async def test_the_end_of_a_turn_is_an_answer_and_a_failed_one_is_told(
    server: Peer, capsys: pytest.CaptureFixture[str], end: str, code: int
) -> None:
    def send(socket: ServerConnection, frame: Frame) -> None:
        server.on_send(socket, frame)
        for state in ("queued", "waiting", "running", end):
            server.tell("turn", conversation=C, id=1, state=state)

    server.on["send"] = send
    assert await run(server, b"hi\n", quiet_s=600) == (code, ["you: hi"])
    said = "parlatory: the agent failed to answer message 1; the log of the server says why\n"
    waits = "parlatory: the answer to message 1 waits for an approval\n"
    assert capsys.readouterr().err == waits + (said if code else "")


async def test_a_failed_turn_of_somebody_else_is_told_and_no_failure(
    server: Peer, capsys: pytest.CaptureFixture[str]
) -> None:
    def send(socket: ServerConnection, frame: Frame) -> None:
        server.tell("turn", conversation=C, id=77, state="error")
        echo(server)(socket, frame)

    server.on["send"] = send
    assert await run(server, b"hi\n", quiet_s=600) == (0, ["you: hi", "agent: re hi"])
    assert "message 77" in capsys.readouterr().err


async def test_quiet_is_an_answer(server: Peer) -> None:
    assert await run(server, b"hi\n", quiet_s=0.01) == (0, ["you: hi"])


async def test_a_connection_that_is_lost_in_the_middle(server: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    """Quiet counts only while it is live: the turn's end may have been missed, the row cannot."""

    def send(socket: ServerConnection, frame: Frame) -> None:
        server.on["send"] = echo(server)
        server.commit(frame)
        server.tell("turn", conversation=C, id=1, state="running")
        server.closings = [1011]
        server.cut()
        server.append(C, "answer", turn=1)

    server.on["send"] = send
    code, lines = await run(server, b"hi\nthere\n", quiet_s=600)
    assert code == 0
    assert lines == ["you: hi", "agent: answer", "you: there", "agent: re there"]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2 and "trying again" in told[0] and "connected again" in told[1]


def interrupting(server: Peer, again: Callable[[], None]) -> Callable[[ServerConnection, Frame], None]:
    """A server that is killed in the middle of an answer; when it is back, the turn is taken up as `again` says."""

    def opened(socket: ServerConnection, frame: Frame) -> None:
        server.on_open(socket, frame)
        asyncio.get_running_loop().call_later(0.05, again)

    def send(socket: ServerConnection, frame: Frame) -> None:
        server.commit(frame)
        server.tell("turn", conversation=C, id=1, state="running")
        server.append(C, "first", turn=1)
        server.cut()
        server.append(C, "par", turn=1, finish="interrupted")
        server.on["open"] = opened

    return send


async def test_an_interrupted_answer_is_waited_for(server: Peer) -> None:
    def again() -> None:
        server.tell("turn", conversation=C, id=1, state="running")
        server.append(C, "whole", turn=1)
        server.append(C, "end", turn=1)
        server.tell("turn", conversation=C, id=1, state="done")

    server.on["send"] = interrupting(server, again)
    code, lines = await run(server, b"hi\n", quiet_s=0.001)
    assert code == 0
    assert lines == ["you: hi", "agent: first", "agent: par [interrupted]", "agent: whole", "agent: end"]


async def test_an_interrupted_answer_that_is_not_taken_up(
    server: Peer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_chat, "OPEN_S", 0.05)
    server.on["send"] = interrupting(server, lambda: None)
    assert (await run(server, b"hi\n", quiet_s=0.001))[0] == 2
    assert "the answer to message 1 was interrupted" in capsys.readouterr().err


async def test_a_turn_that_runs_at_the_opening_is_waited_for(server: Peer) -> None:
    """It was taken up again before this connection, so only the answer to `open` tells of it."""

    def opened(socket: ServerConnection, frame: Frame) -> None:
        log = server.logs[C]
        place: Frame = {"conversation": C, "epoch": server.epoch, "floor": 0, "head": len(log), "from": 0}
        server.say(socket, "opened", **place, turn={"state": "running", "id": 1})
        server.say(socket, "rows", conversation=C, epoch=server.epoch, rows=log)
        server.say(socket, "live", conversation=C, seq=len(log))
        server.subscribers.setdefault(C, set()).add(socket)
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, lambda: server.append(C, "whole", turn=1))
        loop.call_later(0.06, lambda: server.tell("turn", conversation=C, id=1, state="done"))

    def send(socket: ServerConnection, frame: Frame) -> None:
        server.commit(frame)
        server.cut()
        server.on["open"] = opened

    server.on["send"] = send
    assert await run(server, b"hi\n", quiet_s=0.001) == (0, ["you: hi", "agent: whole"])


async def test_a_line_that_is_refused(server: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    server.on["send"] = echo(server)
    assert await run(server, b"\xff\nhi\n", quiet_s=600) == (2, ["you: hi", "agent: re hi"])
    assert "surrogate" in capsys.readouterr().err


async def test_errors_are_one_sentence(
    server: Peer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.closings = [4403]
    assert (await run(server, b"hi\n"))[0] == 2
    monkeypatch.setattr(cli_chat, "LINE_BYTES_MAX", 10)
    assert (await run(server, b"x" * 99))[0] == 2
    server.on["send"] = lambda socket, frame: server.say(socket, "closed", conversation=C, code="forbidden")
    assert (await run(server, b"hi\nho\n"))[0] == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3 and all(line.startswith("parlatory: ") for line in errors)


async def test_a_row_that_cannot_be_read(server: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    def send(socket: ServerConnection, frame: Frame) -> None:
        server.on_send(socket, frame)
        server.subscribers.clear()
        server.append(C, "x")
        server.logs[C][1]["message"]["role"] = "judge"
        server.tell("rows", conversation=C, epoch=server.epoch, rows=server.logs[C][1:])
        server.subscribers[C] = {socket}
        server.append(C, "y", turn=1)

    server.on["send"] = send
    assert await run(server, b"hi\n", quiet_s=600) == (0, ["you: hi", "agent: y"])
    assert "corrupt" in capsys.readouterr().err


async def test_the_rows_before_the_end_of_a_turn_are_printed(server: Peer) -> None:
    """Also if all come at once, and the last one cannot be read."""

    def send(socket: ServerConnection, frame: Frame) -> None:
        del server.subscribers[C]
        server.on_send(socket, frame)
        for text in ("a", "b", "c"):
            server.append(C, text)
        server.logs[C][3]["message"]["role"] = "judge"
        server.tell("rows", conversation=C, epoch=server.epoch, rows=server.logs[C])
        server.tell("turn", conversation=C, id=1, state="done")

    server.on["send"] = send
    assert await run(server, b"hi\n", quiet_s=600) == (0, ["you: hi", "agent: a", "agent: b"])


async def test_interrupted(server: Peer) -> None:
    output = io.StringIO()
    with piped(b"hi\n", close=False) as (source, _):
        talking = asyncio.ensure_future(chat(server.url, C, None, input=source, output=output))
        await server.until(lambda: server.of("send"))
        os.kill(os.getpid(), signal.SIGINT)
        assert await talking == 0


# -- on a terminal


class Terminal:
    """A pseudo terminal with a person: types, and sees. It edits lines as terminals do."""

    def __init__(self) -> None:
        self.master, slave = os.openpty()
        self.device = os.fdopen(slave, "r+b", buffering=0)
        attributes = termios.tcgetattr(slave)
        assert attributes[tty.LFLAG] & termios.ICANON
        self.input = os.fdopen(os.dup(slave), "r")
        self.output = os.fdopen(os.dup(slave), "w")
        self.seen = ""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.master, self._read)

    def _read(self) -> None:
        self.seen += os.read(self.master, 1 << 16).decode()
        self._more.set()

    async def see(self, text: str) -> None:
        while text not in self.seen:
            self._more.clear()
            await self._more.wait()

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.master)
        for file in (self.output, self.input, self.device):
            file.close()
        os.close(self.master)


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    made = Terminal()
    yield made
    made.close()


@pytest.mark.parametrize("colour", [True, False])
async def test_a_person(server: Peer, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, colour: bool) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False) if colour else monkeypatch.setenv("NO_COLOR", "1")
    server.append(C, "said before", "me", clientId="other")
    server.on["send"] = echo(server)
    talking = asyncio.ensure_future(chat(server.url, C, None, input=terminal.input, output=terminal.output))
    await terminal.see("said before")
    terminal.type("hel")
    server.append(C, "two\nlines\x1b[2J", "user:bob")
    await terminal.see("two\r\nlines\\x1b[2J")
    terminal.type("lo\n\n")
    await terminal.see("re hello")
    server.append(C, "x", "anonymous:0123456789")
    await terminal.see("anonymous 012345")
    terminal.type("\x04")
    assert await talking == 0
    assert "\x1b[2J" not in terminal.seen
    plain = re.sub(r"\x1b\[[0-9;]*[mK]", "", terminal.seen)
    assert "you: said before" in plain and "bob: two" in plain and "agent: re hello" in plain
    assert ": hello" not in plain, "the terminal has echoed it already"
    assert ("\x1b[1m" in terminal.seen) == colour


async def test_a_person_offline(
    server: Peer, terminal: Terminal, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_chat, "LEAVE_S", 0.05)
    server.on["send"] = lambda socket, frame: None
    talking = asyncio.ensure_future(chat(server.url, C, None, input=terminal.input, output=terminal.output))
    await terminal.see("> ")
    terminal.type("hello\n")
    await server.until(lambda: server.of("send"))
    terminal.type("\x04")
    assert await talking == 2
    assert "may be lost" in capsys.readouterr().err


async def test_a_person_who_is_refused(server: Peer, terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    server.on["send"] = lambda socket, frame: server.say(socket, "closed", conversation=C, code="forbidden")
    talking = asyncio.ensure_future(chat(server.url, C, None, input=terminal.input, output=terminal.output))
    await terminal.see("> ")
    terminal.type("hello\n")
    assert await talking == 2
    assert "forbidden" in capsys.readouterr().err
    terminal.type("\x04")


async def test_a_person_leaves_with_ctrl_c(server: Peer, terminal: Terminal) -> None:
    talking = asyncio.ensure_future(chat(server.url, C, None, input=terminal.input, output=terminal.output))
    await terminal.see("> ")
    os.kill(os.getpid(), signal.SIGINT)
    assert await talking == 0
    terminal.type("\x04")
