"""`parlatory tail` against a scripted peer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from parlatory.server import cli_tail
from parlatory.server.cli_tail import tail
from tests.server.test_client_peer import Peer

C = "echo/a"

pytestmark = pytest.mark.usefixtures("at_once")


@pytest.fixture
async def server(server: Peer) -> Peer:
    for number in range(5):
        server.append(C, str(number))
    return server


class Pipe:
    """What a command writes into, and who reads it."""

    def __init__(self) -> None:
        self.reading, writing = os.pipe()
        self.output = os.fdopen(writing, "w")
        self.text = ""
        self._more = asyncio.Event()
        asyncio.get_running_loop().add_reader(self.reading, self._read)

    def _read(self) -> None:
        self.text += os.read(self.reading, 1 << 20).decode()
        self._more.set()

    async def lines(self, count: int) -> list[str]:
        """Waits for as many lines."""
        while self.text.count("\n") < count:
            self._more.clear()
            await self._more.wait()
        return self.text.split("\n")[:-1]

    def hang_up(self) -> None:
        if self.reading >= 0:
            asyncio.get_running_loop().remove_reader(self.reading)
            os.close(self.reading)
            self.reading = -1

    def close(self) -> None:
        self.output.close()
        self.hang_up()


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def test_the_last_rows_and_what_comes(server: Peer, pipe: Pipe) -> None:
    tailing = asyncio.ensure_future(tail(server.url, C, None, 2, False, output=pipe.output))
    assert await pipe.lines(2) == ["agent: 3", "agent: 4"]
    server.append(C, "a\x1b[2Jb\nc", "user:ann")
    server.cut()
    assert (await pipe.lines(3))[2:] == ["user:ann: a\\x1b[2Jb\\nc"]
    interrupt()
    assert await tailing == 0


async def test_json_lines(server: Peer, pipe: Pipe) -> None:
    for number in range(300):
        server.append(C, "x\u2028\x1b", "me", clientId=f"m{number}")
    server.append(C, "half", turn=3, finish="stopped")
    tailing = asyncio.ensure_future(tail(server.url, C, None, 1000, True, output=pipe.output))
    lines = await pipe.lines(306)
    interrupt()
    assert await tailing == 0
    assert [json.loads(line) for line in lines] == server.logs[C]
    assert "\x1b" not in pipe.text


async def test_nobody_reads_any_more(server: Peer, pipe: Pipe) -> None:
    """`tail | head` ends, although no further row comes."""
    tailing = asyncio.ensure_future(tail(server.url, C, None, 5, False, output=pipe.output))
    await pipe.lines(5)
    pipe.hang_up()
    assert await tailing == 0


async def test_nobody_reads_what_is_written(server: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    output = os.fdopen(writing, "w")
    monkeypatch.setattr(cli_tail, "_watched", lambda output, gone: nullcontext())
    with pytest.raises(BrokenPipeError):
        await tail(server.url, C, None, 5, False, output=output)
    with pytest.raises(BrokenPipeError):
        output.close()


async def test_errors_are_one_sentence(server: Peer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (tmp_path / "out").open("w") as output:
        assert await tail(server.url, "nope", None, 5, False, output=output) == 2
        tailing = asyncio.ensure_future(tail(server.url, C, None, 5, False, output=output))
        await server.until(lambda: server.subscribers.get(C))
        server.tell("closed", conversation=C, code="forbidden")
        assert await tailing == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all(line.startswith("parlatory: ") for line in errors)


async def test_it_ends_while_the_conversation_is_not_open(server: Peer, pipe: Pipe) -> None:
    server.on["open"] = lambda socket, frame: None
    tailing = asyncio.ensure_future(tail(server.url, C, None, 5, False, output=pipe.output))
    await server.until(lambda: server.of("open"))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await tailing == 0


async def test_stdout(server: Peer, pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", pipe.output)
    tailing = asyncio.ensure_future(tail(server.url, C, None, 1, False))
    assert await pipe.lines(1) == ["agent: 4"]
    interrupt()
    assert await tailing == 0
