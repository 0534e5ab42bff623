"""Histories for PydanticAI, as data that its `ModelMessagesTypeAdapter` takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..messages import (
    ContentOutput,
    ErrorJsonOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Reasoning,
    Text,
    ToolOutput,
)
from ..rows import StoredMessage
from .labels import portable_labels
from .media import Medium, foreign_ids, medium
from .notes import Note
from .outputs import failed, output_text
from .turns import Call, Turn, media_note, turns

__all__ = ["REDACTED", "render"]

REDACTED = "redacted_thinking"
"""The id by which PydanticAI knows thoughts of Anthropic that are redacted."""

_UPLOADS = frozenset({"anthropic", "bedrock", "google", "google-cloud", "google-gla", "google-vertex", "openai", "xai"})
_URL_KINDS = {"audio": "audio-url", "image": "image-url", "video": "video-url"}


def render(rows: Sequence[StoredMessage], notes: list[Note]) -> dict[str, Any]:
    """Returns `message_history`: requests and responses, adjacent ones joined.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
    """
    history: list[dict[str, Any]] = []
    for turn in turns(rows, portable_labels(notes), notes, said_files=True):
        if turn.role == "assistant":
            _add(history, "response", _said(turn, notes))
            if turn.calls:
                _add(history, "request", [_return(turn.row, call, notes) for call in turn.calls])
        elif turn.role == "system":
            _add(history, "request", [{"part_kind": "system-prompt", "content": turn.content}])
        else:
            content: Any = turn.content
            if type(content) is list:
                content = [_content(turn.row, part, notes) for part in content]
            _add(history, "request", [{"part_kind": "user-prompt", "content": content}])
    return {"message_history": history}


def _add(history: list[dict[str, Any]], kind: str, parts: list[dict[str, Any]]) -> None:
    if history and history[-1]["kind"] == kind:
        history[-1]["parts"] += parts
    else:
        history.append({"kind": kind, "parts": parts})


def _said(turn: Turn, notes: list[Note]) -> list[dict[str, Any]]:
    if type(turn.content) is str:
        return [{"part_kind": "text", "content": turn.content}]
    parts: list[dict[str, Any]] = []
    for part in turn.content:
        if type(part) is Text:
            parts.append({"part_kind": "text", "content": part.text})
        elif type(part) is Call:
            given = part.part.input if part.part.invalid is None else part.part.invalid
            parts.append({"part_kind": "tool-call", "tool_name": part.name, "tool_call_id": part.id, "args": given})
        elif type(part) is Reasoning:
            parts.append(_thought(part))
        else:
            assert isinstance(part, Image | File)
            shown = _content(turn.row, part, notes)
            if isinstance(shown, dict) and shown["kind"] == "binary":
                parts.append({"part_kind": "file", "content": shown})
            else:  # what a model said is in hand, or it is named
                text = shown if isinstance(shown, str) else media_note(turn.row, part, notes)
                parts.append({"part_kind": "text", "content": text})
    return parts


def _thought(part: Reasoning) -> dict[str, Any]:
    id = REDACTED if part.data and part.provider == "anthropic" else part.id
    fields = {"id": id, "signature": part.signature or part.data, "provider_name": part.provider}
    given = {key: value for key, value in fields.items() if value is not None}
    return {"part_kind": "thinking", "content": part.text, **given}


def _return(row: StoredMessage, call: Call, notes: list[Note]) -> dict[str, Any]:
    output = call.output
    denied = type(output) is ExecutionDenied
    return {
        "part_kind": "tool-return",
        "tool_name": call.name,
        "tool_call_id": call.id,
        "content": _returned(row, output, notes),
        "outcome": "denied" if denied else "failed" if failed(output) else "success",
    }


def _returned(row: StoredMessage, output: ToolOutput, notes: list[Note]) -> Any:
    if type(output) is JsonOutput or type(output) is ErrorJsonOutput:
        return output.value
    if type(output) is not ContentOutput or all(type(part) is Text for part in output.value):
        return output_text(output)
    return [_content(row, part, notes) for part in output.value if isinstance(part, Text | Image | File)]


def _content(row: StoredMessage, part: object, notes: list[Note]) -> Any:
    """Returns a part of what the user or a tool shows: text, or a dict by its `kind`."""
    if isinstance(part, Image | File):
        found = medium(part, "pydantic-ai")
        shown = _uploaded(part) if found is None else _medium(found)
        return media_note(row, part, notes) if shown is None else shown
    assert isinstance(part, Text)
    return part.text


def _uploaded(part: Image | File) -> dict[str, Any] | None:
    """Returns a medium that a provider has been given before; PydanticAI sends it to no other."""
    for provider, id in foreign_ids(part).items():
        if provider in _UPLOADS:
            file = {"kind": "uploaded-file", "file_id": id, "provider_name": provider}
            return file | {"media_type": part.media_type} if part.media_type else file
    return None


def _medium(found: Medium) -> dict[str, Any] | None:
    if found.data is not None:
        return {"kind": "binary", "data": found.data, "media_type": found.type} if found.type else None
    if found.url is None:
        return None
    main = found.type.partition("/")[0]
    fields = {"kind": _URL_KINDS.get(main or found.kind, "document-url"), "url": found.url}
    return fields | {"media_type": found.type} if found.type else fields
