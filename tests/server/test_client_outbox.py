"""What is sent when, and again, and what is forgotten."""

from __future__ import annotations

import json

from parlatory.server.client_outbox import Outbox, Outgoing


class Filled:
    """An outbox and its messages by name: the first letter is the conversation."""

    def __init__(self, *names: str) -> None:
        self.outbox = Outbox()
        self.entries: dict[str, Outgoing] = {}
        for name in names:
            self.add(name)

    def add(self, name: str, body: bytes = b"{}") -> None:
        entry = self.entries[name] = Outgoing(len(self.entries) + 1, name[0], name, body)
        self.outbox.add(entry)

    def take(self, now: float = 0.0, most: int = 99) -> list[str]:
        taken: list[str] = []
        while len(taken) < most and (entry := self.outbox.next(now)) is not None:
            taken.append(entry.client_id)
        return taken


def test_the_frame() -> None:
    frame = Outgoing(1, 'a/"', "id", b'{"role":"user"}').frame()
    assert json.loads(frame) == {"type": "send", "conversation": 'a/"', "clientId": "id", "message": {"role": "user"}}


def test_all_of_them() -> None:
    filled = Filled("a1", "b1")
    assert filled.outbox.all() == [filled.entries["a1"], filled.entries["b1"]]


def test_oldest_first_over_all_conversations() -> None:
    filled = Filled("a1", "b1", "a2", "b2")
    assert filled.take() == ["a1", "b1", "a2", "b2"]
    assert filled.take() == []
    assert filled.outbox.inflight == 4
    assert ("a", "a1") in filled.outbox and ("a", "x") not in filled.outbox


def test_answers_take_out() -> None:
    filled = Filled("a1", "a2")
    filled.take()
    assert filled.outbox.answered("a", "a1") is filled.entries["a1"]
    assert filled.outbox.answered("a", "a1") is None
    assert filled.outbox.inflight == 1 and len(filled.outbox) == 1


def test_a_row_takes_out_but_keeps_its_slot() -> None:
    filled = Filled("a1")
    filled.take()
    assert filled.outbox.seen("a", "a1") is filled.entries["a1"]
    assert (len(filled.outbox), filled.outbox.inflight) == (0, 1)
    assert filled.outbox.answered("a", "a1") is None
    assert filled.outbox.inflight == 0


def test_l13_what_is_not_answered_is_sent_again_in_order() -> None:
    filled = Filled("a1", "b1", "a2", "a3")
    filled.take(most=3)
    filled.outbox.answered("b", "b1")
    filled.outbox.lost()
    assert filled.outbox.inflight == 0
    assert filled.take() == ["a1", "a2", "a3"]


def test_a_row_before_the_repeat_makes_it_needless() -> None:
    filled = Filled("a1", "a2")
    filled.take()
    filled.outbox.lost()
    filled.outbox.seen("a", "a1")
    assert filled.take() == ["a2"]


def test_a_refusal_for_now_holds_its_conversation() -> None:
    filled = Filled("a1", "a2", "b1")
    assert filled.take(most=1) == ["a1"]
    filled.outbox.refused("a", "a1", 5.0)
    assert filled.take(4.9) == ["b1"]
    assert filled.outbox.deadline() == 5.0
    assert filled.take(5.0) == ["a1", "a2"]
    filled.outbox.refused("a", "a2", 9.0)
    filled.outbox.refused("a", "a1", 8.0)
    assert filled.outbox.deadline() == 9.0, "the longest counts"
    assert filled.take(9.0) == ["a1", "a2"]
    assert filled.take(9.0) == []


def test_a_hold_ends_with_its_last_message() -> None:
    filled = Filled("a1")
    filled.take()
    filled.outbox.refused("a", "a1", 5.0)
    assert filled.outbox.forget(filled.entries["a1"])
    assert filled.take(1.0) == []
    assert filled.outbox.deadline() is None
    filled.add("a2")
    assert filled.take(1.0) == ["a2"]


def test_a_refusal_of_something_unknown_or_unsent_changes_nothing() -> None:
    filled = Filled("a1")
    filled.outbox.refused("a", "x", 5.0)
    filled.outbox.refused("a", "a1", 5.0)
    assert filled.take(0.0) == ["a1"]


def test_forgotten_if_not_sent() -> None:
    filled = Filled("a1", "a2")
    assert filled.outbox.forget(filled.entries["a1"])
    assert filled.take() == ["a2"]
    assert not filled.outbox.forget(filled.entries["a2"])
    assert len(filled.outbox) == 1, "it is still brought to its end"


def test_forgotten_at_the_refusal_if_nobody_waits() -> None:
    filled = Filled("a1")
    filled.take()
    filled.outbox.forget(filled.entries["a1"])
    filled.outbox.refused("a", "a1", 5.0)
    assert len(filled.outbox) == 0


def test_uncertain_is_never_forgotten() -> None:
    """Sent on a lost socket: it may be in the log, whatever a later socket says of a repeat."""
    filled = Filled("a1")
    filled.take()
    filled.outbox.lost()
    assert not filled.outbox.forget(filled.entries["a1"])
    assert filled.take() == ["a1"]
    filled.outbox.refused("a", "a1", 1.0)
    assert filled.take(1.0) == ["a1"]


def test_the_largest_sent() -> None:
    filled = Filled("a1")
    assert filled.outbox.largest_sent() is None
    filled.add("a2", b"x" * 9)
    filled.add("a3", b"x" * 99)
    filled.take(most=2)
    assert filled.outbox.largest_sent() is filled.entries["a2"]
    assert [entry.client_id for entry in filled.outbox.of("a")] == ["a1", "a2", "a3"]
