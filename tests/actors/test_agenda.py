from __future__ import annotations

import asyncio
from functools import partial

import pytest

from parlatory.actors import agenda as agenda_module
from parlatory.actors.agenda import Agenda

from .fakes import Clock, steps


@pytest.fixture
async def clock() -> Clock:
    """One that stands still: an agenda measures its steps."""
    return Clock(still=True)


async def test_what_is_due_is_called_in_its_order_and_never_early(clock: Clock) -> None:
    agenda, called = Agenda(0.0), list[str]()
    now = clock.time()
    agenda.add(now + 30, lambda: called.append("third"))
    agenda.add(now + 10, lambda: called.append("first"))
    agenda.add(now + 10, lambda: called.append("second"))
    await clock.advance(9)
    assert called == []
    await clock.advance(2)
    assert called == ["first", "second"]
    await clock.advance(20)
    assert called == ["first", "second", "third"]


async def test_what_is_due_at_once_is_called_in_the_next_step(clock: Clock) -> None:
    agenda, called = Agenda(5.0), list[int]()
    agenda.add(clock.time() + 60, lambda: called.append(60))
    for number in range(3):
        agenda.add(clock.time(), partial(called.append, number))
    assert called == []
    await steps(1)
    assert called == [0, 1, 2]
    await clock.advance(60)
    assert called[3:] == [60]


async def test_its_timer_goes_off_a_grain_apart(clock: Clock) -> None:
    agenda, called = Agenda(5.0), list[int]()
    start = clock.time()
    for number in (10, 11, 12, 20):
        agenda.add(start + number, partial(called.append, number))
    await clock.advance(10.5)
    assert called == [10]
    await clock.advance(3)
    assert called == [10], "11 and 12 are due, and come together"
    await clock.advance(2.5)
    assert called == [10, 11, 12]
    await clock.advance(5)
    assert called == [10, 11, 12, 20]


async def test_a_step_that_takes_long_leaves_the_rest_to_the_next(clock: Clock) -> None:
    agenda, called = Agenda(5.0), list[int]()

    def call(number: int) -> None:
        called.append(number)
        clock.offset_s += agenda_module.STEP_S * 0.26

    for number in range(8):
        agenda.add(clock.time(), partial(call, number))
    await steps(1)
    assert called == [0, 1, 2, 3]
    await steps(1)
    assert called == [0, 1, 2, 3, 4, 5, 6, 7]


async def test_long_calls_leave_time_between_them(clock: Clock) -> None:
    """Else a commit, which takes some steps, would wait for one of them in each."""
    agenda, called = Agenda(0.0), list[int]()

    def call(number: int) -> None:
        called.append(number)
        clock.offset_s += agenda_module.LONG_S * 1.5

    for number in range(3):
        agenda.add(clock.time(), partial(call, number))
    await steps(1)
    assert called == [0]
    await clock.advance(agenda_module.PAUSE_S * 0.5)
    assert called == [0]
    await clock.advance(agenda_module.PAUSE_S * 0.6)
    assert called == [0, 1]
    await clock.advance(agenda_module.PAUSE_S * 1.1)
    assert called == [0, 1, 2]


@pytest.mark.parametrize(("others_s", "calls"), [(0.0, 4), (0.002, 5), (60.0, 21)])
async def test_where_others_take_long_it_takes_its_share(clock: Clock, others_s: float, calls: int) -> None:
    """Else what is due would never come to an end on a busy loop; but never more than a millisecond at once."""
    agenda, called = Agenda(0.0), list[int]()

    def call(number: int) -> None:
        called.append(number)
        clock.offset_s += agenda_module.STEP_S * 0.98 if others_s else agenda_module.STEP_S * 0.26

    for number in range(60):
        agenda.add(clock.time(), partial(call, number))
    await steps(1)
    first = len(called)
    clock.offset_s += others_s
    await steps(1)
    assert len(called) - first == calls
    agenda.close()


async def test_what_is_added_meanwhile_has_its_turn(clock: Clock) -> None:
    agenda, called = Agenda(5.0), list[str]()

    def again() -> None:
        called.append("again")
        agenda.add(clock.time() - 1, lambda: called.append("at once"))
        agenda.add(clock.time() + 10, lambda: called.append("later"))

    agenda.add(clock.time(), again)
    await steps(1)
    assert called == ["again", "at once"]
    await clock.advance(11)
    assert called == ["again", "at once", "later"]


async def test_a_call_that_fails_does_not_keep_the_others(clock: Clock) -> None:
    agenda, called, failures = Agenda(0.0), list[str](), list[str]()

    def fail() -> None:
        raise ValueError("of one")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    agenda.add(clock.time(), fail)
    agenda.add(clock.time(), lambda: called.append("of another"))
    await steps(2)
    assert (failures, called) == (["of one"], ["of another"])


@pytest.mark.parametrize("after_s", [0, 10])
async def test_nothing_is_called_once_it_is_closed(clock: Clock, after_s: float) -> None:
    agenda, called = Agenda(0.0), list[int]()
    agenda.add(clock.time() + after_s, lambda: called.append(1))
    agenda.close()
    await clock.advance(11)
    assert called == []
    agenda.add(clock.time(), lambda: called.append(2))
    await steps(1)
    assert called == [2], "an empty one is as good as new"
    agenda.close()
