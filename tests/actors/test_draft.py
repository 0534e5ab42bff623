from __future__ import annotations

import asyncio

import pytest

from parlatory.actors import DeltaTold, Draft, DraftEnded, DraftTold, Live, RowsTold, TurnTold
from parlatory.actors import draft as draft_module
from parlatory.actors.checkpoints import CHECKPOINT, restored
from parlatory.actors.turn_marks import HANDLED
from parlatory.storage import Batch, CodecError, Engine, Partition, StorageFull, StoredMessage, TooLarge

from .bots import Faults, Stage
from .fakes import Clock, Recorder, steps, until
from .play import NAME, Play
from .writers import Writer, never, rows_of, writer


async def opened(play: Play) -> Recorder:
    sink = Recorder()
    await sink.open(play.record)
    return await sink.until_live(0)


def kinds(sink: Recorder) -> list[str]:
    told = (DraftTold, DeltaTold, DraftEnded, RowsTold, TurnTold)
    return [getattr(event, "state", type(event).__name__) for event in sink.events if isinstance(event, told)]


async def test_a_draft_is_told_from_its_begin_to_the_end_of_its_turn(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    await play.send("hi")
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert kinds(sink) == ["RowsTold", "running", "DraftTold", "DeltaTold", "RowsTold", "DraftEnded", "done"]
    assert sink.draft == {"role": "assistant", "content": "re hi"}
    assert sink.finishes == [(2, "done")]
    assert await rows_of(play.record) == [(1, "user", "hi", None, None), (2, "assistant", "re hi", 1, None)]
    await play.record.lane.join()
    assert await play.handled() == 1
    assert not await play.marked()
    await play.runtime.close()


async def test_the_row_of_an_answer_and_its_mark_are_one_batch(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    faults = Faults(engine)
    await play.send("hi")
    await play.record.lane.join()
    answers = [batch for batch in faults.submitted if any(row.turn == 1 for row in batch.rows)]
    assert [(len(batch.rows), batch.puts[HANDLED]) for batch in answers] == [(1, b"1")]
    await play.runtime.close()


async def test_a_draft_that_says_more_follows_does_not_mark(engine: Engine) -> None:
    play = await Play.begin(engine, agent=writer(Stage(), more=True))
    faults = Faults(engine)
    await play.send("hi")
    await play.record.lane.join()
    answer = next(batch for batch in faults.submitted if any(row.turn == 1 for row in batch.rows))
    assert HANDLED not in answer.puts
    assert await play.handled() == 2
    await play.runtime.close()


async def test_a_draft_with_an_open_tool_call_does_not_mark(engine: Engine) -> None:
    async def script(agent: Writer, draft: Draft) -> None:
        await draft.tool_call("c1", "look", {"a": 1})

    play = await Play.begin(engine, agent=writer(Stage(), script))
    faults = Faults(engine)
    await play.send("hi")
    await play.record.lane.join()
    answer = next(batch for batch in faults.submitted if any(row.turn == 1 for row in batch.rows))
    assert HANDLED not in answer.puts
    await play.runtime.close()


async def test_a_draft_in_which_nothing_was_written_leaves_no_row(engine: Engine) -> None:
    async def script(agent: Writer, draft: Draft) -> None:
        await draft.write("")

    play = await Play.begin(engine, agent=writer(Stage(), script))
    sink = await opened(play)
    await play.send("hi")
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert sink.finishes == [(None, "done")]
    assert len(await rows_of(play.record)) == 1
    assert await play.handled() == 1
    await play.runtime.close()


# -- who is told what


async def test_t31_l08_who_joins_in_the_middle_sees_the_whole_once_and_then_the_rest(engine: Engine) -> None:
    stage = Stage()

    async def script(agent: Writer, draft: Draft) -> None:
        await draft.write("first ")
        stage.begun.set()
        await stage.leave.wait()
        await draft.write("second")

    play = await Play.begin(engine, agent=writer(stage, script))
    await play.send("hi")
    await stage.begun.wait()
    late = Recorder()
    await late.open(play.record)
    await late.until_live(1)
    assert [type(event) for event in late.events[1:4]] == [RowsTold, DraftTold, Live]
    assert late.draft == {"role": "assistant", "content": "first "}
    stage.leave.set()
    await late.until(lambda sink: (1, "done") in sink.turns)
    assert late.count(DraftTold) == 1
    assert late.draft == {"role": "assistant", "content": "first second"}
    assert late.finishes == [(2, "done")]
    await play.runtime.close()


async def test_more_subscribers_than_a_step_serves_get_deltas_not_snapshots(engine: Engine) -> None:
    """1,100 of them: all are told in turn, and the end behind it all."""
    stage = Stage()

    async def script(agent: Writer, draft: Draft) -> None:
        await stage.leave.wait()
        for number in range(3):
            await draft.write(f"w{number} ")
            draft.flush()
        await until(lambda: all(sink.draft == {"role": "assistant", "content": "w0 w1 w2 "} for sink in sinks))

    play = await Play.begin(engine, agent=writer(stage, script))
    sinks = [await opened(play) for _ in range(1_100)]
    await play.send("hi")
    await until(lambda: all(sink.draft is not None for sink in sinks))
    before = [sink.count(DraftTold) for sink in sinks]
    stage.leave.set()
    for sink in sinks:
        await sink.until(lambda sink: (1, "done") in sink.turns)
        assert sink.finishes == [(2, "done")] and sink.seqs == [1, 2]
    assert [sink.count(DraftTold) for sink in sinks] == before, "each flush costs everybody its deltas"
    await play.runtime.close()


async def test_what_comes_after_a_pause_is_told_at_once_and_the_rest_in_a_beat(engine: Engine) -> None:
    drafts: list[Draft] = []

    async def script(agent: Writer, draft: Draft) -> None:
        drafts.append(draft)
        await never()

    play = await Play.begin(engine, agent=writer(Stage(), script))
    sink = await opened(play)
    await play.send("hi")
    await until(lambda: bool(drafts))
    clock = Clock(still=True)

    def deltas() -> list[str]:
        return [event.ops[0]["add"] for event in sink.events if isinstance(event, DeltaTold)]

    for text in "abc":
        await drafts[0].write(text)
    await steps(3)
    assert deltas() == ["abc"]
    beats = [0.0]
    for text in "def":
        await drafts[0].write(text)
        await steps(3)
        assert len(deltas()) == len(beats), "it waits"
        await clock.advance(draft_module.FLUSH_S * (1.2 if text == "d" else 0.95))
        beats.append(clock.time())
    assert deltas() == ["abc", "d", "e", "f"], "the second and third come in their beat, though the first was late"
    await drafts[0].write("g" * draft_module.FLUSH_CHARACTERS)
    await drafts[0].write("h")
    await steps(3)
    assert deltas()[4:] == ["g" * draft_module.FLUSH_CHARACTERS]
    await clock.advance(draft_module.FLUSH_S)
    assert deltas()[5:] == ["h"]
    play.record.lane.cancel(None)
    await play.runtime.close()


async def test_who_lags_gets_one_draft_in_place_of_its_deltas(engine: Engine) -> None:
    stage = Stage()

    async def script(agent: Writer, draft: Draft) -> None:
        for number in range(50):
            await draft.write(f"w{number} ")
            draft.flush()
            if number == 10:
                sink.pause()
            await asyncio.sleep(0)
        stage.begun.set()
        await stage.leave.wait()

    play = await Play.begin(engine, agent=writer(stage, script))
    sink = await opened(play)
    await play.send("hi")
    await stage.begun.wait()
    assert sink.count(DeltaTold) < 50
    sink.resume()
    await sink.until(lambda sink: sink.count(DraftTold) == 2)
    stage.leave.set()
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert sink.draft == {"role": "assistant", "content": "".join(f"w{number} " for number in range(50))}
    assert sink.count(DraftTold) == 2
    assert len(sink.finishes) == 1
    await play.runtime.close()


async def test_the_end_waits_for_its_row_where_a_client_lags(engine: Engine) -> None:
    stage = Stage()
    play = await Play.begin(engine, agent=writer(stage))
    sink = await opened(play)
    await play.send("wait")
    await sink.until(lambda sink: sink.draft is not None and sink.draft["content"] == "re wait")
    sink.pause()
    stage.leave.set()
    await play.record.lane.join()
    assert sink.finishes == []
    sink.resume()
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert kinds(sink)[-3:] == ["RowsTold", "DraftEnded", "done"]
    await play.runtime.close()


# -- a rule of the writer


async def test_two_open_drafts_are_an_error(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async def script(agent: Writer, draft: Draft) -> None:
        await draft.write("one")
        async with agent.reply() as second:
            await second.write("two")

    play = await Play.begin(engine, agent=writer(Stage(), script))
    sink = await opened(play)
    await play.send("hi")
    await sink.until(lambda sink: (1, "error") in sink.turns)
    assert "a draft is open in this turn" in caplog.text
    assert sink.finishes == [(2, "error")]
    await play.runtime.close()


async def test_a_draft_is_used_once_and_in_its_turn(engine: Engine) -> None:
    kept: list[Draft] = []
    errors: list[str] = []

    async def script(agent: Writer, draft: Draft) -> None:
        for old in kept:
            try:
                await old.write("late")
            except RuntimeError as error:
                errors.append(str(error))
        await draft.write("x")
        kept.extend((draft, agent.reply()))

    play = await Play.begin(engine, agent=writer(Stage(), script))
    await play.send("one")
    await play.record.lane.join()
    with pytest.raises(RuntimeError, match="is over"):
        await kept[0].__aenter__()
    with pytest.raises(RuntimeError, match="belongs to its turn"):
        await kept[1].__aenter__()
    await play.send("two")
    await play.record.lane.join()
    assert errors == ["the draft is over"]
    await play.runtime.close()


async def test_what_cannot_be_stored_is_refused_where_it_is_written(engine: Engine) -> None:
    refused: list[str] = []

    async def script(agent: Writer, draft: Draft) -> None:
        await draft.write("text ")
        for part in (
            {"type": "image", "url": "x"},
            {"type": "tool-call", "toolCallId": "", "toolName": "t", "input": {}},
        ):
            with pytest.raises(CodecError):
                await draft.attach(part)
        await draft.tool_call("c1", "look", {})
        with pytest.raises(CodecError, match="earlier"):
            await draft.tool_call("c1", "look", {})
        with pytest.raises(IndexError):
            await draft.amend(7, {})
        place = await draft.attach({"type": "reasoning"})
        await draft.reasoning("why")
        await draft.amend(place, {"signature": "s"})
        with pytest.raises(TooLarge):
            await draft.write("\U0001f600" * 260_000)  # few characters, many bytes
        refused.append("all")

    play = await Play.begin(engine, agent=writer(Stage(), script))
    sink = await opened(play)
    await play.send("hi")
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert refused == ["all"]
    (row,) = await play.record.read(after=1)
    parts = [(type(part).__name__, getattr(part, "signature", None)) for part in row.stored(NAME).message.content]
    assert parts == [("Text", None), ("ToolCall", None), ("Reasoning", "s")]
    await play.runtime.close()


async def test_a_draft_that_is_full_is_kept_as_far_as_it_goes(engine: Engine) -> None:
    async def script(agent: Writer, draft: Draft) -> None:
        while True:
            await draft.write("é" * 10_000)

    play = await Play.begin(engine, agent=writer(Stage(), script))
    await play.send("hi")
    await play.record.lane.join()
    rows = await rows_of(play.record)
    assert len(rows) == 2 and rows[1][4] == "error"
    assert len(rows[1][2].encode()) == draft_module.DRAFT_BYTES_MAX
    await play.runtime.close()


async def test_a_draft_left_open_ends_with_its_turn(engine: Engine) -> None:
    """Its block was never left: no client may be left with a draft that never ends."""

    async def on_message(self: Writer, row: object) -> None:
        draft = self.reply()
        await draft.__aenter__()
        await draft.write("open")

    play = await Play.begin(engine, agent=writer(Stage(), on_message=on_message))
    sink = await opened(play)
    await play.send("hi")
    await sink.until(lambda sink: (1, "done") in sink.turns)
    assert sink.finishes == [(2, "done")]
    assert await play.handled() == 1
    await play.runtime.close()


# -- checkpoints


async def test_t20_the_partial_is_stored_each_second_and_each_four_kib(engine: Engine, clock: Clock) -> None:
    stage = Stage()

    async def script(agent: Writer, draft: Draft) -> None:
        await draft.write("short")
        stage.begun.set()
        await stage.leave.wait()
        await draft.write("x" * 5000)
        await never()

    play = await Play.begin(engine, agent=writer(stage, script))
    await play.send("hi")
    await stage.begun.wait()
    assert not await play.record.keys(CHECKPOINT)
    await clock.advance(draft_module.CHECKPOINT_S)
    while not (kept := await play.record.keys(CHECKPOINT)):  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert b'"short"' in kept[CHECKPOINT]
    stage.leave.set()
    while len(kept := await play.record.keys(CHECKPOINT)) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert restored(kept).message["content"] == "short" + "x" * 5000
    play.record.lane.cancel(None)
    await play.record.lane.join()
    assert not await play.record.keys(CHECKPOINT)
    await play.runtime.close()


async def test_what_is_written_during_a_checkpoint_is_in_the_next(engine: Engine, clock: Clock) -> None:
    async def script(agent: Writer, draft: Draft) -> None:
        await draft.write("a" * 5000)
        await draft.write("b")
        await never()

    play = await Play.begin(engine, agent=writer(Stage(), script))
    faults = Faults(engine)
    await play.send("hi")

    def stored() -> list[bytes]:
        puts = [item for batch in faults.submitted for item in batch.puts.items()]
        return [value for key, value in puts if key.startswith(CHECKPOINT)]

    await until(lambda: len(stored()) == 1)
    await until(lambda: play.record.in_flight == 0)
    await clock.advance(draft_module.CHECKPOINT_S)
    await until(lambda: len(stored()) == 2)
    assert b'"ops":[{"add":"b"}]' in stored()[1]
    play.record.lane.cancel(None)
    await play.runtime.close()


async def test_a_checkpoint_that_is_refused_is_tried_again(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    faults = Faults(engine)
    refuse = [StorageFull("no space")]

    def refusing(partition: Partition, batch: Batch) -> Exception | None:
        return refuse.pop() if CHECKPOINT in batch.puts and refuse else None

    faults.submits = refusing
    await play.send("wait")
    await until(lambda: play.record.lane._draft is not None)
    await steps(5)
    await clock.advance(draft_module.CHECKPOINT_S)
    await until(lambda: not refuse)
    assert "was not checkpointed" in caplog.text
    await clock.advance(draft_module.CHECKPOINT_S)
    await until(lambda: any(CHECKPOINT in batch.puts for batch in faults.submitted))
    play.record.lane.cancel(None)
    await play.runtime.close()


async def test_a_crash_leaves_all_checkpoints_and_the_end_takes_them_away(engine: Engine, clock: Clock) -> None:
    async def script(agent: Writer, draft: Draft) -> None:
        for number in range(3):
            await draft.write(str(number) * 5000)
            await until(lambda: not agent_in_flight())
        await never()

    play = await Play.begin(engine, agent=writer(Stage(), script))

    def agent_in_flight() -> bool:
        return play.record.in_flight > 0

    await play.send("hi")
    while len(kept := await play.record.keys(CHECKPOINT)) < 3:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert restored(kept).message["content"] == "0" * 5000 + "1" * 5000 + "2" * 5000
    assert sum(map(len, kept.values())) < 16_000
    play.record.lane.cancel(None)
    await play.record.lane.join()
    assert not await play.record.keys(CHECKPOINT)
    await play.runtime.close()


async def test_a_draft_behind_one_that_was_interrupted_is_restored_alone(engine: Engine) -> None:
    begun = asyncio.Event()

    class Two(Writer):
        name = "bot"

        async def on_message(self, row: StoredMessage) -> None:
            try:
                async with self.reply(more=True) as draft:
                    for number in range(3):
                        await draft.write(str(number) * 5000)
                        await until(lambda: not play.record.in_flight)
                    begun.set()
                    await never()
            except asyncio.CancelledError:
                async with self.reply() as draft:
                    await draft.write("two")
                    await never()

    play = await Play.begin(engine, agent=Two)
    await play.send("hi")
    await begun.wait()
    await play.runtime.drain(0)
    assert restored(await play.record.keys(CHECKPOINT)).message["content"] == "two"
    await play.runtime.close()


async def test_a_draft_of_another_task_that_begins_in_the_step_of_an_end_leaves_no_key(engine: Engine) -> None:
    class Two(Writer):
        name = "bot"

        async def on_message(self, row: StoredMessage) -> None:
            async def second() -> None:
                while True:
                    try:
                        async with self.reply() as draft:
                            await draft.write("y" * 5000)
                            await until(lambda: not play.record.in_flight)
                        return
                    except RuntimeError:
                        await asyncio.sleep(0)

            async with self.reply(more=True) as draft:
                await draft.write("one")
                other = asyncio.create_task(second())
                await asyncio.sleep(0)
            await other

    play = await Play.begin(engine, agent=Two)
    await play.send("hi")
    await until(lambda: play.record.head == 3)
    await play.record.lane.join()
    assert not await play.record.keys(CHECKPOINT)
    await play.runtime.close()


# -- storage that refuses the row


async def test_an_answer_that_storage_refuses_ends_and_is_kept_for_the_next_batch(
    engine: Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    play = await Play.begin(engine, agent=writer(Stage()))
    sink = await opened(play)
    faults = Faults(engine)
    refuse = [StorageFull("no space")] * 2

    def refusing(partition: Partition, batch: Batch) -> Exception | None:
        return refuse.pop() if HANDLED in batch.puts and refuse else None

    faults.submits = refusing
    await play.send("hi")
    await sink.until(lambda sink: bool(sink.finishes))
    assert sink.finishes == [(None, "error")]
    await until(lambda: play.record.lane.quiet)
    assert sink.turns == [(1, "running")], "its end is told behind its row"
    await clock.advance(1)
    await sink.until(lambda sink: sink.last_seq() == 2)
    await sink.until(lambda sink: (1, "error") in sink.turns)
    assert (await rows_of(play.record))[1] == (2, "assistant", "re hi", 1, "error")
    await play.record.lane.join()
    assert await play.handled() == 1
    await play.runtime.close()
