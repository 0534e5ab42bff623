"""OpenAI chat completions to messages: answers, message dicts, whole requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    source,
)

__all__ = ["chat_part", "from_openai"]

_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}


def from_openai(obj: object) -> list[Message]:
    """Returns the messages of a chat completion, of chat messages, or of a request (`{"messages": ...}`).

    Of a completion that is its first choice. A call of a custom tool is a tool call whose text is in `invalid`.

    Args:
        obj: objects of the `openai` SDK or of one that speaks like it, dicts, or JSON text.

    Raises:
        CodecError: it is none of these, or a role is unknown; the path says where.
    """
    data = plain(obj)
    id = None
    if isinstance(data, Mapping):
        if isinstance(choices := data.get("choices"), list):
            id, data = label(data.get("id")), [choice.get("message") for choice in choices[:1]]
        else:
            data = data.get("messages", data)
    calls, found = Calls(), list[Message]()
    for path, fields in entries(data):
        found += _read(fields, path, calls, {} if id is None else {"id": id})
    return found


def _read(fields: Dict, path: str, calls: Calls, labels: Dict) -> Iterator[Message]:
    role, content = fields.pop("role", None), fields.pop("content", None)
    match role:
        case "system" | "developer":
            text = "".join(part.text for part in _parts(content) if isinstance(part, Text))
            yield SystemMessage(content=text, **_named(fields), **options("openai", fields))
        case "user":
            named = _named(fields)
            yield from messages_of(_parts(content), **named, **options("openai", fields))
        case "assistant":
            calls.begin()
            parts = [*_thoughts(fields), *_parts(content), *_said(fields), *_calls(fields, calls)]
            named = _named(fields)
            yield assistant(parts, **labels, **named, **options("openai", fields))
        case "tool" | "function":
            output = output_of(content, chat_part)
            result = calls.result(fields.pop("tool_call_id", None), fields.pop("name", None), output)
            yield ToolMessage(content=(result,), **options("openai", fields))
        case _:
            raise CodecError(f"{path}.role", f"{role!r} is no role of a chat completion")


def _named(fields: Dict) -> Dict:
    return {"name": fields.pop("name")} if "name" in fields else {}


def _parts(content: object) -> list[Any]:
    if content is None or content == "":
        return []
    if isinstance(content, str):
        return [Text(text=content)]
    return [chat_part(block) or custom("openai", block) for _, block in entries(content, "$.content")]


def chat_part(block: Mapping[str, Any]) -> Any:
    """Returns the part for a part of a chat message, or None where it is of no known kind."""
    fields = dict(block)
    kind = fields.pop("type", None)
    if kind in ("text", "refusal") and isinstance(text := fields.pop(kind, None), str):
        return Text(text=text, **options("openai", fields))
    inner: Dict = {}
    found: Dict | None = None
    match kind, fields.pop(str(kind), None):
        case "image_url", given:
            inner = dict(given) if isinstance(given, Mapping) else {"url": given}
            found = source(inner.pop("url", None), "openai")
        case "input_audio", Mapping() as given:
            inner = dict(given)
            format = inner.pop("format", None)
            found = source(inner.pop("data", None), "openai", _AUDIO.get(str(format), f"audio/{format}"))
        case "file", Mapping() as given:
            inner = dict(given)
            found = source(inner.pop("file_data", None), "openai")
            if isinstance(id := inner.pop("file_id", None), str):
                found = {"ref": {"openai": id}}
    if found is None:
        return None
    named = {key: value for key in ("detail", "filename") if (value := inner.pop(key, None)) is not None}
    return medium(found, image=kind == "image_url", **named, **options("openai", {**fields, **inner}))


def _thoughts(fields: Dict) -> Iterator[Reasoning]:
    # OpenAI shows no reasoning here. Those who do agreed on no name, and some send it under both.
    texts = [fields.pop(name, None) for name in ("reasoning_content", "reasoning")]
    text = next((text for text in texts if isinstance(text, str) and text), None)
    if text is not None:
        yield Reasoning(text=text)


def _said(fields: Dict) -> Iterator[Any]:
    if isinstance(refusal := fields.pop("refusal", None), str) and refusal:
        yield Text(text=refusal)
    if isinstance(audio := fields.pop("audio", None), Mapping):
        yield custom("openai", audio, "audio")


def _calls(fields: Dict, calls: Calls) -> Iterator[Any]:
    if isinstance(function := fields.pop("function_call", None), Mapping):
        yield calls.call(None, function.get("name"), function.get("arguments"))
    for _, call in entries(fields.pop("tool_calls", []), "$.tool_calls"):
        id, kind = call.pop("id", None), call.pop("type", "function")
        inner = dict(given) if isinstance(given := call.pop(kind, None), Mapping) else {}
        call.pop("index", None)  # where it stood in a stream
        if kind == "function":
            arguments = inner.pop("arguments", None)
            yield calls.call(id, inner.pop("name", None), arguments, **options("openai", {**call, **inner}))
        elif kind == "custom":
            written = {"input": {}, "invalid": str(inner.get("input", ""))}
            yield calls.call(id, inner.get("name"), None, **written, **options("openai", {"type": "custom", **call}))
        else:
            yield custom("openai", {"id": id, "type": kind, kind: inner, **call})
