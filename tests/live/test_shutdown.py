"""A server that stops with everybody connected: in time, with nothing left behind and nothing acknowledged lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from websockets.exceptions import ConnectionClosed

from parlatory import Client
from parlatory.actors import Agent
from parlatory.server import Limits
from parlatory.storage import MessageLog, StoredMessage, open_engine

from ..server.peers import DEADLINE_S, Echo, Peer, Relay, on_disk, until
from .proxy import Proxy
from .test_slow import filled
from .zoo import zoo

C = "relay/c"
DRAIN_S = 1.0
SLACK_S = 4.0
ECHO = Path(__file__).parents[2] / "examples" / "echo.py"


class Busy(Agent):
    """Is in a turn that does not end by itself."""

    async def on_message(self, row: StoredMessage) -> None:
        await asyncio.get_running_loop().create_future()


class Crowd:
    """Is everybody at once: good clients in the middle of their sends, and the zoo.

    Attributes:
        acked: client id to seq, of what was acknowledged.
        ends: the close codes of the good sockets.
    """

    def __init__(self) -> None:
        self.acked: dict[str, int] = {}
        self.ends: list[int | None] = []
        self.ready = asyncio.Semaphore(0)

    @classmethod
    @asynccontextmanager
    async def to(cls, port: int, good: int = 10) -> AsyncIterator[Crowd]:
        crowd = cls()
        url = f"ws://127.0.0.1:{port}/v1"
        async with Proxy.to(port) as proxy, zoo(port, "relay/big"):
            async with Client(proxy.url, client="p" * 22) as client, Peer.admitted(proxy.url) as lost:
                await client.open(C)
                await lost.open(C)
                await lost.get("live")
                proxy.links[-1].down.open.clear()  # half open: nothing comes of it any more, in either direction
                proxy.links[-1].up.open.clear()
                tasks = [asyncio.create_task(crowd._talk(url, n)) for n in range(good)]
                for _ in range(20 * good):
                    await crowd.ready.acquire()
                try:
                    yield crowd
                    await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
                finally:
                    for task in tasks:
                        task.cancel()
                    lost.connection.transport.abort()

    async def _talk(self, url: str, number: int) -> None:
        """Sends with a window until the server says `bye`."""
        async with Peer.admitted(url, client=f"{number:x}" * 22) as peer:
            await peer.open(C, tail=0)
            waiting = 0
            with contextlib.suppress(ConnectionClosed):
                while True:
                    while waiting < 16:
                        await peer.post(C, f"from {number}")
                        waiting += 1
                    frame = await peer.get("ack", "error", "bye")
                    if frame["type"] == "bye":
                        break
                    waiting -= 1
                    if frame["type"] == "ack":
                        self.acked[frame["clientId"]] = frame["seq"]
                        self.ready.release()
                    elif frame["code"] == "draining":
                        break
            self.ends.append(await peer.closed())
            for frame in peer.seen:
                if frame["type"] == "ack":
                    self.acked[frame["clientId"]] = frame["seq"]
            assert peer.seen[-1]["type"] == "bye", peer.seen[-1]


async def kept(data: Path, crowd: Crowd) -> None:
    """Checks that what was acknowledged is there, once, under its seq."""
    engine = await open_engine(f"sqlite:///{data}", read_only=True)
    try:
        rows = [row async for row in MessageLog(await engine.partition(C))]
    finally:
        await engine.close()
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    found = {row.client_id: row.seq for row in rows}
    assert len(found) == len(rows)
    assert crowd.acked.items() <= found.items()
    assert len(crowd.acked) >= 200


async def test_close_with_everybody_connected(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    before = set(asyncio.all_tasks())
    async with on_disk(tmp_path, Relay, Echo, Busy, limits=Limits(close_s=0.5)) as server:
        await filled(server, "relay/big", 80, 100_000)
        async with Peer.admitted(server) as peer:
            await peer.say("busy/c", "x")
        async with Crowd.to(server.port) as crowd:
            start = loop.time()
            await server.close(DRAIN_S)
            assert loop.time() - start < DRAIN_S + SLACK_S
            assert server.connections == 0
        assert set(crowd.ends) == {1012}
    left = [task.get_name() for task in set(asyncio.all_tasks()) - before]
    assert not [name for name in left if name.startswith("parlatory")], left
    await kept(tmp_path, crowd)


async def test_sigterm_with_everybody_connected(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with _served(tmp_path) as (process, port):
        url = f"ws://127.0.0.1:{port}/v1"
        await filled(url, "relay/big", 80, 100_000)
        async with Peer.admitted(url) as peer:
            await peer.say("echo/c", "/sleep 3600000")
        async with Crowd.to(port) as crowd:
            start = loop.time()
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(DEADLINE_S):
                _, said = await process.communicate()
            took = loop.time() - start
        assert process.returncode == 0
        assert took < DRAIN_S + SLACK_S, f"{took:.1f} s"
        assert set(crowd.ends) == {1012}
        assert b"Traceback" not in said, said.decode()
    await kept(tmp_path, crowd)


@asynccontextmanager
async def _served(data: Path) -> AsyncIterator[tuple[Process, int]]:
    """Runs `parlatory serve`."""
    options = ["serve", str(ECHO), "--data", str(data), "--port", "0", "--drain", str(DRAIN_S)]
    cli = [sys.executable, "-m", "parlatory.server.cli", *options]
    process = await asyncio.create_subprocess_exec(*cli, stderr=asyncio.subprocess.PIPE)
    try:
        assert process.stderr is not None
        while not (line := (await process.stderr.readline()).decode()).startswith("listening on "):
            assert line, "it did not start"
        yield process, int(line.split(":")[-1].split("/")[0])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_a_good_client_outlives_the_restart_of_a_server_with_everybody_connected(tmp_path: Path) -> None:
    """The library's client comes back to the next process and goes on behind its row; its sends are there once."""
    async with Proxy.to(0) as proxy, Client(proxy.url) as client:
        chat = await client.open(C)
        texts = [str(n) for n in range(60)]
        sends = [asyncio.ensure_future(chat.send(text, client_id=f"c{text}")) for text in texts]
        async with on_disk(tmp_path, limits=Limits(close_s=0.3)) as server:
            proxy.onward = server.port
            await filled(server, "relay/big", 40, 100_000)
            async with zoo(server.port, "relay/big"):
                await until(lambda: chat.status == "live")
                await server.close(0.2)
        async with on_disk(tmp_path) as server:
            proxy.onward = server.port
            await asyncio.wait_for(asyncio.gather(*sends), 20)
            rows = [await anext(chat) for _ in texts]
    assert [(row.seq, row.text) for row in rows] == [(n + 1, str(n)) for n in range(60)]
