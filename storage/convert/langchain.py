"""Prompts for LangChain and LangGraph, as dicts that `convert_to_messages` takes; whichever model is behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..messages import File, Image, Text
from ..rows import StoredMessage
from .labels import portable_labels, speaker
from .media import Medium, medium
from .notes import Note
from .openai import joined_text
from .outputs import failed, media_in, output_text
from .turns import Call, Turn, arguments, media_note, turns

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
        if turn.calls:
            messages += _results(turn, notes)
    return {"messages": messages}


def _call(call: Call, seq: int, notes: list[Note]) -> dict[str, Any]:
    return {"type": "tool_call", "id": call.id, "name": call.name, "args": arguments(call, seq, notes)}


def _results(turn: Turn, notes: list[Note]) -> Iterable[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for call in turn.calls:
        output = call.output
        yield {
            "role": "tool",
            "tool_call_id": call.id,
            "name": call.name,
            "status": "error" if failed(output) else "success",
            "content": output_text(output),
        }
        shown += (_block(turn.row, part, notes) for part in media_in(output))
    if shown:
        notes.append(Note("media_moved", "what results show follows them as a user message", turn.row.seq))
        yield {"role": "user", "content": shown}


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
