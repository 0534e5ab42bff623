"""Prompts for LangChain and LangGraph, as dicts that `convert_to_messages` takes; whichever model is behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..messages import File, Image, Text
from ..rows import StoredMessage
from .labels import portable_labels, speaker
from .media import Medium, medium
from .notes import Note
from .openai import joined_text
from .outputs import failed, output_text
from .turns import Call, arguments, media_note, shown_behind, turns

__all__ = ["render"]


def render(rows: Sequence[StoredMessage], notes: list[Note]) -> dict[str, Any]:
    """Returns `messages`; each tool result is one, and pictures in results follow as a user message.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
    """
    messages: list[dict[str, Any]] = []
    for turn in turns(rows, portable_labels(notes), notes):
        if turn.role == "assistant":
            content: Any = joined_text(turn, notes)
            if not content and not turn.calls:
                notes.append(Note("message_dropped", "a message of nothing but reasoning is dropped", turn.row.seq))
                continue
        else:
            content = turn.content
            if type(content) is list:
                content = [_block(turn.row, part, notes) for part in content]
        message = {"role": turn.role, "content": content}
        said = turn.row.message
        if said.id is not None:
            message["id"] = said.id
        if said.name is not None and (name := speaker(turn.row, notes)):
            message["name"] = name
        if turn.calls:
            message["tool_calls"] = [_call(call, turn.row.seq, notes) for call in turn.calls]
        messages.append(message)
        messages += (_result(call) for call in turn.calls)
        messages += shown_behind(turn, _block, notes)
    return {"messages": messages}


def _call(call: Call, seq: int, notes: list[Note]) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "args": arguments(call, seq, notes)}


def _result(call: Call) -> dict[str, Any]:
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "status": "error" if failed(call.output) else "success",
        "content": output_text(call.output),
    }


def _block(row: StoredMessage, part: object, notes: list[Note]) -> dict[str, Any]:
    if isinstance(part, Image | File):
        found = medium(part, "langchain")
        return {"type": "text", "text": media_note(row, part, notes)} if found is None else _medium(found)
    assert isinstance(part, Text)
    return {"type": "text", "text": part.text}


def _medium(found: Medium) -> dict[str, Any]:
    kind = found.type.partition("/")[0]
    block = {"type": kind if kind in ("audio", "video") else found.kind}
    fields = {"base64": found.data, "url": found.url, "file_id": found.id, "mime_type": found.type}
    return block | {key: value for key, value in fields.items() if value}
