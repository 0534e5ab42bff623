"""A scripted peer of the client over a real socket, for what a real server does not do on demand; and its own tests.

What is unrealistic about it: it answers in the same step and commits nothing, so an ack never waits and never comes
before its row; it authenticates nobody; no agent answers, and nothing runs that a `cancel` could stop; it tells no
presence; all clients are the principal `me`; a `page` has no limit. What it shares with a server is the wire:
`websockets` writes and reads it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import connect
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

__all__ = ["Frame", "Peer", "peer"]

Frame = dict[str, Any]
PROTOCOL = Subprotocol("parlatory.v1")
LIMITS = {"frame": 4 << 20, "message": 1 << 20, "inflight": 32, "conversations": 32, "page": 200}


class Peer:
    """Says what a server says, unless the test replaced the answer to a type of frame in `on`."""

    def __init__(self) -> None:
        self.url = ""
        self.epoch = "e1"
        self.logs: dict[str, list[Frame]] = {}
        self.subscribers: dict[str, set[ServerConnection]] = {}
        self.sockets: list[ServerConnection] = []
        self.frames: list[Frame] = []
        self.limits = dict(LIMITS)
        self.beat_ms = 60_000
        # Answers in place of the own ones, by type of frame; they get the socket and the frame.
        self.on: dict[str, Callable[[ServerConnection, Frame], object]] = {}
        # Close codes for the next sockets, in place of a welcome.
        self.closings: list[int] = []
        self._closing: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self.server: Server | None = None

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for something that a frame brings about."""
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def of(self, type: str) -> list[Frame]:
        """The frames of a type that came so far."""
        return [frame for frame in self.frames if frame["type"] == type]

    def append(self, conversation: str, text: str, by: str = "agent", **fields: object) -> int:
        """Appends a row and tells it."""
        log = self.logs.setdefault(conversation, [])
        seq = len(log) + 1
        role = "assistant" if by == "agent" else "user"
        message = {"role": role, "content": text}
        log.append({"seq": seq, "at": f"2026-11-30T00:00:00.{seq:06}Z", "by": by, "message": message, **fields})
        for socket in self.subscribers.get(conversation, set()):
            self.say(socket, "rows", conversation=conversation, epoch=self.epoch, rows=[log[-1]])
        return seq

    def say(self, socket: ServerConnection, type: str, **fields: object) -> None:
        socket.protocol.send_text(json.dumps({"type": type, **fields}).encode())
        socket.send_data()

    def tell(self, type: str, **fields: object) -> None:
        """Says something on the newest socket."""
        self.say(self.sockets[-1], type, **fields)

    def cut(self) -> None:
        """The network goes away under every socket."""
        for socket in self.sockets:
            socket.transport.abort()

    def close(self, socket: ServerConnection, code: int) -> None:
        self._closing.append(asyncio.ensure_future(socket.close(code)))

    async def handle(self, socket: ServerConnection) -> None:
        self.sockets.append(socket)
        try:
            async for data in socket:
                frame = json.loads(data)
                self.frames.append(frame)
                answer = self.on.get(frame["type"]) or getattr(self, f"on_{frame['type']}")
                answer(socket, frame)
                self._changed.set()
        except ConnectionClosed:
            pass
        finally:
            self.sockets.remove(socket)
            for subscribers in self.subscribers.values():
                subscribers.discard(socket)
            self._changed.set()

    def on_hello(self, socket: ServerConnection, frame: Frame) -> None:
        if self.closings:
            self.close(socket, self.closings.pop(0))
            return
        self.say(
            socket,
            "welcome",
            version="0",
            connection="k",
            principal="me",
            beatMs=self.beat_ms,
            limits=self.limits,
            boot="b",
        )

    def on_open(self, socket: ServerConnection, frame: Frame) -> None:
        conversation = frame["conversation"]
        log = self.logs.setdefault(conversation, [])
        known, start = "epoch" in frame, frame.get("after", 0)
        good = not known or (frame["epoch"] == self.epoch and start <= len(log))
        if not known or not good:
            start = max(len(log) - frame["tail"], 0) if "tail" in frame else 0
        place: Frame = {"conversation": conversation, "epoch": self.epoch, "floor": 0, "head": len(log), "from": start}
        reason = {} if good else {"reason": "epoch"}
        self.say(socket, "opened" if good else "reset", **place, turn={"state": "idle"}, **reason)
        for first in range(start, len(log), 200):
            self.say(socket, "rows", conversation=conversation, epoch=self.epoch, rows=log[first : first + 200])
        self.say(socket, "live", conversation=conversation, seq=len(log))
        self.subscribers.setdefault(conversation, set()).add(socket)

    def on_close(self, socket: ServerConnection, frame: Frame) -> None:
        self.subscribers.get(frame["conversation"], set()).discard(socket)

    def commit(self, frame: Frame) -> tuple[int, bool]:
        """Appends what a client sent, unless it is there; returns its seq, and whether it was."""
        conversation = frame["conversation"]
        for row in self.logs.get(conversation, []):
            if row.get("clientId") == frame["clientId"]:
                return int(row["seq"]), True
        text = frame["message"]["content"]
        return self.append(conversation, text, "me", clientId=frame["clientId"]), False

    def on_send(self, socket: ServerConnection, frame: Frame) -> None:
        seq, known = self.commit(frame)
        self.say(
            socket, "ack", conversation=frame["conversation"], clientId=frame["clientId"], seq=seq, duplicate=known
        )

    def on_page(self, socket: ServerConnection, frame: Frame) -> None:
        rows = [row for row in self.logs.get(frame["conversation"], []) if row["seq"] < frame["before"]]
        page = rows[-frame.get("limit", 200) :]
        more = len(page) < len(rows)
        fields = {"id": frame["id"], "conversation": frame["conversation"], "epoch": self.epoch}
        self.say(socket, "page", **fields, rows=page, more=more)

    def on_signal(self, socket: ServerConnection, frame: Frame) -> None:
        for other in self.subscribers.get(frame["conversation"], set()) - {socket}:
            self.say(other, **frame, by="me")

    def on_cancel(self, socket: ServerConnection, frame: Frame) -> None:
        """Nothing runs."""

    def on_ping(self, socket: ServerConnection, frame: Frame) -> None:
        self.say(socket, "pong", n=frame["n"])


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    """Serves a peer on a free port of this machine."""
    made = Peer()
    server = await serve(
        made.handle, "127.0.0.1", 0, subprotocols=[PROTOCOL], compression=None, ping_interval=None, max_size=16 << 20
    )
    made.server = server
    made.url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}/v1"
    try:
        yield made
    finally:
        made.cut()
        await asyncio.gather(*made._closing, return_exceptions=True)
        server.close()
        await server.wait_closed()


async def test_the_peer_speaks_the_protocol() -> None:
    async with peer() as made, connect(made.url, subprotocols=[PROTOCOL]) as socket, asyncio.timeout(10):

        async def ask(type: str, **fields: object) -> None:
            await socket.send(json.dumps({"type": type, **fields}))

        async def told() -> Frame:
            frame: Frame = json.loads(await socket.recv())
            return frame

        made.append("echo/a", "one")
        await ask("hello")
        assert (await told())["type"] == "welcome"
        await ask("open", conversation="echo/a", tail=1)
        assert [(await told())["type"] for _ in range(3)] == ["opened", "rows", "live"]
        for known in (False, True):
            await ask("send", conversation="echo/a", clientId="m", message={"role": "user", "content": "two"})
            if not known:
                assert (await told())["rows"][0]["seq"] == 2
            ack = await told()
            assert (ack["seq"], ack["duplicate"]) == (2, known)
        await ask("page", id="1", conversation="echo/a", before=2, limit=5)
        page = await told()
        assert (len(page["rows"]), page["more"]) == (1, False)
        await ask("open", conversation="echo/a", epoch="other", after=0)
        assert [(await told())["type"] for _ in range(3)] == ["reset", "rows", "live"]
        await ask("ping", n=3)
        assert (await told())["n"] == 3
