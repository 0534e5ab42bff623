"""A server in a process of its own, so that its memory is its own, with small limits.

    python child.py DATA LIMITS

Serves `relay` and `echo` on DATA with LIMITS (JSON). Answers each line of its input with what it knows of itself, as
JSON; at the end of the input, or at SIGTERM, it closes and leaves with 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from parlatory import Agent, Runtime, open_engine, serve
from parlatory.server import Limits
from parlatory.storage import StoredMessage

__all__ = ["Child", "child"]

START_S = 20.0
STOP_S = 20.0


class Child:
    """Is the process, seen from outside."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"ws://127.0.0.1:{port}/v1"

    async def stats(self) -> dict[str, Any]:
        """Asks it what it knows of itself."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(b"\n")
        async with asyncio.timeout(START_S):
            stats: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return stats

    async def until(self, **wanted: int) -> dict[str, Any]:
        """Waits until it says so."""
        async with asyncio.timeout(START_S):
            while not wanted.items() <= (stats := await self.stats()).items():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        return stats

    def resident(self) -> int:
        """Returns how much memory it has now, and forgets how much it had at most."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")
        return self._status("VmRSS")

    def peak(self) -> int:
        """Returns how much memory it had at most since `resident`."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return int(re.findall(rf"{name}:\s+(\d+)", text)[0]) * 1024


@asynccontextmanager
async def child(data: Path, **limits: float) -> AsyncIterator[Child]:
    """Runs it; it must leave with 0."""
    arguments = [__file__, str(data), json.dumps(limits)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE)
    try:
        assert process.stdin is not None and process.stdout is not None
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        yield Child(process, int(line))
        process.stdin.close()
        async with asyncio.timeout(STOP_S):
            assert await process.wait() == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Relay(Agent):
    """Rows in, rows out."""


class Echo(Agent):
    """Answers."""

    async def on_message(self, row: StoredMessage) -> None:
        await self.say(f"echo: {row.text}")


async def main(data: str, limits: str) -> None:
    """Is the child."""
    loop = asyncio.get_running_loop()
    engine = await open_engine(f"sqlite:///{data}")
    async with Runtime(engine, [Relay, Echo]) as runtime:
        server = await serve(runtime, port=0, limits=Limits(**json.loads(limits)))
        closing = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, closing.set)
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        print(server.port, flush=True)  # noqa: T201
        asking = asyncio.create_task(_answer(lines, server, closing))
        await closing.wait()
        asking.cancel()
        await server.close(0)


async def _answer(lines: asyncio.StreamReader, server: Any, closing: asyncio.Event) -> None:
    while await lines.readline():
        reaper = server.reaper
        names = ("stalled", "silent", "dribbling", "lingering")
        stats = {name: getattr(reaper, name) for name in names} | {"connections": server.connections}
        print(json.dumps(stats), flush=True)  # noqa: T201
    closing.set()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
