from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parlatory.actors import Agent, Draining, Runtime, UnknownAgent
from parlatory.actors import runtime as runtime_module
from parlatory.storage import (
    Batch,
    Engine,
    InvalidName,
    StorageBusy,
    StorageClosed,
    StorageFailed,
    StorageFull,
    StoredMessage,
    open_engine,
    user_message,
)

from .bots import Faults, Held, Stage, actor
from .fakes import Clock, Recorder, batch, new_user_row, steps, until


class Relay(Agent):
    pass


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
async def runtime(engine: Engine, stage: Stage) -> AsyncIterator[Runtime]:
    runtime = Runtime(engine, [actor(stage), Relay], stop_grace_s=0.01)
    yield runtime
    await runtime.close()


# -- misuse


async def test_what_a_runtime_refuses(engine: Engine) -> None:
    class Other(Agent):
        name = "relay"

    with pytest.raises(ValueError, match="two agents are named 'relay'"):
        Runtime(engine, [Relay, Other])
    assert Runtime(engine, [Relay, Relay]).agents == {"relay": Relay}
    with pytest.raises(ValueError, match="at least one agent class"):
        Runtime(engine, [])
    with pytest.raises(ValueError, match="a list of at least one"):
        Runtime(engine, Relay)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="derived from Agent"):
        Runtime(engine, ["relay"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="derived from Agent"):
        Runtime(engine, [int])  # type: ignore[list-item]
    for options in ({"idle_timeout_s": 0}, {"mailbox_max": 0}, {"redeliveries_max": 0}, {"max_resident": 0}):
        with pytest.raises(ValueError):
            Runtime(engine, [Relay], **options)


async def test_what_get_refuses(runtime: Runtime) -> None:
    class Stranger(Agent):
        name = "relay"

    assert repr(runtime.get(Relay, "ann")) == "<Ref 'relay/ann'>"
    assert runtime.get("relay", "a/b").name == "relay/a/b"
    with pytest.raises(UnknownAgent, match="no agent 'nobody' in this runtime; it has bot, relay"):
        runtime.get("nobody", "ann")
    with pytest.raises(UnknownAgent):
        runtime.get(Agent, "ann")
    with pytest.raises(UnknownAgent):
        runtime.get(Stranger, "ann")
    for name in ("", "a\0b", "x" * 513):
        with pytest.raises(InvalidName):
            runtime.get(Relay, name)
    assert runtime.conversations == 0


async def test_a_runtime_is_entered_once(engine: Engine) -> None:
    async with Runtime(engine, [Relay]) as runtime:
        with pytest.raises(RuntimeError, match="entered once"):
            await runtime.__aenter__()
    with pytest.raises(RuntimeError, match="entered once"):
        await runtime.__aenter__()


async def test_a_runtime_that_is_forgotten_warns(engine: Engine) -> None:
    runtime = Runtime(engine, [Relay])
    await runtime.__aenter__()
    assert runtime._redelivery is not None
    await asyncio.wait({runtime._redelivery})
    with pytest.warns(ResourceWarning, match="never closed"):
        del runtime
        gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        never_entered = Runtime(engine, [Relay])
        del never_entered
        gc.collect()
        half_made = Runtime.__new__(Runtime)
        del half_made


# -- records


async def test_there_is_one_record_whoever_asks_at_once(runtime: Runtime) -> None:
    records = await asyncio.gather(*(runtime.conversation("relay/ann") for _ in range(20)))
    assert len(set(records)) == 1
    assert runtime.resident("relay/ann") is records[0]
    assert runtime.conversations == 1
    assert runtime.resident("relay/bob") is None


async def test_there_is_no_record_of_what_cannot_be(runtime: Runtime) -> None:
    with pytest.raises(UnknownAgent):
        await runtime.conversation("nobody/ann")
    with pytest.raises(InvalidName):
        await runtime.conversation("no conversation")
    assert runtime.conversations == 0


async def test_a_partition_that_does_not_open_is_tried_again(runtime: Runtime, engine: Engine) -> None:
    faults = Faults(engine)
    faults.opens = StorageBusy("held by another program")
    for result in await asyncio.gather(*(runtime.conversation("relay/ann") for _ in range(3)), return_exceptions=True):
        assert isinstance(result, StorageBusy)
    faults.opens = None
    assert (await runtime.conversation("relay/ann")).head == 0


async def test_a_holder_who_comes_back_during_a_load_makes_no_second_record(runtime: Runtime, clock: Clock) -> None:
    held = await runtime.conversation("relay/ann")
    while runtime.conversations:
        await clock.advance(100)
    loading = asyncio.ensure_future(runtime.conversation("relay/ann"))
    await asyncio.sleep(0)  # the load has begun
    back = held.current
    assert await loading is back is runtime.resident("relay/ann")


async def test_a_second_conversation_needs_no_second_sweep(runtime: Runtime) -> None:
    await runtime.conversation("relay/ann")
    sweeper = runtime._sweeper
    await runtime.conversation("relay/bob")
    assert runtime._sweeper is sweeper


async def test_who_gives_up_waiting_for_a_record_takes_it_from_nobody(runtime: Runtime) -> None:
    given_up = asyncio.ensure_future(runtime.conversation("relay/ann"))
    kept = asyncio.ensure_future(runtime.conversation("relay/ann"))
    await steps(1)
    given_up.cancel()
    assert (await kept).name == "relay/ann"
    assert given_up.cancelled()


# -- idleness


async def test_an_idle_conversation_loses_its_instance_then_its_record(
    runtime: Runtime, stage: Stage, clock: Clock
) -> None:
    await runtime.get("bot", "ann").append(user_message("quiet"))
    await until(lambda: stage.texts() == ["quiet"])
    record = await runtime.conversation("bot/ann")
    await record.lane.join()
    await clock.advance(30)
    assert len(runtime.residency) == 1
    await clock.advance(40)
    await until(lambda: len(runtime.residency) == 0)
    assert stage.calls[-1] == "stop"
    await clock.advance(15)
    assert runtime.conversations == 0
    assert runtime._sweeper is None, "the sweep sleeps where nothing is left"
    await runtime.conversation("bot/ann")
    assert runtime._sweeper is not None


async def test_what_is_used_stays(runtime: Runtime, stage: Stage, clock: Clock) -> None:
    watched, used, unused = [await runtime.conversation(f"relay/{name}") for name in "abc"]
    sink = Recorder()
    await sink.open(watched)
    await watched.commit(batch("one"))
    for _ in range(5):
        await clock.advance(20)
        await runtime.conversation("relay/b")
    assert (watched.gone, used.gone, unused.gone) == (False, False, True)
    assert watched.hub.recall(0) is None, "the tail ring goes where nothing is committed for long"


async def test_a_record_with_a_batch_on_its_way_stays(runtime: Runtime, clock: Clock, engine: Engine) -> None:
    record = await runtime.conversation("relay/ann")
    with Held(engine):
        sent = record.post(new_user_row("one"))
        await clock.advance(100)
        await clock.advance(100)
        assert not record.gone
    await sent


async def test_a_turn_keeps_its_record(runtime: Runtime, stage: Stage, clock: Clock) -> None:
    await runtime.get("bot", "ann").append(user_message("wait"))
    await stage.begun.wait()
    for _ in range(3):
        await clock.advance(100)
    record = runtime.resident("bot/ann")
    assert record is not None
    assert record.lane.state == ("running", 1)
    stage.leave.set()
    await record.lane.join()
    assert stage.calls == ["start", "message wait"]


async def test_where_all_instances_are_busy_the_next_waits_for_a_turn_to_end(engine: Engine, stage: Stage) -> None:
    async with Runtime(engine, [actor(stage)], max_resident=1) as runtime:
        await runtime.get("bot", "ann").append(user_message("wait"))
        await stage.begun.wait()
        await runtime.get("bot", "ann").append(user_message("after"))
        await runtime.get("bot", "bob").append(user_message("from bob"))
        await until(lambda: bool(runtime.residency._waiting))
        assert stage.texts() == ["wait"]
        stage.leave.set()
        await until(lambda: len(stage.texts()) == 3)
        # Bob's turn comes between two of Ann's, whose instance has to be made again.
        assert stage.texts() == ["wait", "from bob", "after"]
        assert len(runtime.residency) <= 1


async def test_an_idle_instance_makes_room_at_once(engine: Engine, stage: Stage) -> None:
    async with Runtime(engine, [actor(stage)], max_resident=1) as runtime:
        for name in ("ann", "bob"):
            await runtime.get("bot", name).append(user_message(name))
            await until(lambda name=name: name in stage.texts())  # type: ignore[misc]
            await (await runtime.conversation(f"bot/{name}")).lane.join()
        assert stage.calls == ["start", "message ann", "stop", "start", "message bob"]


# -- unfinished work


async def leave_work(engine: Engine, *names: str) -> None:
    for name in names:
        await (await engine.partition(name)).commit(Batch(rows=batch(name).rows, work=True))


async def test_unfinished_work_is_taken_up_without_a_client(engine: Engine, stage: Stage) -> None:
    names = [f"bot/{index:02}" for index in range(40)]
    await leave_work(engine, *names)
    async with Runtime(engine, [actor(stage)], redeliveries_max=3) as runtime:
        await until(lambda: len(stage.texts()) == 40)
        assert sorted(stage.texts()) == names
        assert stage.most_active <= 3
        for name in names:
            await (await runtime.conversation(name)).lane.join()
        assert list(await engine.due(now=0)) == []


async def test_work_of_agents_that_are_not_there_is_left(
    engine: Engine, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_work(engine, "another/ann", "bot/ann")
    async with Runtime(engine, [actor(stage)]):
        await until(lambda: bool(stage.texts()))
    assert "'another/ann' has unfinished work, but its agent is not registered" in caplog.text
    assert stage.texts() == ["bot/ann"]


async def test_work_that_cannot_be_listed_is_looked_for_again(
    engine: Engine, stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "REDELIVERY_RETRY_S", 0)
    await leave_work(engine, "bot/ann")
    faults = Faults(engine)
    faults.dues = StorageBusy("held by another program")
    async with Runtime(engine, [actor(stage)]):
        await until(lambda: faults.refused > 1)
        faults.dues = None
        await until(lambda: bool(stage.texts()))
    assert "unfinished work cannot be read" in caplog.text


async def test_an_engine_that_has_failed_is_not_asked_again(
    engine: Engine, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    faults = Faults(engine)
    faults.dues = StorageFailed("the flush failed")
    async with Runtime(engine, [actor(stage)]) as runtime:
        assert runtime._redelivery is not None
        await asyncio.wait({runtime._redelivery})
        assert runtime._redelivery.exception() is None
    assert faults.refused == 1


async def test_a_conversation_that_does_not_load_does_not_hold_up_the_others(
    engine: Engine, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await leave_work(engine, "bot/ann", "bot/bob")
    faults = Faults(engine)
    open_ = engine._open
    gc.collect()

    async def half_broken(name: str) -> object:
        if name == "bot/ann":
            raise StorageFull("no space")
        return await open_(name)

    engine._open = half_broken  # type: ignore[method-assign,assignment]
    async with Runtime(engine, [actor(stage)], redeliveries_max=1):
        await until(lambda: stage.texts() == ["bot/bob"])
    assert "'bot/ann' is left for the next start" in caplog.text
    assert not faults.refused


async def test_a_turn_that_takes_long_makes_room_for_other_redeliveries(
    engine: Engine, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "REDELIVERY_PATIENCE_S", 0.01)
    await (await engine.partition("bot/ann")).commit(Batch(rows=batch("wait").rows, work=True))
    await leave_work(engine, "bot/bob")
    async with Runtime(engine, [actor(stage)], redeliveries_max=1, stop_grace_s=0.01):
        await until(lambda: stage.texts() == ["wait", "bot/bob"])


async def test_a_log_of_a_ref_asks_whether_anything_is_taken(runtime: Runtime) -> None:
    runtime.check_accepting()
    await runtime.drain(0)
    with pytest.raises(Draining):
        runtime.check_accepting()


async def test_a_start_that_is_stopped_leaves_the_rest_marked(engine: Engine, stage: Stage) -> None:
    await leave_work(engine, *(f"bot/{index}" for index in range(5)))
    runtime = Runtime(engine, [actor(stage)], redeliveries_max=1)
    await runtime.__aenter__()
    await runtime.drain(0)
    assert runtime._redelivery is not None
    await asyncio.wait({runtime._redelivery})
    assert len(await engine.due(now=0)) == 5 - len(stage.texts())
    await runtime.close()


# -- the end


async def test_close_ends_agents_then_the_engine(engine: Engine, stage: Stage) -> None:
    runtime = Runtime(engine, [actor(stage)])
    sink = Recorder()
    await sink.open(await runtime.conversation("bot/ann"))
    await runtime.get("bot", "ann").append(user_message("one"))
    await until(lambda: bool(stage.texts()))
    await (await runtime.conversation("bot/ann")).lane.join()
    await asyncio.gather(runtime.close(), runtime.close())
    await runtime.close()
    assert stage.calls == ["start", "message one", "stop"]
    assert sink.closed == ["draining"]
    assert runtime.conversations == 0
    with pytest.raises(StorageClosed):
        await runtime.conversation("bot/bob")
    with pytest.raises(StorageClosed):
        await engine.due(now=0)
    with pytest.raises(StorageClosed):
        await runtime.conversation("bot/ann")


async def test_close_with_handlers_that_run(engine: Engine, stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    runtime = Runtime(engine, [actor(stage)], stop_grace_s=0.01)
    await runtime.get("bot", "ann").append(user_message("wait"))
    await runtime.get("bot", "bob").append(user_message("stubborn"))
    await until(lambda: len(stage.texts()) == 2)
    await runtime.close()
    assert "is stuck" in caplog.text
    assert stage.calls.count("stop") == 1
    stage.leave.set()
    await steps(10)


@pytest.mark.parametrize("when", ["before", "while it drains"])
async def test_an_agent_that_is_being_let_go_when_the_runtime_ends_has_the_time_of_the_others(
    engine: Engine, when: str
) -> None:
    stopping, leave, running = asyncio.Event(), asyncio.Event(), asyncio.Event()
    said: list[str] = []

    class Bot(Agent):
        async def on_message(self, message: StoredMessage) -> None:
            if self.name == "busy":
                running.set()
                await leave.wait()

        async def on_stop(self) -> None:
            if self.name == "gone":
                stopping.set()
                await leave.wait()
            said.append(self.name)

    runtime = Runtime(engine, [Bot], stop_grace_s=60)
    await runtime.get("bot", "gone").append(user_message("hi"))
    await until(lambda: (record := runtime.resident("bot/gone")) is not None and record.lane.resident)
    record = runtime.resident("bot/gone")
    assert record is not None
    await record.lane.join()
    if when == "while it drains":
        await runtime.get("bot", "busy").append(user_message("hi"))
        await running.wait()
        draining = asyncio.create_task(runtime.drain(60))
        await steps(3)
    record.lane.dismiss()
    await stopping.wait()
    await closes_behind(runtime, leave)
    assert "gone" in said
    if when == "while it drains":
        await draining


async def closes_behind(runtime: Runtime, leave: asyncio.Event) -> None:
    """Closes a runtime, and sees that it waits for who is let leave only then."""
    closing = asyncio.create_task(runtime.close())
    await steps(10)
    assert not closing.done()
    leave.set()
    await closing


async def test_so_has_one_that_makes_room_for_another(engine: Engine) -> None:
    stopping, leave, running = asyncio.Event(), asyncio.Event(), asyncio.Event()
    said: list[str] = []

    class Bot(Agent):
        async def on_message(self, message: StoredMessage) -> None:
            running.set()
            await leave.wait()

        async def on_stop(self) -> None:
            leave.clear()
            stopping.set()
            await leave.wait()
            said.append(self.name)

    runtime = Runtime(engine, [Bot], max_resident=1, stop_grace_s=60)
    await runtime.get("bot", "gone").append(user_message("hi"))
    await running.wait()
    await runtime.get("bot", "next").append(user_message("hi"))
    await steps(10)
    leave.set()
    await stopping.wait()
    await closes_behind(runtime, leave)
    assert said == ["gone"]


async def test_an_agent_whose_on_stop_hangs_is_cut_off(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            pass

        async def on_stop(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("finally")

    runtime = Runtime(engine, [Bot], stop_grace_s=0.01)
    await runtime.get(Bot, "ann").append(user_message("one"))
    await (await runtime.conversation("bot/ann")).lane.join()
    await runtime.close()
    assert ended == ["finally"]


async def test_a_handler_may_close_its_runtime(engine: Engine) -> None:
    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            await closable.close()

    closable = Runtime(engine, [Bot])
    await closable.get(Bot, "ann").append(user_message("one"))
    await until(lambda: closable._closing is not None)
    await closable.close()
    with pytest.raises(StorageClosed):
        await engine.due(now=0)


async def test_the_block_s_own_error_comes_through(engine: Engine, stage: Stage) -> None:
    with pytest.raises(ZeroDivisionError):
        async with Runtime(engine, [actor(stage)], stop_grace_s=0.01) as runtime:
            await runtime.get("bot", "ann").append(user_message("wait"))
            await stage.begun.wait()
            raise ZeroDivisionError
    with pytest.raises(StorageClosed):
        await engine.due(now=0)


async def test_a_cancelled_close_goes_through(engine: Engine, stage: Stage) -> None:
    runtime = Runtime(engine, [actor(stage)], stop_grace_s=0.01)
    await runtime.get("bot", "ann").append(user_message("stubborn"))
    await stage.begun.wait()
    closing = asyncio.ensure_future(runtime.close())
    await steps(2)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    await runtime.close()
    stage.leave.set()
    with pytest.raises(StorageClosed):
        await engine.due(now=0)


async def test_the_engine_is_closed_though_the_rest_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(engine, [Relay])

    async def broken(timeout_s: float) -> None:
        raise RuntimeError("of the drain")

    monkeypatch.setattr(runtime, "drain", broken)
    with pytest.raises(RuntimeError, match="of the drain"):
        await runtime.close()
    with pytest.raises(StorageClosed):
        await engine.due(now=0)


async def test_a_restart_answers_what_the_first_process_did_not(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path / 'data'}"
    first, second = Stage(), Stage()
    async with Runtime(await open_engine(address), [actor(first)], stop_grace_s=0.01) as runtime:
        for text in ("one", "wait", "three"):
            await runtime.get("bot", "ann").append(user_message(text))
        await until(lambda: first.texts() == ["one", "wait"])
    second.leave.set()
    async with Runtime(await open_engine(address), [actor(second)]) as runtime:
        await until(lambda: second.texts() == ["wait", "three"])
        record = await runtime.conversation("bot/ann")
        await record.lane.join()
        texts = [row.stored("").text for row in await record.read()]
        assert sorted(texts) == ["one", "re one", "re three", "re wait", "three", "wait"]
        assert list(await runtime.engine.due(now=0)) == []
