"""Prompts for OpenAI's Responses API, without state on its side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..messages import ContentOutput, File, Image, Reasoning, Text, ToolOutput
from ..rows import StoredMessage
from .labels import Labels
from .media import Medium, data_url, medium
from .notes import Note
from .openai import DETAILS, IMAGE_TYPES, NAME, NO_NAME, arguments_text
from .outputs import output_text
from .turns import Call, Turn, media_note, turns

__all__ = ["render"]

_ID = re.compile(r"[!-~]{1,64}")
_REASONING_ID = re.compile(r"rs[!-~]{0,62}")


def render(rows: Sequence[StoredMessage], notes: list[Note], system_role: str = "system") -> dict[str, Any]:
    """Returns `input`: messages, calls, their outputs, and reasoning where the item that it led to follows it.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
        system_role: the role of system messages, `system` or `developer`.
    """
    items: list[dict[str, Any]] = []
    thought: set[str] = set()  # the ids of reasoning items
    for turn in turns(rows, Labels(_ID, NAME, NO_NAME, notes), notes):
        if turn.role == "assistant":
            _said(turn, items, thought, notes)
            items += (_output(turn.row, call, notes) for call in turn.calls)
        else:
            role = system_role if turn.role == "system" else "user"
            content = turn.content
            if type(content) is list:
                items.append(_message(role, [_part(turn.row, part, notes) for part in content]))
            else:
                items.append(_message(role, content))
    return {"input": items}


def _message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def _said(turn: Turn, items: list[dict[str, Any]], thought: set[str], notes: list[Note]) -> None:
    """Adds the items of an assistant turn in their order, adjacent texts as one message."""
    if type(turn.content) is str:
        items.append(_message("assistant", turn.content))
        return
    texts: list[str] = []
    reasoning: list[dict[str, Any]] = []

    def say() -> None:
        if texts:
            items.append(_message("assistant", "".join(texts)))
            texts.clear()

    for part in turn.content:
        if type(part) is Reasoning:
            item = _reasoning(part, thought)
            if item is None:
                notes.append(Note("reasoning_dropped", "reasoning cannot be sent back", turn.row.seq))
            else:
                say()
                reasoning.append(item)
            continue
        items += reasoning
        reasoning.clear()
        if type(part) is Call:
            say()
            text = arguments_text(part, turn.row.seq, notes)
            items.append({"type": "function_call", "call_id": part.id, "name": part.name, "arguments": text})
        else:
            assert isinstance(part, Text)
            texts.append(part.text)
    say()
    if reasoning:
        notes.append(Note("reasoning_dropped", "reasoning that led to nothing cannot be sent back", turn.row.seq))


def _reasoning(part: Reasoning, thought: set[str]) -> dict[str, Any] | None:
    id = part.id
    if part.provider != "openai" or not part.data or not id or id in thought or not _REASONING_ID.fullmatch(id):
        return None
    thought.add(id)
    summary = [{"type": "summary_text", "text": part.text}] if part.text else []
    return {"type": "reasoning", "id": id, "summary": summary, "encrypted_content": part.data}


def _output(row: StoredMessage, call: Call, notes: list[Note]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call.id, "output": _shown(row, call.output, notes)}


def _shown(row: StoredMessage, output: ToolOutput, notes: list[Note]) -> str | list[dict[str, Any]]:
    if type(output) is not ContentOutput or all(type(part) is Text for part in output.value):
        return output_text(output)
    shown = []
    for part in output.value:
        if type(part) is Image or type(part) is File or (type(part) is Text and part.text):
            shown.append(_part(row, part, notes))
        elif type(part) is not Text:
            notes.append(Note("part_dropped", f"a part of type {part.type!r} is dropped", row.seq))
    return shown or ""


def _part(row: StoredMessage, part: object, notes: list[Note]) -> dict[str, Any]:
    if isinstance(part, Image | File):
        found = medium(part, "openai")
        block = None if found is None else _medium(found, part)
        return block or {"type": "input_text", "text": media_note(row, part, notes)}
    assert isinstance(part, Text)
    return {"type": "input_text", "text": part.text}


def _medium(found: Medium, part: Image | File) -> dict[str, Any] | None:
    if found.kind == "image":
        if found.data is not None and found.type not in IMAGE_TYPES:
            return None
        image = {"type": "input_image", "detail": part.detail if part.detail in DETAILS else "auto"}
        if found.id is not None:
            return image | {"file_id": found.id}
        return image | {"image_url": found.url or data_url(found)}
    if found.id is not None:
        return {"type": "input_file", "file_id": found.id}
    if found.url is not None:
        return {"type": "input_file", "file_url": found.url}
    return {"type": "input_file", "filename": part.filename or "file", "file_data": data_url(found)}
