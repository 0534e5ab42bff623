"""Rows of drafts that storage refused, where the handler goes on: they are stored before all else of their turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from parlatory.actors.checkpoints import CHECKPOINT, restored
from parlatory.actors.conversation import Conversation
from parlatory.storage import Engine, StorageFull, StoredMessage

from .bots import Faults, Held
from .fakes import steps, until
from .play import Play
from .writers import Writer, never, rows_of


class Refusing(Writer):
    """Writes a draft whose row storage refuses, `refusals` times, and then what the test says."""

    name = "bot"
    refusals: int
    play: Play
    then: Callable[[Refusing], Awaitable[None]]

    async def on_message(self, row: StoredMessage) -> None:
        faults = Faults(self.play.runtime.engine)
        refuse = [StorageFull("no space")] * self.refusals
        with contextlib.suppress(StorageFull):
            async with self.reply(more=True) as draft:
                await draft.write("<one>" * 1000)
                await until(lambda: not self.play.record.in_flight)
                await draft.write("<the rest>")
                faults.submits = lambda partition, batch: refuse.pop() if refuse and batch.rows else None
        await type(self).then(self)


ONE = ("<one>" * 1000 + "<the rest>", "error")


async def refusing(engine: Engine, then: Callable[[Refusing], Awaitable[None]], refusals: int = 1) -> Play:
    class Agent(Refusing):
        name = "bot"

    Agent.then, Agent.refusals = staticmethod(then), refusals
    Agent.play = await Play.begin(engine, agent=Agent)
    await Agent.play.send("hi")
    return Agent.play


async def texts(record: Conversation) -> list[tuple[str, str | None]]:
    return [(text, finish) for _, _, text, _, finish in await rows_of(record)][1:]


@pytest.mark.parametrize("second", ["", "<two>"])
async def test_a_row_that_storage_refused_is_in_the_log_before_the_next_draft_begins(
    engine: Engine, second: str
) -> None:
    over = asyncio.Event()

    async def then(agent: Refusing) -> None:
        async with agent.reply(more=True) as draft:
            assert await texts(agent.play.record) == [ONE]
            assert not await agent.play.record.keys(CHECKPOINT)
            await draft.write(second)
        over.set()
        await never()

    play = await refusing(engine, then)
    await over.wait()
    assert await texts(play.record) == [ONE, *([(second, None)] if second else [])]
    play.record.lane.cancel(None)
    await play.runtime.close()


async def test_no_draft_begins_behind_a_row_that_storage_goes_on_refusing(engine: Engine) -> None:
    refused, over = list[Exception](), asyncio.Event()

    async def then(agent: Refusing) -> None:
        try:
            async with agent.reply():
                raise AssertionError("it has begun")
        except StorageFull as error:
            refused.append(error)
        assert restored(await agent.play.record.keys(CHECKPOINT)).message["content"] == "<one>" * 1000
        async with agent.reply() as draft:
            await draft.write("two")
        over.set()

    play = await refusing(engine, then, refusals=2)
    await over.wait()
    await play.record.lane.join()
    assert len(refused) == 1
    assert await texts(play.record) == [ONE, ("two", None)]
    await play.runtime.close()


@pytest.mark.parametrize("refusals", [1, 2])
async def test_nothing_is_said_in_front_of_a_refused_row(engine: Engine, refusals: int) -> None:
    over, said = asyncio.Event(), list[str]()

    async def then(agent: Refusing) -> None:
        for text in ("first", "second"):
            with contextlib.suppress(StorageFull):
                await agent.say(text)
                said.append(text)
        over.set()

    play = await refusing(engine, then, refusals)
    await over.wait()
    await play.record.lane.join()
    assert said == ["first", "second"][refusals - 1 :]
    assert await texts(play.record) == [ONE, *((text, None) for text in said)]
    await play.runtime.close()


async def test_two_tasks_that_begin_behind_a_refused_row_save_it_once(engine: Engine) -> None:
    over = asyncio.Event()

    async def then(agent: Refusing) -> None:
        async def begin() -> None:
            async with agent.reply(more=True) as draft:
                await draft.write("next")

        ends = await asyncio.gather(begin(), begin(), return_exceptions=True)
        assert sum(isinstance(end, RuntimeError) for end in ends) <= 1, "one draft at a time"
        over.set()

    play = await refusing(engine, then)
    await over.wait()
    await play.record.lane.join()
    assert (await texts(play.record)).count(ONE) == 1
    await play.runtime.close()


async def test_a_stop_while_a_refused_row_is_saved_saves_it_once(engine: Engine) -> None:
    waiting, go_on = asyncio.Event(), asyncio.Event()

    async def then(agent: Refusing) -> None:
        waiting.set()
        await go_on.wait()
        async with agent.reply():
            await never()

    play = await refusing(engine, then)
    await waiting.wait()
    with Held(engine) as held:
        go_on.set()
        await until(lambda: bool(held.batches))
        play.record.lane.cancel(None)
        await steps(10)
        assert len(held.batches) == 1, "the turn ends behind it"
    await play.record.lane.join()
    assert await texts(play.record) == [ONE]
    assert not await play.record.keys(CHECKPOINT)
    await play.runtime.close()


async def test_a_drain_stores_the_row_that_storage_refused(engine: Engine) -> None:
    waiting = asyncio.Event()

    async def then(agent: Refusing) -> None:
        waiting.set()
        await never()

    play = await refusing(engine, then)
    await waiting.wait()
    await play.runtime.drain(0)
    assert await texts(play.record) == [ONE]
    assert not await play.record.keys(CHECKPOINT)
    await play.runtime.close()


async def test_a_drain_behind_a_row_that_was_saved_keeps_the_next_draft(engine: Engine) -> None:
    written = asyncio.Event()

    async def then(agent: Refusing) -> None:
        async with agent.reply() as draft:
            await draft.write("two")
            written.set()
            await never()

    play = await refusing(engine, then)
    await written.wait()
    await play.runtime.drain(0)
    assert await texts(play.record) == [ONE]
    assert restored(await play.record.keys(CHECKPOINT)).message["content"] == "two"
    await play.runtime.close()
