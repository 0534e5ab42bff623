from __future__ import annotations

from datetime import UTC, datetime

from parlatory.actors.turn_log import in_turn_order
from parlatory.storage import StoredMessage, assistant_message, tool_message, user_message

AT = datetime(2026, 11, 30, tzinfo=UTC)


def row(seq: int, text: str, turn: int | str | None = None, finish: str | None = None) -> StoredMessage:
    message = user_message(text) if text.startswith("Q") else assistant_message(text)
    return StoredMessage(seq=seq, at=AT, by="x", turn=turn, finish=finish, message=message)


def texts(rows: list[StoredMessage], turn: int) -> list[str]:
    return [one.text for one in in_turn_order(rows, turn)]


def test_t01_a_reply_stands_behind_what_it_answers_and_what_waits_is_not_there() -> None:
    rows = [row(1, "Q1"), row(2, "Q2"), row(3, "A1", 1), row(4, "Q3"), row(5, "A2", 2)]
    assert texts(rows, 2) == ["Q1", "A1", "Q2", "A2"]
    assert texts(rows, 4) == ["Q1", "A1", "Q2", "A2", "Q3"]


def test_rows_of_no_turn_or_of_a_call_stand_where_they_are() -> None:
    rows = [row(1, "Q1"), row(2, "news"), row(3, "A1", 1), row(4, "from a call", "call:7")]
    assert texts(rows, 1) == ["Q1", "A1", "news", "from a call"]


def test_what_an_interrupted_attempt_left_is_not_there_once_the_turn_is_attempted_again() -> None:
    rows = [row(1, "Q1"), row(2, "half", 1, "interrupted"), row(3, "Q2"), row(4, "half too", 3, "interrupted")]
    assert texts(rows[:2], 1) == ["Q1"]
    assert texts(rows, 3) == ["Q1", "half", "Q2"]
    answered = [*rows, row(5, "A1", 1)]
    assert texts(answered, 3) == ["Q1", "A1", "Q2"]


def test_t35_what_a_stop_or_an_error_left_is_there() -> None:
    rows = [row(1, "Q1"), row(2, "half", 1, "stopped"), row(3, "Q2"), row(4, "part", 3, "error"), row(5, "Q3")]
    assert texts(rows, 5) == ["Q1", "half", "Q2", "part", "Q3"]


def test_tool_rows_stay_behind_their_call() -> None:
    result = StoredMessage(seq=4, at=AT, by="agent", turn=1, message=tool_message(()))
    rows = [row(1, "Q1"), row(2, "call", 1), row(3, "Q2"), result]
    assert [one.seq for one in in_turn_order(rows, 3)] == [1, 2, 4, 3]
