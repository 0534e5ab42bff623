"""What a crash leaves, and what the next process makes of it (P7, P8)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from parlatory.actors import Agent, Draft, Runtime
from parlatory.actors.checkpoints import CHECKPOINT
from parlatory.actors.turn_marks import ATTEMPT, HANDLED, SINCE, SKIPPED, UNMARKED_ROWS_MAX
from parlatory.actors.turns import EARLIER_PAGE_ROWS, GIVEN_UP
from parlatory.storage import (
    Batch,
    Engine,
    Partition,
    Row,
    StorageBusy,
    StorageFull,
    StoredMessage,
    assistant_message,
    new_row,
)

from .bots import Faults, Stage, actor
from .fakes import Clock, Recorder, batch, new_user_row, until
from .play import NAME, Play
from .writers import Writer, never, rows_of, writer


def partial(turn: int, text: str = "half an ans") -> dict[str, bytes]:
    message = {"role": "assistant", "content": text}
    return {CHECKPOINT: json.dumps({"id": "d1", "turn": turn, "message": message}).encode()}


async def left(engine: Engine, *texts: str, **keys: bytes) -> Partition:
    """What an earlier process left: messages without an answer, the mark, and keys."""
    partition = await engine.partition(NAME)
    puts = {SINCE: b"0", **{f"turn.{key}": value for key, value in keys.items()}}
    await partition.commit(Batch(rows=batch(*texts).rows, puts=puts, work=True))
    return partition


async def restarted(engine: Engine, agent: type[Agent]) -> Runtime:
    """A runtime that has taken up what was left."""
    runtime = Runtime(engine, [agent], stop_grace_s=0.01)
    await runtime.__aenter__()
    assert runtime._redelivery is not None
    await runtime._redelivery
    return runtime


async def test_t20_l07_the_partial_of_a_crash_is_one_interrupted_row_and_its_turn_is_delivered_again(
    engine: Engine,
) -> None:
    stage = Stage()
    seen: list[tuple[int, list[str], list[str]]] = []

    async def script(agent: Writer, draft: Draft) -> None:
        prompt = await agent.messages.to_openai()
        seen.append((agent.turn.attempt, [row.text for row in agent.turn.rows], [row["content"] for row in prompt]))
        await draft.write("the answer")

    await (await left(engine, "hi")).commit(Batch(puts=partial(1)))
    runtime = await restarted(engine, writer(stage, script))
    record = await runtime.conversation(NAME)
    assert await rows_of(record) == [
        (1, "user", "hi", None, None),
        (2, "assistant", "half an ans", 1, "interrupted"),
        (3, "assistant", "the answer", 1, None),
    ]
    assert seen == [(2, ["half an ans"], ["hi"])]
    assert not await record.keys(CHECKPOINT)
    assert await engine.due(now=0) == []
    await runtime.close()


async def test_t20_a_partial_in_many_checkpoints_is_one_row(engine: Engine) -> None:
    ops = [{"add": "ered"}, {"part": {"type": "text", "text": "more"}}]
    written = ([{"add": " an answ"}], ops)
    pieces = {
        f"{CHECKPOINT}.{number:02}": json.dumps({"id": "d1", "ops": each}).encode()
        for number, each in enumerate(written, 1)
    }
    await (await left(engine, "hi")).commit(Batch(puts={**partial(1, "half"), **pieces}))
    runtime = await restarted(engine, writer(Stage()))
    record = await runtime.conversation(NAME)
    row = (await record.read(after=1, limit=1))[0]
    assert (row.turn, row.finish) == (1, "interrupted")
    assert json.loads(row.body)["content"] == [
        {"type": "text", "text": "half an answered"},
        {"type": "text", "text": "more"},
    ]
    assert not await record.keys(CHECKPOINT)
    await runtime.close()


async def test_what_is_left_of_checkpoints_without_the_first_one_goes(engine: Engine) -> None:
    await (await left(engine, "hi")).commit(Batch(puts={f"{CHECKPOINT}.01": b'{"id":"d1","ops":[{"add":"x"}]}'}))
    stage = Stage()
    runtime = await restarted(engine, actor(stage))
    record = await runtime.conversation(NAME)
    assert not await record.keys(CHECKPOINT)
    assert [row[2] for row in await rows_of(record)][0] == "hi"
    assert all(row[4] != "interrupted" for row in await rows_of(record))
    await runtime.close()


async def test_a_crash_behind_the_answer_leaves_nothing_to_do(engine: Engine) -> None:
    stage = Stage()
    partition = await left(engine, "hi")
    _, answer = new_row(assistant_message("answer"), turn=1)
    await partition.commit(Batch(rows=(answer,), puts={HANDLED: b"1"}))
    runtime = await restarted(engine, writer(stage))
    assert stage.calls == []
    assert len(await rows_of(await runtime.conversation(NAME))) == 2
    assert await engine.due(now=0) == []
    await runtime.close()


async def test_a_drain_in_mid_draft_leaves_what_a_crash_would(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = Recorder()
    await sink.open(play.record)
    await play.send("wait")
    await until(lambda: play.record.lane._draft is not None and not play.record.lane._draft.empty)
    await play.runtime.drain(0)
    assert sink.finishes == [(None, "interrupted")]
    assert [state for _, state in sink.turns] == ["running"]
    assert len(await rows_of(play.record)) == 1
    keys = await play.record.keys("turn.")
    assert json.loads(keys[CHECKPOINT])["message"]["content"] == "re wait"
    assert HANDLED not in keys and keys[SINCE] == b"0"
    assert await play.marked()
    await play.runtime.close()


async def test_a_drain_that_finds_the_answer_on_its_way_lets_the_turn_end(engine: Engine) -> None:
    stage = Stage()

    async def on_message(self: Writer, row: StoredMessage) -> None:
        async with self.reply() as draft:
            await draft.write("answer")
        stage.begun.set()
        await never()

    play = await Play.begin(engine, agent=writer(stage, on_message=on_message))
    sink = Recorder()
    await sink.open(play.record)
    await play.send("hi")
    await stage.begun.wait()
    await play.runtime.drain(0)
    assert sink.turns == [(1, "running"), (1, "done")]
    assert await play.handled() == 1
    await play.runtime.close()


async def test_after_three_attempts_a_row_says_so_and_the_agent_is_told(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    await left(engine, "hi", "two", attempt=b'{"seq":1,"number":3}')
    runtime = await restarted(engine, writer(stage))
    record = await runtime.conversation(NAME)
    await record.lane.join()
    assert await rows_of(record) == [
        (1, "user", "hi", None, None),
        (2, "user", "two", None, None),
        (3, "assistant", GIVEN_UP, 1, "error"),
        (4, "assistant", "re two", 2, None),
    ]
    assert stage.calls == ["failed hi 4", "message two", "finally", "behind"]
    assert "is given up" in caplog.text
    assert await engine.due(now=0) == []
    await runtime.close()


async def test_a_turn_that_was_cut_by_drains_is_not_given_up(engine: Engine) -> None:
    """Three deploys in a row are no fault of the message (P7); a crash is taken for one, as before."""
    await left(engine, "wait")
    attempts: list[int] = []
    begun = asyncio.Event()

    async def script(agent: Writer, draft: Draft) -> None:
        attempts.append(agent.turn.attempt)
        begun.set()
        await never()

    for _ in range(5):
        begun.clear()
        play = await Play.begin(engine, agent=writer(Stage(), script))
        await begun.wait()
        await play.runtime.drain(0)
        assert await play.marked()
        play.record.close()
    assert attempts == [2, 3, 4, 5, 6], "what an earlier process left may have begun"
    assert json.loads((await play.record.keys(ATTEMPT))[ATTEMPT]) == {"seq": 1, "number": 6, "drained": 5}
    await play.runtime.close()


async def test_the_number_of_an_attempt_is_durable_before_it_starts(engine: Engine) -> None:
    stage = Stage()
    attempts: list[tuple[int, bytes]] = []

    async def script(agent: Writer, draft: Draft) -> None:
        attempts.append((agent.turn.attempt, (await agent._storage.lane.conversation.keys(ATTEMPT))[ATTEMPT]))

    await left(engine, "hi", attempt=b'{"seq":1,"number":2}')
    runtime = await restarted(engine, writer(stage, script))
    assert attempts == [(3, b'{"seq":1,"number":3}')]
    await runtime.close()


async def test_an_attempt_that_cannot_be_counted_does_not_begin_and_is_not_forgotten(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await left(engine, "hi")
    faults = Faults(engine)
    refuse = [StorageFull("no space")]
    faults.submits = lambda partition, batch: refuse.pop() if ATTEMPT in batch.puts and refuse else None
    play = await Play.begin(engine)
    sink = Recorder()
    await sink.open(play.record)
    await until(lambda: not refuse and play.record.lane.quiet)
    assert play.stage.calls == [] and sink.turns == []
    assert play.record.lane.state == ("queued", None)
    await clock.advance(1)
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert play.stage.texts() == ["hi"]
    await play.runtime.close()


async def test_no_message_is_said_to_wait_behind_the_last_one_that_was_left(engine: Engine) -> None:
    """Seed 6370 of the simulation: who opened while the agent made room heard `queued`, and never anything else."""
    states: list[tuple[str, int | None]] = []

    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            states.append(self._storage.lane.state)

        async def on_stop(self) -> None:
            states.append(self._storage.lane.state)

    for name in (NAME, "bot/next"):
        rows = batch("one", "two").rows
        await (await engine.partition(name)).commit(Batch(rows=rows, puts={SINCE: b"0", HANDLED: b"1"}, work=True))
    async with Runtime(engine, [Bot], max_resident=1) as runtime:
        records = [await runtime.conversation(name) for name in (NAME, "bot/next")]
        await until(lambda: all(record.lane.quiet for record in records))
        assert states[:2] == [("running", 2), ("idle", None)]


async def test_no_message_is_said_to_wait_where_only_the_mark_was_left(engine: Engine) -> None:
    rows = batch("one", "two").rows
    await (await engine.partition(NAME)).commit(Batch(rows=rows, puts={SINCE: b"0", HANDLED: b"2"}, work=True))
    play = await Play.begin(engine)
    play.record.lane.redeliver()
    assert play.record.lane.state == ("idle", None)
    await until(lambda: play.record.lane.quiet)
    assert play.stage.calls == [] and not await play.marked()
    await play.runtime.close()


async def test_a_message_is_not_forgotten_where_what_its_turn_had_said_cannot_be_read(
    engine: Engine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 168 of the simulation: the error was taken for one of the handler, and the message as handled."""
    _, said = new_row(assistant_message("half"), turn=1)
    await (await left(engine, "hi", "two")).commit(Batch(rows=(said,)))
    refuse = [StorageBusy("held by another program")]
    read = engine.read

    async def busy(partition: Partition, *, after: int, limit: int, **options: Any) -> list[Row]:
        if limit == EARLIER_PAGE_ROWS and after == 1 and refuse:
            raise refuse.pop()
        return await read(partition, after=after, limit=limit, **options)

    monkeypatch.setattr(engine, "read", busy)
    play = await Play.begin(engine)
    sink = Recorder()
    await sink.open(play.record)
    await until(lambda: not refuse and play.record.lane.quiet)
    assert play.stage.calls == [] and sink.turns == []
    await clock.advance(1)
    await sink.until(lambda sink: (2, "done") in sink.turns)
    assert play.stage.texts() == ["hi", "two"]
    assert sink.turns[:2] == [(1, "running"), (1, "done")]
    await play.runtime.close()


async def test_a_turn_that_was_stopped_while_it_waited_does_not_run_after_a_crash(engine: Engine) -> None:
    stage = Stage()
    await left(engine, "one", "two", "three", skipped=b"[2]")
    runtime = await restarted(engine, actor(stage))
    await (await runtime.conversation(NAME)).lane.join()
    assert stage.texts() == ["one", "three"]
    assert (await (await engine.partition(NAME)).keys(SKIPPED))[SKIPPED] == b"[]"
    await runtime.close()


async def test_a_disk_that_is_full_does_not_keep_a_conversation_from_being_read(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await (await left(engine, "hi")).commit(Batch(puts=partial(1)))
    faults = Faults(engine)
    full: list[Exception] = [StorageFull("no space")] * 2
    faults.submits = lambda partition, batch: full.pop() if full else None
    play = await Play.begin(engine)
    sink = Recorder()
    await sink.open(play.record)
    assert "what a crash left in 'bot/ann' waits" in caplog.text
    await until(lambda: not full and play.record.lane.quiet)
    await clock.advance(1)
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert sink.seqs == [1, 2, 3]
    assert [row[4] for row in await rows_of(play.record)] == [None, "interrupted", None]
    await play.runtime.close()


@pytest.mark.parametrize("error", [StorageFull("no space"), StorageBusy("queue")])
async def test_what_a_full_disk_made_wait_counts_as_begun_all_the_same(
    engine: Engine, clock: Clock, error: Exception
) -> None:
    attempts: list[tuple[int, list[str]]] = []

    async def script(agent: Writer, draft: Draft) -> None:
        attempts.append((agent.turn.attempt, [row.text for row in agent.turn.rows]))

    await (await left(engine, "hi")).commit(Batch(puts=partial(1)))
    faults, refuse = Faults(engine), [error]
    faults.submits = lambda partition, batch: refuse.pop() if refuse else None
    play = await Play.begin(engine, agent=writer(Stage(), script))
    play.record.lane.redeliver()
    await clock.advance(1)
    await until(lambda: bool(attempts))
    assert attempts == [(2, ["half an ans"])]
    await play.send("new")
    await until(lambda: len(attempts) == 2)
    assert attempts[1] == (1, []), "no earlier process had that one"
    await play.runtime.close()


@pytest.mark.parametrize("checkpoint", [b"{", b'{"id":"d","turn":1,"message":{"role":"nobody"}}'])
async def test_a_partial_that_cannot_be_read_costs_itself_only(
    engine: Engine, checkpoint: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    if checkpoint == b"{" and "Sqlite" in type(engine).__name__:
        checkpoint = b"{}"  # sqlite keeps JSON only
    await left(engine, "hi", draft=checkpoint)
    runtime = await restarted(engine, actor(stage))
    assert stage.texts() == ["hi"]
    assert "is lost" in caplog.text
    assert not await (await engine.partition(NAME)).keys(CHECKPOINT)
    await runtime.close()


# -- where answering begins


async def test_an_agent_that_learns_to_answer_does_not_answer_its_whole_history(engine: Engine) -> None:
    class Bot(Agent):
        pass

    silent = await Play.begin(engine, agent=Bot)
    await silent.send("one", "two")
    stage = Stage()
    play = await Play.begin(engine, stage)
    await play.send("three")
    await play.record.lane.join()
    assert stage.texts() == ["three"]
    assert (await play.record.keys(SINCE))[SINCE] == b"2"
    await play.runtime.drain(0)
    await silent.runtime.drain(0)


async def test_where_it_began_is_known_after_a_crash_before_the_first_answer(engine: Engine) -> None:
    class Bot(Agent):
        pass

    silent = await Play.begin(engine, agent=Bot)
    await silent.send("one")
    stage = Stage()
    dying = await Play.begin(engine, stage)
    await dying.send("wait")
    await stage.begun.wait()
    await dying.runtime.drain(0)
    again = Stage()
    again.leave.set()
    runtime = await restarted(engine, actor(again))
    assert again.texts() == ["wait"]
    await runtime.close()


async def test_the_place_is_stored_with_the_first_message_and_not_again(engine: Engine) -> None:
    play = await Play.begin(engine)
    faults = Faults(engine)
    await play.send("one")
    await play.record.lane.join()
    await play.send("two")
    await play.record.lane.join()
    assert [SINCE in batch.puts for batch in faults.submitted if batch.work] == [True, False]
    await play.runtime.close()


async def test_a_message_refused_first_leaves_the_place_to_the_next(engine: Engine) -> None:
    play = await Play.begin(engine)
    faults = Faults(engine)
    refuse = [StorageBusy("queue"), StorageFull("no space")]
    faults.submits = lambda partition, batch: refuse.pop() if refuse else None
    for _ in range(2):
        with pytest.raises((StorageBusy, StorageFull)):
            play.record.post(new_user_row("refused"))
    await play.send("one")
    await play.record.lane.join()
    assert (await play.record.keys(SINCE))[SINCE] == b"0"
    assert play.stage.texts() == ["one"]
    await play.runtime.close()


async def test_the_mark_moves_over_many_rows_that_nobody_asked_for(engine: Engine) -> None:
    partition = await left(engine, "hi")
    _, news = new_row(assistant_message("news"))
    rows = (news,) * (UNMARKED_ROWS_MAX + 1)
    await partition.commit(Batch(rows=rows, puts={HANDLED: b"1"}, work=False))
    play = await Play.begin(engine)
    assert await play.handled() == len(rows) + 1
    assert play.record.lane.idle
    await play.runtime.close()
