from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlatory.actors.draft_message import DraftMessage, weight_of
from parlatory.storage import new_row

from .fakes import applied

EMPTY: dict[str, Any] = {"role": "assistant", "content": ""}
TEXTS = st.text(alphabet='ab é\n"\0\U0001f600\ud83d\ude00', max_size=5)
PARTS = st.sampled_from(
    [
        {"type": "text", "text": "t"},
        {"type": "reasoning", "text": "", "signature": "s"},
        {"type": "file", "mediaType": "text/plain", "data": "aGk="},
    ]
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), TEXTS),
        st.tuples(st.just("reason"), TEXTS),
        st.tuples(st.just("put"), PARTS),
        st.tuples(st.just("replace"), PARTS),
        st.tuples(st.just("flush"), st.none()),
    ),
    max_size=30,
)


class Client:
    """Has a draft by its first `draft` frame and all deltas."""

    def __init__(self) -> None:
        self.index = 0
        self.message = EMPTY

    def take(self, draft: DraftMessage) -> None:
        delta = draft.flush()
        if delta is not None:
            assert delta.start == self.index < delta.end
            self.index = delta.end
            self.message = applied(self.message, json.loads(json.dumps(delta.ops)))


@given(STEPS)
def test_a_client_has_the_message_at_every_flush_and_the_row_at_the_end(steps: list[tuple[str, Any]]) -> None:
    draft, client = DraftMessage(), Client()
    for kind, value in steps:
        if kind == "flush":
            client.take(draft)
            assert client.message == draft.message()
            assert client.index == draft.index
        elif kind != "replace":
            getattr(draft, kind)(value)
        elif draft.parts:
            draft.replace(len(draft.parts) // 2, value)
    draft.finish()
    client.take(draft)
    assert client.message == draft.message()
    message, row = new_row(draft.message())
    again, _ = new_row(json.loads(row.body))
    assert again == message, "it can be stored as it is"
    assert bool(draft) == (draft.message() != EMPTY)
    assert abs(draft.weight - len(row.body)) <= 64 + 13 * len(draft.parts)


@given(st.text(), st.integers(0, 20))
def test_l05_a_snapshot_and_the_deltas_behind_it_are_the_message(text: str, cut: int) -> None:
    draft, client = DraftMessage(), Client()
    halves = text.encode("utf-16-le", "surrogatepass")
    units = [halves[at : at + 2].decode("utf-16-le", "surrogatepass") for at in range(0, len(halves), 2)]
    for number, unit in enumerate(units):
        draft.add(unit)
        if number == cut:
            draft.flush()
            client.index, client.message = draft.index, draft.message()
    draft.finish()
    if not units or cut >= len(units):
        client = Client()
    client.take(draft)
    assert client.message == draft.message() == {**EMPTY, "content": text}


def test_t51_an_emoji_in_two_writes_is_one_emoji() -> None:
    draft = DraftMessage()
    draft.add("a\ud83d")
    first = draft.flush()
    assert first is not None and first.ops == ({"add": "a"},)
    draft.add("\ude00b")
    second = draft.flush()
    assert second is not None and second.ops == ({"add": "\U0001f600b"},)
    assert draft.message()["content"] == "a\U0001f600b"


def test_a_half_that_stays_half_is_told_at_the_end() -> None:
    draft, client = DraftMessage(), Client()
    draft.add("a\ud83d")
    client.take(draft)
    draft.finish()
    client.take(draft)
    assert client.message["content"] == draft.message()["content"] == "a\ufffd"
    draft.finish()
    assert draft.flush() is None


def test_a_half_belongs_to_its_own_kind_of_text() -> None:
    draft = DraftMessage()
    draft.reason("\ud83d")
    draft.add("\ude00")
    assert draft.parts == [{"type": "reasoning", "text": "\ufffd"}, {"type": "text", "text": "\ufffd"}]


def test_a_write_of_nothing_counts_and_changes_nothing() -> None:
    draft = DraftMessage()
    draft.add("")
    assert draft.unflushed == 1
    delta = draft.flush()
    assert delta is not None and (delta.start, delta.end, delta.ops) == (0, 1, ())
    assert not draft


def test_a_part_that_is_not_there_cannot_be_replaced() -> None:
    draft = DraftMessage()
    draft.add("text")
    for place in (-1, 1):
        with pytest.raises(IndexError, match="1 parts"):
            draft.replace(place, {"type": "text", "text": "x"})


def test_the_weight_is_that_of_json() -> None:
    assert weight_of('a"é\0') == 1 + 2 + 2 + 6
    assert weight_of("\ud83d") == 3
