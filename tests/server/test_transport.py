"""A transport that was closed while data waited, and has sent it, may be aborted like any other."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
from websockets.asyncio.client import connect

from parlatory.server import client_link
from parlatory.server.transport import Gone

from .peers import PROTOCOL, Peer, RawPeer, serving, the_connection, until

BIG = b"x" * (8 << 20)


class Plain(Gone):
    """Is a protocol that does nothing."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost = True


async def read_all(sock: socket.socket) -> int:
    """Says that there will be no more, and reads to the end."""
    sock.shutdown(socket.SHUT_WR)
    loop, size = asyncio.get_running_loop(), 0
    while data := await loop.sock_recv(sock, 1 << 20):
        size += len(data)
    return size


async def test_it_is_aborted_behind_its_end() -> None:
    near, far = socket.socketpair()
    with far:
        far.setblocking(False)
        transport, protocol = await asyncio.get_running_loop().create_connection(Plain, sock=near)
        transport.write(BIG)
        assert await read_all(far) == len(BIG)
        await until(lambda: protocol.lost)
        transport.abort()


async def test_a_transport_that_takes_no_attributes_is_left_as_it_is() -> None:
    class Sealed:
        __slots__ = ()

        def abort(self) -> None: ...

    protocol = Plain()
    protocol.connection_made(Sealed())
    protocol.connection_lost(None)
    protocol.transport.abort()


async def test_the_sockets_of_the_server_are_such(caplog: pytest.LogCaptureFixture) -> None:
    """The handler of websockets aborts it, and would fail."""
    async with serving() as server, Peer.admitted(server) as writer:
        await writer.fill("relay/x", ["x" * 100_000] * 80)
        async with RawPeer.to(server, hello=True) as peer:
            await peer.text(type="open", conversation="relay/x")
            connection = the_connection(server, writer)
            await until(lambda: not connection.writable)
            connection.transport.close()
            await read_all(peer.sock)
            await until(lambda: server.connections == 1)
            connection.transport.abort()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_the_sockets_of_the_client_are_such() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with serving() as server, RawPeer.to(server, handshake=False) as front:  # a server greets, this one reads
            await front.send(await reader.readuntil(b"\r\n\r\n"))
            writer.write(await front.read_until(b"\r\n\r\n"))
        writer.write_eof()
        while await reader.read(1 << 20):
            pass
        writer.close()
        await writer.wait_closed()
        served.set()

    served = asyncio.Event()
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        ws = await connect(
            f"ws://127.0.0.1:{port}/v1", subprotocols=[PROTOCOL], create_connection=client_link._Socket, proxy=None
        )
        ws.transport.write(BIG)
        await ws.wait_closed()
        ws.transport.abort()
        await ws.close()
        await served.wait()
