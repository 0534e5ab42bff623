"""Prompts for the AI SDK, as the JSON of its `ModelMessage`s."""

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
from .media import SOME_IMAGE, Medium, foreign_ids, medium
from .notes import Note
from .outputs import output_text
from .turns import Call, arguments, media_note, turns

__all__ = ["render"]

_SOME_BYTES = "application/octet-stream"


def render(rows: Sequence[StoredMessage], notes: list[Note]) -> dict[str, Any]:
    """Returns `messages`, and `allowSystemInMessages` where there are system ones among them.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
    """
    messages: list[dict[str, Any]] = []
    system = False
    for turn in turns(rows, portable_labels(notes), notes, said_files=True):
        content: Any = turn.content
        if type(content) is list:
            content = []
            for part in turn.content:
                content += _part(turn.row, part, notes)
        system = system or turn.role == "system"
        messages.append({"role": turn.role, "content": content, **_options(turn.row.message)})
        results = [_result(turn.row, call, notes) for call in turn.calls if not call.part.provider_executed]
        if results:
            messages.append({"role": "tool", "content": results})
    return {"messages": messages, "allowSystemInMessages": True} if system else {"messages": messages}


def _options(holder: Any) -> dict[str, Any]:
    """Returns the options of a message or part, as far as they are what the AI SDK takes: an object per provider."""
    if not holder.provider_options:
        return {}
    options = {provider: own for provider, own in holder.provider_options.items() if isinstance(own, dict)}
    return {"providerOptions": options} if options else {}


def _part(row: StoredMessage, part: object, notes: list[Note]) -> list[dict[str, Any]]:
    if type(part) is Text:
        return [{"type": "text", "text": part.text, **_options(part)}]
    if type(part) is Call:
        return _call(row, part, notes)
    if type(part) is Reasoning:
        return [{"type": "reasoning", "text": part.text, **_thought(part)}]
    assert isinstance(part, Image | File)
    found = medium(part, "ai-sdk")
    if found is None and not foreign_ids(part):
        return [{"type": "text", "text": media_note(row, part, notes)}]
    return [{**_medium(found, part), **_options(part)}]


def _call(row: StoredMessage, call: Call, notes: list[Note]) -> list[dict[str, Any]]:
    """Returns the part of a call, and behind it that of its result where the provider ran the tool."""
    part = {
        "type": "tool-call",
        "toolCallId": call.id,
        "toolName": call.name,
        "input": arguments(call, row.seq, notes),
        **_options(call.part),
    }
    if not call.part.provider_executed:
        return [part]
    return [part | {"providerExecuted": True}, _result(row, call, notes)]


def _thought(part: Reasoning) -> dict[str, Any]:
    """Returns what a provider needs to know its own thoughts again, where the AI SDK keeps it."""
    options = dict(_options(part).get("providerOptions", {}))
    own: dict[str, Any] = {}
    if part.provider == "anthropic" and (part.signature or part.data):
        own = {"redactedData": part.data} if part.data else {"signature": part.signature}
    elif part.provider == "openai" and part.id:
        own = {"itemId": part.id, **({"reasoningEncryptedContent": part.data} if part.data else {})}
    elif part.provider == "google" and part.signature:
        own = {"thoughtSignature": part.signature}
    if own and part.provider:
        options[part.provider] = {**own, **options.get(part.provider, {})}
    return {"providerOptions": options} if options else {}


def _medium(found: Medium | None, part: Image | File) -> dict[str, Any]:
    """Returns a picture or file of a message."""
    data: Any
    if found is None:
        data, type = {"type": "reference", "reference": foreign_ids(part)}, part.media_type
    else:
        data, type = found.data or found.url, found.type
    is_image = isinstance(part, Image) if found is None else found.kind == "image"
    shown = {"type": "file", "data": data, "mediaType": type or (SOME_IMAGE if is_image else _SOME_BYTES)}
    return shown | {"filename": part.filename} if part.filename else shown


def _result(row: StoredMessage, call: Call, notes: list[Note]) -> dict[str, Any]:
    output = _output(row, call.output, notes)
    return {"type": "tool-result", "toolCallId": call.id, "toolName": call.name, "output": output}


def _output(row: StoredMessage, output: ToolOutput, notes: list[Note]) -> dict[str, Any]:
    if type(output) is ContentOutput:
        value = [_shown(row, part, notes) for part in output.value if isinstance(part, Text | Image | File)]
        return {"type": "content", "value": value}
    if type(output) is ExecutionDenied:
        return {"type": output.type} if output.reason is None else {"type": output.type, "reason": output.reason}
    if type(output) is JsonOutput or type(output) is ErrorJsonOutput:
        return {"type": output.type, "value": output.value}
    return {"type": output.type, "value": output_text(output)}


def _shown(row: StoredMessage, part: Text | Image | File, notes: list[Note]) -> dict[str, Any]:
    """Returns a part of an output; there the AI SDK takes the address of a file as `file-url` only."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    found = medium(part, "ai-sdk")
    if found is None:
        if foreign := foreign_ids(part):
            return {"type": "file-reference", "providerReference": foreign}
        return {"type": "text", "text": media_note(row, part, notes)}
    type = found.type or (SOME_IMAGE if found.kind == "image" else _SOME_BYTES)
    if found.url is not None:
        return {"type": "file-url", "url": found.url, "mediaType": type}
    shown = {"type": "file-data", "data": found.data, "mediaType": type}
    return shown | {"filename": part.filename} if part.filename else shown
