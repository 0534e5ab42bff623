"""Clients that misbehave, each in its own way. They are bare TCP sockets: what they do is all that happens on them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace
from typing import Any, Literal

from websockets.frames import Opcode

from ..server.peers import Json, RawPeer, fresh, user, wire

__all__ = ["KINDS", "Frames", "Kind", "at", "sends", "zoo"]

Kind = Literal[
    "frozen", "slow", "silent", "half closed", "closing", "sends", "pings", "control pings", "pages", "opens",
    "bad frames", "half a frame", "fragments", "no hello", "half a request",
]  # fmt: skip
KINDS: tuple[Kind, ...] = (
    # Reads nothing of much; reads little of much; is caught up, and answers no ping.
    "frozen", "slow", "silent",
    # Says FIN, or close, and then neither reads nor closes.
    "half closed", "closing",
    # Say so without end, and never read the answers.
    "sends", "pings", "control pings", "pages", "opens", "bad frames",
    # Never come to the end of something.
    "half a frame", "fragments", "no hello", "half a request",
)  # fmt: skip
HELLO = wire(b'{"type":"hello"}')
PAUSE_S = 0.05


def at(port: int) -> Any:
    """Returns what stands for the server on a port, for `RawPeer.to`."""
    return SimpleNamespace(port=port)


def text(**frame: Any) -> bytes:
    return wire(json.dumps(frame).encode())


def sends(conversation: str, count: int) -> tuple[list[str], bytes]:
    """Returns the client ids and the bytes of so many sends."""
    ids = [fresh("f") for _ in range(count)]
    return ids, b"".join(
        text(type="send", conversation=conversation, clientId=client_id, message=user("x")) for client_id in ids
    )


class Frames:
    """Cuts the bytes of a server into frames."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, data: bytes) -> list[Json]:
        """Returns the text frames that are whole; pings and the like are left out."""
        data = self._left + data
        place, found = 0, []
        while len(data) - place >= 2:
            size, head = data[place + 1], 2
            if size >= 126:
                head = 4 if size == 126 else 10
                size = int.from_bytes(data[place + 2 : place + head], "big")
            if len(data) - place < head + size:
                break
            if data[place] == 0x81:
                found.append(json.loads(data[place + head : place + head + size]))
            place += head + size
        self._left = data[place:]
        return found


async def flood(peer: RawPeer, data: bytes) -> None:
    """Sends the same again and again, as fast as the server takes it, until there is no server."""
    with contextlib.suppress(OSError):
        while True:
            await peer.loop.sock_sendall(peer.sock, data)
            await asyncio.sleep(0)


async def trickle(peer: RawPeer, pieces: Sequence[bytes]) -> None:
    """Says something in pieces, with a pause behind each, over and over from the second one on."""
    with contextlib.suppress(OSError):
        await peer.loop.sock_sendall(peer.sock, pieces[0])
        while True:
            for piece in pieces[1:]:
                await asyncio.sleep(PAUSE_S)
                await peer.loop.sock_sendall(peer.sock, piece)


async def sip(peer: RawPeer) -> None:
    """Reads a little now and then."""
    with contextlib.suppress(OSError):
        while await peer.loop.sock_recv(peer.sock, 2048):  # noqa: ASYNC110
            await asyncio.sleep(PAUSE_S)


def endless(kind: Kind, conversation: str) -> bytes:
    """Returns what a flood of this kind consists of."""
    match kind:
        case "sends":
            return sends(conversation, 200)[1]
        case "pings":
            return text(type="ping", n=1) * 500
        case "control pings":
            return wire(b"p" * 100, Opcode.PING) * 500
        case "pages":
            return text(type="page", id="p", conversation=conversation, before=2**53 - 1) * 200
        case "opens":
            return text(type="open", conversation=conversation) * 200
        case _:
            return (text(type="nope") + text(type="ping", n=1)) * 200


@asynccontextmanager
async def animal(port: int, kind: Kind, conversation: str) -> AsyncIterator[RawPeer]:
    """Is one of them; `conversation` has far more rows than a socket takes."""
    greeted = kind not in ("no hello", "half a request")
    async with RawPeer.to(at(port), handshake=kind != "half a request", hello=greeted) as peer:
        doing: Any = None
        match kind:
            case "frozen" | "slow":
                await peer.text(type="open", conversation=conversation)
                doing = sip(peer) if kind == "slow" else None
            case "silent":
                await peer.text(type="open", conversation=conversation, tail=0)
            case "half closed":
                await peer.text(type="open", conversation=conversation)
                await peer.read()  # it is served, and has begun to lag
                peer.sock.shutdown(socket.SHUT_WR)
            case "closing":
                await peer.text(type="open", conversation=conversation)
                await peer.send(wire(b"\x03\xe8", Opcode.CLOSE))
            case "half a frame":
                doing = trickle(peer, [wire(b"x" * 60_000)[:10], b"x"])
            case "fragments":  # of one message, with pings between them
                more = wire(b" ", Opcode.CONT, fin=False)
                doing = trickle(peer, [wire(b" ", fin=False), more, wire(b"", Opcode.PING)])
            case "no hello":
                pass
            case "half a request":
                doing = trickle(peer, [b"GET /v1 HTTP/1.1\r\n", b"X: y\r\n"])
            case _:
                doing = flood(peer, endless(kind, conversation))
        task = None if doing is None else asyncio.create_task(doing)
        try:
            yield peer
        finally:
            if task is not None:
                task.cancel()
                await asyncio.wait({task})


@asynccontextmanager
async def zoo(
    port: int, conversation: str, *, kinds: Sequence[Kind] = KINDS
) -> AsyncIterator[list[RawPeer]]:
    """Is one of each kind, all connected at once."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(animal(port, kind, conversation)) for kind in kinds]
