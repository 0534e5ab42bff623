"""The socket by itself: what is served when, and what waits for whom. Its texts are served by the test."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.frames import Opcode
from websockets.protocol import State

from parlatory.server.app import SUBPROTOCOL
from parlatory.server.socket import Socket

from .peers import DEADLINE_S, HANDSHAKE, RawPeer, serving, until, wire

BIG = b"x" * (1 << 20)


class Recorder(Socket):
    """Keeps what it serves; a text of `waiting` takes until its future is done. Unrealistic: it knows no protocol."""

    def __init__(self, *args: Any, stage: Stage, **options: Any) -> None:
        super().__init__(*args, **options)
        self.stage = stage
        self.drained = 0

    def receive(self, data: str | bytes) -> Awaitable[None] | None:
        self.stage.received.append(data)
        self.stage.changed()
        match data:
            case "fail":
                raise RuntimeError("told to")
            case "fail later":
                return self._fail()
            case "echo":
                self.answer(b"echoed")
            case "big":
                self.answer(BIG)
        return self.stage.waiting.get(data) if isinstance(data, str) else None

    async def _fail(self) -> None:
        raise RuntimeError("told to")

    def failed(self, error: Exception) -> None:
        self.stage.failures.append(error)
        self.stage.changed()

    def on_writable(self) -> None:
        super().on_writable()
        self.drained += 1
        self.stage.changed()


class Stage:
    """Is a server of one recorder, and what has happened on it."""

    def __init__(self) -> None:
        self.received: list[str | bytes] = []
        self.failures: list[Exception] = []
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.port = 0
        self.socket: Recorder
        self.ended = asyncio.Event()
        self._changed = asyncio.Event()

    def changed(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Waits for something to become true that a socket's callback makes so."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    def hold(self, text: str) -> asyncio.Future[None]:
        self.waiting[text] = asyncio.get_running_loop().create_future()
        return self.waiting[text]

    async def handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Recorder)
        self.socket = connection
        self.changed()
        await connection.read()
        self.ended.set()


@asynccontextmanager
async def stage(**options: Any) -> AsyncIterator[tuple[Stage, RawPeer]]:
    made = Stage()
    async with serve_websockets(
        made.handle,
        "127.0.0.1",
        0,
        create_connection=partial(Recorder, stage=made, **options),  # type: ignore[arg-type]
        select_subprotocol=lambda _connection, _offered: SUBPROTOCOL,  # type: ignore[arg-type, return-value]
        compression=None,
        max_size=4 << 20,
        close_timeout=0.2,
    ) as server:
        made.port = next(iter(server.sockets)).getsockname()[1]
        async with RawPeer.to(made) as peer:  # type: ignore[arg-type]
            await made.until(lambda: hasattr(made, "socket"))
            yield made, peer
        await made.ended.wait()


async def test_a_text_is_served_in_the_step_that_brought_it() -> None:
    async with stage() as (on, _):
        on.socket.data_received(wire(b"a") + wire(b"b"))
        assert on.received == ["a", "b"]


async def test_what_waits_holds_back_what_is_behind() -> None:
    async with stage() as (on, _):
        first, third = on.hold("1"), on.hold("3")
        on.socket.data_received(b"".join(wire(text) for text in (b"1", b"2", b"3", b"4")))
        assert on.received == ["1"]
        first.set_result(None)
        await on.until(lambda: on.received == ["1", "2", "3"])
        on.socket.data_received(wire(b"5"))
        assert on.received == ["1", "2", "3"]
        third.set_result(None)
        await on.until(lambda: on.received == ["1", "2", "3", "4", "5"])
        await asyncio.sleep(0)
        on.socket.data_received(wire(b"6"))
        assert on.received[-1] == "6"


async def test_fragments_and_binary_messages_keep_their_place() -> None:
    async with stage() as (on, peer):
        await peer.send(wire(b"a", fin=False) + wire(b"", Opcode.PING) + wire(b"b", Opcode.CONT) + wire(b"c"))
        await peer.send(wire(b"\xff", Opcode.BINARY) + wire(b"d"))
        await on.until(lambda: on.received == ["ab", "c", b"\xff", "d"])


# What a peer may send, and the messages it makes; a frame whose head is longer than it had to be is read as well.
LONG_HEAD = b"\x81\xfe\x00\x01\0\0\0\0l"
PIECES: list[tuple[bytes, list[str | bytes]]] = [
    (wire(b"a"), ["a"]),
    (wire(b"x" * 200), ["x" * 200]),
    (wire(b"y" * 70_000), ["y" * 70_000]),
    (wire(b"b", fin=False) + wire(b"p", Opcode.PING) + wire(b"c", Opcode.CONT), ["bc"]),
    (wire(b"\xff", Opcode.BINARY), [b"\xff"]),
    (wire(b"", Opcode.PONG), []),
    (LONG_HEAD, ["l"]),
    (b"\x82\x89\0\0\0\0" + LONG_HEAD, [LONG_HEAD]),
]


@pytest.mark.parametrize("seed", range(40))
async def test_texts_come_in_order_however_the_bytes_are_cut(seed: int) -> None:
    """Whole texts are read by the socket and all else by websockets, which take turns at the ends of frames only."""
    random = Random(seed)
    chosen = [random.choice(PIECES) for _ in range(30)]
    data = b"".join(frames for frames, _ in chosen)
    expected = [message for _, messages in chosen for message in messages]
    async with stage() as (on, _):
        while data:
            size = random.choice([1, 2, 5, 6, 7, 8, 20, 200, 16 << 10, len(data)])
            on.socket.data_received(data[:size])
            data = data[size:]
            if random.random() < 0.5:
                await asyncio.sleep(0)
        await on.until(lambda: len(on.received) == len(expected))
        assert on.received == expected
        assert on.socket.half_since is None


@pytest.mark.parametrize("index", range(6))
async def test_what_came_in_bytes_ends_between_frames(index: int) -> None:
    frames, messages = PIECES[index]
    async with stage() as (on, _):
        for at in range(len(frames)):
            on.socket.data_received(frames[at : at + 1])
        assert on.socket._unparsed == 0
        await on.until(lambda: on.received == messages)


async def test_a_part_that_looks_like_a_frame_is_none() -> None:
    frame = b"\x82\x89\0\0\0\0" + LONG_HEAD
    async with stage() as (on, _):
        on.socket.data_received(frame[:6])
        on.socket.data_received(frame[6:])
        await on.until(lambda: on.received == [LONG_HEAD])


async def test_what_is_behind_a_close_is_not_served() -> None:
    async with stage() as (on, _):
        on.socket.data_received(wire(b"\x03\xe8", Opcode.CLOSE))
        on.socket.data_received(wire(b"a"))
        assert on.received == []


async def test_a_text_between_fragments_closes_with_1002() -> None:
    async with stage() as (on, peer):
        on.socket.data_received(wire(b"a", fin=False))
        on.socket.data_received(wire(b"b"))
        assert b"\x03\xea" in await peer.read_to_end()
        assert on.received == []


async def test_a_text_that_is_too_large_closes_with_1009() -> None:
    async with stage() as (on, peer):
        on.socket.protocol.max_message_size = 3
        on.socket.data_received(wire(b"abc") + wire(b"abcd"))
        assert b"\x03\xf1" in await peer.read_to_end()
        assert on.received == ["abc"]


async def test_without_a_limit_whole_texts_are_read() -> None:
    async with stage() as (on, _):
        on.socket.protocol.max_message_size = None
        on.socket.data_received(wire(b"abc"))
        assert on.received == ["abc"]


async def test_text_that_is_not_utf_8_closes_with_1007() -> None:
    async with stage() as (on, peer):
        await peer.send(wire(b"a") + wire(b"\xff") + wire(b"b"))
        assert b"\x03\xef" in await peer.read_to_end()
        assert on.received == ["a"]


async def test_what_came_before_the_end_is_served() -> None:
    async with stage() as (on, peer):
        first = on.hold("1")
        await peer.send(wire(b"1") + wire(b"2") + wire(b"3"))
        await on.until(lambda: on.received == ["1"])
        peer.sock.close()
        await asyncio.wait_for(on.socket.wait_closed(), DEADLINE_S)
        assert not on.ended.is_set()
        first.set_result(None)
        await on.ended.wait()
        assert on.received == ["1", "2", "3"]


async def test_the_end_waits_for_what_is_being_served() -> None:
    async with stage() as (on, peer):
        first = on.hold("1")
        await peer.send(wire(b"1"))
        await on.until(lambda: on.received == ["1"])
        peer.sock.close()
        await asyncio.wait_for(on.socket.wait_closed(), DEADLINE_S)
        await asyncio.sleep(0)
        assert not on.ended.is_set()
        first.set_result(None)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("text", ["fail", "fail later"])
async def test_a_fault_of_serving_is_told_and_the_socket_goes_on(text: str, behind: bool) -> None:
    async with stage() as (on, peer):
        first = on.hold("1")
        on.hold("2").set_result(None)
        await peer.send((wire(b"1") if behind else b"") + wire(text.encode()) + wire(b"2"))
        if behind:
            await on.until(lambda: on.socket._queued == 3)
        first.set_result(None)
        await on.until(lambda: on.received[-1:] == ["2"])
        assert [str(error) for error in on.failures] == ["told to"]


async def test_what_one_step_says_leaves_in_one_write_in_order() -> None:
    async with stage() as (on, peer):
        on.socket.write(b"\x81\x011")
        on.socket.answer(b"2")
        on.socket.write(b"\x81\x013")
        on.socket.answer(b"4")
        assert await peer.read_until(b"4") == b"\x81\x011\x81\x012\x81\x013\x81\x014"


async def test_nothing_is_written_when_it_is_not_open() -> None:
    async with stage() as (on, peer):
        await peer.send(wire(b"\x03\xe8", Opcode.CLOSE))
        assert (await peer.read_to_end())[:4] == b"\x88\x02\x03\xe8"
        on.socket.write(b"late")
        on.socket.answer(b"late")
        assert on.socket.protocol.state is not State.OPEN


# -- a peer that does not read


async def stuck(on: Stage, peer: RawPeer) -> None:
    """Writes to a peer that does not read until the transport takes no more."""
    while on.socket.writable:
        on.socket.answer(BIG)
        on.socket.uncork()
        await asyncio.sleep(0)


def stopped(sending: asyncio.Future[None], on: Stage) -> bool:
    return sending.done() or not on.socket.transport.is_reading()


async def flooded(on: Stage, peer: RawPeer, text: bytes) -> int:
    """Sends until the server reads no more; returns how many bytes that took."""
    sent = 0
    while on.socket.transport.is_reading():
        # A send that does not get through ends the flood, too.
        sending = asyncio.ensure_future(peer.send(text))
        await until(partial(stopped, sending, on))
        through = sending.done()
        sending.cancel()
        await asyncio.wait({sending})
        sent += len(text)
    if through:  # all of it may have been read: then this is what waits to be
        await peer.send(text)
    return sent


@pytest.mark.parametrize("flood", [wire(b"echo") * 100, wire(b"", Opcode.PING) * 100], ids=["texts", "pings"])
async def test_a_peer_that_does_not_read_is_not_read_either(flood: bytes) -> None:
    async with stage(answers_bytes=4096) as (on, peer):
        await stuck(on, peer)
        size = on.socket.transport.get_write_buffer_size()
        await flooded(on, peer, flood)
        grown = on.socket.transport.get_write_buffer_size() - size
        assert 4096 < grown < 300_000
        answered = on.socket._handed
        # It reads again: so is it, and what it had sent meanwhile is answered.
        while not on.socket.writable:
            await peer.read()
        await on.until(lambda: on.socket.drained)
        drain = asyncio.ensure_future(peer.read_to_end())
        await until(lambda: on.socket._handed > answered)
        drain.cancel()
        await asyncio.wait({drain})
        on.socket.transport.abort()


async def test_texts_of_a_peer_that_does_not_read_wait_for_it() -> None:
    async with stage(answers_bytes=4096) as (on, peer):
        await stuck(on, peer)
        on.socket.data_received(wire(b"big") + wire(b"1"))
        await asyncio.sleep(0)
        for n in range(2, 12):
            on.socket.data_received(wire(b"%d" % n))
        assert on.received == ["big", "1"]
        assert on.socket.recv_messages.paused
        while not on.socket.writable:
            await peer.read()
        await on.until(lambda: on.received == ["big", *map(str, range(1, 12))])


async def test_a_peer_that_reads_late_is_written_to_again() -> None:
    async with stage() as (on, peer):
        await stuck(on, peer)
        while not on.socket.writable:
            await peer.read()
        assert on.socket.drained == 1
        on.socket.transport.abort()


async def test_a_peer_that_leaves_while_it_is_held_is_let_go() -> None:
    async with stage(answers_bytes=4096) as (on, peer):
        await stuck(on, peer)
        on.socket.data_received(wire(b"big"))
        await asyncio.sleep(0)
        on.socket.data_received(wire(b"1"))
        assert not on.socket.transport.is_reading()
        on.socket.transport.abort()
        on.socket.write(b"x")
        await on.ended.wait()
        assert on.received == ["big", "1"]


async def test_progress_is_what_the_peer_takes() -> None:
    async with stage() as (on, peer):
        assert on.socket.stalled_for(0) == 0
        await stuck(on, peer)
        assert on.socket.stalled_for(100) == 0
        assert on.socket.stalled_for(107) == 7
        # Neither what we write nor the pongs that websockets writes are progress; nor do they hide some.
        on.socket.write(b"x" * 1000)
        on.socket.data_received(wire(b"y" * 100, Opcode.PING) * 50)
        assert on.socket.stalled_for(109) == 9
        before = on.socket.waiting_bytes()
        while on.socket.waiting_bytes() >= before:
            await peer.read()
        on.socket.data_received(wire(b"y" * 100, Opcode.PING) * 50)
        assert on.socket.stalled_for(120) == 0
        assert on.socket.stalled_for(121) == 1
        on.socket.transport.abort()


async def test_a_transport_without_a_descriptor_has_its_buffer_only() -> None:
    async with stage() as (on, peer):
        await stuck(on, peer)
        both = on.socket.waiting_bytes()
        sock = on.socket.transport.get_extra_info("socket")
        on.socket.transport._extra.pop("socket")  # type: ignore[attr-defined]
        assert 0 < on.socket.waiting_bytes() <= both
        on.socket.transport._extra["socket"] = sock  # type: ignore[attr-defined]
        on.socket.transport.abort()


async def test_a_descriptor_that_knows_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Any:
        raise OSError

    async with stage() as (on, peer):
        await stuck(on, peer)
        monkeypatch.setattr("fcntl.ioctl", refuse)
        assert on.socket.waiting_bytes() == on.socket.transport.get_write_buffer_size()
        on.socket.transport.abort()


async def test_a_frame_begins_and_ends() -> None:
    async with stage() as (on, _):
        assert on.socket.half_since is None
        on.socket.data_received(wire(b"abc")[:3])
        began = on.socket.half_since
        assert began is not None
        on.socket.data_received(b"")
        assert on.socket.half_since == began
        on.socket.data_received(wire(b"", Opcode.PONG)[:0] + wire(b"abc")[3:])
        assert on.socket.half_since is None
        on.socket.data_received(wire(b"a", fin=False))
        assert on.socket.half_since is not None


# -- closing


@pytest.mark.parametrize("behind", [wire(b"\x03\xe8", Opcode.CLOSE), b"", b"\xff"], ids=["closes", "leaves", "breaks"])
async def test_what_is_over_needs_no_garbage_collector(behind: bytes) -> None:
    gc.collect()
    gc.disable()
    try:
        async with stage() as (on, peer):
            socket, protocol = weakref.ref(on.socket), weakref.ref(on.socket.protocol)
            await peer.send(wire(b"a") + behind)
            await on.until(lambda: on.received == ["a"])
            peer.sock.close()
            await on.ended.wait()
            await on.socket.wait_closed()
            del on.socket
        for _ in range(20):
            await asyncio.sleep(0)
        assert socket() is None and protocol() is None
    finally:
        gc.enable()


async def test_shut_closes_with_a_code_behind_what_was_said() -> None:
    async with stage() as (on, peer):
        on.socket.answer(b"bye")
        shutting = asyncio.ensure_future(on.socket.shut(1012, 5))
        assert await peer.read_until(b"\x03\xf4") == b"\x81\x03bye\x88\x02\x03\xf4"
        await peer.send(wire(b"\x03\xf4", Opcode.CLOSE))
        await shutting
        assert on.socket.protocol.state is State.CLOSED


@pytest.mark.parametrize("reads", [True, False])
async def test_shut_aborts_who_does_not_answer(reads: bool) -> None:
    async with stage() as (on, peer):
        if not reads:
            await stuck(on, peer)
        await on.socket.shut(1012, 0.05)
        await asyncio.wait_for(on.socket.wait_closed(), DEADLINE_S)
        await on.socket.shut(1012, 0.05)


def test_what_a_subclass_has_to_say() -> None:
    for method in (Socket.receive, Socket.failed):
        with pytest.raises(NotImplementedError):
            method(None, None)  # type: ignore[arg-type]
    assert Socket.on_writable(None) is None  # type: ignore[arg-type, func-returns-value]


async def test_what_comes_before_the_handshake_is_answered_waits_for_the_reader() -> None:
    """Nothing can be written before it, so that a text served then would have no answer."""
    made = Stage()
    asked, answered = asyncio.Event(), asyncio.Event()

    async def process_request(*_: object) -> None:
        asked.set()
        await answered.wait()

    async with serve_websockets(
        made.handle,
        "127.0.0.1",
        0,
        create_connection=partial(Recorder, stage=made),  # type: ignore[arg-type]
        process_request=process_request,
        close_timeout=0.2,
    ) as server:
        made.port = next(iter(server.sockets)).getsockname()[1]
        async with RawPeer.to(made, handshake=False) as peer:  # type: ignore[arg-type]
            await peer.send(HANDSHAKE.format(path="/", headers="").encode() + wire(b"echo"))
            await asked.wait()
            assert made.received == []
            answered.set()
            assert b"echoed" in await peer.read_until(b"echoed")
            assert made.received == ["echo"]
        await made.ended.wait()


async def test_what_is_no_frame_yet_harms_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    """An answer over plain HTTP has nothing behind its request: no second request, no frames, whatever it may be."""
    async with serving() as server:
        head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for behind in (head, b"x" * 200_000, b"\x88\x80\0\0\0\0", wire(b"", Opcode.PING)):
            async with RawPeer.to(server, handshake=False) as peer:
                await peer.send(head[:-2])
                await peer.send(head[-2:] + behind)
                answer = await peer.read_until(b"ok\n")
                assert answer.startswith(b"HTTP/1.1 200 OK")
        await until(lambda: not server.connections)
    assert "error" not in caplog.text


async def test_frames_behind_the_request_are_served_in_order_and_read_on(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        many = b"".join(wire(b"%d" % number, Opcode.PING) for number in range(20_000))
        async with RawPeer.to(server, behind=wire(b'{"type":"hello"}') + many) as peer:
            assert b'"type":"welcome"' in await peer.read_until(b'"boot":"')
            await peer.read_until(b"19999")
