"""Cases from the field that live in the actors, and what must be shown of them.

Each test carries the id of its case, so that a report from the field is found from its test, and the other way round.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parlatory.actors import (
    Agent,
    Conversation,
    Live,
    MailboxFull,
    Opened,
    PositionRequest,
    RowsTold,
    Runtime,
    Subscription,
)
from parlatory.storage import Engine, MessageLog, StoredMessage, instant_text, open_engine, user_message
from parlatory.storage.sqlite import SqliteEngine

from ..actors.bots import Held, Stage, actor
from ..actors.fakes import Clock, Recorder, batch, new_user_row, steps, until
from ..storage.holdings import Holdings

NAME = "relay/ann"


class Relay(Agent):
    pass


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
async def runtime(engine: Engine, stage: Stage) -> AsyncIterator[Runtime]:
    async with Runtime(engine, [Relay, actor(stage)], stop_grace_s=0.01) as runtime:
        yield runtime


async def append(record: Conversation, count: int) -> None:
    for index in range(count):
        await record.commit(batch(f"text {index}"))


# -- order


async def test_T01_two_questions_at_once_are_answered_one_after_the_other(engine: Engine) -> None:
    seen: dict[str, list[str]] = {}

    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            before = [one.text for one in await self.messages.all()]
            await steps(20)  # meanwhile the other question is committed
            seen[row.text] = before
            await self.say(f"re {row.text}")

    async with Runtime(engine, [Bot]) as runtime:
        ref = runtime.get(Bot, "c")
        await asyncio.gather(ref.append(user_message("Q1"), by="ann"), ref.append(user_message("Q2"), by="bob"))
        await (await runtime.conversation(ref.name)).lane.join()
        rows = await (await ref.log()).all()
    questions = [row.text for row in rows if row.role == "user"]
    answers = [row for row in rows if row.role == "assistant"]
    assert sorted(questions) == ["Q1", "Q2"]
    assert [row.text for row in answers] == [f"re {question}" for question in questions]
    turns = {row.turn: row.text for row in answers}
    assert all(turns[row.seq] == f"re {row.text}" for row in rows if row.role == "user")
    assert f"re {questions[0]}" in seen[questions[1]], "the second turn saw the first"


async def test_T02_a_hundred_appends_at_once_are_a_hundred_rows(runtime: Runtime) -> None:
    ref = runtime.get(Relay, "ann")
    seqs = await asyncio.gather(*(ref.append(user_message(f"text {index}")) for index in range(100)))
    assert sorted(seqs) == list(range(1, 101))
    rows = await (await ref.log()).all()
    assert [rows[seq - 1].text for seq in seqs] == [f"text {index}" for index in range(100)]


async def test_T17_the_order_does_not_hang_on_the_clock(runtime: Runtime, engine: Engine) -> None:
    now = 1_800_000_000_000_000
    engine._committer._clock = lambda: now  # type: ignore[attr-defined]
    record = await runtime.conversation(NAME)
    sink = Recorder()
    await sink.open(record)
    await append(record, 20)
    now -= 3_600_000_000
    await append(record, 20)
    await sink.until_live(40)
    rows = [row for event in sink.events if isinstance(event, RowsTold) for row in event.rows]
    assert [row.seq for row in rows] == list(range(1, 41))
    assert all(before.at <= after.at for before, after in zip(rows, rows[1:], strict=False))


# -- coming back


async def test_T25_what_came_while_away_comes_once_then_live(runtime: Runtime) -> None:
    record = await runtime.conversation(NAME)
    await append(record, 5)
    away = Recorder()
    subscription = await away.open(record)
    await away.until_live(5)
    subscription.unsubscribe()
    await append(record, 15)
    back = Recorder()
    await back.open(record, PositionRequest(record.epoch, 5))
    await back.until_live(20)
    await append(record, 1)
    await back.until_live(21)
    assert away.seqs == [1, 2, 3, 4, 5]
    assert back.seqs == list(range(6, 22))


async def test_T32_who_was_told_nothing_before_the_drop_misses_nothing(runtime: Runtime) -> None:
    record = await runtime.conversation(NAME)
    first = Recorder()
    (await first.open(record)).unsubscribe()
    await append(record, 3)
    back = Recorder()
    await back.open(record, PositionRequest(record.epoch, 0))
    await back.until_live(3)
    assert back.seqs == [1, 2, 3]


@pytest.mark.parametrize("wiped", [False, True])
async def test_T34_a_position_beyond_the_log_is_reset(runtime: Runtime, wiped: bool) -> None:
    record = await runtime.conversation(NAME)
    await append(record, 3)
    sink = Recorder()
    request = PositionRequest("the log before it was wiped", 2) if wiped else PositionRequest(record.epoch, 10**9)
    await sink.open(record, request)
    await sink.until_live(3)
    answer = sink.events[0]
    assert isinstance(answer, Opened)
    assert (answer.reason, answer.epoch, answer.start) == ("epoch" if wiped else "ahead", record.epoch, 0)
    assert sink.seqs == [1, 2, 3]


async def test_L20_a_position_of_another_conversation_is_reset(runtime: Runtime) -> None:
    """The epoch is the file's, so that only the instant of the row tells two conversations apart."""
    ann, bob = await runtime.conversation("relay/ann"), await runtime.conversation("relay/bob")
    await append(ann, 3)
    await append(bob, 3)
    rows = await ann.read()
    sink = Recorder()
    await sink.open(bob, PositionRequest(ann.epoch, 2, instant_text(rows[1].at)))
    await sink.until_live(3)
    answer = sink.events[0]
    assert isinstance(answer, Opened)
    assert answer.reason == "epoch"
    assert sink.seqs == [1, 2, 3]


async def test_L10_a_quiet_hour_changes_nothing(runtime: Runtime, clock: Clock) -> None:
    record = await runtime.conversation(NAME)
    await append(record, 2)
    sink = Recorder()
    await sink.open(record)
    await sink.until_live(2)
    for _ in range(60):
        await clock.advance(60)
    assert runtime.resident(NAME) is record
    await append(record, 1)
    await sink.until_live(3)
    again = Recorder()
    await again.open(record, PositionRequest(record.epoch, 2))
    await again.until_live(3)
    assert (sink.seqs, again.seqs) == ([1, 2, 3], [3])


# -- replay and live


async def test_L01_an_append_during_the_read_of_a_replay(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    record = await runtime.conversation(NAME)
    await append(record, 2)
    record.hub.forget_tail()
    gate, reading, read = asyncio.Event(), asyncio.Event(), runtime.engine.read

    async def slow_read(*args: object, **options: object) -> object:
        rows = await read(*args, **options)  # type: ignore[arg-type]
        reading.set()
        await gate.wait()
        return rows

    monkeypatch.setattr(runtime.engine, "read", slow_read)
    sink = Recorder()
    await sink.open(record)
    await reading.wait()
    await append(record, 2)
    gate.set()
    await sink.until_live(4)
    assert sink.seqs == [1, 2, 3, 4]


async def test_L02_an_append_between_the_answer_and_the_first_row(runtime: Runtime) -> None:
    record = await runtime.conversation(NAME)
    await append(record, 1)
    with Held(runtime.engine):
        crossing = record.post(new_user_row("crossing"))
        sink = Recorder()
        await sink.open(record)
        await sink.until(lambda sink: sink.last_seq() == 1)
    await crossing
    await sink.until_live(2)
    assert sink.seqs == [1, 2]


async def test_L04_opening_twice_on_one_socket_and_from_two(runtime: Runtime) -> None:
    record = await runtime.conversation(NAME)
    await append(record, 3)
    one, two = Recorder(), Recorder()
    await one.open(record, PositionRequest(record.epoch, 1))
    await one.open(record, PositionRequest(record.epoch, 1))
    await two.open(record, PositionRequest(record.epoch, 1))
    await one.until_live(3)
    await two.until_live(3)
    await append(record, 1)
    await one.until_live(4)
    await two.until_live(4)
    assert one.seqs == two.seqs == [2, 3, 4]
    assert len(record.hub.subscriptions) == 2


async def test_L08_live_rows_and_turns_do_not_overtake_the_replay(
    runtime: Runtime, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await runtime.conversation("bot/ann")
    await record.post(new_user_row("first, quiet"))
    await record.lane.join()
    record.hub.forget_tail()
    gate, reading, read = asyncio.Event(), asyncio.Event(), runtime.engine.read

    async def slow_read(*args: object, **options: object) -> object:
        reading.set()
        await gate.wait()
        return await read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime.engine, "read", slow_read)
    sink = Recorder()
    await sink.open(record)
    await reading.wait()
    await record.post(new_user_row("second"))
    await until(lambda: record.head == 3 and record.lane.quiet)
    assert sink.seqs == []
    gate.set()
    await sink.until(lambda sink: (2, "done") in sink.turns)
    kinds = [kind for kind in sink.kinds() if kind != "Presence"]
    assert sink.seqs == [1, 2, 3]
    assert kinds.index("TurnTold") > kinds.index("Live") > kinds.index("RowsTold")


async def test_L17_a_second_open_is_a_move(runtime: Runtime) -> None:
    record = await runtime.conversation(NAME)
    await append(record, 3)
    sink = Recorder()
    for _ in range(5):
        await sink.open(record, PositionRequest(record.epoch, 3))
    await sink.until_live(3)
    await append(record, 1)
    await sink.until_live(4)
    assert sink.seqs == [4]
    assert sink.count(Live) == 1


# -- slow readers


async def test_L23_a_saturated_subscriber_has_no_gap_and_its_lag_can_be_seen(runtime: Runtime) -> None:
    record = await runtime.conversation(NAME)
    slow, good = Recorder(), Recorder()
    subscription = await slow.open(record)
    await good.open(record)
    await slow.until_live(0)
    await good.until_live(0)
    slow.pause()
    await append(record, 30)
    await good.until_live(30)
    assert (subscription.live, record.head - subscription.position) == (False, 30)
    for _ in range(40):
        slow.resume()
        slow.pause()
        await steps(2)
    slow.resume()
    await slow.until_live(30)
    assert slow.seqs == good.seqs == list(range(1, 31))


async def test_L24_L26_a_stuck_reader_costs_its_position_and_nobody_s_time(runtime: Runtime) -> None:
    record = await runtime.conversation(NAME)
    stuck, others = Recorder(), [Recorder() for _ in range(19)]
    for sink in (stuck, *others):
        await sink.open(record)
        await sink.until_live(0)
    stuck.pause()
    text = "x" * 10_000
    for _ in range(20):
        await record.commit(batch(*[text] * 50))
    for sink in others:
        await sink.until_live(1000)
        assert sink.count(RowsTold) <= 20 and sink.count(Live) == 1, "each commit went straight to who reads"
    assert stuck.seqs == []
    assert sum(len(row.body) for row in record.hub._tail) <= 4 << 20
    subscription = stuck.subscription
    assert subscription is not None
    assert not subscription._pending
    stuck.resume()
    await stuck.until_live(1000)
    assert stuck.seqs == list(range(1, 1001))


# -- exactly once


async def test_T47_a_send_that_is_repeated_is_one_row_and_one_turn(tmp_path: Path) -> None:
    stage = Stage()
    address = f"sqlite:///{tmp_path / 'data'}"
    row = new_user_row("pay", client_id="c1")
    for round_ in range(2):
        async with Runtime(await open_engine(address), [actor(stage)]) as runtime:
            record = await runtime.conversation("bot/ann")
            if round_ == 0:
                await record.post(row)  # the ack is lost
            committed = await asyncio.gather(*(asyncio.shield(record.post(row)) for _ in range(2)))
            assert [(one.seq, one.duplicate) for one in committed] == [(1, True), (1, True)]
            await record.lane.join()
            assert [one.stored("").text for one in await record.read()] == ["pay", "re pay"]
            assert list(await runtime.engine.due(now=0)) == []
    assert stage.texts() == ["pay"]


@pytest.mark.parametrize("entry", ["ref.append", "log of a ref", "conversation.post", "self.messages"])
async def test_T49_every_entry_deduplicates(engine: Engine, entry: str) -> None:
    stage = Stage()
    async with Runtime(engine, [actor(stage)]) as runtime:
        ref = runtime.get("bot", "ann")
        record = await runtime.conversation(ref.name)
        message = user_message("quiet")

        async def send() -> int:
            if entry == "ref.append":
                return await ref.append(message, by="ann", client_id="c1")
            if entry == "log of a ref":
                return await (await ref.log()).append(message, by="ann", client_id="c1")
            if entry == "conversation.post":
                return (await asyncio.shield(record.post(new_user_row("quiet", by="ann", client_id="c1")))).seq
            return await MessageLog(record.turn_storage()).append(message, by="ann", client_id="c1")

        assert set(await asyncio.gather(send(), send(), send())) == {1}
        await record.lane.join()
        assert await send() == 1
        await record.lane.join()
        assert record.head == 1
        assert stage.texts() == ["quiet"]


# -- what is left behind


def census() -> dict[str, int]:
    """How many objects there are of what a conversation is made of."""
    gc.collect()
    kinds = ("Conversation", "Hub", "TurnLane", "Mailbox", "Partition", "Subscription", "Recorder", "Bot", "Relay")
    counted = dict.fromkeys(kinds, 0)
    for thing in gc.get_objects():
        name = type(thing).__name__
        if name in counted:
            counted[name] += 1
    return counted


async def emptied(runtime: Runtime, clock: Clock) -> None:
    while runtime.conversations:
        await clock.advance(runtime.idle_timeout_s)


async def test_T58_twenty_thousand_ids_leave_nothing_behind(clock: Clock) -> None:
    """Each is opened, watched, written to in part, and left; three rounds over, as much lives as before the first."""
    async with Runtime(await open_engine("memory:"), [Relay], idle_timeout_s=1000) as runtime:
        before = census()
        blocks = []
        for round_ in range(3):
            for start in range(0, 20_000, 1000):
                for index in range(start, start + 1000):
                    record = await runtime.conversation(f"relay/{index}")
                    sink = Recorder()
                    subscription = await sink.open(record)
                    if round_ == 0 and index % 100 == 0:
                        await record.commit(batch("text"))
                    subscription.unsubscribe()
                del record, sink, subscription
                await steps(3)
            assert runtime.conversations == 20_000
            await emptied(runtime, clock)
            after = census()
            assert (after, runtime.conversations, len(runtime._loading)) == (before, 0, 0)
            timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
            assert not [timer for timer in timers if not timer.cancelled()]
            blocks.append(len(gc.get_objects()))
        assert blocks[2] - blocks[1] < 200, blocks


async def test_T12_two_thousand_conversations_leave_no_descriptor_and_no_thread(tmp_path: Path, clock: Clock) -> None:
    stage = Stage()
    held = Holdings()
    engine = await SqliteEngine.open(tmp_path / "data")
    async with Runtime(engine, [actor(stage)], max_resident=50, idle_timeout_s=1) as runtime:
        await runtime.get("bot", "first").append(user_message("quiet"))
        await until(lambda: stage.texts() == ["quiet"])
        before = await held.quiet(engine)
        for start in range(0, 2000, 200):
            names = [f"name {index}" for index in range(start, start + 200)]
            await asyncio.gather(*(runtime.get("bot", name).append(user_message("quiet")) for name in names))
            assert len(runtime.residency) <= 50
            assert await held.quiet(engine) == before
        await until(lambda: len(stage.texts()) == 2001)
        while runtime.conversations:
            await clock.advance(1)
            await steps(20)
        assert await held.quiet(engine) == before
        assert len(runtime.residency) == 0
    assert stage.calls.count("start") == stage.calls.count("stop")


async def test_T58_a_record_is_freed_once_nobody_holds_it(runtime: Runtime, clock: Clock) -> None:
    record = await runtime.conversation(NAME)
    sink = Recorder()
    subscription: Subscription | None = await sink.open(record)
    assert subscription is not None
    subscription.unsubscribe()
    freed = weakref.ref(record)
    del record, subscription
    sink.subscription = None
    await emptied(runtime, clock)
    gc.collect()
    assert freed() is None


# -- never deaf (what the issue must show)


async def test_P6_appends_of_ten_are_committed_while_a_handler_waits_and_then_answered_in_order(
    runtime: Runtime, stage: Stage
) -> None:
    ref = runtime.get("bot", "ann")
    sink = Recorder()
    record = await runtime.conversation(ref.name)
    await sink.open(record)
    await ref.append(user_message("wait, quiet"))
    await stage.begun.wait()

    async def talk(who: int) -> list[int]:
        mine = runtime.get("bot", "ann")
        return [await mine.append(user_message(f"{who} {index} quiet"), by=f"user {who}") for index in range(50)]

    seqs = await asyncio.gather(*(talk(who) for who in range(10)))
    assert sorted(seq for each in seqs for seq in each) == list(range(2, 502))
    assert all(each == sorted(each) for each in seqs)
    await sink.until_live(501)
    assert stage.texts() == ["wait, quiet"], "the handler still waits"
    assert record.lane.state == ("running", 1)
    stage.leave.set()
    await record.lane.join()
    rows = [row.stored(ref.name) for row in await record.read(limit=1000)]
    assert stage.texts() == [row.text for row in rows]
    assert stage.most_active == 1
    await sink.until(lambda sink: (501, "done") in sink.turns)
    assert list(await runtime.engine.due(now=0)) == []


async def test_T60_a_flood_is_refused_at_the_mailbox(engine: Engine) -> None:
    async with Runtime(engine, [Relay], mailbox_max=100) as runtime:
        record = await runtime.conversation(NAME)
        sent = [record.post(new_user_row(f"text {index}")) for index in range(100)]
        with pytest.raises(MailboxFull):
            record.post(new_user_row("one too many"))
        await asyncio.gather(*sent)
        assert record.head == 100
