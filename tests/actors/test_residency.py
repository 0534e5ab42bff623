from __future__ import annotations

import asyncio

import pytest

from parlatory.actors.residency import Residency

from .fakes import steps


class Guest:
    """A resident. Unrealistic: it is quiet when the test says, and leaves only when the test lets it."""

    def __init__(self, residency: Residency, quiet: bool = True) -> None:
        self.residency = residency
        self.quiet = quiet
        self.dismissed = 0

    def dismiss(self) -> None:
        self.dismissed += 1
        self.quiet = False

    async def enter(self) -> Guest:
        await self.residency.enter(self)
        return self


def test_there_is_room_for_one_at_least() -> None:
    with pytest.raises(ValueError, match="max_resident"):
        Residency(0)


async def test_the_one_used_longest_ago_makes_room() -> None:
    residency = Residency(2)
    first, second = [await Guest(residency).enter() for _ in range(2)]
    residency.touch(first)
    third = asyncio.ensure_future(Guest(residency).enter())
    await steps(2)
    assert (first.dismissed, second.dismissed, third.done()) == (0, 1, False)
    residency.leave(second)
    await third
    assert len(residency) == 2


async def test_where_all_are_busy_who_comes_waits_in_order_for_one_between_two_turns() -> None:
    residency = Residency(1)
    busy = await Guest(residency, quiet=False).enter()
    waiting = [asyncio.ensure_future(Guest(residency, quiet=False).enter()) for _ in range(2)]
    await steps(2)
    assert busy.dismissed == 0
    assert residency.yields(busy)
    assert not residency.yields(busy), "it is leaving already"
    residency.leave(busy)
    assert not residency.yields(busy), "it has left"
    following = await waiting[0]
    assert not waiting[1].done()
    assert residency.yields(following)
    residency.leave(following)
    last = await waiting[1]
    assert not residency.yields(last), "nobody waits"


async def test_nobody_overtakes_who_waits() -> None:
    residency = Residency(1)
    first = await Guest(residency).enter()
    second = asyncio.ensure_future(Guest(residency).enter())
    await steps(2)
    residency.leave(first)
    third = asyncio.ensure_future(Guest(residency).enter())  # in the step that made room
    await second
    await steps(2)
    assert not third.done()
    residency.leave(second.result())
    await third


async def test_no_more_are_dismissed_than_places_are_sought() -> None:
    residency = Residency(3)
    guests = [await Guest(residency).enter() for _ in range(3)]
    coming = asyncio.ensure_future(Guest(residency).enter())
    await steps(2)
    assert [guest.dismissed for guest in guests] == [1, 0, 0]
    assert not residency.yields(guests[1])
    residency.leave(guests[0])
    await coming


async def test_who_gives_up_waiting_leaves_no_trace() -> None:
    residency = Residency(1)
    first = await Guest(residency, quiet=False).enter()
    given_up, kept = [asyncio.ensure_future(Guest(residency).enter()) for _ in range(2)]
    await steps(2)
    given_up.cancel()
    residency.leave(first)  # in the same step: the place goes to the next
    await kept
    assert given_up.cancelled() or given_up.cancelling()
    assert len(residency) == 1


async def test_who_gives_up_in_the_step_that_admits_him_gives_the_place_back() -> None:
    residency = Residency(1)
    first = await Guest(residency, quiet=False).enter()
    given_up, kept = [asyncio.ensure_future(Guest(residency).enter()) for _ in range(2)]
    await steps(2)
    residency.leave(first)
    given_up.cancel()
    await kept
    assert given_up.cancelled()
    assert len(residency) == 1


async def test_who_waits_alone_and_gives_up() -> None:
    residency = Residency(1)
    first = await Guest(residency, quiet=False).enter()
    given_up = asyncio.ensure_future(Guest(residency).enter())
    await steps(2)
    given_up.cancel()
    await asyncio.wait({given_up})
    assert not residency.yields(first)
    residency.leave(first)
    assert len(residency) == 0


async def test_a_place_that_is_being_left_is_taken_by_who_comes_later() -> None:
    residency = Residency(2)
    first, second = [await Guest(residency).enter() for _ in range(2)]
    given_up = asyncio.ensure_future(Guest(residency).enter())
    await steps(2)
    given_up.cancel()
    later = asyncio.ensure_future(Guest(residency).enter())
    await steps(2)
    assert (first.dismissed, second.dismissed) == (1, 0)
    residency.leave(first)
    await later
