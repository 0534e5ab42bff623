"""Approvals: what a person says about a tool call that waits, and how a prompt shows calls without a result.

An approval is a message of a user with a `custom` part:

    {"type": "custom", "kind": "parlatory.approval", "data": {"toolCallId": "c1", "approved": true, "reason": "go on"}}

Pure: nothing is read or written here.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

import msgspec

from ..storage import (
    AssistantMessage,
    CorruptRow,
    Row,
    StoredMessage,
    ToolMessage,
    UserMessage,
    parse_message,
    user_message,
)

__all__ = ["APPROVAL", "Approval", "approval", "approvals_in", "decides", "is_approval", "paired", "tool_results"]

APPROVAL = "parlatory.approval"
PENDING = "pending: somebody has to approve this call first; it has not run yet"
INTERRUPTED = "interrupted: there is no result; the tool may have had an effect"

logger = logging.getLogger("parlatory.actors")
_encode = msgspec.json.Encoder().encode


class Approval(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Is what a person decided about a tool call."""

    tool_call_id: str
    approved: bool
    reason: str | None = None


def approval(tool_call_id: str, approved: bool = True, reason: str | None = None) -> UserMessage:
    """Makes the message that approves or denies a tool call: `await ref.append(approval("c1"), by="ann")`.

    Args:
        tool_call_id: the call, as the row that holds it names it.
        approved: whether the tool may run.
        reason: why; the model reads it where the call is denied.
    """
    part = {"type": "custom", "kind": APPROVAL, "data": Approval(tool_call_id, approved, reason)}
    return cast(UserMessage, parse_message(_encode({"role": "user", "content": [part]})))


def approvals_in(row: StoredMessage) -> dict[str, Approval]:
    """Returns the approvals in a user's message, by the id of their call; a later one of the same call wins."""
    found = (_approval(part) for part in _custom_parts(row))
    return {decision.tool_call_id: decision for decision in found if decision is not None}


def is_approval(row: StoredMessage) -> bool:
    """Says whether a message is nothing but approvals, so that there is nothing else to answer."""
    return bool(row.content) and len(_custom_parts(row)) == len(row.content)


def decides(row: Row, conversation: str) -> bool:
    """Says whether a row holds an approval; cheap for the many that hold none."""
    if APPROVAL.encode() not in row.body:
        return False
    try:
        return bool(approvals_in(row.stored(conversation)))
    except CorruptRow:  # its turn says so
        return False


def _custom_parts(row: StoredMessage) -> list[Any]:
    parts = row.content if row.role == "user" and not isinstance(row.content, str) else ()
    return [part for part in parts if part.type == "custom" and part.kind == APPROVAL]


def _approval(part: Any) -> Approval | None:
    try:
        return msgspec.convert(part.data, Approval)
    except msgspec.ValidationError as error:
        logger.warning("an approval is ignored: %s", error)
        return None


# -- prompts


def tool_results(results: Sequence[tuple[str, str, Mapping[str, Any]]]) -> ToolMessage:
    """Makes a tool message of call ids, tool names and outputs in JSON terms.

    Raises:
        CodecError: an output is no output.
    """
    content = [
        {"type": "tool-result", "toolCallId": id, "toolName": name, "output": output} for id, name, output in results
    ]
    return cast(ToolMessage, parse_message(_encode({"role": "tool", "content": content})))


def paired(rows: Sequence[StoredMessage], pending: Collection[tuple[int, str]] = ()) -> list[StoredMessage]:
    """Returns the rows of a prompt, each call with its result directly behind it, as providers demand.

    A result belongs to the latest earlier open call of its id. Results that came later, because somebody had to
    approve, move to their call; a result without a call, and a second one, is left out. A call without a result gets
    one that says that it is pending, or was interrupted. An approval becomes text, so that the model knows of it.

    Args:
        rows: the rows of a prompt in its order.
        pending: the calls that wait for somebody, by the seq of their row and their id.
    """
    places: dict[str, list[int]] = {}  # the open calls of each id, as the places of their rows
    groups: dict[int, dict[str, Any]] = {}  # the results of each row with calls, by id
    sources: dict[int, list[StoredMessage]] = {}  # the rows that these results came in
    for place, row in enumerate(rows):
        for call in _calls(row):
            places.setdefault(call.tool_call_id, []).append(place)
            groups.setdefault(place, {})[call.tool_call_id] = None
        for result in row.message.tool_results if isinstance(row.message, ToolMessage) else ():
            if open_places := places.get(result.tool_call_id):
                caller = open_places.pop()
                groups[caller][result.tool_call_id] = result
                sources.setdefault(caller, []).append(row)
    prompt: list[StoredMessage] = []
    for place, row in enumerate(rows):
        if row.role == "tool":
            continue
        prompt.append(_with_words(row))
        if place in groups:
            prompt.append(_answer(row, groups[place], sources.get(place, []), pending))
    return prompt


def _calls(row: StoredMessage) -> list[Any]:
    calls = row.message.tool_calls if isinstance(row.message, AssistantMessage) else ()
    return [call for call in calls if not call.provider_executed]


def _answer(
    row: StoredMessage,
    results: Mapping[str, Any],
    sources: Sequence[StoredMessage],
    pending: Collection[tuple[int, str]],
) -> StoredMessage:
    """Returns the row of results behind a row of calls: the one that there is, or one made of what there is."""
    if sources and list(sources[0].message.tool_results) == list(results.values()):
        return sources[0]
    content = []
    for call in _calls(row):
        result = results[call.tool_call_id]
        if result is None:
            waits = (row.seq, call.tool_call_id) in pending
            output = {"type": "text", "value": PENDING} if waits else {"type": "error-text", "value": INTERRUPTED}
            (result,) = tool_results([(call.tool_call_id, call.tool_name, output)]).tool_results
        content.append(result)
    return msgspec.structs.replace(row, message=ToolMessage(content=tuple(content)), finish=None)


def _with_words(row: StoredMessage) -> StoredMessage:
    decisions = approvals_in(row)
    if not decisions:
        return row
    said = [f"[{'approved' if one.approved else 'denied'}: tool call {one.tool_call_id}]" for one in decisions.values()]
    others = [part for part in row.content if part.type != "custom" or part.kind != APPROVAL]
    words = parse_message(_encode({"role": "user", "content": [{"type": "text", "text": "\n".join(said)}]})).content
    return msgspec.structs.replace(row, message=user_message([*cast(Any, words), *others], name=row.message.name))
