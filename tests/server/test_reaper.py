from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest
from websockets.frames import Opcode

from parlatory.server import Limits, Server
from parlatory.server import reaper as reaper_module

from .peers import Peer, RawPeer, serving, the_connection, until, wire

ROW = "x" * 100_000
ROWS = 80


async def aborted(server: Server, reason: str) -> int:
    """Waits until one socket was aborted; returns how many were for this reason."""
    reaper = server.reaper
    await until(lambda: reaper.stalled + reaper.silent + reaper.dribbling + reaper.lingering)
    count: int = getattr(reaper, reason)
    return count


async def test_a_peer_that_takes_nothing_is_aborted(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(limits=Limits(stall_s=0.2)) as server, Peer.admitted(server) as writer:
        await writer.fill("relay/x", [ROW] * ROWS)
        async with RawPeer.to(server, hello=True) as stuck:
            with caplog.at_level(logging.WARNING):
                await stuck.text(type="open", conversation="relay/x")
                assert await aborted(server, "stalled") == 1
        assert "aborted: no progress for 0.3 s" in caplog.text and "connection " in caplog.text
        await writer.barrier()


async def test_progress_of_any_size_resets_the_clock() -> None:
    """It reads a little at a time, for much longer than the limit, and gets everything."""
    async with serving(limits=Limits(stall_s=0.2)) as server, Peer.admitted(server) as writer:
        await writer.fill("relay/x", [ROW] * ROWS)
        async with RawPeer.to(server, hello=True) as slow:
            await slow.text(type="open", conversation="relay/x")
            loop = asyncio.get_running_loop()
            end = loop.time() + 0.8
            while loop.time() < end:
                await slow.read()
                await asyncio.sleep(0.02)
            assert server.connections == 2
            slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            await slow.read_until(b'{"type":"live","conversation":"relay/x","seq":80}')
        assert server.reaper.stalled == 0


async def test_a_reader_whose_kernel_tells_of_nothing_yet_is_not_cut() -> None:
    """It reads 8 KiB a second through a buffer of 128 KiB, and is seen to once in 15 s: slower machines need longer."""
    async with serving() as server, Peer.admitted(server) as writer:
        await writer.fill("relay/x", [ROW] * ROWS)
        async with RawPeer.to(server, hello=True) as trickle:
            await trickle.text(type="open", conversation="relay/x")
            connection = the_connection(server, writer)
            await until(lambda: not connection.writable)
            now = asyncio.get_running_loop().time()
            server.reaper._look(connection, now)
            server.reaper._look(connection, now + 29)
            assert not connection.transport.is_closing()
            server.reaper._look(connection, now + 30)
            assert connection.transport.is_closing() and server.reaper.stalled == 1


async def test_a_silent_peer_is_pinged_and_then_aborted() -> None:
    async with serving(limits=Limits(silence_s=0.1)) as server, RawPeer.to(server, hello=True) as silent:
        assert (await silent.read_to_end()).startswith(reaper_module.PING)
        assert await aborted(server, "silent") == 1


async def test_a_peer_that_answers_pings_stays() -> None:
    async with serving(limits=Limits(silence_s=0.05)) as server, RawPeer.to(server, hello=True) as quiet:
        for _ in range(6):
            assert await quiet.read() == reaper_module.PING
            await quiet.send(wire(b"", Opcode.PONG))
        assert server.connections == 1


async def test_a_peer_that_is_not_read_is_not_called_silent() -> None:
    """The hook waits for longer than the silence; what piles up behind it is not read meanwhile."""
    waiting = asyncio.Event()

    async def authorize(*_: object) -> bool:
        await waiting.wait()
        return True

    limits = Limits(silence_s=0.05, authorize_timeout_s=5)
    async with serving(limits=limits, authorize=authorize) as server, RawPeer.to(server, hello=True) as busy:
        await busy.text(type="page", id="1", conversation="relay/x", before=1)
        for n in range(10):
            await busy.text(type="ping", n=n)
        connection = the_connection(server)
        await until(lambda: not connection.transport.is_reading())
        for _ in range(20):  # 20 rounds are 5 times the silence
            await another_round(server)
        assert server.reaper.silent == 0
        waiting.set()
        await busy.read_until(b'{"type":"pong","n":9}')


async def another_round(server: Server) -> None:
    before = server.reaper._round
    await until(lambda: server.reaper._round is not before)


async def test_a_frame_that_never_ends_is_aborted() -> None:
    limits = Limits(frame_timeout_s=0.2, silence_s=0.1)
    async with serving(limits=limits) as server, RawPeer.to(server, hello=True) as dribbler:
        async with RawPeer.to(server, handshake=False):  # whose handshake has a deadline of its own
            await aborted_dribbler(server, dribbler)


async def aborted_dribbler(server: Server, dribbler: RawPeer) -> None:
    frame = wire(b'{"type":"ping","n":1}' + b" " * 10_000)
    sending = asyncio.ensure_future(dribble(dribbler, frame))
    assert await aborted(server, "dribbling") == 1
    sending.cancel()
    await asyncio.wait({sending})


async def dribble(peer: RawPeer, frame: bytes) -> None:
    for index in range(len(frame)):
        await peer.send(frame[index : index + 1])
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "last", [wire(b"\x03\xe8", Opcode.CLOSE), wire(b"x", Opcode.CONT)], ids=["close", "protocol error"]
)
async def test_a_peer_that_never_closes_its_end_is_aborted(last: bytes) -> None:
    """It may even go on talking."""
    async with serving(limits=Limits(close_s=0.1)) as server, RawPeer.to(server, hello=True) as lingering:
        await lingering.send(last)
        sending = asyncio.ensure_future(dribble(lingering, b"x" * 1000))
        assert await aborted(server, "lingering") == 1
        await asyncio.wait({sending})
        await until(lambda: not server.connections)


async def test_many_sockets_are_looked_at_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_module, "SOCKETS_PER_STEP", 1)
    async with serving(limits=Limits(silence_s=0.1)) as server:
        async with RawPeer.to(server, hello=True) as a, RawPeer.to(server, hello=True) as b:
            for peer in (a, b):
                assert (await peer.read_to_end()).startswith(reaper_module.PING)
        assert server.reaper.silent == 2


async def test_a_round_of_many_sockets_takes_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at one after the other, a thousand would keep the loop for some milliseconds."""
    monkeypatch.setattr(reaper_module, "SOCKETS_PER_STEP", 1)
    async with serving() as server, Peer.admitted(server), Peer.admitted(server), Peer.admitted(server):
        loop, limits = asyncio.get_running_loop(), Limits(frame_timeout_s=0.4)
        made: Any = reaper_module.Reaper(lambda: server.sockets, limits)
        looked: list[float] = []
        rounds: list[float] = []
        look, begin = made._look, made._begin

        def count(socket: Any, now: float) -> None:
            looked.append(loop.time())
            look(socket, now)

        def begins() -> None:
            rounds.append(loop.time())
            begin()

        made._look, made._begin = count, begins
        made.start()
        await until(lambda: len(rounds) == 3)
        made.stop()
        assert len(looked) == 7, "the first of the third round as well"
        assert 0.09 <= rounds[1] - rounds[0], "the next round begins when this one had to be over"
        assert looked[2] - looked[0] >= 0.06, "three in a tenth of a second"


async def test_it_stops() -> None:
    made: Any = reaper_module.Reaper(lambda: [], Limits(stall_s=0.01))
    made.stop()
    made.start()
    timer = made._timer
    made.stop()
    assert timer.cancelled() and made._timer is None


