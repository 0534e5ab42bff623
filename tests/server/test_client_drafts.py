"""Drafts as a client follows them: ops, gaps, snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlatory.server.client_drafts import Draft, OpenDraft
from parlatory.server.client_frames import Delta, DraftSet, decode_server_frame
from parlatory.server.frames import encode
from parlatory.storage import assistant_message
from parlatory.storage.messages import Reasoning, Text, ToolCall, UnknownPart

Ops = list[dict[str, Any]]
CALL = {"type": "tool-call", "toolCallId": "c", "toolName": "find", "input": {}}


def draft(content: object = "", index: int = 0, role: str = "assistant") -> OpenDraft:
    message = {"role": role, "content": content}
    return OpenDraft(DraftSet(conversation="a/b", id="d", turn=1, index=index, message=message))


def delta(start: int, to: int, ops: Ops) -> Delta:
    data = encode({"type": "delta", "conversation": "a/b", "id": "d", "from": start, "to": to, "ops": ops})
    frame = decode_server_frame(data)
    assert isinstance(frame, Delta)
    return frame


@pytest.mark.parametrize(
    ("content", "ops", "expected"),
    [
        ("", [{"add": "a"}, {"add": "b"}], "ab"),
        ("a", [{"reasoning": "r"}], [Text(text="a"), Reasoning(text="r")]),
        ("", [{"reasoning": "r"}, {"reasoning": "s"}, {"add": "a"}], [Reasoning(text="rs"), Text(text="a")]),
        ([], [{"add": "a"}], [Text(text="a")]),
        (
            [{"type": "text", "text": "a"}],
            [{"add": "b"}, {"part": CALL}],
            [Text(text="ab"), ToolCall(tool_call_id="c", tool_name="find", input={})],
        ),
        ("a", [{"set": 0, "part": {"type": "text", "text": "b"}}], [Text(text="b")]),
    ],
)
def test_ops(content: object, ops: Ops, expected: Any) -> None:
    made = draft(content)
    assert made.apply(delta(0, len(ops), ops))
    assert made.snapshot() == Draft("d", 1, assistant_message(expected))
    assert made.index == len(ops) and made.size > 0


@pytest.mark.parametrize(
    "ops", [[{"set": 1, "part": CALL}], [{"set": -1, "part": CALL}], [{"set": 0}], [{}], [{"x-new": 1}]]
)
def test_what_changes_nothing_that_is_there(ops: Ops) -> None:
    assert not draft("a").apply(delta(0, 1, ops))


def test_a_gap() -> None:
    made = draft("a", index=3)
    assert not made.apply(delta(4, 5, [{"add": "c"}]))
    assert made.apply(delta(3, 4, [{"add": "b"}]))
    assert made.index == 4


def test_a_snapshot_stands_still() -> None:
    made = draft([{"type": "text", "text": "a"}])
    before = made.snapshot()
    assert before is made.snapshot(), "made once"
    made.apply(delta(0, 1, [{"add": "b"}]))
    after = made.snapshot()
    assert before is not None and after is not None
    assert (before.text, after.text) == ("a", "ab")


@pytest.mark.parametrize("made", [draft([{"type": "text"}]), draft("a", role="user"), draft("a", role="judge")])
def test_what_cannot_be_read(made: OpenDraft) -> None:
    assert made.snapshot() is None
    made.apply(delta(0, 1, [{"set": 0, "part": {"type": "text", "text": "b"}}]))


def test_what_is_no_content_is_empty() -> None:
    snapshot = draft(7).snapshot()
    assert snapshot is not None and snapshot.text == ""


def test_a_part_that_a_newer_version_wrote() -> None:
    made = draft()
    made.apply(delta(0, 1, [{"part": {"type": "x-new", "a": 1}}, {"add": "a"}]))
    snapshot = made.snapshot()
    assert snapshot is not None
    assert isinstance(snapshot.message.content[0], UnknownPart) and snapshot.text == "a"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


@given(st.lists(st.tuples(st.sampled_from(["add", "reasoning"]), TEXT), max_size=30), st.data())
def test_however_writes_are_bundled(writes: list[tuple[str, str]], data: st.DataObject) -> None:
    """Whatever writes a delta holds, and wherever one joins, all end with the same message."""
    whole, joined = draft(), draft()
    for place, (op, text) in enumerate(writes):
        assert whole.apply(delta(place, place + 1, [{op: text}]))
    place = 0
    while place < len(writes):
        to = data.draw(st.integers(place + 1, len(writes)))
        assert joined.apply(delta(place, to, [{op: text} for op, text in writes[place:to]]))
        place = to
    assert whole.snapshot() == joined.snapshot()
