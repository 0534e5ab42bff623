from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from parlatory.storage import (
    Message,
    MissingResult,
    StoredMessage,
    ToolMessage,
    assistant_message,
    tool_message,
    user_message,
)
from parlatory.storage.convert.notes import Note
from parlatory.storage.convert.repair import Missing, repair
from parlatory.storage.messages import Text, ToolCall, ToolResult, UnknownPart

from ...prompts.adapter import rows_of
from ...prompts.histories import HISTORIES, PATIENT
from ...prompts.said import asks, call, gives, result


def repaired(
    *messages: Message, missing: Missing = "synthesize", pending: Collection[tuple[int, str]] = ()
) -> tuple[list[tuple[int, list[str]]], list[tuple[str, int | None]]]:
    """Each row's seq and outputs; each note's code and seq."""
    notes: list[Note] = []
    rows = repair(rows_of(messages), notes, missing=missing, pending=pending)
    return [(row.seq, outputs(row)) for row in rows], [(note.code, note.seq) for note in notes]


def outputs(row: StoredMessage) -> list[str]:
    return [getattr(result.output, "value", result.output.type) for result in row.message.tool_results]


def test_what_is_paired_stays_as_it_is() -> None:
    rows = rows_of(
        [user_message("go"), asks("a", "b"), gives(a="A", b="B"), assistant_message("x"), asks("c"), gives(c="C")]
    )
    notes: list[Note] = []
    kept = repair(rows, notes)
    assert all(one is other for one, other in zip(kept, rows, strict=True))
    assert notes == []


def test_results_move_behind_their_calls_in_the_order_of_the_calls() -> None:
    rows, notes = repaired(asks("a", "b"), gives(b="B"), user_message("wait"), gives(a="A"))
    assert rows == [(1, []), (1, ["A", "B"]), (3, [])]
    assert notes == [("result_moved", 1)]


def test_results_in_rows_of_their_own_become_one_and_that_is_no_change_to_note() -> None:
    assert repaired(asks("a", "b"), gives(a="A"), gives(b="B")) == ([(1, []), (1, ["A", "B"])], [])


def test_t42_a_call_without_a_result_gets_one() -> None:
    rows, notes = repaired(asks("a", "b"), gives(b="B"), user_message("hello?"))
    assert rows[1][1][0].startswith("interrupted: ")
    assert rows[1][1][1] == "B"
    assert notes == [("result_synthesized", 1)]


def test_a_call_that_waits_is_pending_whatever_is_missing() -> None:
    pending = {(1, "b"), (9, "a")}
    found = repaired(asks("a", "b"), pending=pending)
    assert [text.partition(":")[0] for text in found[0][1][1]] == ["interrupted", "pending"]
    assert found[1] == [("result_synthesized", 1), ("call_pending", 1)]
    assert repaired(asks("b"), missing="drop", pending=pending)[1] == [("call_pending", 1)]
    assert repaired(asks("b"), missing="raise", pending=pending)[1] == [("call_pending", 1)]


def test_calls_without_results_are_dropped() -> None:
    notes: list[Note] = []
    said = assistant_message([Text(text="a"), call("a"), call("b")])
    first, second = repair(rows_of([said, gives(b="B")]), notes, missing="drop")
    assert [part.type for part in first.content] == ["text", "tool-call"]
    assert second.message == gives(b="B")
    (alone,) = repair(rows_of([said]), [], missing="drop")
    assert [part.type for part in alone.content] == ["text"]
    assert [(note.code, note.seq) for note in notes] == [("call_dropped", 1)]


def test_a_call_without_a_result_is_refused() -> None:
    with pytest.raises(MissingResult, match="call 'b' of row 2 has no result: append one") as caught:
        repaired(user_message("go"), asks("a", "b"), gives(a="A"), missing="raise")
    assert (caught.value.code, caught.value.seq, caught.value.tool_call_id) == ("missing_result", 2, "b")


def test_t43_a_result_without_a_call_and_a_second_one_are_dropped() -> None:
    rows, notes = repaired(gives(z="Z"), asks("a"), gives(a="A"), gives(a="A2"))
    assert rows == [(2, []), (3, ["A"])]
    assert notes == [("result_dropped", 1), ("result_dropped", 4)]


def test_a_result_belongs_to_the_latest_open_call_of_its_id() -> None:
    rows, _ = repaired(asks("a"), asks("a"), gives(a="new"), gives(a="old"))
    assert rows == [(1, []), (1, ["old"]), (2, []), (3, ["new"])]


def test_results_of_tools_that_the_provider_ran_stand_behind_as_well() -> None:
    notes: list[Note] = []
    said = assistant_message([call("a", provider_executed=True), result("a", "A"), Text(text="b")])
    stray = assistant_message([result("z"), Text(text="c")])
    first, second, third = repair(rows_of([said, stray]), notes)
    assert [part.type for part in first.content] == ["tool-call", "text"]
    assert outputs(second) == ["A"]
    assert [part.type for part in third.content] == ["text"]
    assert [note.code for note in notes] == ["result_dropped"]


def test_a_result_is_called_as_its_call() -> None:
    (_, row) = repair(rows_of([asks("a"), tool_message([result("a", name="tool")])]), [])
    assert row.message.tool_results[0].tool_name == "find"


def test_unknown_parts_of_a_tool_message_are_noted() -> None:
    unknown = UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new"}'))
    rows, notes = repaired(asks("a"), tool_message([unknown, result("a", "A")]))
    assert rows == [(1, []), (1, ["A"])]
    assert notes == [("part_dropped", 2)]


def kept(parts: Any, kind: type) -> list[Any]:
    return [part for part in parts if type(part) is kind]


@settings(PATIENT, max_examples=30)
@given(HISTORIES)
def test_each_call_has_one_result_directly_behind_it(messages: list[Message]) -> None:
    rows = repair(rows_of(messages), [])
    for place, row in enumerate(rows):
        parts = () if isinstance(row.content, str) else row.content
        called = [part.tool_call_id for part in kept(parts, ToolCall)]
        if isinstance(row.message, ToolMessage):
            assert place, "it begins with results"
            before = kept(rows[place - 1].content, ToolCall)
            assert [part.tool_call_id for part in parts] == [part.tool_call_id for part in before] != []
            assert [part.tool_name for part in parts] == [part.tool_name for part in before]
        else:
            assert not kept(parts, ToolResult)
        assert bool(called) == (place + 1 < len(rows) and rows[place + 1].role == "tool")
    others = [message for message in messages if message.role in ("system", "user")]
    assert [row.message for row in rows if row.role in ("system", "user")] == others
    assert repair(rows, []) == rows, "what is repaired stays as it is"
