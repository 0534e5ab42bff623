"""Approvals: what a person says about a tool call that waits.

An approval is a message of a user with a `custom` part:

    {"type": "custom", "kind": "parlatory.approval", "data": {"toolCallId": "c1", "approved": true, "reason": "go on"}}

Pure: nothing is read or written here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from ..storage import CorruptRow, Row, StoredMessage, ToolMessage, UserMessage, parse_message, user_message

__all__ = ["APPROVAL", "Approval", "approval", "approvals_in", "decides", "in_words", "is_approval", "tool_results"]

APPROVAL = "parlatory.approval"

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


def in_words(row: StoredMessage) -> StoredMessage:
    """Returns the row with its approvals as text, so that a model knows of them."""
    decisions = approvals_in(row)
    if not decisions:
        return row
    said = [f"[{'approved' if one.approved else 'denied'}: tool call {one.tool_call_id}]" for one in decisions.values()]
    others = [part for part in row.content if part.type != "custom" or part.kind != APPROVAL]
    words = parse_message(_encode({"role": "user", "content": [{"type": "text", "text": "\n".join(said)}]})).content
    return msgspec.structs.replace(row, message=user_message([*cast(Any, words), *others], name=row.message.name))
