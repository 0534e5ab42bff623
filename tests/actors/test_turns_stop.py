"""How turns are stopped: by a client, by their time, by a newer message, by nobody being there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from parlatory.actors import Agent, Draft, DraftEnded, TurnBusy
from parlatory.actors.approvals import approval
from parlatory.actors.turn_marks import ATTEMPT, HANDLED, SKIPPED
from parlatory.storage import Batch, Committed, Engine, Partition, Row, StorageFull, StoredMessage, Told, new_row

from .bots import Faults, Held, Stage
from .fakes import Clock, Recorder, batch, new_user_row, steps, until
from .play import NAME, Play
from .writers import Writer, never, rows_of, writer


async def opened(play: Play) -> Recorder:
    sink = Recorder()
    await sink.open(play.record)
    return await sink.until_live(0)


async def writing(play: Play, text: str = "wait") -> None:
    await play.send(text)
    await until(lambda: play.record.lane._draft is not None and not play.record.lane._draft.empty)


# -- a stop


async def test_t35_a_stop_keeps_the_partial_and_the_next_turn_is_valid(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    await writing(play)
    play.record.lane.cancel(1)
    await sink.until(lambda sink: (1, "stopped") in sink.turns)
    assert await rows_of(play.record) == [
        (1, "user", "wait", None, None),
        (2, "assistant", "re wait", 1, "stopped"),
    ]
    assert sink.finishes == [(2, "stopped")]
    assert play.stage.calls == ["message wait", "finally"]
    await play.send("next")
    await sink.until(lambda sink: (3, "done") in sink.turns)
    assert (await rows_of(play.record))[3] == (4, "assistant", "re next", 3, None)
    await play.runtime.close()


async def test_t40_a_second_stop_is_a_no_op_and_does_not_cut_the_finally(engine: Engine) -> None:
    stage = Stage()

    async def on_message(self: Writer, row: StoredMessage) -> None:
        try:
            await never()
        finally:
            stage.begun.set()
            await stage.leave.wait()
            stage.calls.append("cleaned")

    play = await Play.begin(engine, agent=writer(stage, on_message=on_message))
    play.runtime.stop_grace_s = 5
    sink = await opened(play)
    await play.send("hi")
    await sink.until(lambda sink: (1, "running") in sink.turns)
    await until(lambda: play.record.lane.turn is not None)
    await steps(2)
    play.record.lane.cancel(1)
    await stage.begun.wait()
    play.record.lane.cancel(1)
    play.record.lane.cancel(None)
    await steps(3)
    stage.leave.set()
    await sink.until(lambda sink: (1, "stopped") in sink.turns)
    assert stage.calls == ["cleaned"]
    play.record.lane.cancel(1)
    await steps(3)
    assert [state for _, state in sink.turns] == ["running", "stopped"]
    await play.runtime.close()


async def test_t40_a_stop_that_finds_the_final_row_queued_is_a_no_op(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    await writing(play)
    with Held(engine) as held:
        play.stage.leave.set()
        await until(lambda: any(HANDLED in batch.puts for batch in held.batches))
        play.record.lane.cancel(1)
        await steps(3)
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert (await rows_of(play.record))[1:] == [(2, "assistant", "re wait", 1, None)]
    assert sink.finishes == [(2, "done")]
    await play.runtime.close()


async def test_a_stop_behind_the_answer_ends_the_rest_and_the_turn_is_done(engine: Engine) -> None:
    stage = Stage()

    async def on_message(self: Writer, row: StoredMessage) -> None:
        async with self.reply() as draft:
            await draft.write("answer")
        stage.begun.set()
        await never()

    play = await Play.begin(engine, agent=writer(stage, on_message=on_message))
    sink = await opened(play)
    await play.send("hi")
    await stage.begun.wait()
    play.record.lane.cancel(1)
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert sink.finishes == [(2, "done")]
    await play.runtime.close()


async def test_a_stop_while_a_draft_that_is_not_the_answer_ends(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage(), more=True))
    sink = await opened(play)
    await writing(play)
    with Held(engine) as held:
        play.stage.leave.set()
        await until(lambda: any(row.turn == 1 for batch in held.batches for row in batch.rows))
        play.record.lane.cancel(1)
        await steps(3)
    await sink.until(lambda sink: (1, "stopped") in sink.turns)
    assert sink.finishes == [(2, "done")], "it was written to its end"
    assert "behind" not in play.stage.calls
    await play.runtime.close()


async def test_a_stop_cut_twice_waits_for_the_end_of_the_draft(engine: Engine, clock: Clock) -> None:
    """The handler is cancelled again while its partial is being committed: the turn ends behind the draft."""
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    await writing(play)
    with Held(engine) as held:
        play.record.lane.cancel(1)
        await until(lambda: any(HANDLED in batch.puts for batch in held.batches))
        await clock.advance(1)
        await steps(5)
        assert (1, "stopped") not in sink.turns
    await sink.until(lambda sink: (1, "stopped") in sink.turns)
    kinds = [type(event) for event in sink.events]
    assert kinds.index(DraftEnded) < len(kinds) - 1
    assert [finish for _, finish in sink.finishes] == ["stopped"]
    await play.runtime.close()


async def test_a_handler_that_swallows_a_stop_is_named_and_waited_for(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    play = await Play.begin(engine)
    play.runtime.stop_grace_s = 5
    sink = await opened(play)
    await play.send("stubborn", "two")
    await play.stage.begun.wait()
    play.record.lane.cancel(1)
    await steps(3)
    assert play.stage.calls[-1:] == ["swallowed"]
    await clock.advance(5)
    assert play.stage.calls[-2:] == ["swallowed", "swallowed"]
    assert "is stuck" not in caplog.text
    await clock.advance(5)
    assert "'bot/ann' is stuck in turn 1" in caplog.text
    assert play.stage.texts() == ["stubborn"], "one handler at a time, still"
    play.stage.leave.set()
    await sink.until(lambda sink: (2, "done") in sink.turns)
    await play.runtime.close()


# -- queued turns


async def test_a_queued_turn_that_is_being_stopped_is_waited_for_at_the_end(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the engine would be closed in front of it, the stop lost and logged as a fault."""
    left = Batch(rows=batch("wait", "two").rows, puts={HANDLED: b"0"}, work=True)
    await (await engine.partition(NAME)).commit(left)
    play = await Play.begin(engine)
    play.record.lane.redeliver()
    await play.stage.begun.wait()
    faults, read, answered = Faults(engine), engine.read, asyncio.Event()

    async def slow(*arguments: Any, **options: Any) -> Sequence[Row]:
        await answered.wait()
        return await read(*arguments, **options)

    monkeypatch.setattr(engine, "read", slow)
    play.record.lane.cancel(2)
    closing = asyncio.create_task(play.runtime.close())
    await steps(50)
    answered.set()
    await closing
    assert [True for batch in faults.submitted if SKIPPED in batch.puts] == [True]
    assert not caplog.records


async def test_a_queued_turn_that_is_stopped_never_runs(engine: Engine) -> None:
    play = await Play.begin(engine)
    sink = await opened(play)
    await play.send("wait")
    await play.stage.begun.wait()
    await play.send("two", "three")
    faults = Faults(engine)
    play.record.lane.cancel(2)
    play.record.lane.cancel(2)
    await sink.until(lambda sink: (2, "stopped") in sink.turns)
    assert [SKIPPED in batch.puts for batch in faults.submitted] == [True], "durable before it is told, once"
    play.stage.leave.set()
    await sink.until(lambda sink: (3, "done") in sink.turns)
    await play.record.lane.join()
    assert play.stage.texts() == ["wait", "three"]
    assert sink.turns.count((2, "stopped")) == 1
    assert (await play.record.keys(SKIPPED))[SKIPPED] == b"[]"
    assert play.record.lane._waiting == 0
    await play.runtime.close()


async def test_a_queued_turn_that_begins_while_it_is_stopped_is_stopped_then(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    await writing(play)
    await play.send("wait two")
    submit = engine.submit
    late: list[asyncio.Future[Committed]] = []

    def submit_late(partition: Partition, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
        if SKIPPED not in batch.puts:
            return submit(partition, batch, told)
        late.append(asyncio.get_running_loop().create_future())
        return late[0]

    engine.submit = submit_late  # type: ignore[method-assign]
    play.record.lane.cancel(2)
    await until(lambda: bool(late))
    play.stage.leave.set()
    play.stage.leave.clear()
    await sink.until(lambda sink: (2, "running") in sink.turns)
    await until(lambda: play.record.lane._draft is not None and not play.record.lane._draft.empty)
    late[0].set_result(Committed(2))
    await sink.until(lambda sink: (2, "stopped") in sink.turns)
    await play.record.lane.join()
    assert sum(turn == 2 and state in ("stopped", "done") for turn, state in sink.turns) == 1
    await play.runtime.close()


async def test_a_queued_turn_cannot_be_stopped_where_storage_refuses(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    play = await Play.begin(engine)
    sink = await opened(play)
    await play.send("wait")
    await play.stage.begun.wait()
    await play.send("two")
    faults = Faults(engine)
    faults.submits = lambda partition, batch: StorageFull("no space") if SKIPPED in batch.puts else None
    play.record.lane.cancel(2)
    await until(lambda: "turn 2 of 'bot/ann' cannot be cancelled" in caplog.text)
    play.stage.leave.set()
    await sink.until(lambda sink: (2, "done") in sink.turns)
    assert play.stage.texts() == ["wait", "two"]
    await play.runtime.close()


async def test_what_is_no_queued_turn_cannot_be_stopped(engine: Engine) -> None:
    play = await Play.begin(engine)
    await play.send("one")
    await play.record.lane.join()
    for turn in (0, 1, 2, 99, "call:x"):
        play.record.lane.cancel(turn)
    await until(lambda: not play.record.lane._cancelling)
    assert not await play.record.keys(SKIPPED)
    await play.runtime.close()


async def test_a_ref_stops_a_turn(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    await writing(play)
    await play.runtime.get("bot", "ann").cancel()
    await sink.until(lambda sink: (1, "stopped") in sink.turns)
    await play.runtime.close()


# -- on_busy (T06)


async def test_t06_latest_runs_the_last_of_those_that_wait(engine: Engine) -> None:
    play = await Play.begin(engine)
    play.record.lane.agent.on_busy = "latest"
    sink = await opened(play)
    await play.send("wait")
    await play.stage.begun.wait()
    assert play.record.lane.state == ("running", 1)
    await play.send("two", "three", "four")
    play.stage.leave.set()
    await sink.until(lambda sink: (4, "done") in sink.turns)
    assert play.stage.texts() == ["wait", "four"]
    assert [turn for turn in sink.turns if turn[1] == "stopped"] == [(2, "stopped"), (3, "stopped")]
    await play.runtime.close()


async def test_t06_latest_forgets_nothing_where_storage_refuses(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    play = await Play.begin(engine)
    play.record.lane.agent.on_busy = "latest"
    sink = await opened(play)
    await play.send("wait")
    await play.stage.begun.wait()
    await play.send("two", "three")
    faults = Faults(engine)
    refuse = [StorageFull("no space")]

    def refusing(partition: Partition, batch: object) -> Exception | None:
        puts = getattr(batch, "puts", {})
        return refuse.pop() if refuse and puts.get(HANDLED) == b"2" else None

    faults.submits = refusing
    play.stage.leave.set()
    await until(lambda: not refuse and play.record.lane.quiet)
    await clock.advance(1)
    await sink.until(lambda sink: (3, "done") in sink.turns)
    assert play.stage.texts() == ["wait", "three"]
    await play.runtime.close()


async def test_t06_preempt_stops_what_runs(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage(), on_busy="preempt"))
    sink = await opened(play)
    await writing(play)
    play.stage.leave.clear()
    await play.send("two", "three")
    await sink.until(lambda sink: (3, "done") in sink.turns)
    assert [turn for turn in sink.turns if turn[1] not in ("queued", "running")] == [
        (1, "stopped"),
        (2, "stopped"),
        (3, "done"),
    ]
    assert [row[2:] for row in await rows_of(play.record) if row[1] == "assistant"] == [
        ("re wait", 1, "stopped"),
        ("re three", 3, None),
    ]
    await play.runtime.close()


async def approve(play: Play, id: str) -> None:
    _, row = new_row(approval(id), by="ann")
    await play.record.post(row)


@pytest.mark.parametrize("on_busy", ["latest", "preempt"])
async def test_an_approval_is_not_superseded_and_supersedes_nothing(engine: Engine, on_busy: str) -> None:
    play = await Play.begin(engine)
    play.record.lane.agent.on_busy = on_busy  # type: ignore[assignment]
    sink = await opened(play)
    await play.send("wait quiet" if on_busy == "latest" else "stubborn")
    await play.stage.begun.wait()
    await play.send("two", "three")
    await approve(play, "c1")
    await approve(play, "c2")
    await play.send("six", "seven")
    play.stage.leave.set()
    await sink.until(lambda sink: (7, "done") in sink.turns)
    await play.record.lane.join()
    over = [turn for turn, state in sink.turns if state == "stopped" and turn != 1]
    if on_busy == "latest":
        assert (play.stage.texts()[1:], over) == (["three", "", "", "seven"], [2, 6])
    else:
        assert (play.stage.texts()[1:], over) == (["", "", "seven"], [2, 3, 6]), "seven is newer than three"
    await play.runtime.close()


async def test_an_approval_does_not_preempt_and_a_later_message_preempts_its_turn(engine: Engine) -> None:
    leave = {seq: asyncio.Event() for seq in (1, 2, 3)}

    async def on_message(self: Writer, row: StoredMessage) -> None:
        await leave[row.seq].wait()

    play = await Play.begin(engine, agent=writer(Stage(), on_message=on_message, on_busy="preempt"))
    sink = await opened(play)
    await play.send("one")
    await sink.until(lambda sink: (1, "running") in sink.turns)
    await approve(play, "c1")
    await steps(5)
    assert play.record.lane.state == ("running", 1)
    leave[1].set()
    await sink.until(lambda sink: (2, "running") in sink.turns)
    await play.send("three")
    leave[3].set()
    await sink.until(lambda sink: (3, "done") in sink.turns)
    assert [state for turn, state in sink.turns if state in ("done", "stopped")] == ["done", "stopped", "done"]
    await play.runtime.close()


async def test_t06_reject_refuses_while_a_turn_runs(engine: Engine) -> None:
    play = await Play.begin(engine)
    play.record.lane.agent.on_busy = "reject"
    await play.send("wait")
    await play.stage.begun.wait()
    with pytest.raises(TurnBusy):
        play.record.post(new_user_row("two"))
    play.stage.leave.set()
    await play.record.lane.join()
    await play.send("three")
    await play.record.lane.join()
    assert play.stage.texts() == ["wait", "three"]
    await play.runtime.close()


# -- time, and nobody there


async def test_a_turn_that_is_over_its_time_ends_with_an_error(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    deadlines: list[float | None] = []

    async def script(agent: Writer, draft: Draft) -> None:
        deadlines.append(agent.turn.deadline)
        await draft.write("partial")
        await never()

    play = await Play.begin(engine, agent=writer(Stage(), script, turn_timeout_s=30))
    sink = await opened(play)
    before = clock.time()
    await writing(play)
    await clock.advance(29)
    assert sink.finishes == []
    await clock.advance(1)
    await sink.until(lambda sink: (1, "error") in sink.turns)
    assert (await rows_of(play.record))[1] == (2, "assistant", "partial", 1, "error")
    assert "is over its 30 s" in caplog.text
    assert deadlines[0] is not None and 0 <= deadlines[0] - before - 30 < 5
    await play.runtime.close()


@pytest.mark.parametrize("hook", ["on_start", "on_turn_failed", "on_stop"])
async def test_a_hook_that_is_over_its_time_is_stopped(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture, hook: str
) -> None:
    """The conversation goes on: only the turn of a late `on_start` ends with an error."""
    begun, ended, late = asyncio.Event(), asyncio.Event(), True

    async def hang(agent: Agent, *_: StoredMessage) -> None:
        if late:
            begun.set()
            try:
                await never()
            finally:
                ended.set()

    async def on_message(agent: Agent, row: StoredMessage) -> None:
        await agent.say(f"re {row.text}")

    attempts = {ATTEMPT: b'{"seq":1,"number":3}'} if hook == "on_turn_failed" else {}
    left = Batch(rows=batch("one").rows, puts={HANDLED: b"0", **attempts}, work=True)
    await (await engine.partition(NAME)).commit(left)
    bot = type("Bot", (Agent,), {hook: hang, "on_message": on_message})
    play = await Play.begin(engine, agent=bot)
    sink = await opened(play)
    play.record.lane.redeliver()
    if hook == "on_stop":
        await sink.until(lambda sink: (1, "done") in sink.turns)
        play.record.lane.dismiss()
    await begun.wait()
    await clock.advance(29)
    assert not ended.is_set()
    await clock.advance(1)
    await ended.wait()
    late = False
    await play.send("two")
    await play.record.lane.join()
    assert (await play.texts())[-1] == "re two"
    assert (1, "done" if hook == "on_stop" else "error") in sink.turns
    assert f"{hook} of 'bot/ann' is over its 30.0 s" in caplog.text.replace("on_turn_failed 1", "on_turn_failed")
    await play.runtime.close()


async def test_hooks_may_take_as_long_as_they_like(engine: Engine, clock: Clock) -> None:
    begun, leave = asyncio.Event(), asyncio.Event()

    class Bot(Agent):
        method_timeout_s = None

        async def on_start(self) -> None:
            begun.set()
            await leave.wait()

        async def on_message(self, row: StoredMessage) -> None:
            await self.say("at last")

    play = await Play.begin(engine, agent=Bot)
    await play.send("one")
    await begun.wait()
    await clock.advance(3600)
    leave.set()
    await play.record.lane.join()
    assert await play.texts() == ["one", "at last"]
    await play.runtime.close()


async def test_t38_a_turn_that_nobody_watches_is_stopped(engine: Engine, clock: Clock) -> None:
    play = await Play.begin(engine, agent=writer(Stage(), cancel_when_empty_s=10))
    sink = await opened(play)
    await writing(play)
    assert sink.subscription is not None
    sink.subscription.unsubscribe()
    await clock.advance(9)
    back = await opened(play)
    await clock.advance(9)
    assert play.record.lane.state == ("running", 1)
    assert back.subscription is not None
    back.subscription.unsubscribe()
    await clock.advance(10)
    await play.record.lane.join()
    assert (await rows_of(play.record))[1] == (2, "assistant", "re wait", 1, "stopped")
    await play.runtime.close()


async def test_t38_a_turn_that_begins_with_nobody_there_has_as_long(engine: Engine, clock: Clock) -> None:
    play = await Play.begin(engine, agent=writer(Stage(), cancel_when_empty_s=10))
    await writing(play)
    await clock.advance(10)
    await play.record.lane.join()
    assert (await rows_of(play.record))[1][4] == "stopped"
    await play.runtime.close()


async def test_t37_by_default_a_turn_goes_on_when_all_have_left(engine: Engine, clock: Clock) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    await writing(play)
    assert sink.subscription is not None
    sink.subscription.unsubscribe()
    await clock.advance(3600)
    play.stage.leave.set()
    await play.record.lane.join()
    assert (await rows_of(play.record))[1] == (2, "assistant", "re wait", 1, None)
    await play.runtime.close()


async def test_run_sync_is_waited_for_by_a_stop(engine: Engine) -> None:
    leave, begun = threading.Event(), threading.Event()

    def blocks(value: int) -> int:
        begun.set()
        leave.wait()
        return value

    async def on_message(self: Writer, row: StoredMessage) -> None:
        if row.text == "one":
            await self.run_sync(blocks, 7)
        else:
            await self.say(f"{await self.run_sync(abs, -7)}")

    play = await Play.begin(engine, agent=writer(Stage(), on_message=on_message))
    play.runtime.stop_grace_s = 5
    sink = await opened(play)
    await play.send("one", "two")
    await asyncio.to_thread(begun.wait)
    play.record.lane.cancel(1)
    await steps(5)
    assert play.record.lane.state == ("running", 1)
    leave.set()
    await sink.until(lambda sink: (2, "done") in sink.turns)
    assert (1, "stopped") in sink.turns
    assert (await rows_of(play.record))[2][2] == "7"
    await play.runtime.close()
