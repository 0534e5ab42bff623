"""A connection, frame by frame, over a real server: what is served, refused and logged, and in which order.

Its hooks are in `test_connection_access.py`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from functools import partial
from typing import Any

import pytest
from websockets.frames import Opcode

from parlatory.actors import Agent, Live
from parlatory.server import AccessRequest, Limits, Principal
from parlatory.server.connection import Connection
from parlatory.server.protocol import Shut
from parlatory.storage import StorageFull, StoredMessage, open_engine

from .peers import Peer, RawPeer, serving, the_connection, until, user, wire

C = "relay/x"
# -- hello


async def test_welcome_states_the_limits() -> None:
    limits = Limits(message_bytes=100, page_rows=3, beat_ms=7_000)
    async with serving(limits=limits) as server, Peer.to(server) as peer:
        welcome = await peer.hello()
        assert welcome["limits"] == {"frame": 4 << 20, "message": 100, "inflight": 32, "conversations": 32, "page": 3}
        assert (welcome["version"], welcome["boot"], welcome["beatMs"]) == (server.version, server.boot, 7_000)
        assert welcome["connection"] == str(the_connection(server).id)
        assert welcome["principal"].startswith("anonymous:")


async def test_frames_may_follow_hello_at_once() -> None:
    """Also one that is longer than a first frame may be, and in one piece with the hello."""
    async with serving() as server, RawPeer.to(server) as peer:
        long = json.dumps({"type": "send", "conversation": C, "clientId": "c", "message": user("x" * 10_000)})
        await peer.send(wire(b'{"type":"hello"}') + wire(long.encode()) + wire(b'{"type":"ping","n":5}'))
        answers = await peer.read_until(b'"seq":1}')
        assert b"welcome" in answers and b'"type":"ack"' in answers


async def test_frames_in_one_piece_with_the_handshake_wait_for_it() -> None:
    async with serving() as server:
        behind = wire(b'{"type":"hello"}') + wire(b'{"type":"ping","n":5}')
        async with RawPeer.to(server, behind=behind) as peer:
            await peer.read_until(b'{"type":"pong","n":5}')


async def test_a_first_frame_is_cut_off_before_it_is_buffered(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, RawPeer.to(server) as peer:
        with caplog.at_level(logging.INFO):
            frame = wire(b"x" * (3 << 20))
            for start in range(0, 8 << 10, 1 << 10):
                await peer.send(frame[start : start + (1 << 10)])
            end = await peer.read_to_end()
        assert end[2:4] == b"\x03\xf1" and b"the first frame is over 4096 bytes" in end
        assert "its first frame is over 4096 bytes" in caplog.text


async def test_a_whole_first_frame_over_the_limit_closes_1009() -> None:
    async with serving() as server, Peer.to(server) as peer:
        await peer.send(type="hello", token="x" * 5_000)
        assert await peer.closed() == 1009
        assert not peer.seen


async def test_a_half_hello_is_no_hello() -> None:
    async with serving(limits=Limits(hello_timeout_s=0.05, close_s=0.1)) as server, RawPeer.to(server) as peer:
        await peer.send(wire(b'{"type":"hello"}')[:5])
        end = await peer.read_to_end()
        assert b'"code":4408' in end and end[-4:] == b"\x88\x02\x11\x38"


@pytest.mark.parametrize("text", ["{", '{"type":"ping","n":1}', '{"type":"hello","client":"short"}'])
async def test_anything_else_first_closes_4400(text: str) -> None:
    async with serving() as server, Peer.to(server) as peer:
        await peer.connection.send(text)
        await peer.refused(4400)
        assert [frame.get("code") for frame in peer.seen] == ["bad_frame", 4400]


@pytest.mark.parametrize("greet", [True, False])
async def test_a_binary_frame_closes_1003_without_bye(greet: bool) -> None:
    async with serving() as server, Peer.to(server) as peer:
        if greet:
            await peer.hello()
        await peer.connection.send(b"{}")
        assert await peer.closed() == 1003
        assert not peer.inbox


async def test_a_frame_over_the_limit_closes_1009_without_bye() -> None:
    async with serving(limits=Limits(frame_bytes=1000)) as server, Peer.admitted(server) as peer:
        await peer.post(C, "x" * 1000)
        assert await peer.closed() == 1009
        assert not peer.inbox


async def test_text_that_is_not_utf_8_closes_1007_without_bye() -> None:
    async with serving() as server, RawPeer.to(server, hello=True) as peer:
        await peer.send(wire(b'{"type":"ping","n":\xff}'))
        end = await peer.read_to_end()
        assert b"\x03\xef" in end and b"bye" not in end


async def test_a_hello_in_time_is_in_time() -> None:
    async with serving(limits=Limits(hello_timeout_s=0.05, beat_ms=20)) as server, Peer.admitted(server) as peer:
        for _ in range(4):
            await peer.get("beat")
        await peer.barrier()


# -- frames


async def test_a_send_is_told_and_acknowledged() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        await peer.open(C)
        assert await peer.say(C, "x", "c1") == {"type": "ack", "conversation": C, "clientId": "c1", "seq": 1}
        await peer.row(C, 1)
        assert await peer.say(C, "x", "c1") == {
            "type": "ack", "conversation": C, "clientId": "c1", "seq": 1, "duplicate": True,
        }  # fmt: skip
        conflict = await peer.say(C, "y", "c1")
        assert conflict["code"] == "client_id_conflict" and "retryMs" not in conflict
        bad = await peer.say(C, {"role": "user", "content": "x", "seq": 1})
        assert bad["code"] == "bad_message"
        large = await peer.say(C, "x" * (1 << 20))
        assert large["code"] == "too_large"
        assert the_connection(server).session.inflight == 0


@pytest.mark.parametrize("loaded", [True, False])
async def test_sends_commit_in_the_order_sent(loaded: bool) -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        if loaded:
            await peer.say(C, "first")
        for n in range(30):
            await peer.post(C, str(n), f"n{n}")
        acks = [await peer.get("ack") for _ in range(30)]
        assert [ack["clientId"] for ack in acks] == [f"n{n}" for n in range(30)]
        assert [ack["seq"] for ack in acks] == [n + 1 + loaded for n in range(30)]


async def test_a_log_that_refuses_is_internal(caplog: pytest.LogCaptureFixture) -> None:
    engine = await open_engine("memory:")
    async with serving(engine=engine) as server, Peer.admitted(server) as peer:
        await peer.say(C, "x")
        submit = engine.submit
        for error in (StorageFull("the disk is full"), RuntimeError("a fault"), asyncio.CancelledError()):

            def refuse(*args: Any, error: BaseException = error) -> Any:
                future = asyncio.get_running_loop().create_future()
                if isinstance(error, Exception):
                    future.set_exception(error)
                else:
                    future.cancel()
                return future

            engine.submit = refuse  # type: ignore[method-assign, assignment]
            answer = await peer.say(C, "y")
            assert answer["code"] == "internal" and answer["retryMs"] > 0
            assert "full" not in answer["text"]
        engine.submit = submit  # type: ignore[method-assign]
        assert (await peer.say(C, "z"))["seq"] == 2
        assert the_connection(server).session.inflight == 0
    assert "a send frame failed: the disk is full" in caplog.text and "RuntimeError: a fault" in caplog.text


async def test_the_33rd_conversation_is_too_many_and_close_makes_room() -> None:
    async with serving(limits=Limits(conversations=2)) as server, Peer.admitted(server) as peer:
        assert (await peer.open("relay/a"))["type"] == "opened"
        assert (await peer.open("relay/b"))["type"] == "opened"
        assert (await peer.open("relay/a"))["type"] == "opened"
        assert (await peer.open("relay/c"))["code"] == "too_many"
        for conversation in ("relay/a", "relay/never"):
            await peer.send(type="close", conversation=conversation)
        assert (await peer.open("relay/c"))["type"] == "opened"
        record = server.runtime.resident("relay/a")
        assert record is not None and not record.hub.subscriptions


async def test_pages_are_bounded_by_rows_and_bytes() -> None:
    async with serving(limits=Limits(page_rows=4)) as server, Peer.admitted(server) as peer:
        empty = await peer.page(C)
        assert (empty["rows"], empty["more"], empty["conversation"], bool(empty["epoch"])) == ([], False, C, True)
        await peer.fill(C, [*"abcdef"])
        for options, seqs, more in (
            ({}, [3, 4, 5, 6], True),
            ({"limit": 99}, [3, 4, 5, 6], True),
            ({"limit": 0}, [6], True),
            ({"before": 3}, [1, 2], False),
            ({"before": 3, "limit": 2}, [1, 2], False),
            ({"before": 0}, [], False),
        ):
            answer = await peer.page(C, **({"before": 99} | options))
            assert ([row["seq"] for row in answer["rows"]], answer["more"]) == (seqs, more)
        big = "x" * ((1 << 20) // 2 - 40)
        await peer.fill("relay/big", [big, big])
        answer = await peer.page("relay/big")
        assert ([row["seq"] for row in answer["rows"]], answer["more"]) == ([2], True)


async def test_a_log_that_cannot_be_read_is_internal() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        await peer.say(C, "x")

        async def read(*_: object, **__: object) -> Any:
            raise RuntimeError("a fault")

        server.runtime.engine.read = read  # type: ignore[method-assign]
        error = await peer.page(C)
        assert (error["code"], error["id"], error["conversation"]) == ("internal", peer.seen[-1]["id"], C)


async def test_signals_reach_the_others() -> None:
    def authenticate(request: AccessRequest) -> Principal:
        return Principal(f"user:{request.token}")

    hooks: Any = {"authenticate": authenticate, "authorize": lambda *_: True}
    async with serving(**hooks) as server, Peer.admitted(server, token="ann") as ann:
        async with Peer.admitted(server, token="bob") as bob:
            await ann.send(type="signal", conversation="relay/nobody", name="lost")
            await ann.barrier()
            assert server.runtime.conversations == 0
            for peer in (ann, bob):
                await peer.open(C)
            await ann.send(type="signal", conversation=C, name="typing", data={"on": True})
            await ann.send(type="signal", conversation=C, name="bare")
            assert (await bob.get("signal"))["data"] == {"on": True}
            assert await bob.get("signal") == {"type": "signal", "conversation": C, "name": "bare", "by": "user:ann"}
            await ann.barrier()
            assert not [frame for frame in ann.inbox if frame["type"] == "signal"]


class Waiter(Agent):
    """Waits in its turn."""

    running: asyncio.Event

    async def on_message(self, row: StoredMessage) -> None:
        self.running.set()
        await asyncio.get_running_loop().create_future()


async def test_cancel_stops_the_running_turn_that_it_names() -> None:
    Waiter.running = asyncio.Event()
    async with serving(Waiter) as server, Peer.admitted(server) as peer:
        await peer.send(type="cancel", conversation="waiter/none")
        await peer.open("waiter/x")
        seq = (await peer.say("waiter/x", "x"))["seq"]
        await Waiter.running.wait()
        for other in ({"turn": seq + 1}, {"turn": "task:1"}, {"id": "call"}):
            await peer.send(type="cancel", conversation="waiter/x", **other)
        await peer.barrier()
        assert not [frame for frame in peer.inbox if frame.get("state") == "stopped"]
        await peer.send(type="cancel", conversation="waiter/x", turn=seq)
        await peer.get("turn", state="stopped", id=seq)


async def test_there_are_no_methods_yet() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        await peer.send(type="call", id="i", conversation=C, method="m", args={})
        error = await peer.get("error")
        assert (error["code"], error["id"], error["conversation"]) == ("method_not_found", "i", C)
        assert the_connection(server).session.inflight == 0


async def test_beats_name_the_heads_of_what_is_caught_up() -> None:
    async with serving(limits=Limits(beat_ms=20)) as server, Peer.admitted(server) as peer:
        await peer.open(C)
        await peer.fill(C, "ab")
        assert (await peer.get("beat", heads={C: 2}))["type"] == "beat"
        connection = the_connection(server)
        connection.writable = False
        connection._send_beat()
        connection.writable = True
        await peer.get("beat")


# -- what ends it


async def test_the_16th_bad_frame_closes_4400(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        with caplog.at_level(logging.INFO):
            for _ in range(16):
                await peer.send(type="nope", id="i")
            await peer.send(type="ping", n=1)
            await peer.refused(4400)
        assert [frame["type"] for frame in peer.seen] == ["welcome", *["error"] * 16, "bye"]
        refused = [record.getMessage() for record in caplog.records if "bad_frame" in record.getMessage()]
        assert len(refused) == 16 and all(peer.seen[0]["connection"] in line for line in refused)


async def test_a_fault_of_ours_closes_1011(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Any:
        raise RuntimeError("a fault")

    async with serving() as server, Peer.admitted(server) as peer:
        monkeypatch.setattr(Connection, "_serve", broken)
        await peer.post(C, "x")
        await peer.refused(1011)
    assert "serving it failed" in caplog.text and "RuntimeError: a fault" in caplog.text


async def test_bye_is_the_last_frame() -> None:
    """What a commit comes to while the socket closes is too late for it; the client asks again, under the same id."""
    async with serving() as server, Peer.admitted(server) as peer:
        await peer.open(C)
        await peer.live(C)
        connection = the_connection(server)
        record, subscription = server.runtime.resident(C), connection._subscriptions[C]
        assert record is not None
        pending: list[asyncio.Future[Any]] = []

        def submit(*_: object) -> asyncio.Future[Any]:
            pending.append(asyncio.get_running_loop().create_future())
            return pending[-1]

        server.runtime.engine.submit = submit  # type: ignore[method-assign, assignment]
        await peer.post(C, "x")
        await until(lambda: pending)
        connection.begin_shut(Shut(1012))
        connection.begin_shut(Shut(4403))
        pending[0].set_exception(StorageFull("the disk is full"))
        connection.tell(Live(C, 7))
        await peer.refused(1012)
        assert not record.hub.subscriptions and not subscription.live


async def test_a_paused_socket_gets_no_bye_and_is_aborted() -> None:
    async with serving(limits=Limits(close_s=0.05)) as server, Peer.admitted(server) as writer:
        await writer.fill(C, ["x" * 100_000] * 80)
        async with RawPeer.to(server, hello=True) as stuck:
            connection = the_connection(server, but=writer)
            await stuck.text(type="open", conversation=C)
            await until(lambda: not connection.writable)
            await server.revoke(connection.principal.name if connection.principal else "")
            assert b"bye" not in await stuck.read_to_end()


async def test_a_reader_that_wakes_up_gets_everything() -> None:
    async with serving() as server, Peer.admitted(server) as writer:
        await writer.fill(C, ["x" * 100_000] * 80)
        async with RawPeer.to(server, hello=True) as slow:
            connection = the_connection(server, but=writer)
            await slow.text(type="open", conversation=C)
            await until(lambda: not connection.writable)
            slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            rows = await slow.read_until(b'{"type":"live","conversation":"relay/x","seq":80}')
            assert [int(seq) for seq in re.findall(rb'"seq":(\d+)', rows)][:-1] == list(range(1, 81))


def stopped(sending: asyncio.Future[None], connection: Connection) -> bool:
    return sending.done() or not connection.transport.is_reading()


async def test_opens_of_a_client_that_does_not_read_are_bounded() -> None:
    """The answer to an open goes through the hub: it counts like any other."""
    async with serving() as server, Peer.admitted(server) as writer:
        await writer.fill(C, ["x" * 100_000] * 80)
        async with RawPeer.to(server, hello=True) as stuck:
            connection = the_connection(server, but=writer)
            await stuck.text(type="open", conversation=C)
            await until(lambda: not connection.writable)
            size = connection.transport.get_write_buffer_size()
            again = wire(json.dumps({"type": "open", "conversation": C}).encode()) * 100
            while connection.transport.is_reading():
                sending = asyncio.ensure_future(stuck.send(again))
                await until(partial(stopped, sending, connection))
                sending.cancel()
                await asyncio.wait({sending})
            assert connection.transport.get_write_buffer_size() - size < 500_000


async def test_a_client_of_pings_alone_is_served() -> None:
    async with serving() as server, RawPeer.to(server, hello=True) as peer:
        await peer.send(wire(b"p", Opcode.PING))
        assert await peer.read() == b"\x8a\x01p"


async def test_a_socket_that_asks_too_fast_is_refused_and_then_closed() -> None:
    async with serving(limits=Limits(frames_per_s=0.001, frames_burst=6)) as server, Peer.admitted(server) as peer:
        for _ in range(3):
            await peer.send(type="close", conversation=C)
        await peer.send(type="page", id="p", conversation=C, before=9)
        refusal = await peer.get("error", id="p")
        assert (refusal["code"], refusal["retryMs"] > 0) == ("rate", True)
        for _ in range(5):
            await peer.send(type="close", conversation=C)
        await peer.refused(4429)
