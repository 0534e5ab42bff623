"""Cases from the field (CASES.md) about a socket's life, and what issue 1 must show. Each test carries its id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from parlatory.actors import Agent
from parlatory.server import Limits, Server
from parlatory.storage import StoredMessage

from ..server.peers import (
    DEADLINE_S,
    HANDSHAKE,
    Json,
    Peer,
    fresh,
    history,
    on_disk,
    serving,
    until,
    user,
    wire,
)

C = "relay/c"
CODES = {
    "bad_frame", "bad_message", "too_large", "forbidden", "client_id_conflict", "busy", "rate", "too_many",
    "method_not_found", "bad_arguments", "method_error", "timeout", "cancelled", "draining", "internal",
}  # fmt: skip


async def test_L21_every_error_has_a_code_of_the_protocol() -> None:
    limits = Limits(conversations=1, inflight=1, signal_bytes=1, message_bytes=100)
    frames: list[tuple[Json, str]] = [
        ({"type": "nope"}, "bad_frame"),
        ({"type": "send", "conversation": C, "clientId": "c", "message": 7}, "bad_message"),
        ({"type": "send", "conversation": C, "clientId": "c", "message": user("x" * 100)}, "too_large"),
        ({"type": "send", "conversation": C, "clientId": "c", "message": user("x") | {"role": "system"}}, "forbidden"),
        ({"type": "open", "conversation": "nosuch/x"}, "forbidden"),
        ({"type": "call", "id": "i", "conversation": C, "method": "m"}, "method_not_found"),
        ({"type": "signal", "conversation": C, "name": "long"}, "too_large"),
        ({"type": "open", "conversation": "relay/second"}, "too_many"),
    ]
    async with serving(limits=limits) as server, Peer.admitted(server) as peer:
        for frame, code in frames:
            if code == "too_many":
                await peer.open(C)
            await peer.send(**frame)
            error = await peer.get("error")
            assert error["code"] == code in CODES and error["text"]
            assert ("retryMs" in error) == (code in {"busy", "rate", "draining", "internal"})
            if "clientId" in frame or "id" in frame:
                assert (error.get("clientId"), error.get("id")) == (frame.get("clientId"), frame.get("id"))


class BlackHole:
    """Is a TCP proxy that goes on holding both ends, and passes nothing any more once it is told to."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.passing = asyncio.Event()
        self.passing.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    @asynccontextmanager
    async def to(cls, server: Server) -> AsyncIterator[tuple[BlackHole, str]]:
        hole = cls(server.port)
        listener = await asyncio.start_server(hole._accept, "127.0.0.1", 0)
        async with listener:
            yield hole, f"ws://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
            for task in hole._tasks:
                task.cancel()
            for writer in hole._writers:
                writer.transport.abort()
            await asyncio.gather(*hole._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward, back = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers += [writer, back]
        for source, sink in ((reader, back), (onward, writer)):
            task = asyncio.create_task(self._pass(source, sink))
            self._tasks.add(task)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self.passing.wait()
            sink.write(data)


async def test_L27_a_half_open_socket_is_found_and_loses_no_row() -> None:
    limits = Limits(silence_s=0.25)
    async with serving(limits=limits) as server, BlackHole.to(server) as (hole, url), Peer.admitted(server) as writer:
        chatter = asyncio.ensure_future(_keep_talking(writer))
        async with Peer.admitted(url) as lost:
            position = await lost.open(C)
            await writer.say(C, "before")
            await lost.row(C, 1)
            hole.passing.clear()
            await writer.say(C, "into the void")
            await until(lambda: server.reaper.silent == 1)
            await until(lambda: server.connections == 1)
            lost.connection.transport.abort()
        async with Peer.admitted(server) as back:
            await back.open(C, epoch=position["epoch"], after=1)
            assert await back.live(C) == [2]
        chatter.cancel()
        await asyncio.wait({chatter})


async def _keep_talking(peer: Peer) -> None:
    """Keeps a socket from being silent; websockets answers pings only while somebody reads."""
    while True:
        await peer.connection.pong()
        await asyncio.sleep(0.02)


class Stuck(Agent):
    """Waits in its handler for the test."""

    waiting: asyncio.Event
    go_on: asyncio.Event
    handled: list[int]

    async def on_message(self, row: StoredMessage) -> None:
        self.waiting.set()
        await self.go_on.wait()
        self.handled.append(row.seq)


def prepare(agent: type[Stuck]) -> None:
    agent.waiting, agent.go_on, agent.handled = asyncio.Event(), asyncio.Event(), []


async def test_L28_a_healthy_socket_outlives_a_blocked_actor_under_a_flood() -> None:
    """By far longer than a silent socket would."""
    prepare(Stuck)
    where = "stuck/c"
    async with serving(Stuck, limits=Limits(silence_s=0.05, stall_s=0.1)) as server, Peer.admitted(server) as peer:
        await peer.say(where, "first")
        await Stuck.waiting.wait()
        end = asyncio.get_running_loop().time() + 0.6
        acked = 1
        while asyncio.get_running_loop().time() < end:
            for n in range(64):  # twice what may be in flight
                await peer.post(where, str(n))
            answers = [await peer.get("ack", "error") for _ in range(64)]
            acked += sum(answer["type"] == "ack" for answer in answers)
            assert {answer.get("code", "rate") for answer in answers} == {"rate"}
        Stuck.go_on.set()
        await until(lambda: len(Stuck.handled) == acked)
        assert Stuck.handled == sorted(Stuck.handled)
        assert (server.reaper.silent, server.reaper.stalled) == (0, 0)
        await peer.barrier()


async def test_L31_a_restart_spreads_its_closes_and_loses_nothing(tmp_path: Path) -> None:
    clients, loop = 50, asyncio.get_running_loop()
    acked: set[str] = set()
    ends: list[float] = []
    ready = asyncio.Semaphore(0)

    async def client(server: Server, number: int) -> None:
        async with Peer.admitted(server) as peer:
            await peer.open(C)
            ready.release()
            with contextlib.suppress(ConnectionClosed):
                while True:
                    client_id = await peer.post(C, f"{number}")
                    answer = await peer.get("ack", "error", "bye")
                    if answer["type"] == "ack":
                        acked.add(client_id)
                    elif answer["type"] == "bye" or answer["code"] == "draining":
                        break
            if not peer.seen[-1]["type"] == "bye":
                await peer.closed()
            while peer.connection.close_code is None:
                await peer.closed()
            assert peer.connection.close_code == 1012
            low, high = peer.seen[-1]["retryMs"]
            assert (peer.seen[-1]["type"], low < high) == ("bye", True)
            ends.append(loop.time())

    async with on_disk(tmp_path) as server:
        running = [asyncio.ensure_future(client(server, number)) for number in range(clients)]
        for _ in range(clients):
            await ready.acquire()
        start = loop.time()
        await server.close(1)
        await asyncio.wait_for(asyncio.gather(*running), DEADLINE_S)
    tenths = {int((end - start) * 10) for end in ends}
    assert len(tenths) >= 5, "the closes come in a burst"
    async with on_disk(tmp_path) as server:
        assert acked <= {row["clientId"] for row in await history(server, C)}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_L32_an_idle_socket_costs_little(tmp_path: Path) -> None:
    echo = Path(__file__).parents[2] / "examples" / "echo.py"
    sockets = 400
    with served(echo, tmp_path) as (process, url), contextlib.ExitStack() as raw:
        port = int(re.findall(r":(\d+)/", url)[0])
        async with Peer.admitted(url) as peer:
            await peer.say(C, "warm")
        await asyncio.to_thread(greet, port, raw, 100)
        before = resident(process.pid)
        await asyncio.to_thread(greet, port, raw, sockets)
        each = (resident(process.pid) - before) / sockets
        assert each < 20 * 1024, f"{each / 1024:.1f} KiB"


def greet(port: int, raw: contextlib.ExitStack, count: int) -> None:
    """Opens sockets that say hello and then nothing."""
    for _ in range(count):
        sock = raw.enter_context(socket.create_connection(("127.0.0.1", port)))
        sock.sendall(HANDSHAKE.format(path="/v1", headers="").encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += sock.recv(4096)
        sock.sendall(wire(b'{"type":"hello"}'))
        assert b"welcome" in sock.recv(4096)


@contextlib.contextmanager
def served(file: Path, data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "parlatory.server.cli", "serve", str(file), "--data", str(data), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        while "listening on" not in line:
            assert line
            line = process.stderr.readline()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate()


def resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) * 1024


# -- must show


class Idle(Stuck):
    """Is its like that does not wait."""

    handled: list[int]

    async def on_message(self, row: StoredMessage) -> None:
        self.handled.append(row.seq)


async def pipelined(peer: Peer, where: str, count: int, window: int = 32) -> list[float]:
    """Sends with `window` in flight; returns the times of the acks in ms."""
    loop = asyncio.get_running_loop()
    sent: dict[str, float] = {}
    times: list[float] = []
    left = count

    async def post() -> None:
        client_id = fresh("m")
        sent[client_id] = loop.time()
        frame = {"type": "send", "conversation": where, "clientId": client_id, "message": user("x")}
        await peer.connection.send(json.dumps(frame))

    while left and len(sent) < window:
        await post()
        left -= 1
    while sent:
        frame = json.loads(await peer.connection.recv())
        if frame["type"] == "beat":
            continue
        assert frame["type"] == "ack" and not frame.get("duplicate"), frame
        times.append((loop.time() - sent.pop(frame["clientId"])) * 1000)
        if left:
            await post()
            left -= 1
    return times


async def test_sends_are_acknowledged_while_the_handler_of_their_conversation_waits(tmp_path: Path) -> None:
    """Ten sockets, 5,000 messages, 32 in flight each. Then every message gets its `on_message`, in order."""
    prepare(Stuck)
    prepare(Idle)
    messages, sockets = 5_000, 10

    async def loaded(server: Server, where: str, count: int) -> list[float]:
        async with contextlib.AsyncExitStack() as stack:
            admitted = [Peer.admitted(server, client=f"{n:x}" * 22) for n in range(sockets)]
            peers = [await stack.enter_async_context(peer) for peer in admitted]
            sending = [pipelined(peer, where, count // sockets) for peer in peers]
            done = await asyncio.wait_for(asyncio.gather(*sending), 60)
        return sorted(time for times in done for time in times)

    async with on_disk(tmp_path, Stuck, Idle) as server, Peer.admitted(server) as first:
        await first.say("stuck/c", "first")
        await Stuck.waiting.wait()
        # Side by side, so that both see what else the machine does.
        both = loaded(server, "idle/c", messages), loaded(server, "stuck/c", messages)
        idle, waiting = await asyncio.gather(*both)
        assert len(waiting) == messages and Stuck.handled == []
        assert waiting[messages * 99 // 100] < 2 * idle[messages * 99 // 100]
        await until(lambda: len(Idle.handled) == messages, 60)
        tracemalloc.start()
        try:
            await loaded(server, "stuck/c", messages // 5)
            held = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert held < 1 << 20, f"{held >> 10} KiB for {messages // 5} messages that wait"
        Stuck.go_on.set()
        total = 1 + messages + messages // 5
        await until(lambda: len(Stuck.handled) == total, 60)
        assert Stuck.handled == list(range(1, total + 1))
