"""`parlatory chat` on a pseudo terminal while the agent writes, and Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.server import ServerConnection

from parlatory.server import cli_chat
from parlatory.server.cli_chat import chat
from tests.server.peers import serving
from tests.server.test_cli_chat import C, Terminal, piped
from tests.server.test_client_live import AGENTS, words
from tests.server.test_client_peer import Frame, Peer


@pytest.fixture(autouse=True)
def plain(at_once: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")


@asynccontextmanager
async def talking(url: str, *, leave: bool = True) -> AsyncIterator[Terminal]:
    """A person in front of a terminal, who leaves at the end."""
    terminal = Terminal()
    try:
        talk = asyncio.ensure_future(chat(url, C, None, input=terminal.input, output=terminal.output))
        await terminal.see("> ")
        yield terminal
        if leave:
            terminal.type("\x04")
        assert await talk == 0
        terminal.type("\x04")  # for the thread that is left in its read
    finally:
        terminal.close()


def shown(terminal: Terminal) -> list[str]:
    """Returns the lines on the screen."""
    lines = terminal.seen.replace("\r\n", "\n").split("\n")
    plain = [re.sub(r"^(.*\r\x1b\[K)?(> )*", "", line) for line in lines]
    return [line for line in plain if line]


def draft(server: Peer, text: str, id: str = "d") -> None:
    message = {"role": "assistant", "content": text}
    server.tell("draft", conversation=C, id=id, turn=1, index=0, message=message)


def ended(server: Peer, finish: str = "done", **fields: object) -> None:
    server.tell("draftEnd", conversation=C, id="d", finish=finish, **fields)


async def test_an_answer_is_printed_once_and_as_it_comes(server: Peer) -> None:
    async with talking(server.url) as terminal:
        draft(server, "")
        draft(server, "one ")
        await terminal.see("agent: one ")
        draft(server, "one two\x1b[2J")
        await terminal.see("one two\\x1b[2J")
        server.append(C, "one two\x1b[2J three", turn=1)
        ended(server, seq=1)
        await terminal.see("three\r\n")
        server.append(C, "next")
        await terminal.see("agent: next")
    assert shown(terminal) == ["agent: one two\\x1b[2J three", "agent: next"]
    assert "\x1b[2J" not in terminal.seen


async def test_an_answer_that_is_stopped_says_so(server: Peer) -> None:
    async with talking(server.url) as terminal:
        draft(server, "one ")
        server.append(C, "one ", turn=1, finish="stopped")
        ended(server, "stopped", seq=1)
        await terminal.see("[stopped]")
    assert shown(terminal) == ["agent: one  [stopped]"]


async def test_what_comes_in_between_has_a_line_of_its_own(server: Peer) -> None:
    async with talking(server.url) as terminal:
        draft(server, "one ")
        await terminal.see("agent: one ")
        server.append(C, "hello", "user:bob")
        await terminal.see("bob: hello")
        draft(server, "one two")
        await terminal.see("agent: two")
        terminal.type("\n")
        server.append(C, "one two", turn=1)
        ended(server, seq=2)
        server.append(C, "next")
        await terminal.see("agent: next")
    assert shown(terminal) == ["agent: one ", "bob: hello", "agent: two", "agent: next"]


async def test_drafts_that_become_no_row(server: Peer) -> None:
    async with talking(server.url) as terminal:
        draft(server, "one")
        await terminal.see("one")
        ended(server, "error")
        await terminal.see("[error]")
        draft(server, "two")
        await terminal.see("two")
        draft(server, "other")
        await terminal.see("[...]\r\n")
        await terminal.see("agent: other")
        server.append(C, "hello", "user:bob")
        await terminal.see("bob: hello")
        draft(server, "again", "e")
        await terminal.see("agent: again")
        draft(server, "", "f")
        await terminal.see("again [connection lost]")
    assert shown(terminal) == [
        "agent: one [error]", "agent: two [...]", "agent: other", "bob: hello", "agent: again [connection lost]"
    ]  # fmt: skip


async def test_a_row_that_cannot_be_read(server: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    async with talking(server.url) as terminal:
        server.logs[C] = [{"seq": 1, "at": "2026-11-30T00:00:00Z", "by": "x", "message": {"role": "judge"}}]
        server.tell("rows", conversation=C, epoch=server.epoch, rows=server.logs[C])
        server.append(C, "next")
        await terminal.see("agent: next")
    assert "corrupt" in capsys.readouterr().err


async def test_ctrl_c_stops_the_turn_and_twice_leaves(server: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    async with talking(server.url, leave=False) as terminal:
        server.tell("turn", conversation=C, id=1, state="running")
        draft(server, "one ")
        await terminal.see("one ")
        os.kill(os.getpid(), signal.SIGINT)
        await server.until(lambda: server.of("cancel"))
        os.kill(os.getpid(), signal.SIGINT)
    assert [frame["turn"] for frame in server.of("cancel")] == [1]
    assert "stopping" in capsys.readouterr().err


async def test_ctrl_c_later_stops_again(
    server: Peer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(socket: ServerConnection, frame: Frame) -> None:
        server.say(socket, "error", code="forbidden", text="not you", conversation=C)

    monkeypatch.setattr(cli_chat, "CTRL_C_S", 0.0)
    server.on["cancel"] = refuse
    async with talking(server.url) as terminal:
        server.tell("turn", conversation=C, id=1, state="running")
        draft(server, "one ")
        await terminal.see("one ")
        for count in (1, 2):
            os.kill(os.getpid(), signal.SIGINT)
            await server.until(lambda: len(server.of("cancel")) == count)  # noqa: B023 - awaited at once
        ended(server)
        server.append(C, "next")
        await terminal.see("agent: next")
    assert "not you" in capsys.readouterr().err


async def test_leaving_before_there_is_a_chat(server: Peer) -> None:
    server.on["open"] = lambda socket, frame: None
    for leave in (
        lambda _: os.kill(os.getpid(), signal.SIGINT),
        lambda _: os.kill(os.getpid(), signal.SIGTERM),
        lambda terminal: terminal.type("\x04"),
    ):
        terminal = Terminal()
        talk = asyncio.ensure_future(chat(server.url, C, None, input=terminal.input, output=terminal.output))
        server.frames.clear()
        await server.until(lambda: server.of("open"))
        leave(terminal)
        assert await talk == 0
        terminal.type("\x04")
        terminal.close()


async def test_the_prompt_is_there_once(server: Peer) -> None:
    server.append(C, "from before")
    async with talking(server.url) as terminal:
        await terminal.see("from before")
    assert re.search(r"> +(\x1b\[K)?> ", terminal.seen.replace("\r\x1b[K", "\n")) is None


@pytest.mark.parametrize("end", ["", "/"])
async def test_an_address_without_its_path(end: str, capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(20), serving(*AGENTS) as real:
        with piped(b"hi\n") as (source, _):
            assert await chat(real.url.removesuffix("/v1") + end, C, None, input=source) == 2
    assert f"add /v1 to the address: {real.url}\n" in capsys.readouterr().err


async def test_pipes_print_rows_only() -> None:
    """Ctrl-C leaves there at once."""
    async with asyncio.timeout(20), serving(*AGENTS) as real:
        reading, writing = os.pipe()
        out = os.fdopen(writing, "w")
        with piped(b"/stream 20 1\n") as (source, _), out, os.fdopen(reading) as result:
            assert await chat(real.url, C, None, input=source, output=out) == 0
            out.close()
            lines = result.read().splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["/stream 20 1", words(20)]


async def test_a_real_agent_is_stopped() -> None:
    async with asyncio.timeout(20), serving(*AGENTS) as real, talking(real.url) as terminal:
        terminal.type("/stream 10000 2\n")
        await terminal.see("w9 ")
        os.kill(os.getpid(), signal.SIGINT)
        await terminal.see("[stopped]")
        terminal.type("hi\n")
        await terminal.see("echo: hi")
