from __future__ import annotations

import asyncio
import gc

import pytest

from parlatory.actors.handler import Handler

from .fakes import Clock, steps
from .writers import never


async def fail() -> None:
    raise RuntimeError("no")


def made() -> Handler:
    return Handler("bot/ann", "turn 1", 5)


async def test_how_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    assert await made().run(steps(1)) == "done"
    assert await made().run(fail()) == "error"
    assert "the handler of 'bot/ann' failed in turn 1" in caplog.text


async def test_the_first_cause_stands() -> None:
    handler = made()
    running = asyncio.ensure_future(handler.run(never()))
    await steps(2)
    handler.stop("timeout")
    handler.stop("interrupt")
    assert await running == "stopped"
    assert handler.cause == "timeout"
    assert await handler.over()


async def test_one_that_is_stopped_before_it_begins_does_not_begin() -> None:
    handler = made()
    handler.stop("stop")
    assert await handler.run(fail()) == "stopped"
    assert await handler.over()


async def test_one_that_is_stopped_in_the_step_that_begins_it_leaves_nothing() -> None:
    """Warnings are errors: its coroutine would complain that nobody has awaited it."""
    handler = made()
    running = asyncio.ensure_future(handler.run(fail()))
    await asyncio.sleep(0)
    handler.stop("stop")
    assert await running == "stopped"
    gc.collect()


async def test_one_that_is_over_is_not_stopped() -> None:
    handler = made()
    await handler.run(steps(1))
    handler.stop("stop")
    assert handler.cause is None
    closed = made()
    closed.close()
    closed.stop("stop")
    assert closed.cause is None


async def test_its_finally_has_a_grace(clock: Clock) -> None:
    cleaned: list[str] = []
    leave = asyncio.Event()

    async def cleans() -> None:
        try:
            await never()
        finally:
            await leave.wait()
            cleaned.append("up")

    handler = made()
    running = asyncio.ensure_future(handler.run(cleans()))
    await steps(2)
    handler.stop("stop")
    await clock.advance(4.5)
    leave.set()
    assert await running == "stopped"
    assert cleaned == ["up"]
    await clock.advance(60)


async def test_one_that_swallows_two_cancellations_is_stuck_and_waited_for(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    leave = asyncio.Event()
    swallowed: list[int] = []

    async def stubborn() -> None:
        while not leave.is_set():
            try:
                await leave.wait()
            except asyncio.CancelledError:
                swallowed.append(1)

    handler = made()
    running = asyncio.ensure_future(handler.run(stubborn()))
    await steps(2)
    handler.stop("stop")
    await clock.advance(5)
    await clock.advance(5)
    assert not await handler.over()
    assert swallowed == [1, 1] and not running.done()
    assert "is stuck in turn 1" in caplog.text
    leave.set()
    assert await running == "done"
    assert not await handler.over()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
async def test_what_would_end_the_process_fails_the_handler_alone(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise kind(3)

    assert await made().run(leave()) == "error"
    assert f"the handler raised {kind.__name__}" in caplog.text
