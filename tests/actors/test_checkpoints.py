"""Checkpoints of a draft: what storage holds is the message, whatever was stored when and whatever failed between."""

from __future__ import annotations

import gc
import json
from random import Random
from typing import Any

import msgspec
import pytest

from parlatory.actors.checkpoints import CHECKPOINT, KEYS_MAX, Checkpoints, checkpoint_keys, restored
from parlatory.actors.draft_message import DraftMessage
from parlatory.storage import Batch

PART = {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {"q": "é"}}


class Stored:
    """Is the keys of one conversation, and a draft that is stored there."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.written: list[int] = []
        self.message = DraftMessage()
        self.checkpoints = Checkpoints("d1", 7)

    def next(self) -> Batch:
        if (delta := self.message.flush()) is not None:
            self.checkpoints.add(delta.ops)
        return self.checkpoints.next(self.message.message())

    def apply(self, batch: Batch) -> None:
        self.keys.update(batch.puts)
        for key in batch.deletes:
            self.keys.pop(key, None)
        self.written.append(sum(map(len, batch.puts.values())))

    def store(self) -> None:
        self.apply(self.next())
        self.checkpoints.stored()

    def content(self) -> Any:
        left = restored(self.keys)
        assert (left.id, left.turn) == ("d1", 7)
        return left.message["content"]


def test_each_holds_what_is_new() -> None:
    on = Stored()
    for text in ("one ", "two ", "three"):
        on.message.add(text)
        on.store()
    assert list(on.keys) == [CHECKPOINT, "turn.draft.01", "turn.draft.02"] == list(checkpoint_keys(3))
    assert json.loads(on.keys["turn.draft.02"]) == {"id": "d1", "ops": [{"add": "three"}]}
    assert on.content() == "one two three"
    assert on.checkpoints.keys == 3


def test_adjacent_texts_of_a_kind_are_one() -> None:
    on = Stored()
    on.message.add("a")
    on.store()
    for _ in range(3):
        on.message.reason("b")
        on.checkpoints.add(on.message.flush().ops)  # type: ignore[union-attr]
    place = on.message.put(PART)
    on.message.replace(place, {**PART, "input": {}})
    on.message.add("c")
    on.store()
    assert json.loads(on.keys["turn.draft.01"])["ops"] == [
        {"reasoning": "bbb"},
        {"part": PART},
        {"set": 2, "part": {**PART, "input": {}}},
        {"add": "c"},
    ]
    assert on.content() == on.message.message()["content"]


def test_what_is_written_meanwhile_is_in_the_next_one() -> None:
    on = Stored()
    for text in "abc":
        on.message.add(text)
        batch = on.next()
        on.message.add(text.upper())
        on.checkpoints.add(on.message.flush().ops)  # type: ignore[union-attr]
        on.apply(batch)
        on.checkpoints.stored()
    assert on.content() == "aAbBc"
    on.store()
    assert on.content() == "aAbBcC"


def test_a_text_that_waits_costs_no_object_that_the_garbage_collector_counts() -> None:
    """Thousands of drafts would make it run all the time, and stop the loop for a millisecond or two."""
    on = Stored()
    on.message.add("a")
    on.store()
    gc.collect()
    gc.disable()
    try:
        before = gc.get_count()[0]
        for _ in range(1000):
            on.message.add("b")
            on.checkpoints.add(on.message.flush().ops)  # type: ignore[union-attr]
        assert gc.get_count()[0] - before < 100
    finally:
        gc.enable()


def test_behind_the_last_name_it_is_stored_whole_again() -> None:
    on = Stored()
    for number in range(3 * KEYS_MAX):
        on.message.add(f"{number} ")
        on.store()
        assert len(on.keys) == number % KEYS_MAX + 1
        assert on.content() == on.message.message()["content"]
    assert on.checkpoints.keys == KEYS_MAX
    assert set(checkpoint_keys(on.checkpoints.keys)) == set(on.keys)


def test_a_long_answer_costs_little_more_than_itself() -> None:
    on = Stored()
    for _ in range(250):
        on.message.add("x" * 4_000)
        on.store()
    assert sum(on.written) < 3.6 * 1_000_000, "250 times the whole message would be 125 MB"


@pytest.mark.parametrize("written", [False, True])
def test_one_whose_outcome_is_unknown_comes_again_with_what_is_new(written: bool) -> None:
    on = Stored()
    for text in "abcd":
        on.message.add(text)
        on.store()
        on.message.add("?")
        lost = on.next()
        if written:
            on.apply(lost)
            assert on.content() == on.message.message()["content"]
    assert on.content() == ("a?b?c?d?" if written else "a?b?c?d")
    assert on.checkpoints.keys == 5


@pytest.mark.parametrize("seed", range(30))
def test_what_is_restored_is_the_message(seed: int) -> None:
    """Writes of all kinds, checkpoints that are stored, refused, or lost on their way back."""
    random = Random(seed)
    on = Stored()
    expected: Any = None
    for _ in range(400):
        match random.randrange(6):
            case 0:
                on.message.reason(random.choice(["hm", "\ud83d", ""]))
            case 1:
                on.message.put(PART)
            case 2 if on.message.parts:
                on.message.finish()
                place = random.randrange(len(on.message.parts))
                on.message.replace(place, {"type": "text", "text": "new"})
            case _:
                on.message.add(random.choice(["a", "word ", "é", "\ud83d", "\ude00"]))
        if random.random() < 0.5 and on.message:
            batch = on.next()
            if (outcome := random.randrange(4)) != 0:
                on.apply(batch)
                expected = on.message.message()["content"]
            if outcome > 1:
                on.checkpoints.stored()
        if on.keys:
            assert on.content() == expected


@pytest.mark.parametrize(
    "piece",
    [
        b"{",
        b'[{"add":"x"}]',
        b'{"id":"d1","ops":[1]}',
        b'{"id":"d1","ops":[{"add":1}]}',
        b'{"id":"d1","ops":[{"new":"x"}]}',
        b'{"id":"d1","ops":[{"set":9,"part":{"type":"text","text":"x"}}]}',
        b'{"id":"d1","ops":[{"part":{"type":"text","text":5}},{"add":"x"}]}',
    ],
)
def test_what_is_behind_one_that_cannot_be_read_is_lost(piece: bytes, caplog: pytest.LogCaptureFixture) -> None:
    on = Stored()
    for text in "abcd":
        on.message.add(text)
        on.store()
    on.keys["turn.draft.02"] = piece
    assert on.content() in ("ab", [{"type": "text", "text": "ab"}])
    assert "is lost" in caplog.text


def test_what_is_of_another_draft_or_behind_a_gap_is_not_restored() -> None:
    on = Stored()
    for text in "abcd":
        on.message.add(text)
        on.store()
    other = on.keys["turn.draft.02"].replace(b"d1", b"d2")
    assert restored({**on.keys, "turn.draft.02": other}).message["content"] == "ab"
    del on.keys["turn.draft.01"]
    assert on.content() == "a"


def test_the_first_one_takes_away_those_of_an_earlier_draft() -> None:
    on = Stored()
    on.message.add("a")
    assert on.checkpoints.next(on.message.message(), held=3).deletes == ("turn.draft.01", "turn.draft.02")


@pytest.mark.parametrize("outcome", ["stored", "refused", "unknown"])
def test_what_is_more_than_the_message_is_not_kept(outcome: str) -> None:
    """A part that is amended again and again, while a checkpoint is on its way or storage is full."""
    on = Stored()
    on.message.put(PART)
    on.store()
    on.message.add("x")
    first = on.next()
    if outcome == "unknown":
        on.apply(first)
    for number in range(1_000):
        on.message.replace(0, {**PART, "input": {"n": number}})
        delta = on.message.flush()
        assert delta is not None
        on.checkpoints.add(delta.ops, more=number > 3)
        if outcome == "stored" and number == 500:
            on.apply(first)
            on.checkpoints.stored()
    on.store()
    on.message.add("y")
    on.store()
    assert on.content() == on.message.message()["content"]
    assert sum(on.written) < 2_000


def test_one_is_whole_until_it_is_stored() -> None:
    on = Stored()
    on.message.add("a")
    on.next()
    on.message.add("b")
    assert list(on.next().puts) == [CHECKPOINT]
    on.store()
    on.message.add("c")
    on.store()
    assert list(on.keys) == [CHECKPOINT, "turn.draft.01"]
    assert on.content() == "abc"


@pytest.mark.parametrize(
    "message",
    [b'{"role":"user","content":"x"}', b'{"role":"assistant"}', b'{"role":"assistant","content":["x"]}', b"1"],
)
def test_a_first_one_that_cannot_be_read(message: bytes) -> None:
    with pytest.raises((msgspec.MsgspecError, ValueError)):
        restored({CHECKPOINT: b'{"id":"d","turn":1,"message":%b}' % message})
