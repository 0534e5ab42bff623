"""PydanticAI's messages to ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import structs

from ..errors import CodecError
from ..messages import (
    ContentOutput,
    Custom,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    TextOutput,
    ToolCall,
    ToolOutput,
    ToolResult,
)
from .ingest import Calls, Dict, assistant, custom, entries, failure, medium, messages_of, options, plain, runs, source
from .outputs import output_text

__all__ = ["from_pydantic_ai"]

_NAME = "pydantic-ai"
_PROVIDERS = {"google-gla": "google", "google-vertex": "google", "openai-chat": "openai", "openai-responses": "openai"}
_MEDIA = ("image-url", "audio-url", "video-url", "document-url", "binary", "uploaded-file")
_MARKS = ("part_kind", "kind", "timestamp", "identifier")


def from_pydantic_ai(obj: object) -> list[Message]:
    """Returns the messages of a request, a response, a history of them, or of what a run added.

    A request becomes its system prompts, tool results and user prompts, in order. Its `instructions` are kept in the
    metadata: an agent gives them again with each run.

    Args:
        obj: messages of `pydantic-ai`, the result of a run (its `new_messages()`), the dicts or the JSON text of
            `ModelMessagesTypeAdapter`.

    Raises:
        CodecError: it is none of these; the path says where.
    """
    new = getattr(obj, "new_messages", None)
    data = plain(new() if callable(new) else obj)
    calls, found = Calls(), list[Message]()
    for path, fields in entries(data):
        match fields.get("kind"):
            case "request":
                found += _request(fields, path, calls)
            case "response":
                calls.begin()
                parts = [_said(part, calls) for _, part in entries(fields.get("parts", []), f"{path}.parts")]
                found.append(assistant(_paired(parts), **_about(fields)))
            case kind:
                raise CodecError(f"{path}.kind", f"{kind!r} is neither a request nor a response")
    return found


def _about(fields: Dict) -> Dict:
    held = dict(given) if isinstance(given := fields.get("metadata"), Mapping) else {}
    if instructions := fields.get("instructions"):
        held["instructions"] = instructions
    return {"metadata": held} if held else {}


def _request(fields: Dict, path: str, calls: Calls) -> Iterator[Message]:
    about = _about(fields)
    parts = [part for _, part in entries(fields.get("parts", []), f"{path}.parts")]
    for results, run in runs(parts, _is_result):
        # Each prompt is a message; results are one together.
        for asked in [run] if results else [[part] for part in run]:
            for message in _messages(asked, calls):
                yield structs.replace(message, **about) if about else message
                about = {}


def _is_result(part: Dict) -> bool:
    kind = part.get("part_kind")
    return kind == "tool-return" or (kind == "retry-prompt" and bool(part.get("tool_name")))


def _messages(parts: list[Dict], calls: Calls) -> Iterator[Message]:
    read = [item for part in parts for item in _asked(part, calls)]
    if read and isinstance(read[0], SystemMessage):
        yield read[0]
    else:
        yield from messages_of(read)


def _asked(part: Dict, calls: Calls) -> Iterator[Any]:
    """Yields system messages, results and parts of a user."""
    content = part.get("content")
    match part.get("part_kind"):
        case "system-prompt":
            yield SystemMessage(content=str(content or ""))
        case "user-prompt":
            for item in content if isinstance(content, list) else [content]:
                yield _user_part(item)
        case "tool-return":
            yield _result(part, calls)
        case "retry-prompt" if part.get("tool_name"):
            yield calls.result(part.get("tool_call_id"), part["tool_name"], failure(_value(content)))
        case "retry-prompt" | "retry-feedback" if isinstance(content, str):
            yield Text(text=content)
        case kind:
            yield custom(_NAME, part, str(kind))


def _user_part(item: object) -> Any:
    if isinstance(item, str) or item is None:
        return Text(text=item or "")
    fields = dict(item) if isinstance(item, Mapping) else {"value": item}
    return _medium(fields) or custom(_NAME, fields, str(fields.get("kind")))


def _medium(fields: Dict) -> Any:
    """Returns the part for an item of a prompt or an output, or None where it is of no known kind."""
    rest = {key: value for key, value in fields.items() if key not in _MARKS and not key.startswith("_")}
    media_type = rest.pop("media_type", None) or fields.get("_media_type")
    if rest.get("force_download") is False:
        del rest["force_download"]
    found: Dict | None = None
    image = None
    match fields.get("kind"):
        case "text-content" if isinstance(text := rest.pop("content", None), str):
            return Text(text=text, **options(_NAME, rest))
        case "image-url" | "audio-url" | "video-url" | "document-url" as kind:
            image = kind == "image-url"
            found = source(rest.pop("url", None), "google", media_type)
        case "binary":
            found = source(rest.pop("data", None), _NAME, media_type)
        case "uploaded-file" if isinstance(id := rest.pop("file_id", None), str):
            provider = str(rest.pop("provider_name", _NAME))
            found = {"ref": {_PROVIDERS.get(provider, provider): id}}
            found |= {"media_type": media_type} if media_type else {}
    return None if found is None else medium(found, image=image, **options(_NAME, rest))


def _value(content: object) -> ToolOutput:
    items = content if isinstance(content, list) else [content]
    if any(isinstance(item, Mapping) and item.get("kind") in _MEDIA for item in items):
        parts = [_user_part(item) if isinstance(item, str | Mapping) else None for item in items]
        if all(isinstance(part, Text | Image | File) for part in parts):
            return ContentOutput(value=tuple(part for part in parts if isinstance(part, Text | Image | File)))
    return TextOutput(value=content) if isinstance(content, str) else JsonOutput(value=content)


def _result(part: Dict, calls: Calls) -> ToolResult:
    output = _value(part.get("content"))
    match part.get("outcome"):
        case "denied":
            said = output.value if isinstance(output, TextOutput) else ""
            output = ExecutionDenied(reason=said.removeprefix(output_text(ExecutionDenied())).lstrip() or None)
        case "failed" | "interrupted" | "retried":
            output = failure(output)
    rest = {key: part.get(key) for key in ("metadata", "tool_kind")}
    return calls.result(part.get("tool_call_id"), part.get("tool_name"), output, **options(_NAME, rest))


def _said(part: Dict, calls: Calls) -> Any:
    name = part.get("provider_name")
    provider = _PROVIDERS.get(name, name) if isinstance(name, str) else None
    rest = {key: part.get(key) for key in ("id", "provider_name", "provider_details", "citations", "tool_kind")}
    content = part.get("content")
    match part.get("part_kind"):
        case "text" if isinstance(content, str):
            return Text(text=content, **options(_NAME, rest))
        case "thinking":
            # A provider's redacted thought is one of these without text.
            held: Dict = {"text": str(content or ""), "id": rest.pop("id"), "signature": part.get("signature")}
            if held["id"] == "redacted_thinking":
                held |= {"id": None, "signature": None, "data": part.get("signature")}
            elif provider == "openai" and held["signature"]:
                held |= {"signature": None, "data": part.get("signature")}
            rest.pop("provider_name")
            return Reasoning(**held, provider=provider, **options(_NAME, rest))
        case "tool-call" | "builtin-tool-call" as kind:
            ran = {"provider_executed": True} if kind != "tool-call" else {}
            id, args = part.get("tool_call_id"), part.get("args")
            return calls.call(id, part.get("tool_name"), args, **ran, **options(_NAME, rest))
        case "builtin-tool-return":
            return _result(part, calls)
        case "file" if isinstance(content, Mapping) and (found := _medium(dict(content))) is not None:
            return found
        case kind:
            return custom(_NAME, part, str(kind))


def _paired(parts: list[Any]) -> Iterator[Any]:
    """Yields parts; a result of the provider's tool whose call is not in front of it is kept as an item."""
    ran = set[str]()
    for part in parts:
        if isinstance(part, ToolCall) and part.provider_executed:
            ran.add(part.tool_call_id)
        if isinstance(part, ToolResult) and part.tool_call_id not in ran:
            part = Custom(kind=f"{_NAME}.builtin-tool-return", data=plain(part))
        yield part
