"""OpenAI responses to messages: answers, items, whole requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..errors import CodecError
from ..messages import Message, Reasoning, SystemMessage, Text, ToolMessage
from .ingest import (
    Calls,
    Dict,
    assistant,
    custom,
    entries,
    label,
    medium,
    messages_of,
    options,
    output_of,
    plain,
    runs,
    source,
)

__all__ = ["from_openai_responses"]

_BETWEEN = ("reasoning", "function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")


def from_openai_responses(obj: object) -> list[Message]:
    """Returns the messages of a response, of items, or of a request (`{"input": ..., "instructions": ...}`).

    Adjacent items of the model are one message, except two that only say something; adjacent outputs of tools are one
    as well. A call is known by its `call_id`; the ids and states of items are not kept, except the id of reasoning,
    which is sent back. An item of a tool that the provider has (web search, computer, shell) stays as it is, in a
    custom part of the assistant's message.

    Args:
        obj: objects of the `openai` SDK, dicts, or JSON text.

    Raises:
        CodecError: it is none of these, or a role is unknown; the path says where.
    """
    data = plain(obj)
    labels: Dict = {}
    found = list[Message]()
    if isinstance(data, Mapping) and "type" not in data and "role" not in data:
        if instructions := data.get("instructions"):
            found += _instructed(instructions) if "output" not in data else []
        if "output" in data:
            labels = {} if (id := label(data.get("id"))) is None else {"id": id}
            data = data["output"]
        else:
            data = data.get("input", data)
    if isinstance(data, str):
        data = {"role": "user", "content": data}
    calls = Calls()
    for side, run in runs(entries(data), lambda entry: _side(*entry)):
        if side == "assistant":
            for turn in _turns(run):
                calls.begin()
                parts = [part for path, item in turn for part in _said(item, path, calls)]
                found.append(assistant(parts, **labels))
                labels = {}
        elif side == "tool":
            found.append(ToolMessage(content=tuple(_result(item, calls) for _, item in run)))
        else:
            for path, item in run:
                found += _told(item, path, side)
    return found


def _instructed(instructions: object) -> list[Message]:
    if isinstance(instructions, str):
        return [SystemMessage(content=instructions)]
    return from_openai_responses(instructions)


def _side(path: str, item: Dict) -> str:
    """Says in whose message an item belongs."""
    kind = item.get("type", "message" if "role" in item else None)
    if kind in _RESULTS:
        return "tool"
    if kind != "message":
        return "assistant"
    match item.get("role"):
        case "system" | "developer":
            return "system"
        case "user" | "assistant" as role:
            return str(role)
        case role:
            raise CodecError(f"{path}.role", f"{role!r} is no role of a response's items")


def _turns(run: list[tuple[str, Dict]]) -> list[list[tuple[str, Dict]]]:
    """Returns the items of the model in turns: two messages that nothing stands between are two turns."""
    found: list[list[tuple[str, Dict]]] = [[]]
    told = False
    for entry in run:
        kind = entry[1].get("type", "message")
        if kind == "message" and told:
            found.append([])
        if kind == "message" or kind in _BETWEEN:
            told = kind == "message"
        found[-1].append(entry)
    return found


def _told(item: Dict, path: str, side: str) -> Iterable[Message]:
    parts = list(_content(item.get("content", ""), path))
    if side == "user":
        return messages_of(parts)
    return [SystemMessage(content="".join(part.text for part in parts if isinstance(part, Text)))]


def _said(item: Dict, path: str, calls: Calls) -> Iterator[Any]:
    fields = {key: value for key, value in item.items() if key not in ("type", "id", "status", "role")}
    match item.get("type", "message"):
        case "message":
            yield from _content(fields.pop("content", ""), path)
        case "reasoning":
            yield from _reasoning(item, fields)
        case "function_call":
            id, name, arguments = (fields.pop(key, None) for key in ("call_id", "name", "arguments"))
            yield calls.call(id, name, arguments, **options("openai", fields))
        case "custom_tool_call":
            id, name, text = (fields.pop(key, None) for key in ("call_id", "name", "input"))
            written = {"input": {}, "invalid": str(text or "")}
            yield calls.call(id, name, None, **written, **options("openai", {"type": "custom", **fields}))
        case _:
            yield custom("openai", item)


def _reasoning(item: Dict, fields: Dict) -> Iterator[Reasoning]:
    summary, thought, data = (fields.pop(key, None) for key in ("summary", "content", "encrypted_content"))
    texts = [piece.get("text") or "" for _, piece in entries(summary or thought or [], "$.summary")]
    text, id = "\n\n".join(texts), item.get("id")
    kept = options("openai", {**fields, "content": thought if summary else None})
    if text or data or kept or id:  # an id alone refers to what the provider keeps
        yield Reasoning(text=text, id=id or None, data=data or None, provider="openai", **kept)


def _result(item: Dict, calls: Calls) -> Any:
    fields = {key: value for key, value in item.items() if key not in ("type", "id", "status")}
    output = output_of(fields.pop("output", None), _part)
    return calls.result(fields.pop("call_id", None), None, output, **options("openai", fields))


def _content(content: object, path: str) -> Iterator[Any]:
    if isinstance(content, str):
        if content:
            yield Text(text=content)
        return
    for _, block in entries(content, f"{path}.content"):
        yield _part(block) or custom("openai", block)


def _part(block: Mapping[str, Any]) -> Any:
    """Returns the part for a part of a message or an output, or None where it is of no known kind."""
    fields = dict(block)
    kind = fields.pop("type", None)
    match kind:
        case "input_text" | "output_text" | "text" | "refusal":
            text = fields.pop("refusal" if kind == "refusal" else "text", None)
            return Text(text=text, **options("openai", fields)) if isinstance(text, str) else None
        case "input_image" | "input_file":
            id = fields.pop("file_id", None)
            names = ("image_url",) if kind == "input_image" else ("file_data", "file_url")
            values = [value for name in names if isinstance(value := fields.pop(name, None), str)]
            found = {"ref": {"openai": id}} if isinstance(id, str) else source(next(iter(values), None), "openai")
            if found is None:
                return None
            named = {key: value for key in ("detail", "filename") if (value := fields.pop(key, None)) is not None}
            if named.get("detail") == "auto":  # has to be said, and says nothing
                del named["detail"]
            return medium(found, image=kind == "input_image", **named, **options("openai", fields))
    return None
