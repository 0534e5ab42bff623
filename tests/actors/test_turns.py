from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from parlatory.actors import Agent
from parlatory.actors import turns as turns_module
from parlatory.actors.turn_marks import HANDLED, is_trigger
from parlatory.storage import (
    Batch,
    Engine,
    NewRow,
    Partition,
    StorageBusy,
    StorageClosed,
    StorageError,
    StorageFull,
    StoredMessage,
    UserMessage,
    assistant_message,
    encode_message,
    system_message,
    tool_message,
    user_message,
)

from .bots import Faults, Held
from .fakes import Clock, Recorder, batch, new_user_row, steps, until
from .play import NAME, Play


@pytest.fixture
async def play(engine: Engine) -> AsyncIterator[Play]:
    play = await Play.begin(engine)
    yield play
    await play.runtime.close()


# -- which rows start a turn


@pytest.mark.parametrize("message", [user_message("hi"), UserMessage(content=""), user_message('"assistant"')])
def test_a_user_s_message_starts_a_turn(message: UserMessage) -> None:
    assert is_trigger(NewRow(body=encode_message(message), by="ann"))
    assert not is_trigger(NewRow(body=encode_message(message), by="agent", turn=1))


@pytest.mark.parametrize(
    "body",
    [encode_message(m) for m in (assistant_message("x"), system_message("x"), tool_message(()))]
    + [b"", b'{"role":"us', b"\x00garbage"],
)
def test_nothing_else_does(body: bytes) -> None:
    assert not is_trigger(NewRow(body=body, by="ann"))


# -- one handler at a time, in order


async def test_each_message_gets_its_turn_in_order(play: Play) -> None:
    await play.send("one", "two", "three")
    await play.record.lane.join()
    assert play.stage.calls == ["start", "message one", "message two", "message three"]
    assert play.stage.most_active == 1
    assert sorted(await play.texts()) == ["one", "re one", "re three", "re two", "three", "two"]
    assert await play.handled() == 6
    assert not await play.marked()


async def test_what_a_turn_appends_carries_it_and_starts_none(play: Play) -> None:
    await play.send("one")
    await play.record.lane.join()
    rows = await play.record.read()
    assert [(row.seq, row.turn) for row in rows] == [(1, None), (2, 1)]
    assert play.stage.texts() == ["one"]


async def test_rows_of_others_start_no_turn(play: Play) -> None:
    await play.record.commit(Batch(rows=(NewRow(body=encode_message(assistant_message("x")), by="agent"),)))
    await play.record.commit(Batch(puts={"a": b"1"}))
    assert play.record.lane.idle
    await play.send("one")
    await play.record.lane.join()
    assert play.stage.texts() == ["one"]
    assert await play.handled() == 3


async def test_the_lane_is_told_about_while_it_waits(play: Play) -> None:
    sink = Recorder()
    await sink.open(play.record)
    assert play.record.lane.state == ("idle", None)
    await play.send("wait")
    await play.stage.begun.wait()
    assert play.record.lane.state[1] == 1
    assert not play.record.lane.quiet
    await play.send("two")
    await play.send("three")
    play.stage.leave.set()
    await sink.until(lambda sink: (3, "done") in sink.turns)
    assert sink.turns == [
        (1, "running"),
        (2, "queued"),
        (3, "queued"),
        (1, "done"),
        (2, "running"),
        (2, "done"),
        (3, "running"),
        (3, "done"),
    ]
    queued = [getattr(event, "queued", None) for event in sink.events if getattr(event, "state", None) == "queued"]
    assert queued == [1, 2]
    await play.record.lane.join()
    assert play.record.lane.state == ("idle", None)


async def test_five_thousand_queued_messages_cost_nothing(play: Play) -> None:
    await play.send("wait")
    await play.stage.begun.wait()
    for start in range(0, 5000, 500):
        await play.send(*(f"quiet {n}" for n in range(start, start + 500)))
    lane = play.record.lane
    assert len(lane._mailbox._items) <= 1
    assert len(lane.marks._page) <= 200
    assert len(play.record.hub._tail) == 256
    assert lane.state == ("running", 1)
    assert lane._waiting == 5000
    await play.runtime.drain(0)


async def test_what_is_no_row_carries_no_turn(play: Play) -> None:
    await play.send("wait")
    await play.stage.begun.wait()
    await play.record.turn_storage().commit(Batch(puts={"a": b"1"}))
    assert await play.record.keys("a") == {"a": b"1"}


async def test_an_agent_that_does_not_answer_has_no_turns(engine: Engine) -> None:
    class Bot(Agent):
        pass

    play = await Play.begin(engine, agent=Bot)
    await play.send("one")
    assert play.record.lane.idle
    assert play.record.lane.state == ("idle", None)
    assert not await play.marked()
    await play.runtime.close()


async def test_an_instance_goes_between_two_turns_where_another_is_waited_for(play: Play) -> None:
    class Guest:
        """Somebody else who needs an instance. Unrealistic: it is never quiet."""

        quiet = False

        def dismiss(self) -> None:
            raise AssertionError("it is not quiet")

    play.runtime.residency.limit = 1
    await play.send("wait", "two")
    await play.stage.begun.wait()
    guest = Guest()
    admitted = asyncio.ensure_future(play.runtime.residency.enter(guest))
    await steps(1)
    play.stage.leave.set()
    await admitted
    assert play.stage.calls == ["start", "message wait", "stop"]
    play.runtime.residency.leave(guest)
    await play.record.lane.join()
    assert play.stage.texts() == ["wait", "two"]


async def test_an_instance_is_dropped_once(play: Play) -> None:
    await play.send("one")
    await play.record.lane.join()
    play.record.lane.dismiss()
    play.record.lane.dismiss()
    await play.record.lane.join()
    assert play.stage.calls == ["start", "message one", "stop"]


# -- how turns end


async def test_a_handler_that_raises_ends_its_turn_and_no_other(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    sink = Recorder()
    await sink.open(play.record)
    await play.send("fail", "two")
    await sink.until(lambda sink: (2, "done") in sink.turns)
    assert (1, "error") in sink.turns
    assert "told to fail" in caplog.text
    await play.record.lane.join()
    assert not await play.marked()


async def test_on_start_that_raises_costs_the_turn_and_is_tried_again(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    starts: list[int] = []

    class Bot(Agent):
        async def on_start(self) -> None:
            starts.append(1)
            if len(starts) == 1:
                raise RuntimeError("not today")

        async def on_message(self, row: StoredMessage) -> None:
            await self.say("re")

    play = await Play.begin(engine, agent=Bot)
    sink = Recorder()
    await sink.open(play.record)
    await play.send("one")
    await sink.until(lambda sink: (1, "error") in sink.turns)
    assert len(play.runtime.residency) == 0
    await play.send("two")
    await sink.until(lambda sink: (2, "done") in sink.turns)
    assert len(starts) == 2
    await play.runtime.close()


async def test_on_stop_that_raises_lets_the_instance_go_all_the_same(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            pass

        async def on_stop(self) -> None:
            raise RuntimeError("I stay")

    play = await Play.begin(engine, agent=Bot)
    await play.send("one")
    await play.record.lane.join()
    play.record.lane.dismiss()
    await play.record.lane.join()
    assert play.record.lane.idle
    assert len(play.runtime.residency) == 0
    assert "failed in on_stop" in caplog.text
    play.record.lane.dismiss()
    assert play.record.lane.idle
    await play.runtime.close()


async def test_a_row_that_is_corrupt_costs_its_turn_only(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    broken = NewRow(body=b'{"role":"user","content":7}', by="ann")
    garbage = NewRow(body=b"\x00", by="ann")
    sink = Recorder()
    await sink.open(play.record)
    await play.record.commit(Batch(rows=(garbage, broken, new_user_row("three"))))
    await sink.until(lambda sink: (3, "done") in sink.turns)
    assert (2, "error") in sink.turns
    assert "a row of 'bot/ann' failed in turn 2" in caplog.text
    assert play.stage.texts() == ["three"]


async def test_a_cancelled_turn_is_stopped_and_the_next_one_runs(play: Play) -> None:
    sink = Recorder()
    await sink.open(play.record)
    play.record.lane.cancel(None)
    await play.send("wait", "two")
    await play.stage.begun.wait()
    play.record.lane.cancel(99)
    await steps(3)
    assert play.record.lane.state == ("running", 1)
    play.record.lane.cancel(1)
    await sink.until(lambda sink: (2, "done") in sink.turns)
    assert (1, "stopped") in sink.turns
    await play.record.lane.join()
    assert not await play.marked()


async def test_a_message_during_on_stop_waits_for_a_new_instance(play: Play) -> None:
    await play.send("one")
    await play.record.lane.join()
    play.record.lane.dismiss()
    await play.send("two")
    await play.record.lane.join()
    assert play.stage.calls == ["start", "message one", "stop", "start", "message two"]


# -- nothing is forgotten


async def test_what_an_earlier_process_left_is_delivered_again_in_order(engine: Engine) -> None:
    await (await engine.partition(NAME)).commit(Batch(rows=batch("one", "two").rows, work=True))
    play = await Play.begin(engine)
    sink = Recorder()
    await sink.open(play.record)
    play.record.lane.redeliver()
    assert play.record.lane.state == ("queued", None)
    await play.send("three")
    await sink.until(lambda sink: (3, "done") in sink.turns)
    assert play.stage.texts() == ["one", "two", "three"]
    assert (3, "queued") in sink.turns
    await play.record.lane.join()
    assert play.record.lane.state == ("idle", None)
    assert not await play.marked()
    await play.runtime.close()


async def test_what_is_handled_is_not_delivered_again(engine: Engine) -> None:
    await (await engine.partition(NAME)).commit(Batch(rows=batch("one", "two").rows, puts={HANDLED: b"1"}, work=True))
    play = await Play.begin(engine)
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert play.stage.texts() == ["two"]
    await play.runtime.close()


async def test_a_mark_without_work_goes(engine: Engine) -> None:
    await (await engine.partition(NAME)).commit(Batch(rows=batch("one").rows, puts={HANDLED: b"1"}, work=True))
    play = await Play.begin(engine)
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert play.stage.calls == []
    assert not await play.marked()
    await play.runtime.close()


async def test_a_class_that_answers_no_more_clears_its_mark_and_is_not_made(engine: Engine) -> None:
    await (await engine.partition(NAME)).commit(Batch(rows=batch("one").rows, work=True))

    class Bot(Agent):
        async def on_start(self) -> None:
            raise AssertionError("it was made")

    play = await Play.begin(engine, agent=Bot)
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert await play.handled() == 1
    assert not await play.marked()
    await play.runtime.close()


async def test_a_mark_on_its_way_is_not_taken_away(play: Play) -> None:
    """The end of a turn and an append cross: the append is queued in front of the end, and told behind its decision."""
    await play.send("wait, quiet")
    await play.stage.begun.wait()
    with Held(play.engine) as held:
        crossing = play.record.post(new_user_row("crossing, quiet"))
        play.stage.leave.set()
        await until(lambda: len(held.batches) == 2)
        assert [batch.work for batch in held.batches] == [True, None]
    await crossing
    await play.record.lane.join()
    assert play.stage.texts() == ["wait, quiet", "crossing, quiet"]
    assert not await play.marked()


async def test_a_mark_kept_for_a_message_that_comes_to_nothing_goes_in_the_end(play: Play) -> None:
    """A repeat is on its way when the turn ends: nothing follows from it, and the mark must not stay for ever."""
    first = new_user_row("wait, quiet", client_id="c1")
    await play.record.post(first)
    await play.stage.begun.wait()
    with Held(play.engine) as held:
        repeat = play.record.post(first)
        play.stage.leave.set()
        await until(lambda: len(held.batches) == 2)
        assert [batch.work for batch in held.batches] == [True, None]
    assert (await repeat).duplicate
    await until(lambda: play.record.lane.quiet and not play.record.lane.marks.marked)
    assert not await play.marked()
    assert play.stage.texts() == ["wait, quiet"]


async def test_a_mark_whose_appender_was_cancelled_is_not_taken_away_before_its_outcome_is_known(play: Play) -> None:
    await play.send("wait, quiet")
    await play.stage.begun.wait()
    with Held(play.engine) as held:
        crossing = play.record.post(new_user_row("crossing, quiet"))
        crossing.cancel()
        await steps(1)
        play.stage.leave.set()
        await until(lambda: len(held.batches) == 2)
        assert [batch.work for batch in held.batches] == [True, None]
    await until(lambda: play.record.lane.quiet and not play.record.lane.marks.marked)
    assert play.stage.texts() == ["wait, quiet", "crossing, quiet"]
    assert not await play.marked()


async def test_a_mark_whose_outcome_comes_after_the_last_look(play: Play) -> None:
    await play.send("quiet")
    play.record.lane.marks.sent()
    await play.record.lane.join()
    assert await play.marked()
    play.record.lane.mark_arrived()
    await play.record.lane.join()
    assert not await play.marked()


# -- storage that does not answer


async def refusing(play: Play, error: Exception, times: int) -> Faults:
    faults = Faults(play.engine)
    left = [error] * times

    def refuse(partition: Partition, batch: Batch) -> Exception | None:
        return left.pop() if HANDLED in batch.puts and left else None

    faults.submits = refuse
    return faults


async def test_a_turn_whose_mark_cannot_be_committed_ends_with_an_error_once_it_is_marked(
    play: Play, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    faults = await refusing(play, StorageFull("no space"), 2)
    sink = Recorder()
    await sink.open(play.record)
    await play.send("one", "two")
    await until(lambda: faults.refused == 1 and play.record.lane.quiet)
    assert not play.record.lane.idle, "the record must not be let go: it has work"
    assert "no space" in caplog.text
    await clock.advance(turns_module.RETRY_S)
    await until(lambda: faults.refused == 2 and play.record.lane.quiet)
    assert await play.marked()
    assert play.record.lane.state == ("running", 1)
    assert play.record.lane.busy
    await clock.advance(turns_module.RETRY_S)
    assert faults.refused == 2, "the second pause is longer"
    assert sorted(sink.turns) == [(1, "running"), (2, "queued")], "no end is told that is not durable"
    assert play.stage.texts() == ["one"], "nor does the next turn begin: a crash would not know that it has"
    await clock.advance(turns_module.RETRY_S)
    await sink.until(lambda sink: (2, "done") in sink.turns)
    assert sink.turns[2:] == [(1, "error"), (2, "running"), (2, "done")]
    await until(lambda: play.record.lane.quiet and not play.record.lane.marks.marked)
    assert not await play.marked()
    assert play.stage.texts() == ["one", "two"]


async def test_messages_that_cannot_be_read_are_delivered_when_they_can(
    play: Play, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(play.engine)
    faults.reads = StorageBusy("held by another program")
    await play.send("one")
    await until(lambda: play.record.lane.quiet)
    assert play.stage.calls == []
    await play.send("two")
    await until(lambda: faults.refused == 2 and play.record.lane.quiet)
    faults.reads = None
    await clock.advance(turns_module.RETRY_S)
    await until(lambda: play.record.lane.idle or len(play.stage.texts()) == 2)
    await play.record.lane.join()
    assert play.stage.texts() == ["one", "two"]


async def test_a_lane_does_not_knock_at_a_closed_engine(
    play: Play, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(play.engine)
    faults.reads = StorageClosed("the engine is closed")
    await play.send("one")
    await until(lambda: play.record.lane.idle)
    await clock.advance(100)
    assert faults.refused == 1


async def test_a_full_queue_is_waited_for(play: Play) -> None:
    await refusing(play, StorageBusy("10000 rows wait"), 1)
    await play.send("one")
    await play.record.lane.join()
    assert await play.handled() == 2
    assert not await play.marked()


async def test_a_mark_that_is_refused_late_is_kept(play: Play, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    submit = play.engine.submit
    failed: list[asyncio.Future[object]] = []

    def failing(partition: Partition, batch: Batch, told: object = None) -> object:
        if HANDLED not in batch.puts or failed:
            return submit(partition, batch, told)  # type: ignore[arg-type]
        failed.append(asyncio.get_running_loop().create_future())
        failed[0].set_exception(StorageFull("no space"))
        return failed[0]

    play.engine.submit = failing  # type: ignore[method-assign,assignment]
    await play.send("one")
    await until(lambda: bool(failed) and play.record.lane.quiet)
    assert await play.marked()
    await clock.advance(turns_module.RETRY_S)
    await until(lambda: play.record.lane.quiet and not play.record.lane.marks.marked)
    assert not await play.marked()


async def test_an_engine_that_lies_about_its_head_does_not_hang_the_lane(
    play: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await play.send("one")
    await play.record.lane.join()
    play.record.partition.head += 1
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert "has no row 3 below its head" in caplog.text
    play.record.lane.close()
    assert isinstance(StorageError("x"), Exception)


# -- stopping


async def test_an_interrupted_turn_is_delivered_again(play: Play) -> None:
    await play.send("wait", "two")
    await play.stage.begun.wait()
    await play.runtime.drain(0)
    assert play.record.lane.quiet
    assert play.stage.texts() == ["wait"]
    assert await play.handled() == 0
    assert await play.marked()


async def test_a_turn_that_ends_by_itself_in_the_drain_window_is_handled(play: Play) -> None:
    await play.send("wait", "two")
    await play.stage.begun.wait()
    play.stage.leave.set()
    await play.runtime.drain(10)
    assert play.stage.texts() == ["wait"]
    assert await play.handled() == 1
    assert await play.marked()


async def test_a_handler_that_swallows_its_cancellation_is_named_and_left(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    await play.send("stubborn")
    await play.stage.begun.wait()
    await play.runtime.drain(0)
    assert play.stage.calls[-2:] == ["swallowed", "swallowed"]
    assert "is stuck" in caplog.text
    assert not play.record.lane.quiet, "one handler at a time, still"
    play.stage.leave.set()
    await play.record.lane.join()
    assert await play.handled() == 0, "nobody knows what it did: it is delivered again"


async def test_a_handler_that_ends_at_its_second_cancellation(play: Play) -> None:
    async def on_message(self: Agent, row: StoredMessage) -> None:
        play.stage.begun.set()
        try:
            await play.stage.leave.wait()
        except asyncio.CancelledError:
            play.stage.calls.append("finally")
            await play.stage.leave.wait()

    play.record.lane.agent.on_message = on_message  # type: ignore[method-assign]
    await play.send("one")
    await play.stage.begun.wait()
    await play.runtime.drain(0)
    assert play.record.lane.quiet
    assert play.stage.calls[-1] == "finally"


async def test_no_turn_begins_once_the_runtime_drains(play: Play) -> None:
    """The look at the log was under way when the drain began."""
    faults_free = play.engine.keys
    gate = asyncio.Event()

    async def slow_keys(*args: object, **options: object) -> object:
        await gate.wait()
        return await faults_free(*args, **options)  # type: ignore[arg-type]

    play.engine.keys = slow_keys  # type: ignore[method-assign,assignment]
    await play.send("one")
    drained = asyncio.ensure_future(play.runtime.drain(0))
    await steps(5)
    gate.set()
    await drained
    assert play.stage.calls == []
    assert await play.marked()


async def test_what_waits_behind_an_interrupted_turn_is_forgotten_by_the_mailbox(play: Play) -> None:
    await play.send("wait")
    await play.stage.begun.wait()
    play.record.lane.dismiss()
    await play.runtime.drain(0)
    assert play.stage.calls == ["start", "message wait"]
    assert play.record.lane.quiet
