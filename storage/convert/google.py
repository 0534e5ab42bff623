"""Prompts for Google's `generate_content`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..messages import ErrorJsonOutput, File, Image, JsonOutput, Reasoning, Text, ToolOutput
from ..rows import StoredMessage
from .labels import Labels
from .media import Medium, medium
from .notes import Note
from .outputs import failed, media_in, output_text
from .turns import OPENING, Call, Turn, arguments, later_system, media_note, option, turns

__all__ = ["render"]

_ID = re.compile(r"[!-~]{1,128}")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_.:-]")


def render(rows: Sequence[StoredMessage], notes: list[Note]) -> dict[str, Any]:
    """Returns `contents`, and in `config` the `system_instruction` where system messages lead.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
    """
    system: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = []
    for turn in turns(rows, Labels(_ID, _NAME, _NO_NAME, notes), notes, said_files=True):
        if turn.role == "system" and not contents:
            system.append({"text": turn.content})
        elif turn.role == "system":
            _add(contents, "user", [{"text": later_system(turn, notes)}])
        else:
            _add(contents, "model" if turn.role == "assistant" else "user", _parts(turn, notes))
            if turn.calls:
                _add(contents, "user", [_response(turn.row, call, notes) for call in turn.calls])
    if contents and contents[0]["role"] == "model":
        notes.append(Note("turn_inserted", f"the user is made to begin, with {OPENING!r}"))
        contents.insert(0, {"role": "user", "parts": [{"text": OPENING}]})
    prompt: dict[str, Any] = {"contents": contents}
    if system:
        prompt["config"] = {"system_instruction": {"parts": system}}
    return prompt


def _add(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    if contents and contents[-1]["role"] == role:
        contents[-1]["parts"] += parts
    elif parts:
        contents.append({"role": role, "parts": parts})


def _parts(turn: Turn, notes: list[Note]) -> list[dict[str, Any]]:
    if type(turn.content) is str:
        return [{"text": turn.content}]
    parts: list[dict[str, Any]] = []
    for part in turn.content:
        if type(part) is Reasoning:
            notes.append(Note("reasoning_dropped", "Google takes no reasoning back", turn.row.seq))
        else:
            parts.append(_part(turn.row, part, notes))
    return parts


def _part(row: StoredMessage, part: object, notes: list[Note]) -> dict[str, Any]:
    held: dict[str, Any]
    if type(part) is Text:
        held = {"text": part.text}
    elif type(part) is Call:
        held = {"function_call": {"id": part.id, "name": part.name, "args": arguments(part, row.seq, notes)}}
        part = part.part
    else:
        assert isinstance(part, Image | File)
        found = medium(part, "google")
        shown = None if found is None else _medium(found)
        held = shown or {"text": media_note(row, part, notes)}
    if part.provider_options and isinstance(signature := option(part, "google", "thoughtSignature"), str):
        held["thought_signature"] = signature
    return held


def _medium(found: Medium) -> dict[str, Any] | None:
    if found.data is not None:
        return {"inline_data": {"mime_type": found.type, "data": found.data}} if found.type else None
    file = {"file_uri": found.url or found.id}
    return {"file_data": file | {"mime_type": found.type} if found.type else file}


def _response(row: StoredMessage, call: Call, notes: list[Note]) -> dict[str, Any]:
    for part in media_in(call.output):
        media_note(row, part, notes)
    return {"function_response": {"id": call.id, "name": call.name, "response": _answer(call.output)}}


def _answer(output: ToolOutput) -> dict[str, Any]:
    if type(output) is JsonOutput:
        return output.value if isinstance(output.value, dict) else {"result": output.value}
    if type(output) is ErrorJsonOutput:
        return {"error": output.value}
    return {"error" if failed(output) else "result": output_text(output)}
