"""A server in this process, and bare clients of it: no code of the product stands between a test and the wire."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Origin, Subprotocol

from parlatory.actors import Agent, Runtime
from parlatory.server import Limits, Server, serve
from parlatory.server.connection import Connection
from parlatory.storage import Engine, StoredMessage, open_engine

__all__ = [
    "CLIENT",
    "DEADLINE_S",
    "HANDSHAKE",
    "PROTOCOL",
    "Echo",
    "Json",
    "Peer",
    "RawPeer",
    "Relay",
    "fresh",
    "history",
    "later",
    "on_disk",
    "request",
    "serving",
    "the_connection",
    "until",
    "user",
    "wire",
]

Json = dict[str, Any]
DEADLINE_S = 10.0
PROTOCOL = Subprotocol("parlatory.v1")
CLIENT = "c" * 22
_ids = itertools.count(1)


class Relay(Agent):
    """Rows in, rows out."""


class Echo(Agent):
    """Answers."""

    async def on_message(self, row: StoredMessage) -> None:
        await self.say(f"echo: {row.text}")


@asynccontextmanager
async def serving(
    *agents: type[Agent],
    engine: Engine | None = None,
    limits: Limits | None = None,
    idle_timeout_s: float = 60,
    port: int = 0,
    **options: Any,
) -> AsyncIterator[Server]:
    """Serves agents, on a free port unless it is named; closes at once at the end."""
    runtime = Runtime(engine or await open_engine("memory:"), agents or (Relay, Echo), idle_timeout_s=idle_timeout_s)
    async with runtime, serve(runtime, port=port, limits=limits, **options) as server:
        yield server


async def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Waits for what has no event of its own: the insides of a server in the same loop."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def the_connection(server: Server, but: Peer | None = None) -> Connection:
    """Returns the one connection of a server, or the one beside that of a peer."""
    others = [one for one in server._connections if but is None or str(one.id) != but.seen[0]["connection"]]
    assert len(others) == 1
    return others[0]


@asynccontextmanager
async def on_disk(data: Path, *agents: type[Agent], **options: Any) -> AsyncIterator[Server]:
    """Serves agents whose conversations are in a folder."""
    async with serving(*agents, engine=await open_engine(f"sqlite:///{data}"), **options) as server:
        yield server


async def history(server: Server, conversation: str) -> list[Json]:
    """Returns all rows of a conversation, by pages."""
    rows: list[Json] = []
    async with Peer.admitted(server) as peer:
        while not rows or rows[0]["seq"] > 1:
            answer = await peer.page(conversation, **({"before": rows[0]["seq"]} if rows else {}))
            rows[:0] = answer["rows"]
            if not answer["more"]:
                break
    return rows


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def fresh(prefix: str) -> str:
    return f"{prefix}{next(_ids)}"


class Peer:
    """Is a WebSocket client. Frames wait in `inbox` until they are asked for; `seen` keeps all of them."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.inbox: list[Json] = []
        self.seen: list[Json] = []

    @classmethod
    @asynccontextmanager
    async def to(cls, server: Server | str, *, origin: str | None = None, headers: Any = None) -> AsyncIterator[Self]:
        url = server if isinstance(server, str) else server.url
        connection = await connect(
            url,
            subprotocols=[PROTOCOL],
            origin=None if origin is None else Origin(origin),
            additional_headers=headers,
            compression=None,
            max_size=None,
            max_queue=None,
            ping_interval=None,
            close_timeout=1,
            proxy=None,
        )
        try:
            yield cls(connection)
        finally:
            if connection.protocol.state is not State.CLOSED:
                await connection.close()

    @classmethod
    @asynccontextmanager
    async def admitted(cls, server: Server | str, **hello: Any) -> AsyncIterator[Self]:
        async with cls.to(server) as peer:
            await peer.hello(**hello)
            yield peer

    async def hello(self, **hello: Any) -> Json:
        await self.send(type="hello", **({"client": CLIENT} | hello))
        return await self.get("welcome")

    async def send(self, **frame: Any) -> None:
        await self.connection.send(json.dumps(frame))

    async def post(self, conversation: str, message: Json | str, client_id: str | None = None) -> str:
        client_id = client_id or fresh("m")
        body = user(message) if isinstance(message, str) else message
        await self.send(type="send", conversation=conversation, clientId=client_id, message=body)
        return client_id

    async def say(self, conversation: str, message: Json | str, client_id: str | None = None) -> Json:
        return await self.get("ack", "error", clientId=await self.post(conversation, message, client_id))

    async def fill(self, conversation: str, texts: Iterable[str]) -> None:
        for text in texts:
            assert (await self.say(conversation, text))["type"] == "ack"

    async def open(self, conversation: str, **position: Any) -> Json:
        await self.send(type="open", conversation=conversation, **position)
        return await self.get("opened", "reset", "error", conversation=conversation)

    async def page(self, conversation: str, before: int = 2**53 - 1, **options: Any) -> Json:
        page = fresh("p")
        await self.send(type="page", id=page, conversation=conversation, before=before, **options)
        return await self.get("page", "error", id=page)

    async def barrier(self) -> None:
        n = next(_ids)
        await self.send(type="ping", n=n)
        await self.get("pong", n=n)

    async def get(self, *types: str, **match: Any) -> Json:
        """Returns, and takes, the first frame of one of these types that matches."""
        for index, frame in enumerate(self.inbox):
            if _matches(frame, types, match):
                return self.inbox.pop(index)
        async with asyncio.timeout(DEADLINE_S):
            while True:
                frame = await self.receive()
                if _matches(frame, types, match):
                    return frame
                self.inbox.append(frame)

    async def receive(self) -> Json:
        frame: Json = json.loads(await self.connection.recv())
        self.seen.append(frame)
        return frame

    async def live(self, conversation: str) -> list[int]:
        """Returns the seqs that came up to the next `live`."""
        await self.get("live", conversation=conversation)
        seqs = self.seqs(conversation)
        self.inbox = [one for one in self.inbox if not _matches(one, ("rows",), {"conversation": conversation})]
        return seqs

    async def row(self, conversation: str, seq: int) -> None:
        """Waits for a row."""
        async with asyncio.timeout(DEADLINE_S):
            while seq not in self.seqs(conversation):
                self.inbox.append(await self.receive())

    def seqs(self, conversation: str) -> list[int]:
        """Returns the seqs of the rows in the inbox, as they came."""
        rows = [one["rows"] for one in self.inbox if _matches(one, ("rows",), {"conversation": conversation})]
        return [row["seq"] for run in rows for row in run]

    async def closed(self) -> int | None:
        """Waits for the end; returns the close code."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while True:
                    self.inbox.append(await self.receive())
            except ConnectionClosed:
                return self.connection.close_code

    async def refused(self, code: int) -> None:
        """Waits for the end by the server: `bye`, last, and the close code."""
        assert await self.closed() == code
        assert (self.seen[-1]["type"], self.seen[-1]["code"]) == ("bye", code)


def _matches(frame: Json, types: tuple[str, ...], match: Json) -> bool:
    return frame["type"] in types and all(frame.get(key) == value for key, value in match.items())


HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: parlatory.v1\r\n{headers}\r\n"
)


class RawPeer:
    """Is a TCP socket that speaks WebSocket as badly as a test wants. It reads only when it is told to."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.loop = asyncio.get_running_loop()
        self._left = b""

    @classmethod
    @asynccontextmanager
    async def to(
        cls, server: Server, *, behind: bytes = b"", handshake: bool = True, hello: bool = False
    ) -> AsyncIterator[Self]:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with sock:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
            peer = cls(sock)
            if handshake:
                await peer.send(HANDSHAKE.format(path="/v1", headers="").encode() + behind)
                await peer.read_until(b"\r\n\r\n")
            if hello:
                await peer.text(type="hello")
                await peer.read_until(b'"boot":"')
                await peer.read_until(b"}")
            yield peer

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self.loop.sock_sendall(self.sock, data)

    async def text(self, **frame: Any) -> None:
        await self.send(wire(json.dumps(frame).encode()))

    async def read(self) -> bytes:
        """Returns what there is, at least something; nothing at the end."""
        if self._left:
            data, self._left = self._left, b""
            return data
        async with asyncio.timeout(DEADLINE_S):
            return await self.loop.sock_recv(self.sock, 65536)

    async def read_until(self, end: bytes) -> bytes:
        """Returns everything up to some bytes, those included."""
        data = bytearray()
        start = 0
        while (found := data.find(end, start)) < 0:
            start = max(0, len(data) - len(end))
            more = await self.read()
            assert more, data[-1000:]
            data += more
        found += len(end)
        self._left = bytes(data[found:])
        return bytes(data[:found])

    async def read_to_end(self) -> bytes:
        data = bytearray()
        try:
            while more := await self.read():
                data += more
        except ConnectionError:
            pass
        return bytes(data)


def wire(payload: bytes, opcode: Opcode = Opcode.TEXT, fin: bool = True) -> bytes:
    """A frame of a client."""
    return Frame(opcode, payload, fin).serialize(mask=True)


async def request(
    server: Server, path: str, headers: str = "", method: str = "GET", host: str = "x"
) -> tuple[int, str]:
    """Makes a plain HTTP request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1]), answer.partition("\r\n\r\n")[2]
