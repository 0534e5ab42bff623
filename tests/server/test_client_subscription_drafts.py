"""One conversation of a client: its draft, and the events beside the rows."""

from __future__ import annotations

from typing import Any

import msgspec

from parlatory.server.client_drafts import Draft
from parlatory.server.client_frames import Delta, DraftEnd, DraftSet, Op, Opened, RowFrame, Rows, Signal, TurnState
from parlatory.server.client_subscription import REOPENS_MAX, Met, Subscription
from parlatory.storage import StoredMessage
from tests.server.test_client_subscription import C, asked, at, opened, reset, rows, subscription


def told(text: str = "", index: int = 0, id: str = "d") -> DraftSet:
    return DraftSet(conversation=C, id=id, turn=1, index=index, message={"role": "assistant", "content": text})


def delta(start: int, text: str = "x", id: str = "d") -> Delta:
    return Delta(conversation=C, id=id, start=start, to=start + 1, ops=[Op(add=text)])


def answer(seq: int, text: str, turn: int = 1) -> Rows:
    message = msgspec.Raw(b'{"role":"assistant","content":"%b"}' % text.encode())
    row = RowFrame(seq=seq, at=at(seq), by="agent", turn=turn, message=message)
    return Rows(conversation=C, epoch="e", rows=[row])


def end(seq: int | None = None, id: str = "d") -> DraftEnd:
    return DraftEnd(conversation=C, id=id, finish="done", seq=seq)


def listening(**fields: Any) -> Subscription:
    made = subscription(**fields)
    made.live(0)
    made.want_events()
    return made


def brief(item: object) -> str | int | tuple[str, str | None]:
    match item:
        case StoredMessage():
            return item.seq
        case Draft():
            return item.text, item.finish
        case TurnState():
            return f"{item.state} {item.id}"
        case _:
            return type(item).__name__


def drained(sub: Subscription) -> list[object]:
    found: list[object] = []
    while (item := sub.take_event()) is not None:
        found.append(brief(item))
    return found


def test_a_draft_from_its_start_to_its_row() -> None:
    sub = listening()
    sub.rows(rows(1))
    sub.turn(TurnState("running", 1))
    sub.draft_set(told())
    assert drained(sub) == [1, "running 1", ("", None)]
    assert sub.delta(delta(0)) is None
    assert sub.delta(delta(0, "again")) is None, "it is known already"
    assert sub.draft is not None and sub.draft.text == "x"
    assert sub.delta(delta(1)) is None
    assert drained(sub) == [("xx", None)], "only the latest"
    sub.rows(answer(2, "xx"))
    sub.draft_end(end(2))
    assert sub.draft is None
    sub.turn(TurnState("done", 1))
    assert drained(sub) == [2, ("xx", "done"), "done 1"]


def test_a_slow_application_sees_no_backlog() -> None:
    sub = listening()
    sub.rows(rows(1))
    sub.draft_set(told())
    for place in range(9):
        sub.delta(delta(place))
    sub.signal(Signal(conversation=C, name="n", by="x"), 20)
    assert drained(sub) == [1, (9 * "x", None), "Signal"]


def test_who_lagged_gets_the_message_of_the_row() -> None:
    """A lagging subscription is not told the last deltas, only the row and the end."""
    sub = listening()
    sub.draft_set(told("x"))
    assert drained(sub) == [("x", None)]
    sub.rows(answer(1, "xyz"))
    sub.live(1)
    sub.draft_end(end(1))
    assert drained(sub) == [1, ("xyz", "done")]


def test_who_lagged_gets_the_message_of_the_row_though_others_came_behind_it() -> None:
    sub = listening()
    sub.draft_set(told("x"))
    sub.rows(answer(1, "xyz"))
    sub.rows(answer(2, "another", turn=2))
    sub.draft_end(end(1))
    assert drained(sub) == [1, 2, ("xyz", "done")]


def test_a_draft_that_became_no_row() -> None:
    sub = listening()
    sub.draft_set(told("x"))
    sub.draft_end(end())
    sub.draft_end(end(id="other"))
    assert drained(sub) == [("x", "done")]


def test_l05_a_new_socket_drops_the_draft() -> None:
    """L05: what is told anew replaces what was; nothing is appended twice."""
    sub = listening()
    sub.draft_set(told("ab", 2))
    assert drained(sub) == [("ab", None)]
    sub.lost()
    assert sub.draft is not None, "it is shown until the server says otherwise"
    sub.begin()
    sub.opened(opened(0))
    assert sub.draft is None
    sub.draft_set(told("abc", 3))
    sub.live(0)
    sub.delta(delta(3, "d"))
    assert drained(sub) == [("abcd", None)]


def test_a_draft_whose_end_was_missed() -> None:
    sub = listening()
    sub.draft_set(told("ab", 2))
    assert drained(sub) == [("ab", None)]
    sub.lost()
    sub.begin()
    sub.opened(opened(0))
    sub.rows(answer(1, "abc"))
    sub.live(1)
    assert drained(sub) == [1, ("ab", "lost")]
    sub.lost()
    sub.begin()
    sub.opened(opened(1))
    sub.live(1)
    assert drained(sub) == []


def test_another_draft_instead() -> None:
    sub = listening()
    sub.draft_set(told("ab"))
    assert drained(sub) == [("ab", None)]
    sub.begin()
    sub.opened(opened(0))
    sub.draft_set(told("c", id="e"))
    sub.live(0)
    assert drained(sub) == [("ab", "lost"), ("c", None)]


def test_an_end_waits_for_its_row_on_the_next_socket() -> None:
    """The row was not taken when the socket was lost, so it comes again, and the end must not come first."""
    sub = listening()
    sub.draft_set(told("ab"))
    assert drained(sub) == [("ab", None)]
    sub.rows(answer(1, "ab"))
    sub.draft_end(end(1))
    sub.lost()
    sub.begin()
    assert drained(sub) == []
    sub.opened(opened(0))
    sub.rows(answer(1, "ab"))
    sub.live(1)
    assert drained(sub) == [1, ("ab", "lost")]


def test_a_gap_is_a_reason_to_open_again() -> None:
    sub = listening()
    sub.draft_set(told())
    assert asked(sub.delta(delta(1)))["after"] == 0
    assert sub.status == "replaying"
    assert sub.delta(delta(2)) is None, "asked already"
    sub.draft_set(told("old"))
    sub.draft_end(end())
    sub.opened(opened(0))
    sub.draft_set(told("xxx", 3))
    sub.live(0)
    assert sub.delta(delta(3)) is None
    assert drained(sub) == [("xxxx", None)]


def test_a_delta_of_a_draft_that_was_not_told() -> None:
    assert listening().delta(delta(0)) is not None


def test_a_draft_that_cannot_be_followed_is_given_up() -> None:
    sub = listening()
    sub.draft_set(told("a"))
    assert drained(sub) == [("a", None)]
    for _ in range(REOPENS_MAX):
        assert sub.delta(delta(5)) is not None
        sub.opened(opened(0))
        sub.draft_set(told("a"))
        sub.live(0)
    assert sub.delta(delta(5)) is None
    sub.draft_set(told("a"))
    assert sub.delta(delta(0)) is None
    assert sub.draft is None and sub.status == "live"
    assert drained(sub) == [("a", "lost")]
    sub.rows(answer(1, "ab"))
    sub.draft_end(end(1))
    assert drained(sub) == [1]


def test_events_begin_with_what_is_going_on() -> None:
    sub = subscription(None)
    sub.opened(Opened(conversation=C, epoch="e", start=0, turn=TurnState("running", 1)))
    sub.rows(rows(1))
    sub.draft_set(told("ab", 2))
    sub.live(1)
    assert not sub.events
    sub.want_events()
    assert drained(sub) == [1, "running 1", ("ab", None)]
    sub.want_events()
    assert drained(sub) == [("ab", None)], "told anew to whoever begins anew"


def test_a_turn_that_is_told_with_the_position() -> None:
    sub = listening()
    for turn in (TurnState("running", 1), TurnState("running", 1), TurnState("idle")):
        sub.begin()
        sub.opened(Opened(conversation=C, epoch="e", start=0, turn=turn))
    assert drained(sub) == ["running 1", "idle None"]


def test_rows_alone_drop_what_comes_before_them() -> None:
    sub = listening()
    sub.turn(TurnState("running", 1))
    sub.rows(rows(1))
    sub.turn(TurnState("done", 1))
    assert brief(sub.take()) == 1
    assert drained(sub) == ["done 1"]


def test_a_reset_in_between() -> None:
    sub = listening()
    sub.draft_set(told("ab"))
    assert drained(sub) == [("ab", None)]
    sub.rows(answer(1, "ab"))
    sub.draft_end(end(1))
    sub.begin()
    sub.opened(reset(0))
    sub.live(0)
    assert drained(sub) == [Met.__name__, ("ab", "lost")]


def test_a_close_drops_the_events() -> None:
    sub = listening()
    sub.turn(TurnState("running", 1))
    assert sub.close() is not None
    assert drained(sub) == []
