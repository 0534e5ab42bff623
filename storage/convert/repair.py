"""Repair: rows as every provider takes them, each call with exactly one result directly behind it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from msgspec.structs import replace

from ..errors import MissingResult
from ..messages import AssistantMessage, ErrorTextOutput, TextOutput, ToolCall, ToolMessage, ToolResult
from ..rows import StoredMessage
from .notes import Note
from .pairing import Group, pair

__all__ = ["Missing", "repair"]

Missing: TypeAlias = Literal["synthesize", "drop", "raise"]

INTERRUPTED = "interrupted: there is no result; the tool may have had an effect"
PENDING = "pending: somebody has to approve this call first; it has not run yet"


def repair(
    rows: Sequence[StoredMessage],
    notes: list[Note],
    *,
    missing: Missing = "synthesize",
    pending: Collection[tuple[int, str]] = (),
) -> list[StoredMessage]:
    """Returns the rows with calls and results paired: behind each row with calls is one with their results, in order.

    Results that came later move to their call, also those of tools that the provider ran; results without a call, and
    second ones, are dropped. Unchanged rows are the same objects.

    Args:
        rows: the rows of a prompt, in its order.
        notes: where to say what was changed.
        missing: what becomes of a call without result: `synthesize` one that says it was interrupted, `drop` the call,
            or `raise`.
        pending: the calls that wait for somebody, by the seq of their row and their id; they get a result that says so.

    Raises:
        MissingResult: a call has no result, and `missing` says to raise.
    """
    groups, strays = pair(rows)
    for stray in strays:
        why = "its call has a result already" if stray.second else "there is no open call of its id"
        notes.append(Note("result_dropped", f"a tool result is dropped: {why}", rows[stray.place].seq, stray.part))
    repaired: list[StoredMessage] = []
    for place, row in enumerate(rows):
        message = row.message
        if type(message) is ToolMessage:
            _note_unknown(row, message, notes)
        elif group := groups.get(place):
            repaired += _settled(rows, place, group, notes, missing, pending)
        elif type(message) is AssistantMessage and type(message.content) is tuple:
            repaired.append(_without_results(row, message, set()))
        else:
            repaired.append(row)
    return repaired


def _note_unknown(row: StoredMessage, message: ToolMessage, notes: list[Note]) -> None:
    for index, part in enumerate(message.content):
        if type(part) is not ToolResult:
            notes.append(Note("part_dropped", f"a part of type {part.type} is dropped", row.seq, index))


def _settled(
    rows: Sequence[StoredMessage],
    place: int,
    group: Group,
    notes: list[Note],
    missing: Missing,
    pending: Collection[tuple[int, str]],
) -> list[StoredMessage]:
    """Returns the row of a group's calls and the one of its results; what is not answered is dealt with."""
    row = rows[place]
    results: list[ToolResult] = []
    dropped: set[int] = set()
    for slot, (call, result) in enumerate(zip(group.calls, group.results, strict=True)):
        if result is None:
            if missing == "drop" and (row.seq, call.tool_call_id) not in pending:
                dropped.add(slot)
                notes.append(Note("call_dropped", f"call {call.tool_call_id!r} is dropped: it has no result", row.seq))
                continue
            result = _made_up(row, call, notes, missing, pending)
        elif result.tool_name != call.tool_name:
            result = replace(result, tool_name=call.tool_name)
        results.append(result)
    said = _without_results(row, row.message, dropped)
    if not results:
        return [said]
    behind = rows[place + 1] if place + 1 < len(rows) else None
    if group.last > place + 1 and any(rows[at].role != "tool" for at in range(place + 1, group.last + 1)):
        notes.append(Note("result_moved", "results that came later stand behind their calls", row.seq))
    if behind is not None and behind.role == "tool" and _same(behind.message.content, results):
        return [said, behind]
    return [said, replace(row, message=ToolMessage(content=tuple(results)), finish=None)]


def _same(content: object, results: list[ToolResult]) -> bool:
    return (
        isinstance(content, tuple)
        and len(content) == len(results)
        and all(one is other for one, other in zip(content, results, strict=True))
    )


def _made_up(
    row: StoredMessage, call: ToolCall, notes: list[Note], missing: Missing, pending: Collection[tuple[int, str]]
) -> ToolResult:
    id, name = call.tool_call_id, call.tool_name
    if (row.seq, id) in pending:
        notes.append(Note("call_pending", f"call {id!r} is said to wait for approval", row.seq))
        return ToolResult(tool_call_id=id, tool_name=name, output=TextOutput(value=PENDING))
    if missing == "raise":
        raise MissingResult(row.seq, id)
    notes.append(Note("result_synthesized", f"call {id!r} has no result; one says that it was interrupted", row.seq))
    return ToolResult(tool_call_id=id, tool_name=name, output=ErrorTextOutput(value=INTERRUPTED))


def _without_results(row: StoredMessage, message: object, dropped: set[int]) -> StoredMessage:
    """Returns the row without the results in it, and without the calls at these places among its calls."""
    assert isinstance(message, AssistantMessage) and isinstance(message.content, tuple)
    if not dropped and not any(type(part) is ToolResult for part in message.content):
        return row
    kept = []
    slot = -1
    for part in message.content:
        slot += type(part) is ToolCall
        if type(part) is ToolResult or (type(part) is ToolCall and slot in dropped):
            continue
        kept.append(part)
    return replace(row, message=replace(message, content=tuple(kept)))
