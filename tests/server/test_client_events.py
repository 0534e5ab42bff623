"""What waits beside the rows: places, what replaces what, bounds."""

from __future__ import annotations

import pytest

from parlatory.server import client_events
from parlatory.server.client_drafts import Draft, OpenDraft
from parlatory.server.client_events import Ephemeral, EventQueue
from parlatory.server.client_frames import Delta, DraftSet, Op, Signal, TurnState
from parlatory.storage import assistant_message


def queue() -> EventQueue:
    made = EventQueue(1000)
    made.wanted = True
    return made


def opened(id: str = "d", text: str = "a") -> OpenDraft:
    message = {"role": "assistant", "content": text}
    return OpenDraft(DraftSet(conversation="a/b", id=id, turn=1, index=0, message=message))


def add(draft: OpenDraft, text: str) -> None:
    frame = Delta(conversation="a/b", id=draft.id, start=draft.index, to=draft.index + 1, ops=[Op(add=text)])
    assert draft.apply(frame)


def end(id: str = "d", text: str = "a") -> Draft:
    return Draft(id, 1, assistant_message(text), "done", 2)


def signal(name: str, data: int, by: str = "x") -> Signal:
    return Signal(conversation="a/b", name=name, by=by, data=data)


def drained(events: EventQueue, taken: int = 99) -> list[Ephemeral]:
    found = []
    while (event := events.take(taken)) is not None:
        found.append(event)
    return found


def test_nothing_before_it_is_wanted() -> None:
    events = EventQueue(1000)
    events.grew(opened(), 0)
    events.turn(TurnState("running", 1), 0)
    assert len(events) == 0


def test_each_has_its_place() -> None:
    events = queue()
    events.turn(TurnState("running", 1), 1)
    events.ended(end(), 2, 1)
    assert events.take(0) is None
    assert events.take(1) == TurnState("running", 1)
    assert events.take(1) is None
    assert events.take(2) == end()


def test_a_draft_is_read_when_it_is_taken() -> None:
    events, draft = queue(), opened()
    events.grew(draft, 0)
    events.turn(TurnState("running", 1), 0)
    for _ in range(9):
        add(draft, "b")
        events.grew(draft, 5)
    first = events.take(0)
    assert isinstance(first, Draft) and first.text == "a" + 9 * "b", "it keeps its place"
    assert events.shown == first
    assert drained(events) == [TurnState("running", 1)]


def test_an_end_replaces_the_draft() -> None:
    events = queue()
    events.grew(opened(), 0)
    events.take(0)
    events.grew(opened(), 0)
    events.ended(end(text="ab"), 1, 1)
    assert drained(events) == [end(text="ab")]
    assert events.shown is None


def test_a_draft_that_cannot_be_read_is_not_shown() -> None:
    events = queue()
    events.grew(OpenDraft(DraftSet(conversation="a/b", id="d", turn=1, index=0, message={"role": "judge"})), 0)
    assert events.take(0) is None and events.shown is None


def test_a_draft_that_was_not_told_anew_is_lost() -> None:
    events = queue()
    events.settle(None, 0)
    events.grew(opened(), 0)
    shown = events.take(0)
    events.settle("d", 0)
    assert len(events) == 0
    events.settle(None, 1)
    events.settle(None, 2)
    assert isinstance(shown, Draft)
    assert drained(events) == [Draft("d", 1, shown.message, "lost")], "once"


def test_a_draft_whose_end_went_with_its_socket_is_lost_when_the_next_one_is_shown() -> None:
    events = queue()
    events.grew(opened("d1", "a"), 0)
    assert drained(events) == [Draft("d1", 1, assistant_message("a"))]
    events.ended(end("d1"), 1, 1)
    events.grew(opened("d2", "b"), 1)
    events.drop_ends()
    assert drained(events) == [
        Draft("d1", 1, assistant_message("a"), "lost"),
        Draft("d2", 1, assistant_message("b")),
    ]
    events.grew(opened("d2", "bc"), 1)
    assert drained(events) == [Draft("d2", 1, assistant_message("bc"))]
    events.ended(end("d2", "bc"), 1, 1)
    events.grew(opened("d3", "c"), 1)
    assert drained(events) == [end("d2", "bc"), Draft("d3", 1, assistant_message("c"))]


def test_what_is_dropped() -> None:
    events = queue()
    events.grew(opened(), 0)
    events.dropped("d")
    events.dropped("d")
    events.ended(end(), 1, 1)
    events.turn(TurnState("running", 1), 1)
    events.drop_ends()
    assert drained(events) == [TurnState("running", 1)]
    events.turn(TurnState("done", 1), 1)
    events.clear()
    assert len(events) == 0


def test_what_comes_before_a_row_that_was_taken_is_skipped() -> None:
    events = queue()
    events.grew(opened(), 0)
    events.take(0)
    events.ended(end("other"), 0, 1)
    events.turn(TurnState("running", 3), 0)
    events.ended(end(), 0, 1)
    events.turn(TurnState("done", 1), 1)
    events.skip(1)
    assert events.shown is None, "whoever took the row knows"
    assert drained(events) == [TurnState("done", 1)]


def test_what_replaces_what() -> None:
    events = queue()
    for state in ("queued", "running", "done"):
        events.turn(TurnState(state, 1), 0)
        events.turn(TurnState(state, 3), 0)
    for number in range(3):
        events.signal(signal("typing", number), 0, 1)
        events.signal(signal("typing", number, "y"), 0, 1)
        events.signal(signal("cursor", number), 0, 1)
    assert drained(events) == [
        TurnState("done", 1), TurnState("done", 3), signal("typing", 2), signal("typing", 2, "y"), signal("cursor", 2),
    ]  # fmt: skip


def test_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_events, "EVENTS_MAX", 3)
    events = queue()
    for turn in range(9):
        events.turn(TurnState("done", turn), 0)
    assert [event.id for event in drained(events) if isinstance(event, TurnState)] == [6, 7, 8]


def test_bytes_are_bounded() -> None:
    events = queue()
    for number in range(9):
        events.ended(end(f"d{number}"), 0, 400)
    assert [event.id for event in drained(events) if isinstance(event, Draft)] == ["d7", "d8"]
    events.ended(end(), 0, 5000)
    assert drained(events) == [end()], "the newest is kept in any case"
