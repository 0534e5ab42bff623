"""What an agent does, also for who was not told everything."""

from __future__ import annotations

import pytest

from parlatory.server import client_turns
from parlatory.server.client_frames import TurnState
from parlatory.server.client_turns import Turns


def told(*states: str) -> Turns:
    """Turns that were told states such as `running 3`."""
    turns = Turns()
    for state in states:
        name, _, turn = state.partition(" ")
        turns.told(TurnState(name, int(turn)))
    return turns


@pytest.mark.parametrize(
    ("states", "now", "stoppable"),
    [
        ([], "idle", None),
        (["running 1"], "running 1", 1),
        (["running 1", "queued 3", "queued 5"], "running 1", 1),
        (["running 1", "queued 3", "stopped 3"], "running 1", 1),
        (["running 1", "queued 3", "queued 5", "done 1"], "queued 3", 3),
        (["queued 3", "running 3"], "running 3", 3),
        (["running 1", "done 1"], "done 1", None),
        (["running 1", "waiting 1"], "waiting 1", None),
        (["running 1", "queued 3", "waiting 3"], "waiting 3", None),
        # Ends that were missed.
        (["running 1", "running 3"], "running 3", 3),
        (["running 1", "error 3"], "error 3", None),
        (["running 1", "queued 3", "done 3"], "done 3", None),
        (["running 1", "queued 3", "running 3", "stopped 3"], "stopped 3", None),
    ],
)
def test_now(states: list[str], now: str, stoppable: int | None) -> None:
    turns = told(*states)
    assert now == (turns.now.state if turns.now.id is None else f"{turns.now.state} {turns.now.id}")
    assert turns.stoppable == stoppable


def test_what_is_queued_is_forgotten_where_ends_were_missed() -> None:
    turns = told("queued 3", "queued 5")
    turns.lagged()
    assert turns.now == TurnState("idle")
    turns = told("running 1", "queued 3")
    turns.lagged()
    assert turns.now == TurnState("running", 1)
    turns.told(TurnState("done", 5))
    assert turns.now == TurnState("done", 5)


def test_what_waited_at_the_opening_without_a_name_is_over_with_the_first_that_has_one() -> None:
    turns = Turns()
    turns.opened(TurnState("queued"))
    assert turns.now == TurnState("queued")
    turns.told(TurnState("running", 3))
    turns.told(TurnState("done", 3))
    assert turns.now == TurnState("done", 3)


def test_a_subscription_begins_anew() -> None:
    turns = told("running 1", "queued 3")
    turns.opened(TurnState("idle"))
    assert turns.now == TurnState("idle") and turns.stoppable is None


def test_queued_turns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_turns, "QUEUED_MAX", 2)
    assert told("queued 1", "queued 3", "queued 5").now == TurnState("queued", 3)
