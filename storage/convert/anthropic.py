"""Prompts for Anthropic's Messages API."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Sequence
from typing import Any

from ..messages import ContentOutput, File, Image, Reasoning, Text
from ..rows import StoredMessage
from .labels import Labels
from .media import Medium, medium
from .notes import Note
from .outputs import failed, output_text
from .turns import OPENING, Call, Turn, arguments, later_system, media_note, option, turns

__all__ = ["render"]

NO_OUTPUT = "(no output)"
_IMAGE_TYPES = frozenset({"image/gif", "image/jpeg", "image/png", "image/webp"})
_ID = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")


def render(rows: Sequence[StoredMessage], notes: list[Note]) -> dict[str, Any]:
    """Returns `messages`, and `system` where system messages lead: turns that alternate and begin with the user's.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
    """
    system: list[dict[str, Any]] = []
    merged: list[dict[str, Any]] = []
    for turn in turns(rows, Labels(_ID, _NAME, _NO_NAME, notes), notes):
        if turn.role == "system" and not merged:
            system.append({"type": "text", "text": turn.content})
        elif turn.role == "assistant":
            if content := _said(turn, notes):
                _add(merged, "assistant", content)
            if turn.calls:
                _add(merged, "user", [_result(turn.row, call, notes) for call in turn.calls])
        else:
            _add(merged, "user", later_system(turn, notes) if turn.role == "system" else _asked(turn, notes))
    if merged and merged[0]["role"] == "assistant":
        notes.append(Note("turn_inserted", f"the user is made to begin, with {OPENING!r}"))
        merged.insert(0, {"role": "user", "content": OPENING})
    if merged and merged[-1]["role"] == "assistant":
        _finish(merged[-1], notes)
    return {"system": system, "messages": merged} if system else {"messages": merged}


def _add(merged: list[dict[str, Any]], role: str, content: str | list[dict[str, Any]]) -> None:
    """Adds a turn, or joins it to the one before where that is of the same role."""
    if not merged or merged[-1]["role"] != role:
        merged.append({"role": role, "content": content})
        return
    before = merged[-1]["content"]
    merged[-1]["content"] = [*_blocks(before), *_blocks(content)]


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _finish(last: dict[str, Any], notes: list[Note]) -> None:
    """Cuts the white space off the end of a prompt that the model is to go on from."""
    notes.append(Note("prefill", "the prompt ends with the assistant, which newer models refuse to go on from"))
    blocks = last["content"] = _blocks(last["content"])
    text = blocks[-1]["text"]  # it is one: thoughts stand first, and results behind calls
    if text != text.rstrip():
        notes.append(Note("text_trimmed", "white space at the end of the prompt is cut off"))
        blocks[-1] = {**blocks[-1], "text": text.rstrip()}
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        last["content"] = blocks[0]["text"]


def _asked(turn: Turn, notes: list[Note]) -> str | list[dict[str, Any]]:
    if type(turn.content) is str:
        return turn.content
    return [_block(turn.row, part, notes) for part in turn.content]


def _said(turn: Turn, notes: list[Note]) -> str | list[dict[str, Any]]:
    """Returns what the assistant said: its signed thoughts first, and never these alone."""
    if type(turn.content) is str:
        return turn.content
    thoughts: list[dict[str, Any]] = []
    blocks: list[dict[str, Any]] = []
    for part in turn.content:
        if type(part) is not Reasoning:
            blocks.append(_block(turn.row, part, notes))
        elif thought := _thought(part):
            thoughts.append(thought)
        else:
            notes.append(Note("reasoning_dropped", "only signed thoughts of Anthropic can be sent back", turn.row.seq))
    if blocks or not thoughts:
        return thoughts + blocks
    notes.append(Note("reasoning_dropped", "thoughts that led to nothing cannot be sent back", turn.row.seq))
    return []


def _thought(part: Reasoning) -> dict[str, Any] | None:
    if part.provider != "anthropic":
        return None
    if part.data:
        return {"type": "redacted_thinking", "data": part.data}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature} if part.signature else None


def _block(row: StoredMessage, part: object, notes: list[Note]) -> dict[str, Any]:
    block: dict[str, Any]
    if type(part) is Text:
        block = {"type": "text", "text": part.text}
    elif type(part) is Call:
        block = {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments(part, row.seq, notes)}
        part = part.part
    else:
        assert isinstance(part, Image | File)
        found = medium(part, "anthropic")
        shown = None if found is None else _medium(found, part)
        block = shown or {"type": "text", "text": media_note(row, part, notes)}
    if part.provider_options and isinstance(cached := _cache_control(part), dict):
        block["cache_control"] = cached
    return block


def _cache_control(part: object) -> object:
    return option(part, "anthropic", "cacheControl") or option(part, "anthropic", "cache_control")


def _result(row: StoredMessage, call: Call, notes: list[Note]) -> dict[str, Any]:
    output = call.output
    content: str | list[dict[str, Any]]
    if type(output) is ContentOutput:
        shown = [part for part in output.value if type(part) is not Text or part.text.strip()]
        content = [_block(row, part, notes) for part in shown if isinstance(part, Text | Image | File)]
    else:
        content = output_text(output)
    if not content or (isinstance(content, str) and content.isspace()):
        notes.append(Note("output_filled", f"an empty output is said to be {NO_OUTPUT!r}", row.seq))
        content = NO_OUTPUT
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    if failed(output):
        result["is_error"] = True
    return result


def _medium(found: Medium, part: Image | File) -> dict[str, Any] | None:
    source = _source(found)
    if source is None:
        return None
    if found.kind == "image":
        return {"type": "image", "source": source}
    block = {"type": "document", "source": source}
    return block | {"title": part.filename} if part.filename and part.filename.strip() else block


def _source(found: Medium) -> dict[str, Any] | None:
    """Returns where Anthropic finds a medium; None for a type that it does not take."""
    if found.id is not None:
        return {"type": "file", "file_id": found.id}
    if found.url is not None:
        # It fetches pictures, and of files PDF alone.
        taken = found.kind == "image" or found.type == "application/pdf"
        return {"type": "url", "url": found.url} if taken else None
    if found.type in _IMAGE_TYPES or found.type == "application/pdf":
        return {"type": "base64", "media_type": found.type, "data": found.data}
    if found.type.startswith("text/"):
        try:
            text = b64decode(found.data or "").decode()
        except UnicodeError:
            return None
        return {"type": "text", "media_type": "text/plain", "data": text} if text.strip() else None
    return None
