"""Clients that do not read, do not stop, or lie: they cost the others nothing, and the server little (P9).

Elsewhere: L27, L28 in cases/test_server_life_cases.py, L14 in cases/test_server_cases.py, T60 at the mailbox and L23,
L24, L26 at the hub in cases/test_actor_cases.py, each fault by itself in server/test_socket.py and test_reaper.py.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from parlatory.server import Limits
from parlatory.server.connection import Connection

from ..server.peers import Json, Peer, RawPeer, history, serving, the_connection, until
from .child import Child, child
from .zoo import KINDS, Frames, Kind, at, endless, sends, zoo

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20
C = "relay/c"
CROWD = Path(__file__).with_name("crowd.py")
TIGHT: dict[str, float] = {
    "stall_s": 0.5, "silence_s": 0.5, "frame_timeout_s": 0.5, "hello_timeout_s": 0.5, "close_s": 0.2,
}  # fmt: skip
WAIT_S = 20.0


async def filled(server: Any, conversation: str, rows: int, size: int) -> None:
    """Puts rows into a conversation, with a window of 30 on the wire."""
    async with Peer.admitted(server) as peer:
        for start in range(0, rows, 30):
            count = min(30, rows - start)
            for _ in range(count):
                await peer.post(conversation, "x" * size)
            for _ in range(count):
                assert (await peer.get("ack", "error"))["type"] == "ack"
            peer.seen.clear()


# -- all of them


@linux
async def test_whoever_misbehaves_is_let_go_and_costs_nobody_anything(tmp_path: Path) -> None:
    """One of each kind, against one who behaves."""
    async with child(tmp_path, **TIGHT) as server, Peer.admitted(server.url) as good:
        await filled(server.url, C, 300, 10_000)
        await good.open(C, tail=0)
        before = server.resident()
        async with zoo(server.port, C):
            for n in range(100):
                answer = await good.say(C, f"good {n}")
                assert answer["type"] == "ack"
                await good.row(C, answer["seq"])
            await _left_alone(server, good)
        grown = server.peak() - before
        assert grown < 16 * MIB, f"{grown / MIB:.1f} MiB for {len(KINDS)} sockets"
        seqs = good.seqs(C)
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))


async def _left_alone(server: Child, good: Peer) -> None:
    """Waits until nobody else is left, but for the one who does read, if little at a time."""
    async with asyncio.timeout(WAIT_S):
        while (await server.stats())["connections"] > 2:
            await good.barrier()


@pytest.mark.parametrize("kind", KINDS)
async def test_each_kind_is_let_go(kind: Kind) -> None:
    """What it holds is given back, and soon."""
    loop = asyncio.get_running_loop()
    async with serving(limits=Limits(**TIGHT)) as server:  # type: ignore[arg-type]
        # Who reads a little is not ended as long as he does: he comes to his end.
        await filled(server, C, 300, 1_000) if kind == "slow" else await filled(server, C, 80, 100_000)
        start = loop.time()
        async with zoo(server.port, C, kinds=[kind]):
            await until(lambda: server.connections == 0)
            assert kind == "slow" or loop.time() - start < 4
        record = server.runtime.resident(C)
        assert record is not None
        await until(lambda: not record.hub.subscriptions)


# -- floods


@linux
async def test_T60_a_flood_is_answered_and_slows_its_own_socket_only(tmp_path: Path) -> None:
    """100,000 sends without waiting, while the answers are read: each is committed or refused, none is forgotten."""
    total, batch = 100_000, 10_000
    counts: Counter[str] = Counter()
    seqs: list[int] = []

    def write(sock: socket.socket) -> None:
        data = [sends(C, batch)[1] for _ in range(total // batch)]
        for piece in data:
            sock.sendall(piece)

    def read(sock: socket.socket, left: bytes) -> None:
        frames = Frames()
        while counts.total() < total:
            for frame in frames.feed(left or sock.recv(1 << 16)):
                if frame["type"] in ("ack", "error"):
                    counts[frame.get("code", "ack")] += 1
                    if frame["type"] == "ack":
                        seqs.append(frame["seq"])
            left = b""

    async with child(tmp_path) as server, Peer.admitted(server.url) as other:
        await filled(server.url, "relay/other", 1000, 100)
        async with RawPeer.to(at(server.port), hello=True) as peer:
            before = server.resident()
            peer.sock.settimeout(WAIT_S)
            flooding = asyncio.gather(
                asyncio.to_thread(write, peer.sock), asyncio.to_thread(read, peer.sock, peer._left)
            )
            said = 0
            while not flooding.done():
                assert (await other.say("relay/other", "x"))["type"] == "ack"
                said += 1
            await flooding
        grown = server.peak() - before
        assert set(counts) <= {"ack", "rate", "busy"} and counts.total() == total, counts
        assert seqs == list(range(1, counts["ack"] + 1))
        assert len(await history(server.url, C)) == counts["ack"] > 0  # type: ignore[arg-type]
        assert said >= 10
        assert grown < 6 * MIB, f"{grown / MIB:.1f} MiB"


@pytest.mark.parametrize("kind", ["sends", "pings", "control pings", "bad frames"])
async def test_no_step_of_a_flood_makes_the_others_wait(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much has arrived, others have their turn behind a small part of it."""
    flood, steps = endless(kind, C) * 20, list[int]()
    async with serving(limits=Limits(bad_frames=10**6)) as server, RawPeer.to(server, hello=True) as peer:
        connection = the_connection(server)
        received = connection.data_received

        def measured(data: bytes) -> None:
            steps.append(len(data))
            received(data)

        monkeypatch.setattr(connection, "data_received", measured)
        sending = asyncio.ensure_future(peer.send(flood))
        reading = asyncio.ensure_future(peer.read_to_end())
        await sending
        await until(lambda: sum(steps) == len(flood))
        reading.cancel()
        await asyncio.wait({reading})
    assert max(steps) <= 16 << 10, f"{max(steps)} bytes in one step"


async def test_pages_of_a_socket_that_is_gone_are_not_read() -> None:
    """It asks for more than it takes, and is aborted: what it asked for is nobody's any more."""
    async with serving(limits=Limits(stall_s=0.2)) as server:
        await filled(server, C, 20, 100_000)
        engine, reads = server.runtime.engine, 0
        read = engine.read

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(*arguments, **options)

        engine.read = counted  # type: ignore[method-assign]
        async with RawPeer.to(server, hello=True) as peer:
            await peer.send(endless("pages", C) * 2)
            await until(lambda: server.connections == 0)
            record = server.runtime.resident(C)
            assert record is not None
            async with Peer.admitted(server) as other:
                for _ in range(20):
                    await other.barrier()
        assert reads < 20, f"{reads} pages were read"


# -- frozen


@linux
async def test_T56_L24_one_frozen_client_among_thirty(tmp_path: Path) -> None:
    """2,000 rows of 10 KB: the others have each of them, the frozen one is closed at its bound, and can have them."""
    rows, warm, good, size = 2_000, 600, 30, 10_000
    async with child(tmp_path, stall_s=1) as server:
        arguments = ["127.0.0.1", str(server.port), C, str(good)]
        pipe = asyncio.subprocess.PIPE
        crowd = await asyncio.create_subprocess_exec(sys.executable, str(CROWD), *arguments, stdin=pipe, stdout=pipe)
        assert crowd.stdin is not None and crowd.stdout is not None
        assert await crowd.stdout.readline() == b"ready\n"
        await filled(server.url, C, warm, size)  # what the good ones cost is there before
        async with RawPeer.to(at(server.port), hello=True) as frozen:
            await frozen.text(type="open", conversation=C, tail=0)
            await frozen.read_until(b'"live"')
            before = server.resident()
            await filled(server.url, C, rows - warm, size)
            await crowd.communicate(b"%d\n" % rows)
            assert crowd.returncode == 0
            assert (await server.until(stalled=1))["silent"] == 0
            grown = server.peak() - before
            assert grown < 10 * MIB, f"{grown / MIB:.1f} MiB"
            end = await frozen.read_to_end()
            assert len(end) < 8 * MIB, "what the kernel held for it"
        async with Peer.admitted(server.url) as back:
            await back.open(C)
            assert await back.live(C) == list(range(1, rows + 1))


async def test_L23_a_saturated_subscriber_misses_nothing_and_its_lag_is_told() -> None:
    """It reads in bursts while rows come; each time it has caught up it is told `live`, for the rows behind its lag."""
    frames, got = Frames(), list[Json]()
    async with serving() as server, RawPeer.to(server, hello=True) as bursty:
        await bursty.text(type="open", conversation=C)
        connection = the_connection(server)

        async def catch_up(head: int) -> None:
            while not got or got[-1].get("seq") != head or got[-1]["type"] != "live":
                got.extend(frames.feed(await bursty.read()))

        await catch_up(0)
        head = 0
        for _ in range(4):
            while connection.writable:  # rows come until it takes no more, and then some
                await filled(server, C, 30, 20_000)
                head += 30
            await filled(server, C, 60, 20_000)
            head += 60
            assert (record := server.runtime.resident(C)) is not None
            subscription = connection._subscriptions[C]
            assert not subscription.live and record.head - subscription.position > 0
            await catch_up(head)
        seqs = [row["seq"] for frame in got if frame["type"] == "rows" for row in frame["rows"]]
        assert seqs == list(range(1, head + 1))
        assert len([frame for frame in got if frame["type"] == "live"]) == 5


async def test_L26_a_stuck_subscriber_does_not_slow_the_sends_of_the_others() -> None:
    """Sends to a conversation with one and to one without take turns, so that both see what else the machine does."""
    loop = asyncio.get_running_loop()
    other = f"{C}-other"
    async with serving() as server, Peer.admitted(server) as writer:
        for conversation in (C, other):
            await filled(server, conversation, 80, 100_000)
        async with RawPeer.to(server, hello=True) as frozen:
            await frozen.text(type="open", conversation=C)
            await until(partial(_is_stuck, the_connection(server, but=writer)))
            times: dict[str, list[float]] = {C: [], other: []}
            for _ in range(1_000):
                for conversation, each in times.items():
                    start = loop.time()
                    assert (await writer.say(conversation, "x"))["type"] == "ack"
                    each.append(loop.time() - start)
        assert median(times[C]) < 2.5 * median(times[other])


def _is_stuck(connection: Connection) -> bool:
    return not connection.writable


# -- lies


async def test_a_client_that_lies_deceives_only_itself() -> None:
    """Positions it never had, answers that are the server's, limits beyond all bounds."""
    huge = 2**53 - 1
    async with serving() as server, Peer.admitted(server) as liar, Peer.admitted(server) as witness:
        await witness.fill(C, "abcde")
        epoch = (await witness.open(C))["epoch"]
        await witness.live(C)
        for position, kind, reason, seqs in (
            ({"epoch": epoch, "after": 5}, "opened", None, []),  # it had none of them: its loss
            ({"epoch": epoch, "after": 6}, "reset", "ahead", [1, 2, 3, 4, 5]),
            ({"epoch": epoch, "after": huge, "tail": huge}, "reset", "ahead", [1, 2, 3, 4, 5]),
            ({"epoch": epoch[:-1], "after": 1, "tail": 2}, "reset", "epoch", [4, 5]),
            ({"epoch": "\u0000" * 64, "after": 1, "tail": 0}, "reset", "epoch", []),
            ({"epoch": epoch, "after": 3, "at": "2026-11-30T08:00:00.000000Z"}, "reset", "epoch", [1, 2, 3, 4, 5]),
            ({"epoch": epoch, "after": 0, "at": "2026-11-30T08:00:00.000000Z"}, "opened", None, [1, 2, 3, 4, 5]),
            ({"tail": huge}, "opened", None, [1, 2, 3, 4, 5]),
        ):
            answer = await liar.open(C, **position)
            assert (answer["type"], answer.get("reason"), answer["head"]) == (kind, reason, 5), position
            assert await liar.live(C) == seqs, position
        page = await liar.page(C, before=huge, limit=huge)
        assert [row["seq"] for row in page["rows"]] == [1, 2, 3, 4, 5]
        for frame in (
            {"type": "ack", "conversation": C, "clientId": "x", "seq": 6},
            {"type": "rows", "conversation": C, "epoch": epoch, "rows": [{"seq": 6}]},
            {"type": "live", "conversation": C, "seq": 9},
            {"type": "welcome", "version": "9", "connection": "x", "principal": "user:root"},
            {"type": "bye", "code": 1000},
            {"type": "open", "conversation": C, "after": 1},
            {"type": "open", "conversation": C, "epoch": epoch, "after": -1},
            {"type": "open", "conversation": C, "epoch": epoch, "after": 2**53},
            {"type": "open", "conversation": C, "tail": 1.5},
            {"type": "page", "id": "p", "conversation": C, "before": 2**64},
            {"type": "hello", "client": "another" * 4},
        ):
            await liar.send(**frame)
            assert (await liar.get("error"))["code"] == "bad_frame", frame
        answer = await liar.say(C, "f", "f1")
        assert answer["seq"] == 6
        await witness.row(C, 6)
        assert witness.seqs(C) == [6]
        assert server.runtime.conversations == 1
