from __future__ import annotations

from datetime import UTC, datetime

from parlatory.actors import Turn
from parlatory.storage import StoredMessage, user_message


def test_a_turn_is_named_by_the_message_that_started_it() -> None:
    trigger = StoredMessage(seq=7, at=datetime(2026, 11, 30, tzinfo=UTC), by="ann", message=user_message("hi"))
    turn = Turn(trigger, 2, [trigger], deadline=3.5)
    assert (turn.id, turn.attempt, turn.rows, turn.deadline, turn.waiting) == (7, 2, (trigger,), 3.5, False)
    assert repr(turn) == "<Turn 7 attempt=2>"
    assert Turn(trigger, 1, ()).deadline is None
