"""A TCP proxy that misbehaves, between real clients and a real server.

What it does to a connection, in either direction:

- `split`  passes the next bytes one by one;
- `delay`  holds everything back for a moment;
- `cut`    ends both sides with a reset, and loses what was on its way;
- `close`  ends both sides with an orderly FIN, also in the middle of a frame;
- `half`   says FIN in this direction only, and swallows what comes behind it; the other direction goes on;
- `hole`   passes nothing more in this direction, and tells nobody.

Where it does so is counted in bytes that a direction has passed, so that a seed names the places. How bytes are cut
into reads is up to the kernel: a seed repeats the plan, not each interleaving.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal, NamedTuple

__all__ = ["FAULTS", "Fault", "FaultName", "Link", "Pipe", "Proxy"]

FaultName = Literal["split", "delay", "cut", "close", "half", "hole"]
FAULTS: tuple[FaultName, ...] = ("split", "delay", "cut", "close", "half", "hole")
READ_BYTES = 65_536
SPLIT_BYTES = 300
DELAY_S = (0.001, 0.05)
RESET = struct.pack("ii", 1, 0)  # close() sends RST instead of FIN
FOR_EVER = 1 << 62


class Fault(NamedTuple):
    """Is what happens to a direction once so many bytes of it have passed."""

    after: int
    name: FaultName


class Pipe:
    """Is one direction of a connection: what comes out of `source` goes into `sink`."""

    def __init__(self, link: Link, source: socket.socket, sink: socket.socket, plan: Iterator[Fault]) -> None:
        self.link = link
        self.source = source
        self.sink = sink
        # Bytes passed.
        self.passed = 0
        # Passes while it is set.
        self.open = asyncio.Event()
        self.open.set()
        # FIN was said to the sink: what still comes is swallowed.
        self.finished = False
        self._plan = plan
        self._next = next(plan, Fault(FOR_EVER, "cut"))
        self._split_left = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self.source, READ_BYTES):
                await self._pass(data)
        except OSError:
            self.link.cut()  # a reset travels on
            return
        await self.open.wait()
        self.finish()

    def finish(self) -> None:
        """Says FIN to the sink."""
        if not self.finished:
            self.finished = True
            with contextlib.suppress(OSError):
                self.sink.shutdown(socket.SHUT_WR)

    async def _pass(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        while data:
            await self.open.wait()
            if self.finished:
                return
            left = self._next.after - self.passed
            if left <= 0:
                fault, self._next = self._next, next(self._plan, Fault(FOR_EVER, "cut"))
                await self._misbehave(fault.name)
                continue
            size = min(left, 1 if self._split_left else len(data))
            await loop.sock_sendall(self.sink, data[:size])
            self.passed += size
            self._split_left = max(0, self._split_left - size)
            data = data[size:]

    async def _misbehave(self, name: FaultName) -> None:
        self.link.proxy.done.append(name)
        match name:
            case "split":
                self._split_left = SPLIT_BYTES
            case "delay":
                await asyncio.sleep(self.link.proxy.rng.uniform(*DELAY_S))
            case "cut":
                self.link.cut()
            case "close":
                self.link.close()
            case "half":
                self.finish()
            case "hole":
                self.open.clear()
        await asyncio.sleep(0)  # to be cancelled here, if it is to be


class Link:
    """Is one connection through the proxy: `up` to the server, `down` to the client."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.ended = asyncio.Event()
        self._sockets = client, server
        self.up = Pipe(self, client, server, proxy.plan())
        self.down = Pipe(self, server, client, proxy.plan())
        self._tasks = [asyncio.create_task(pipe.run()) for pipe in (self.up, self.down)]
        self._reaper = asyncio.create_task(self._reap())

    async def _reap(self) -> None:
        """Lets the sockets go once both directions have come to their end."""
        await asyncio.wait(self._tasks)
        for sock in self._sockets:
            sock.close()
        self.ended.set()

    def cut(self) -> None:
        """Resets both sides."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.close()

    def close(self) -> None:
        """Closes both sides."""
        for task in self._tasks:
            task.cancel()

    async def wait_ended(self) -> None:
        await asyncio.wait({self._reaper})


class Proxy:
    """Listens on a port of its own and connects onward to `port`.

    Attributes:
        url: where clients connect to instead.
        links: all connections there ever were, oldest first.
        done: what it has done to them, in order.
        onward: the port of the server; may change.
        calm: set to make no more faults.
    """

    def __init__(self, port: int, seed: int, names: Sequence[FaultName], every_bytes: int) -> None:
        self.rng = random.Random(seed)
        self.links: list[Link] = []
        self.done: list[FaultName] = []
        self.url = ""
        self.port = 0
        self.calm = False
        self.onward = port
        self._names = names
        self._every_bytes = every_bytes

    @classmethod
    @asynccontextmanager
    async def to(
        cls, port: int, *, seed: int = 0, names: Sequence[FaultName] = (), every_bytes: int = 20_000
    ) -> AsyncIterator[Proxy]:
        """Runs a proxy whose faults, if it has `names` of some, lie `every_bytes` apart in the mean."""
        proxy = cls(port, seed, names, every_bytes)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        proxy.port = listener.getsockname()[1]
        proxy.url = f"ws://127.0.0.1:{proxy.port}/v1"
        accepting = asyncio.create_task(proxy._accept(listener))
        try:
            yield proxy
        finally:
            accepting.cancel()
            await asyncio.wait({accepting})
            listener.close()
            for link in proxy.links:
                link.close()
            for link in proxy.links:
                await link.wait_ended()

    def plan(self) -> Iterator[Fault]:
        """Draws the faults of one direction, one after the other, as it comes to them."""
        rng = random.Random(self.rng.random())
        place = 0
        while self._names and not self.calm:
            # Not in the handshake: a client whose first handshake is answered wrongly gives up.
            place += 600 + int(rng.expovariate(1 / self._every_bytes))
            yield Fault(place, rng.choice(self._names))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            server = socket.socket()
            server.setblocking(False)
            try:
                await loop.sock_connect(server, ("127.0.0.1", self.onward))
            except OSError:
                server.close()
                client.close()
                continue
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.links.append(Link(self, client, server))


