"""What a hub tells of turns to those who lagged: as little as there is, and enough to know what runs."""

from __future__ import annotations

import pytest

from .room import Room


@pytest.mark.parametrize("last", ["running", "done"])
async def test_who_lagged_learns_of_the_turn_that_ran_beside_one_that_never_did(room: Room, last: str) -> None:
    sink = await room.subscribe().until_live(0)
    room.turn(1, "running")
    await sink.until(lambda sink: bool(sink.turns))
    sink.pause()
    await room.commit("one")
    room.turn(1, "done")
    room.turn(2, "running")
    room.turn(3, "queued", 1)
    if last == "done":
        room.turn(2, "done")
    room.turn(3, "stopped")
    sink.resume()
    await sink.until(lambda sink: (3, "stopped") in sink.turns)
    assert (2, last) in sink.turns


async def test_who_lagged_learns_that_a_turn_ran_before_it_was_stopped(room: Room) -> None:
    """Otherwise it looks like one that was stopped in the queue, while the one before runs on."""
    sink = await room.subscribe().until_live(0)
    room.turn(1, "running")
    room.turn(2, "queued", 1)
    await sink.until(lambda sink: len(sink.turns) == 2)
    sink.pause()
    await room.commit("one")
    room.turn(1, "done")
    room.turn(2, "running")
    room.turn(2, "stopped")
    sink.resume()
    await sink.until(lambda sink: (2, "stopped") in sink.turns)
    assert sink.turns[2:] == [(2, "running"), (2, "stopped")]


@pytest.mark.parametrize("end", ["done", "stopped"])
async def test_who_lagged_is_not_told_that_a_turn_waits_that_is_over(room: Room, end: str) -> None:
    sink = await room.subscribe().until_live(0)
    sink.pause()
    await room.commit("one")
    room.turn(1, "running")
    room.turn(2, "queued", 1)
    room.turn(1, "done")
    if end == "done":
        room.turn(2, "running")
    room.turn(2, end)
    room.turn(3, "running")
    sink.resume()
    await sink.until(lambda sink: (3, "running") in sink.turns)
    assert not [turn for turn in sink.turns if turn[1] == "queued"]
