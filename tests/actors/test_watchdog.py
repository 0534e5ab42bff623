from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator

import pytest

from parlatory.actors import Runtime, watchdog
from parlatory.actors.handler import Handler
from parlatory.actors.watchdog import Watchdog
from parlatory.storage import Engine, StoredMessage

from .bots import Stage
from .fakes import until
from .play import Play
from .writers import Writer, writer

logger = logging.getLogger("parlatory.actors")


class Reports(logging.Handler):
    """Keeps what is logged, and lets go what blocks the loop once that is named."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.named = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        if "is blocked by" in self.texts[-1]:
            self.named.set()


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler = Reports()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_code_that_blocks_the_loop_is_named_with_its_turn_and_stack(engine: Engine, reports: Reports) -> None:
    async def on_message(self: Writer, row: StoredMessage) -> None:
        while not reports.named.is_set():  # no call that blockbuster would refuse
            pass

    play = await Play.begin(engine, agent=writer(Stage(), on_message=on_message))
    play.runtime._watchdog = Watchdog(0.05)
    await play.send("hi")
    await play.record.lane.join()
    assert "blocked by turn 1 of 'bot/ann'" in reports.texts[0]
    assert "while not reports.named.is_set()" in reports.texts[0]
    await until(lambda: len(reports.texts) == 2)
    assert "the event loop goes on" in reports.texts[1]
    await play.runtime.close()


async def test_what_blocks_beside_a_handler_is_named_too(reports: Reports) -> None:
    dog = Watchdog(0.05)
    handler = Handler("bot/ann", "turn 1", 1, dog)
    leave = asyncio.Event()

    async def wait() -> None:
        await leave.wait()

    running = asyncio.ensure_future(handler.run(wait()))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(reports.named.wait, 60)
    await until(reports.named.is_set)
    assert "blocked by a callback" in reports.texts[0]
    reports.named.clear()

    async def blocks() -> None:
        reports.named.wait(60)

    await until(lambda: len(reports.texts) == 2)
    await asyncio.create_task(blocks(), name="careless")
    assert "task 'careless'" in reports.texts[2]
    leave.set()
    assert await running == "done"
    await dog.stop()
    await dog.stop()


async def test_it_sleeps_while_no_user_code_runs(reports: Reports) -> None:
    dog = Watchdog(0.05)

    async def nothing() -> None:
        pass

    await Handler("bot/ann", "turn 1", 1, dog).run(nothing())
    await until(lambda: not dog._handlers)
    assert not dog._work.is_set()
    assert dog._thread is not None and dog._thread.is_alive()
    await dog.stop()
    assert reports.texts == []


async def test_a_handler_that_ends_with_it_does_not_keep_it(reports: Reports) -> None:
    dog = Watchdog(0.05)
    leave = asyncio.Event()
    running = asyncio.ensure_future(Handler("bot/ann", "turn 1", 1, dog).run(_until(leave)))
    await until(lambda: bool(dog._handlers))
    dog._stopping.set()
    leave.set()
    await running
    await until(lambda: not dog._handlers)
    assert dog._work.is_set(), "else it would rest before it looks whether it is to stop"
    await dog.stop()


async def _until(leave: asyncio.Event) -> None:
    await leave.wait()


async def test_it_can_be_left_at_home(engine: Engine) -> None:
    class_ = writer(Stage())
    runtime = Runtime(engine, [class_], watchdog_s=None)
    assert runtime.watchdog is None
    await runtime.close()
    with pytest.raises(ValueError, match="watchdog_s"):
        Runtime(engine, [class_], watchdog_s=0)
    with pytest.raises(ValueError, match="watchdog_s"):
        Watchdog(0)


async def test_one_that_watched_nothing_stops_at_once() -> None:
    await Watchdog(1).stop()


@pytest.mark.parametrize("watches", [False, True])
def test_its_thread_ends_with_a_loop_that_nobody_stopped_it_for(monkeypatch: pytest.MonkeyPatch, watches: bool) -> None:
    monkeypatch.setattr(watchdog, "REST_S", 0.01)

    async def forget() -> threading.Thread:
        dog = Watchdog(0.05)
        dog.start()
        if watches:
            dog._work.set()
        assert dog._thread is not None
        return dog._thread

    thread = asyncio.run(forget())
    thread.join(60)
    assert not thread.is_alive()
