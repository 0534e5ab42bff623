"""What can be seen of a runtime from outside."""

from __future__ import annotations

import asyncio

from parlatory.actors import Agent, Runtime
from parlatory.storage import Engine, StoredMessage, open_engine

from .bots import Stage
from .fakes import Recorder, until
from .play import Play


class Bot(Agent):
    """Writes half a sentence, then waits for the stage."""

    stage = Stage()

    async def on_message(self, row: StoredMessage) -> None:
        if row.text == "fail":
            raise RuntimeError("told to fail")
        async with self.reply() as draft:
            await draft.write("half a")
            self.stage.begun.set()
            await self.stage.leave.wait()


async def test_a_conversation_that_is_idle() -> None:
    play = await Play.begin(await open_engine("memory:"))
    picture = play.record.picture()
    assert picture == (False, "idle", None, None, 0, (0, False, 0), 0, None, ())
    assert play.runtime.statistics() == (1, 0, 0, 0, 0, 0, 0)
    await play.runtime.close()


async def test_a_turn_with_its_draft_its_queue_and_its_subscribers() -> None:
    Bot.stage = Stage()
    play = await Play.begin(await open_engine("memory:"), agent=Bot)
    fast, slow = Recorder(), Recorder()
    await fast.open(play.record)
    await slow.open(play.record, by="bob")
    await slow.until_live(0)
    slow.pause()
    await play.send("one", "two")
    await Bot.stage.begun.wait()
    await fast.until_live(2)
    await until(lambda: play.record.lane.turn is not None)

    picture = play.record.picture()
    assert (picture.resident, picture.state, picture.turn, picture.attempt) == (True, "running", 1, 1)
    assert (picture.queued, picture.mailbox.busy, picture.in_flight) == (1, True, 0)
    assert picture.draft is not None
    assert (picture.draft.turn, picture.draft.message["content"]) == (1, "half a")
    assert picture.subscribers == ((fast, "ann", 2, True), (slow, "bob", 0, False))
    assert play.runtime.statistics() == (1, 1, 1, 1, 0, 2, 1)

    # Looking changes nothing of what is told.
    Bot.stage.leave.set()
    await play.record.lane.join()
    await fast.until(lambda sink: len(sink.finishes) == 2)
    assert fast.draft == {"role": "assistant", "content": "half a"}
    await play.runtime.close()


async def test_ends_of_turns_and_what_is_let_go_are_counted(engine: Engine) -> None:
    Bot.stage = Stage()
    play = await Play.begin(engine, agent=Bot)
    await play.send("fail", "one")
    await Bot.stage.begun.wait()
    play.record.lane.cancel(None)
    await play.record.lane.join()
    Bot.stage.leave.set()
    await play.send("two")
    await play.record.lane.join()
    counters = play.runtime.counters
    assert counters.turns == {"done": 1, "waiting": 0, "stopped": 1, "error": 1}
    assert (counters.evictions, counters.released) == (0, 0)
    await play.runtime.close()
    assert counters.evictions == 1


async def test_records_that_are_let_go_are_counted() -> None:
    runtime = Runtime(await open_engine("memory:"), [Bot], idle_timeout_s=0.01)
    async with runtime:
        await runtime.conversation("bot/ann")
        async with asyncio.timeout(5):
            await until(lambda: runtime.conversations == 0)
        assert runtime.counters.released == 1
