from __future__ import annotations

from parlatory.actors import Closed, Event, Live, Opened, Presence, RowsTold, Signal, TurnTold

EVENTS: list[Event] = [
    Opened("bot/ann", "e", 0, 4, 2, None, "running", 4),
    RowsTold("bot/ann", "e", []),
    Live("bot/ann", 4),
    TurnTold("bot/ann", 4, "queued", 1),
    Signal("bot/ann", "typing", b"true", "ann"),
    Presence("bot/ann", 1, ["ann"]),
    Closed("bot/ann", "forbidden"),
]


def test_an_event_is_not_encoded_until_somebody_does() -> None:
    assert [event.wire for event in EVENTS] == [None] * len(EVENTS)
    assert {event.conversation for event in EVENTS} == {"bot/ann"}


def test_an_event_holds_its_fields_and_nothing_else() -> None:
    assert not [event for event in EVENTS if hasattr(event, "__dict__")]


def test_an_event_shows_what_it_says() -> None:
    assert repr(Live("bot/ann", 4)) == "<Live seq=4>"
    assert repr(Closed("bot/ann", "forbidden")) == "<Closed code='forbidden'>"
    assert repr(Event("bot/ann")) == "<Event conversation='bot/ann'>"
