from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from parlatory.actors import (
    Agent,
    Conversation,
    Draining,
    Live,
    MailboxFull,
    Opened,
    PositionRequest,
    RowsTold,
    Runtime,
    Signal,
)
from parlatory.storage import (
    Batch,
    ClientIdConflict,
    Committed,
    Engine,
    MessageLog,
    StorageBusy,
    StorageFull,
    instant_text,
)

from .bots import Faults, Held, Stage, actor
from .fakes import Clock, Recorder, batch, new_user_row, steps, until

NAME = "relay/ann"


class Relay(Agent):
    pass


@pytest.fixture
async def runtime(engine: Engine) -> AsyncIterator[Runtime]:
    runtime = Runtime(engine, [Relay, actor(Stage())], mailbox_max=3)
    yield runtime
    await runtime.close()


@pytest.fixture
async def record(runtime: Runtime) -> Conversation:
    return await runtime.conversation(NAME)


def opened(sink: Recorder) -> Opened:
    return next(event for event in reversed(sink.events) if isinstance(event, Opened))


# -- the log


async def test_it_is_the_log_of_its_partition(record: Conversation, engine: Engine) -> None:
    assert (record.name, record.head, record.floor) == (NAME, 0, 0)
    await record.commit(Batch(rows=batch("one", "two").rows, puts={"a.1": b"1", "b": b"2"}))
    assert record.partition is await engine.partition(NAME)
    assert record.epoch == record.partition.epoch
    assert record.head == 2
    assert [row.seq for row in await record.read(after=1)] == [2]
    assert [row.seq for row in await record.read(before=3, limit=1, newest=True)] == [2]
    assert await record.keys("a") == {"a.1": b"1"}
    assert not record.in_flight


async def test_a_commit_is_told_before_its_appender_knows(record: Conversation) -> None:
    order: list[str] = []
    sink = Recorder()
    await sink.open(record)
    await sink.until_live(0)

    def told(committed: Committed) -> None:
        order.append(f"told {committed.seq}")
        assert record.hub.recall(0)

    future = record.post(new_user_row("one"), told)
    assert record.in_flight == 1
    assert not record.idle
    future.add_done_callback(lambda _: order.append("done"))
    await asyncio.shield(future)
    await sink.until_live(1)
    await steps(1)
    assert order == ["told 1", "done"]


async def test_who_posts_hears_of_the_outcome_behind_the_record(record: Conversation) -> None:
    heard: list[tuple[int, bool]] = []

    def settled(future: asyncio.Future[Committed]) -> None:
        heard.append((record.in_flight, future.exception() is None))

    await record.post(new_user_row("one", client_id="c1"), None, settled)
    with pytest.raises(ClientIdConflict):
        await record.post(new_user_row("another", client_id="c1"), None, settled)
    assert heard == [(0, True), (0, False)]


async def test_a_full_mailbox_refuses_and_takes_again(record: Conversation) -> None:
    sent = [record.post(new_user_row(text)) for text in "abc"]
    with pytest.raises(MailboxFull, match="3 items wait for 'relay/ann'"):
        record.post(new_user_row("d"))
    await asyncio.gather(*sent)
    await record.post(new_user_row("d"))
    assert record.head == 4


async def test_a_full_storage_is_waited_for_by_who_can_wait(record: Conversation, engine: Engine) -> None:
    faults = Faults(engine)
    faults.submits = lambda partition, batch: StorageBusy("10000 rows wait")
    with pytest.raises(StorageBusy):
        record.submit(batch("one"))
    assert record.in_flight == 0
    committed = await record.commit(batch("two"))
    assert committed.seq == 1
    await until(lambda: not record.in_flight)


async def test_a_refused_batch_is_not_in_flight_any_more(record: Conversation, engine: Engine) -> None:
    faults = Faults(engine)
    faults.submits = lambda partition, batch: StorageFull("no space")
    with pytest.raises(StorageFull):
        await record.commit(batch("one"))
    assert record.in_flight == 0


async def test_a_cancelled_appender_s_row_is_told_though_the_record_was_let_go(
    runtime: Runtime, record: Conversation, engine: Engine, clock: Clock
) -> None:
    sink = Recorder()
    with Held(engine):
        appender = asyncio.ensure_future(record.commit(batch("one")))
        await steps(2)
        appender.cancel()
        await asyncio.wait({appender})
        assert not record.in_flight
        await let_go(runtime, clock)
        assert record.gone
        await sink.open(await runtime.conversation(NAME))
        await sink.until_live(0)
    await sink.until_live(1)


async def test_nothing_is_taken_while_the_runtime_stops(runtime: Runtime, record: Conversation) -> None:
    await runtime.drain(0)
    with pytest.raises(Draining):
        record.post(new_user_row("one"))
    await record.commit(batch("what a running turn says"))
    assert record.head == 1


# -- opening


async def test_an_open_is_answered_before_anything_is_told(record: Conversation) -> None:
    await record.commit(batch("one"))
    sink = Recorder()
    await sink.open(record, PositionRequest())
    await sink.until_live(1)
    assert [type(event) for event in sink.events][:3] == [Opened, RowsTold, Live]
    answer = opened(sink)
    assert (answer.epoch, answer.floor, answer.head, answer.start, answer.reason) == (record.epoch, 0, 1, 0, None)
    assert (answer.turn, answer.turn_id) == ("idle", None)


async def test_a_second_open_moves_the_subscription_L17(record: Conversation) -> None:
    await record.commit(batch("one", "two"))
    sink = Recorder()
    await sink.open(record)
    await sink.until_live(2)
    await sink.open(record, PositionRequest(record.epoch, 2))
    await record.commit(batch("three"))
    await sink.until_live(3)
    assert sink.seqs == [1, 2, 3]
    assert len(record.hub.subscriptions) == 1


async def test_the_instant_of_a_position_is_compared(record: Conversation) -> None:
    await record.commit(batch("one", "two"))
    rows = await record.read()
    at = instant_text(rows[0].at)
    for forget in (False, True):
        if forget:
            record.hub.forget_tail()
        for instant, reason in ((at, None), ("2000-01-01T00:00:00.000000Z", "epoch")):
            sink = Recorder()
            await sink.open(record, PositionRequest(record.epoch, 1, instant))
            assert opened(sink).reason == reason
    sink = Recorder()
    await sink.open(record, PositionRequest("another", 1, at))
    assert opened(sink).reason == "epoch"
    await sink.open(record, PositionRequest(record.epoch, 9, at))
    assert opened(sink).reason == "ahead"


async def test_a_row_that_is_gone_has_no_instant(
    record: Conversation, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    await record.commit(batch("one"))
    record.hub.forget_tail()

    async def nothing(*args: object, **options: object) -> list[object]:
        return []

    monkeypatch.setattr(engine, "read", nothing)
    sink = Recorder()
    await sink.open(record, PositionRequest(record.epoch, 1, "2000-01-01T00:00:00.000000Z"))
    assert opened(sink).reason == "epoch"


async def test_an_open_says_which_turn_runs(engine: Engine) -> None:
    stage = Stage()
    async with Runtime(engine, [actor(stage)]) as runtime:
        record = await runtime.conversation("bot/ann")
        await record.post(new_user_row("wait"))
        await stage.begun.wait()
        sink = Recorder()
        await sink.open(record)
        assert (opened(sink).turn, opened(sink).turn_id) == ("running", 1)
        stage.leave.set()
        await sink.until(lambda sink: (1, "done") in sink.turns)


async def test_a_signal_goes_to_the_others(record: Conversation) -> None:
    sender, other = Recorder(), Recorder()
    await sender.open(record)
    await other.open(record)
    record.signal(Signal(NAME, "typing", None, "ann"), sender)
    assert (sender.count(Signal), other.count(Signal)) == (0, 1)


# -- a record that was let go


async def let_go(runtime: Runtime, clock: Clock) -> None:
    while runtime.conversations:
        await clock.advance(runtime.idle_timeout_s)


async def test_who_still_holds_a_record_reaches_its_successor(
    runtime: Runtime, record: Conversation, clock: Clock
) -> None:
    await let_go(runtime, clock)
    assert record.gone
    await record.post(new_user_row("one"))
    successor = runtime.resident(NAME)
    assert successor is not None
    assert successor is not record
    assert successor is record.current is await runtime.conversation(NAME)
    sink = Recorder()
    await sink.open(record)
    await sink.until_live(1)
    await record.submit(batch("two"))
    await record.commit(batch("three"))
    record.signal(Signal(NAME, "typing", None, "ann"), Recorder())
    await sink.until_live(3)
    assert sink.seqs == [1, 2, 3]
    assert sink.count(Signal) == 1
    assert successor.hub.subscriptions == (sink.subscription,)


async def test_a_record_let_go_during_the_read_of_an_open_L02(
    runtime: Runtime, record: Conversation, clock: Clock, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await record.commit(batch("one"))
    at = instant_text((await record.read())[0].at)
    record.hub.forget_tail()
    gate, read = asyncio.Event(), engine.read

    async def slow_read(*args: object, **options: object) -> object:
        await gate.wait()
        return await read(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "read", slow_read)
    sink = Recorder()
    opening = asyncio.ensure_future(sink.open(record, PositionRequest(record.epoch, 1, at)))
    await steps(2)
    await let_go(runtime, clock)
    await runtime.get(Relay, "ann").append({"role": "user", "content": "two"})
    gate.set()
    await opening
    await runtime.get(Relay, "ann").append({"role": "user", "content": "three"})
    await sink.until_live(3)
    assert sink.seqs == [2, 3]


async def test_the_log_that_user_code_keeps_outlives_the_record(
    runtime: Runtime, record: Conversation, clock: Clock
) -> None:
    storage = record.turn_storage()
    log = MessageLog(storage)
    await let_go(runtime, clock)
    sink = Recorder()
    await sink.open(await runtime.conversation(NAME))
    await log.add("assistant", "from a task of its own")
    await sink.until_live(1)
    assert (storage.name, storage.head, sink.seqs) == (NAME, 1, [1])
    assert [row.text for row in await log.all()] == ["from a task of its own"]
