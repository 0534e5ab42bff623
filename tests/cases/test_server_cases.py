"""Cases from the field (CASES.md) that live on the wire. Each test carries its id; the clients are bare WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sqlite3
import struct
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from parlatory.server import Limits, Server
from parlatory.storage import MessageLog, open_engine, user_message

from ..server.peers import Echo, Json, Peer, RawPeer, Relay, history, on_disk, serving, until, user

C = "relay/c"
SEED = 20261130


def texts(rows: list[Json]) -> list[str]:
    return [row["message"]["content"] for row in rows]


# -- order and time


async def test_T16_rows_come_by_seq_whatever_the_file_looks_like(tmp_path: Path) -> None:
    random.seed(SEED)
    said: dict[str, list[str]] = {f"relay/{n}": [] for n in range(5)}
    async with on_disk(tmp_path) as server, Peer.admitted(server) as peer:
        for n in range(200):
            conversation = random.choice([*said])
            said[conversation].append(str(n))
            await peer.say(conversation, str(n))
    for _ in range(2):
        async with on_disk(tmp_path) as server, Peer.admitted(server) as peer:
            for conversation, expected in said.items():
                assert texts(await history(server, conversation)) == expected
                await peer.open(conversation, tail=7)
                assert await peer.live(conversation) == [*range(len(expected) - 6, len(expected) + 1)]
        for path in tmp_path.glob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("VACUUM")


async def test_T18_instants_are_utc_in_every_time_zone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[list[str]] = []
    for zone in ("Asia/Tokyo", "America/New_York", "UTC"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        try:
            async with on_disk(tmp_path) as server, Peer.admitted(server) as peer:
                await peer.say(C, zone)
                told.append([row["at"] for row in await history(server, C)])
        finally:
            monkeypatch.undo()
            time.tzset()
        at = datetime.strptime(told[-1][-1], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        assert abs(datetime.now(UTC) - at) < timedelta(minutes=1)
    assert told[0] == told[2][:1] and told[1] == told[2][:2]


# -- resuming


async def test_T25_rows_that_were_missed_come_once_in_order_and_then_live() -> None:
    async with serving() as server, Peer.admitted(server) as writer:
        async with Peer.admitted(server) as away:
            epoch = (await away.open(C))["epoch"]
            await writer.fill(C, map(str, range(1, 6)))
            await away.row(C, 5)
        await writer.fill(C, map(str, range(6, 21)))
        async with Peer.admitted(server) as back:
            opened = await back.open(C, epoch=epoch, after=5)
            assert (opened["type"], opened["from"], opened["head"]) == ("opened", 5, 20)
            assert await back.live(C) == list(range(6, 21))
            await writer.say(C, "21")
            await back.row(C, 21)
            assert back.seqs(C) == [21]


async def test_T26_no_row_is_sent_again_at_or_below_the_cursor() -> None:
    """Two logical clients of one principal, 100 reconnections each at random points during 1,000 appends."""
    choice = random.Random(SEED)
    rows = 1_000

    async def client(server: Server) -> None:
        cursor = 0
        position: Json = {}
        for cut in sorted(choice.sample(range(1, rows), 100)) + [rows]:
            async with Peer.admitted(server) as peer:
                await peer.open(C, **position)
                while cursor < cut:
                    frame = await peer.get("rows")
                    for row in frame["rows"]:
                        assert row["seq"] == cursor + 1
                        cursor += 1
                    position = {"epoch": frame["epoch"], "after": cursor, "at": frame["rows"][-1]["at"]}
                peer.connection.transport.abort()

    async with serving() as server, Peer.admitted(server) as writer:
        clients = [asyncio.ensure_future(client(server)) for _ in range(2)]
        for start in range(0, rows, 20):
            for n in range(start, start + 20):
                await writer.post(C, str(n))
            for _ in range(20):
                assert (await writer.get("ack"))["seq"]
        await asyncio.wait_for(asyncio.gather(*clients), 30)


async def test_T28_L17_a_second_open_replaces_the_first() -> None:
    async with serving() as server, Peer.admitted(server) as peer, Peer.admitted(server) as writer:
        await writer.fill(C, "abc")
        for _ in range(2):
            await peer.send(type="open", conversation=C)
        assert await peer.live(C) == [1, 2, 3]
        if "live" not in [frame["type"] for frame in peer.inbox]:  # the first may have been replaced before it began
            await peer.barrier()
        peer.inbox.clear()
        await writer.say(C, "d")
        await peer.row(C, 4)
        await peer.barrier()
        assert peer.seqs(C) == [4]
        record = server.runtime.resident(C)
        assert record is not None and len(record.hub.subscriptions) == 1


async def test_L04_opens_from_two_sockets_and_twice_from_one_end_in_the_same_state() -> None:
    async with serving() as server, Peer.admitted(server) as a, Peer.admitted(server) as b:
        await a.fill(C, "abc")
        held: list[dict[int, Json]] = []
        for peer in (a, a, b):
            opened = await peer.open(C)
            await peer.get("live", seq=3)
            runs = [frame for frame in peer.inbox if frame["type"] == "rows"]
            peer.inbox.clear()
            held.append({row["seq"]: row for run in runs for row in run["rows"]} | {0: opened})
        assert held[0] == held[1] == held[2] and [*held[0]] == [1, 2, 3, 0]


async def test_T32_a_client_that_saw_nothing_misses_nothing() -> None:
    async with serving() as server, Peer.admitted(server) as writer:
        async with Peer.admitted(server) as quiet:
            epoch = (await quiet.open(C))["epoch"]
            assert await quiet.live(C) == []
            quiet.connection.transport.abort()
        await writer.fill(C, "abc")
        async with Peer.admitted(server) as quiet:
            assert (await quiet.open(C, epoch=epoch, after=0))["type"] == "opened"
            assert await quiet.live(C) == [1, 2, 3]


async def test_T34_L20_a_position_of_another_log_is_reset(tmp_path: Path) -> None:
    async with on_disk(tmp_path / "a") as server, Peer.admitted(server) as peer:
        await peer.fill(C, "abc")
        await peer.fill("relay/other", "xyz")
        epoch = (await peer.open(C))["epoch"]
        await peer.get("live")
        at = (await history(server, "relay/other"))[1]["at"]
        for position, reason in (
            ({"epoch": epoch, "after": 10**9}, "ahead"),
            ({"epoch": "another", "after": 1}, "epoch"),
            ({"epoch": epoch, "after": 2, "at": at}, "epoch"),
        ):
            peer.inbox.clear()
            reset = await peer.open(C, **position)
            assert (reset["type"], reset["reason"], reset["from"], reset["epoch"]) == ("reset", reason, 0, epoch)
            assert await peer.live(C) == [1, 2, 3]
    async with on_disk(tmp_path / "wiped") as server, Peer.admitted(server) as peer:
        await peer.fill(C, "d")
        reset = await peer.open(C, epoch=epoch, after=3)
        assert (reset["type"], reset["reason"], reset["from"]) == ("reset", "epoch", 0)
        assert reset["epoch"] != epoch
        assert await peer.live(C) == [1]


async def test_L02_what_is_appended_while_an_open_is_on_its_way_is_not_lost() -> None:
    """Once while the conversation is loaded, once while its rows are read."""
    engine = await open_engine("memory:")
    log = MessageLog(await engine.partition(C))
    for n in range(300):  # more than the tail ring holds, so that the replay reads the log
        await log.append(user_message(str(n)))
    read, opened_partition = engine.read, engine.partition
    gates = {"partition": asyncio.Event(), "read": asyncio.Event()}
    entered = {"partition": asyncio.Event(), "read": asyncio.Event()}

    async def slow_partition(name: str) -> Any:
        entered["partition"].set()
        await gates["partition"].wait()
        return await opened_partition(name)

    async def slow_read(*arguments: Any, **options: Any) -> Any:
        entered["read"].set()
        await gates["read"].wait()
        return await read(*arguments, **options)

    engine.partition, engine.read = slow_partition, slow_read  # type: ignore[method-assign]
    async with serving(engine=engine) as server, Peer.admitted(server) as reader, Peer.admitted(server) as writer:
        await reader.send(type="open", conversation=C)
        await entered["partition"].wait()
        await writer.post(C, "while it is loaded")
        await until(lambda: any(connection.session.inflight for connection in server._connections))
        gates["partition"].set()
        await writer.get("ack", seq=301)
        await entered["read"].wait()
        await writer.say(C, "while it is read")
        gates["read"].set()
        await reader.row(C, 302)
        assert reader.seqs(C) == list(range(1, 303))


async def test_L14_an_old_socket_that_hangs_does_not_hold_the_new_one() -> None:
    async with serving(limits=Limits(stall_s=0.2)) as server, Peer.admitted(server) as writer:
        await writer.fill(C, ["x" * 100_000] * 80)
        async with RawPeer.to(server, hello=True) as zombie:
            await zombie.text(type="open", conversation=C)
            async with Peer.admitted(server) as resumed:
                await resumed.open(C)
                await until(lambda: server.reaper.stalled == 1)
                await writer.say(C, "live")
                await resumed.row(C, 81)
                assert resumed.seqs(C) == list(range(1, 82))
        assert server.reaper.stalled == 1


# -- exactly once


async def test_T47_a_repeat_is_one_row_and_one_turn(tmp_path: Path) -> None:
    where = "echo/c"
    async with on_disk(tmp_path, Echo) as server, Peer.admitted(server) as peer:
        for _ in range(2):  # at once
            await peer.post(where, "x", "c1")
        acks = [await peer.get("ack") for _ in range(2)]
        assert [ack["seq"] for ack in acks] == [1, 1]
        assert sorted(ack.get("duplicate", False) for ack in acks) == [False, True]
        await peer.open(where)
        await peer.row(where, 2)
    async with on_disk(tmp_path, Echo) as server:
        async with Peer.admitted(server) as peer, Peer.admitted(server) as other:
            for again in (peer, other):
                ack = await again.say(where, "x", "c1")
                assert (ack["seq"], ack["duplicate"]) == (1, True)
        assert texts(await history(server, where)) == ["x", "echo: x"]


async def test_L13_a_send_whose_ack_was_lost_is_repeated_without_a_second_row() -> None:
    async with serving() as server:
        for n in range(20):
            async with RawPeer.to(server, hello=True) as raw:
                frame = {"type": "send", "conversation": C, "clientId": f"c{n}", "message": user(str(n))}
                await raw.text(**frame)
                raw.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no goodbye
            async with Peer.admitted(server) as peer:
                assert (await peer.say(C, str(n), f"c{n}"))["type"] == "ack"
        rows = await history(server, C)
        by_author: dict[tuple[str, str], int] = {}
        for row in rows:
            key = (row["by"], row["clientId"])
            by_author[key] = by_author.get(key, 0) + 1
        assert set(by_author.values()) == {1}


async def test_T48_the_same_id_with_another_message_is_a_conflict() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        await peer.say(C, "x", "c1")
        for other in ("y", {"role": "user", "content": [{"type": "text", "text": "x"}]}, user("x") | {"metadata": {}}):
            answer = await peer.say(C, other, "c1")
            assert (answer["code"], answer["clientId"], answer["conversation"]) == ("client_id_conflict", "c1", C)
        assert texts(await history(server, C)) == ["x"]
        assert (await peer.say(C, "next"))["seq"] == 2


async def test_T49_every_entrance_knows_the_ids_of_the_others() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        me = peer.seen[0]["principal"]
        ref = server.runtime.get(Relay, "c")
        assert (await peer.say(C, "x", "c1"))["seq"] == 1
        assert await ref.append(user_message("x"), by=me, client_id="c1") == 1
        assert await ref.append(user_message("y"), by=me, client_id="c2") == 2
        ack = await peer.say(C, "y", "c2")
        assert (ack["seq"], ack["duplicate"]) == (2, True)
        assert texts(await history(server, C)) == ["x", "y"]


# -- text


async def test_T50_a_nul_comes_back_as_it_was(tmp_path: Path) -> None:
    message = {
        "role": "user",
        "content": [{"type": "text", "text": "a\0b"}, {"type": "custom", "kind": "k", "data": {"k\0": ["\0"]}}],
        "metadata": {"note": "\0\x01\x7f"},
    }
    plain = user("\0")
    async with on_disk(tmp_path) as server, Peer.admitted(server) as peer:
        answers = [await peer.say(C, one) for one in (message, plain)]
        kept = [one for one, answer in zip((message, plain), answers, strict=True) if answer["type"] == "ack"]
        assert plain in kept and all(answer.get("code", "bad_message") == "bad_message" for answer in answers)
    async with on_disk(tmp_path) as server:
        assert [row["message"] for row in await history(server, C)] == kept


async def test_T51_a_lone_surrogate_is_a_bad_message_and_the_socket_goes_on() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        parts = [{"type": "text", "text": "\ude00"}]
        for content, path in (("x\ud83d", "$.content"), (parts, "$.content[0].text")):
            answer = await peer.say(C, {"role": "user", "content": content})
            assert answer["code"] == "bad_message" and path in answer["text"]
        assert (await peer.say(C, {"role": "user", "content": "x", "metadata": {"\ud800": 1}}))["code"] == "bad_message"
        assert (await peer.say(C, "\U0001f600"))["seq"] == 1
        assert texts(await history(server, C)) == ["\U0001f600"]


async def test_T53_what_is_too_large_is_named_and_ends_the_socket_only_over_the_frame_limit() -> None:
    mb = 1_000_000
    async with serving() as server:
        async with Peer.admitted(server) as peer:
            assert (await peer.say(C, "x" * (9 * mb // 10)))["type"] == "ack"
            for size in (11 * mb // 10, 3 * mb):
                answer = await peer.say(C, "x" * size)
                assert answer["code"] == "too_large" and "1048576" in answer["text"] and "retryMs" not in answer
            assert (await peer.say(C, "still here"))["seq"] == 2
        for size in (8 * mb, 64 * mb):
            async with Peer.admitted(server) as peer:
                with contextlib.suppress(ConnectionClosed):
                    await peer.post(C, "x" * size)
                assert await peer.closed() == 1009
                assert peer.connection.close_reason and not peer.inbox
        assert len(await history(server, C)) == 2


# -- names

NAMES = [
    "relay/a", "relay/A", "relay/\u0430", "relay/\uff41", "relay/a/b", "relay/a//b", "relay//", "relay/.", "relay/..",
    "relay/../../etc/passwd", "relay/a.db", "relay/LOCK", "relay/ ", "relay/a ", "relay/%2e%2e", "relay/a\\b",
    "relay/~", "relay/-rf", "relay/'; --", "relay/\u202e",
    "relay/" + "\U0001f600" * 128, "relay/\u00e9", "relay/\ufb01", "relay/fi", "relay/K", "relay/CON", "relay/a?b#c",
]  # fmt: skip
NO_NAMES = [
    "relay/a\0", "relay/a\nb", "relay/a\x85", "relay/a\x7f", "relay/e\u0301", "relay/\u212a", "relay/",
    "relay/" + "\U0001f600" * 129,
    "relay", "", "/a", "Relay/a", "relay\0/a", " relay/a", "re_lay/a", "../relay/a", "r" * 33 + "/a", "relay/\ud800",
]  # fmt: skip


async def test_odd_names_are_distinct_conversations_and_never_paths(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with on_disk(data) as server, Peer.admitted(server) as peer:
        before = sorted(path.name for path in data.iterdir())
        for name in NAMES:
            assert (await peer.say(name, f"I am {name}"))["seq"] == 1, name
        for name in NO_NAMES:
            answer = await peer.say(name, "x")
            assert answer["code"] == "bad_frame", name
            await peer.send(type="open", conversation=name)
            assert (await peer.get("error"))["code"] == "bad_frame", name
            await peer.barrier()
        for name in NAMES:
            assert texts(await history(server, name)) == [f"I am {name}"]
        assert sorted(path.name for path in data.iterdir()) == before
        assert [path.name for path in tmp_path.iterdir()] == ["data"]
