"""Whatever a client sends: every text is answered or the socket closes as the protocol says, and the server lives on.

5,000 frames here; `make hostile` sends 200,000.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from parlatory.actors import Runtime
from parlatory.server import Server, serve
from parlatory.server.loading import load_application
from parlatory.server.transport import Gone
from parlatory.storage import open_engine

from .frames import payloads

FRAMES = int(os.environ.get("PARLATORY_HOSTILE_FRAMES", "5000"))
PER_SOCKET = 25
CLOSES = {1003, 1007, 1009, 4400, 4401}
ECHO = Path(__file__).parents[2] / "examples" / "echo.py"


class Client(Gone, ClientConnection):
    """Is a client that may be aborted behind its end."""


OPTIONS: dict[str, Any] = {
    "subprotocols": [Subprotocol("parlatory.v1")],
    "compression": None,
    "proxy": None,
    "create_connection": Client,
}


class Target:
    """Is a server in this process, on a loop that runs while a test talks to it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(self._on_fault)
        self.faults: list[Any] = []
        self.sent = 0

    def _on_fault(self, _loop: object, context: dict[str, Any]) -> None:
        self.faults.append(context)

    async def start(self) -> None:
        application = load_application(str(ECHO))
        self.runtime = Runtime(await open_engine("memory:"), application.agents, idle_timeout_s=0.05)
        await self.runtime.__aenter__()
        self.server: Server = await serve(
            self.runtime, port=0, authenticate=application.authenticate, authorize=application.authorize
        )

    async def stop(self) -> None:
        await self.server.close(0)
        await self.runtime.close()
        own = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
        assert not own, f"tasks are left: {own}"

    async def attack(self, frames: list[tuple[bytes, bool]]) -> None:
        async with connect(self.server.url, max_size=None, ping_interval=None, close_timeout=1, **OPTIONS) as socket:
            with contextlib.suppress(ConnectionClosed):
                await socket.send(json.dumps({"type": "hello"}))
                await self._expect(socket, "welcome")
                for data, text in frames:
                    socket.transport.write(Frame(Opcode.TEXT if text else Opcode.BINARY, data).serialize(mask=True))
                    self.sent += 1
                await socket.send(json.dumps({"type": "ping", "n": 987654}))
                await self._expect(socket, "pong", n=987654)
                return
        assert socket.close_code in CLOSES, f"closed with {socket.close_code}"

    async def _expect(self, socket: ClientConnection, kind: str, **match: Any) -> None:
        async with asyncio.timeout(20):
            while True:
                frame = json.loads(await socket.recv())
                if frame["type"] == kind and match.items() <= frame.items():
                    return


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    target = Target()
    target.loop.run_until_complete(target.start())
    yield target
    target.loop.run_until_complete(target.stop())
    target.loop.close()


@pytest.mark.timeout(60 + FRAMES // 50)
@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # or that is all one learns of a failure
def test_no_frame_harms_the_server(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    @settings(max_examples=FRAMES // PER_SOCKET, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(st.tuples(payloads, st.integers(0, 60).map(bool)), min_size=PER_SOCKET, max_size=PER_SOCKET))
    def attack(frames: list[tuple[bytes, bool]]) -> None:
        caplog.clear()
        target.loop.run_until_complete(target.attack(frames))
        assert not target.faults, target.faults
        errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
        # `/fail` makes the handler of echo fail, which is logged; nothing else may be.
        assert not [one for one in errors if not one.getMessage().startswith("the handler of 'echo/")], errors

    attack()
    assert target.sent >= FRAMES
