"""Prompts for OpenAI's Chat Completions, and whatever takes the same messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from msgspec.json import Encoder

from ..messages import File, Image, Reasoning, Text
from ..rows import StoredMessage
from .labels import Labels, speaker
from .media import Medium, data_url, medium
from .notes import Note
from .outputs import output_text
from .turns import Call, Turn, arguments, media_note, shown_behind, turns

__all__ = ["DETAILS", "IMAGE_TYPES", "NAME", "NO_NAME", "arguments_text", "call_dict", "joined_text", "render"]

IMAGE_TYPES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
DETAILS = frozenset({"auto", "low", "high", "original"})
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_ID = re.compile(r"[!-~]{1,40}")

_encode = Encoder().encode


def render(rows: Sequence[StoredMessage], notes: list[Note], system_role: str = "system") -> dict[str, Any]:
    """Returns `messages`; each tool result is one, and pictures in results follow as a user message.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
        system_role: the role of system messages, `system` or `developer`.
    """
    messages: list[dict[str, Any]] = []
    for turn in turns(rows, Labels(_ID, NAME, NO_NAME, notes), notes):
        if turn.role == "assistant":
            message = _assistant(turn, notes)
        else:
            role = system_role if turn.role == "system" else "user"
            message = {"role": role, "content": turn.content}
            if type(turn.content) is list:
                message["content"] = [_part(turn.row, part, notes) for part in turn.content]
        if message is None:
            continue
        if turn.row.message.name is not None and (name := speaker(turn.row, notes)):
            message["name"] = name
        messages.append(message)
        messages += (_result(call) for call in turn.calls)
        messages += shown_behind(turn, _part, notes)
    return {"messages": messages}


def _assistant(turn: Turn, notes: list[Note]) -> dict[str, Any] | None:
    text = joined_text(turn, notes)
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if turn.calls:
        message["tool_calls"] = [call_dict(call, turn.row.seq, notes) for call in turn.calls]
    elif not text:
        notes.append(Note("message_dropped", "a message of nothing but reasoning is dropped", turn.row.seq))
        return None
    return message


def joined_text(turn: Turn, notes: list[Note]) -> str:
    """Returns what an assistant said as one text; reasoning is noted and left out."""
    if type(turn.content) is str:
        return turn.content
    texts = []
    for part in turn.content:
        if type(part) is Text:
            texts.append(part.text)
        elif type(part) is Reasoning:
            notes.append(Note("reasoning_dropped", "this provider takes no reasoning", turn.row.seq))
    return "".join(texts)


def call_dict(call: Call, seq: int, notes: list[Note]) -> dict[str, Any]:
    """Returns a tool call in OpenAI's form."""
    function = {"name": call.name, "arguments": arguments_text(call, seq, notes)}
    return {"id": call.id, "type": "function", "function": function}


def arguments_text(call: Call, seq: int, notes: list[Note]) -> str:
    """Returns the arguments of a call as JSON text."""
    return _encode(arguments(call, seq, notes)).decode()


def _result(call: Call) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call.id, "content": output_text(call.output)}


def _part(row: StoredMessage, part: object, notes: list[Note]) -> dict[str, Any]:
    if isinstance(part, Image | File):
        found = medium(part, "openai")
        block = None if found is None else _medium(found, part)
        return block or {"type": "text", "text": media_note(row, part, notes)}
    assert isinstance(part, Text)
    return {"type": "text", "text": part.text}


def _medium(found: Medium, part: Image | File) -> dict[str, Any] | None:
    if found.id is not None:
        return {"type": "file", "file": {"file_id": found.id}} if found.kind == "file" else None
    if found.kind == "image":
        if found.data is not None and found.type not in IMAGE_TYPES:
            return None
        image = {"url": found.url or data_url(found)}
        if part.detail in DETAILS:
            image["detail"] = part.detail
        return {"type": "image_url", "image_url": image}
    if found.data is None:
        return None
    if audio := _AUDIO.get(found.type):
        return {"type": "input_audio", "input_audio": {"data": found.data, "format": audio}}
    return {"type": "file", "file": {"filename": part.filename or "file", "file_data": data_url(found)}}
