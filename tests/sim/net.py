"""A network in memory, below websockets: transports that carry real bytes between simulated processes.

Fault model. A connection is two pipes. Bytes of a pipe arrive in order, late, and cut into pieces of any size.
A pipe holds at most a window of bytes that the reader has not taken; behind it the writer's buffer grows, and
its protocol is told to pause. A reader may stall for as long as it likes. A connection may be *cut*: what is
under way is lost, and each end learns of it at some moment of its own, even after it has written more. Or it
turns *deaf*: from then on bytes and ends vanish in one or both directions, and nobody learns anything. A
connection of a killed process is cut or deaf. A host that does not listen refuses.

Unrealistic: bytes are never corrupted or reordered (TCP), and there are no limits on connections.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from .loop import SimLoop, Simulation

__all__ = ["Connection", "Network", "Transport"]

Tap = Callable[["Connection", bytes], None]


class Network:
    """Is all connections there are, and what they are like.

    Attributes:
        latency_s: the range of how long a piece takes.
        piece_bytes: the largest piece.
        window_bytes: how much a pipe holds.
        high_bytes: how much a writer's buffer holds before its protocol is paused, whatever it asks for.
        on_write: is called with what a server writes, when it does; `on_read` with what reaches a server.
    """

    def __init__(self, simulation: Simulation, *, tapped_write: Tap, tapped_read: Tap) -> None:
        choice = simulation.random.choice
        self.simulation = simulation
        self.latency_s = choice(((0.0, 0.0005), (0.0002, 0.01), (0.001, 0.2)))
        self.piece_bytes = choice((500, 3000, 1 << 16))
        # A slow line has a window that lets a page through between two beats: a client takes a silent one for dead.
        self.slow = self.latency_s[1] > 0.1
        self.window_bytes = choice((20_000, 1 << 20) if self.slow else (500, 8000, 1 << 20))
        self.high_bytes = choice((200, 3000, 1 << 16))
        self.on_write = tapped_write
        self.on_read = tapped_read
        self.connections: list[Connection] = []
        self.unreachable = False
        self._listeners: dict[int, Listener] = {}
        self._count = 0

    def latency(self) -> float:
        """Returns how long a piece takes."""
        return self.simulation.random.uniform(*self.latency_s)

    def listen(self, loop: SimLoop, factory: Callable[[], asyncio.Protocol], port: int) -> Listener:
        """Starts listening."""
        listener = self._listeners[port] = Listener(self, loop, factory, port)
        return listener

    def deaf_to(self, listener: Listener) -> None:
        """Stops listening."""
        if self._listeners.get(listener.port) is listener:
            del self._listeners[listener.port]

    async def connect(
        self, loop: SimLoop, factory: Callable[[], asyncio.Protocol], port: int
    ) -> tuple[Transport, asyncio.Protocol]:
        """Connects to whoever listens."""
        await asyncio.sleep(self.latency() * 2)
        if self.unreachable:
            await loop.create_future()
        listener = self._listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(111, "Connection refused")
        self._count += 1
        connection = Connection(self, self._count, loop, listener.loop)
        self.connections.append(connection)
        listener.accept(connection.server)
        protocol = factory()
        made = loop.create_future()
        loop.call_soon(connection.client.begin, protocol, made)
        await made
        return connection.client, protocol

    def forget(self, connection: Connection) -> None:
        """Takes a connection out that both ends have let go."""
        if connection in self.connections:
            self.connections.remove(connection)

    def kill(self, loop: SimLoop) -> None:
        """Takes a process off the network, as its death does: its peers are told, or never."""
        for listener in list(self._listeners.values()):
            if listener.loop is loop:
                self.deaf_to(listener)
        for connection in list(self.connections):
            if connection.server.loop is loop:
                connection.server.gone = True
                if self.simulation.random.random() < 0.8:
                    connection.client.lose(self.latency(), ConnectionResetError(104, "Connection reset by peer"))
                else:
                    connection.client.out.deaf = True
                connection.server.out.deaf = True
                if connection.client.gone:
                    self.forget(connection)


class Listener(asyncio.AbstractServer):
    """Is a listening socket, as websockets uses it."""

    family = socket.AF_INET

    def __init__(self, network: Network, loop: SimLoop, factory: Callable[[], asyncio.Protocol], port: int) -> None:
        self.network = network
        self.loop = loop
        self.port = port
        self._factory = factory
        self._serving = True

    @property
    def sockets(self) -> tuple[Any, ...]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    def fileno(self) -> int:
        """Names no file: the loop has no readers either."""
        return -1

    def setsockopt(self, *_: int) -> None:
        """Takes options of TCP, of which nothing is simulated."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        """Does so from the start."""

    async def serve_forever(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._serving = False
        self.network.deaf_to(self)

    async def wait_closed(self) -> None:
        """Returns at once, as Python 3.11 does."""

    def accept(self, transport: Transport) -> None:
        """Hands a connection to the protocol, after a while."""

        def begin() -> None:
            if not self._serving:
                transport.gone = True
                transport.connection.client.lose(0, ConnectionResetError(104, "Connection reset by peer"))
            elif not transport.gone:
                transport.begin(self._factory(), None)

        self.loop.call_later(self.network.latency(), begin)


class Pipe:
    """Is one direction of a connection."""

    def __init__(self) -> None:
        self.reader: Transport
        self.writer: Transport
        # What the writer holds, because the window is full; then whether nothing follows.
        self.buffer = bytearray()
        self.eof = False
        self.eof_sent = False
        # Bytes on their way or arrived and not taken.
        self.window = 0
        self.last_at = 0.0
        self.arrived: deque[bytes | None] = deque()
        self.deaf = False


class Connection:
    """Is two pipes between a client and a server."""

    def __init__(self, network: Network, number: int, client: SimLoop, server: SimLoop) -> None:
        up, down = Pipe(), Pipe()
        self.network = network
        self.number = number
        self.client = Transport(self, client, out=up, into=down)
        self.server = Transport(self, server, out=down, into=up)

    def cut(self) -> None:
        """Cuts the connection; each end learns of it at some moment."""
        random = self.network.simulation.random
        for end in (self.client, self.server):
            end.out.deaf = True
            end.lose(
                random.choice((0.0, 0.01, 1.0)) * random.random(), ConnectionResetError(104, "Connection reset by peer")
            )

    def deafen(self, *, up: bool, down: bool) -> None:
        """Makes what is written vanish, silently."""
        self.client.out.deaf |= up
        self.server.out.deaf |= down


class Transport(asyncio.Transport):
    """Is one end of a connection."""

    def __init__(self, connection: Connection, loop: SimLoop, *, out: Pipe, into: Pipe) -> None:
        super().__init__()
        self.connection = connection
        self.network = connection.network
        self.loop = loop
        self.out = out
        self.into = into
        out.writer = into.reader = self
        # The application does not read, for a while.
        self.stalled = False
        # The protocol has been told, or its process is dead.
        self.gone = False
        self._protocol: asyncio.Protocol
        self._begun = False
        self._closing = False
        self._paused_reading = False
        self._paused_writing = False
        self._is_server = False

    def begin(self, protocol: asyncio.Protocol, made: asyncio.Future[None] | None) -> None:
        """Hands the connection to its protocol."""
        self._protocol = protocol
        self._begun = True
        self._is_server = made is None
        protocol.connection_made(self)
        self.loop.call_soon(self._take)
        if made is not None and not made.done():
            made.set_result(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        number = self.connection.number
        return {"peername": (f"10.0.0.{number}", 4000 + number), "sockname": ("127.0.0.1", 1)}.get(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # -- writing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keeps to the limits of the network: a protocol cannot tell them from its own but by their being small."""

    def get_write_buffer_size(self) -> int:
        return len(self.out.buffer)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.gone or self.out.eof:
            return
        if self._is_server:
            self.network.on_write(self.connection, bytes(data))
        self.out.buffer += data
        self._flush()
        if len(self.out.buffer) > self.network.high_bytes and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self.out.eof:
            self.out.eof = True
            self._flush()

    def _flush(self) -> None:
        """Sends as much as the window takes."""
        pipe = self.out
        while pipe.buffer and pipe.window < self.network.window_bytes:
            room = self.network.window_bytes - pipe.window
            size = min(room, self.network.simulation.random.randint(1, self.network.piece_bytes))
            piece = bytes(pipe.buffer[:size])
            del pipe.buffer[:size]
            pipe.window += len(piece)
            self._send(piece)
        if pipe.eof and not pipe.buffer and not pipe.eof_sent:
            pipe.eof_sent = True
            self._send(None)
        if self._paused_writing and len(pipe.buffer) <= self.network.high_bytes // 4 and not self.gone:
            self._paused_writing = False
            self._protocol.resume_writing()
        if self._closing and not pipe.buffer:
            self._end(None)

    def _send(self, piece: bytes | None) -> None:
        pipe = self.out
        if pipe.deaf or pipe.reader.loop.is_closed():
            return  # the window fills up and stays full
        pipe.last_at = max(pipe.last_at + 1e-7, self.loop.time() + self.network.latency())
        pipe.reader.loop.call_at(pipe.last_at, pipe.reader._arrive, piece)

    # -- reading

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        self._paused_reading = False
        self.loop.call_soon(self._take)

    def is_reading(self) -> bool:
        return not self._paused_reading and not self._closing

    def stall(self, stalled: bool) -> None:
        """Makes the application stop reading, or go on."""
        self.stalled = stalled
        if not stalled and not self.gone and self._begun:
            self.loop.call_soon(self._take)

    def _arrive(self, piece: bytes | None) -> None:
        if self.into.deaf:
            return
        if self.gone:
            if piece:  # the kernel of a closed socket says so
                self.into.writer.lose(self.network.latency(), ConnectionResetError(104, "Connection reset by peer"))
            return
        self.into.arrived.append(piece)
        self._take()

    def _take(self) -> None:
        """Hands one piece to the protocol; the next one in a step of its own."""
        pipe = self.into
        if not pipe.arrived or self.stalled or self._paused_reading or self._closing or self.gone or not self._begun:
            return
        piece = pipe.arrived.popleft()
        if piece is None:
            if not self._protocol.eof_received():
                self.close()
            return
        pipe.window -= len(piece)
        if not pipe.writer.gone:
            pipe.writer.loop.call_later(self.network.latency(), pipe.writer._taken)
        if self._is_server:
            self.network.on_read(self.connection, piece)
        self._protocol.data_received(piece)
        if pipe.arrived:
            self.loop.call_soon(self._take)

    def _taken(self) -> None:
        if not self.gone:
            self._flush()

    # -- the end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self.out.eof:
                self.out.eof = True
            if not self.out.buffer:
                self._flush()

    def abort(self) -> None:
        if not self.gone:
            self._closing = True
            self.out.buffer.clear()
            if self.network.simulation.random.random() < 0.5:  # the kernel had taken what is under way
                self._send(None)
            elif not self.out.deaf:
                self.out.deaf = True
                self.out.reader.lose(self.network.latency(), ConnectionResetError(104, "Connection reset by peer"))
            self._end(None)

    def lose(self, delay_s: float, error: Exception) -> None:
        """Makes this end learn that the connection is lost."""

        def learn() -> None:
            if not self.gone and not self.loop.dead:
                self._closing = True
                self.out.buffer.clear()
                self._end(error)

        if not self.loop.is_closed():
            self.loop.call_later(delay_s, learn)

    def _end(self, error: Exception | None) -> None:
        if not self.gone:
            self.gone = True
            if self.out.reader.gone:
                self.network.forget(self.connection)
            if self._begun:
                self.loop.call_soon(self._protocol.connection_lost, error)
