"""Google's contents to messages: responses, contents, parts, whole requests."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import CodecError
from ..messages import (
    ContentOutput,
    ErrorJsonOutput,
    ErrorTextOutput,
    File,
    Image,
    JsonOutput,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    TextOutput,
    ToolOutput,
)
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
    plain,
    source,
    standard_base64,
)

__all__ = ["from_google"]

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def from_google(obj: object) -> list[Message]:
    """Returns the messages of a response, of contents, of the parts of an answer, or of a request.

    Of a response that is its first candidate; where there is none, because the prompt was blocked, nothing. Calls
    without an id get one, and results find theirs by the name. A signature of anything but a thought is kept under
    `providerOptions.google.thoughtSignature`, in base64.

    Args:
        obj: objects of `google-genai`, dicts with snake or camel case keys, or JSON text; a request is
            `{"contents": ..., "system_instruction": ...}`.

    Raises:
        CodecError: it is none of these, or a role is unknown; the path says where.
    """
    data = plain(obj)
    labels: Dict = {}
    calls, found = Calls(), list[Message]()
    if isinstance(data, Mapping):
        data = _snake(data)
        if "contents" in data:
            config = _snake(data["config"]) if isinstance(data.get("config"), Mapping) else {}
            found += _system(data.get("system_instruction", config.get("system_instruction")))
            data = data["contents"]
        elif not data.keys() & {"parts", "role", "text"} and data.keys() & _OF_RESPONSE:
            labels = {} if (id := label(data.get("response_id"))) is None else {"id": id}
            candidates = data.get("candidates") or []
            data = [candidate.get("content") or {"parts": []} for candidate in candidates[:1]]
            data = [{"role": "model", **content} for content in data if content.get("parts")]
    if isinstance(data, str):
        data = {"role": "user", "parts": [{"text": data}]}
    contents = [(path, _snake(content)) for path, content in entries(data)]
    if contents and all("parts" not in content and "role" not in content for _, content in contents):
        contents = [("$", {"role": "model", "parts": [content for _, content in contents]})]
    for path, content in contents:
        found += _read(content, path, calls, labels)
    return found


_OF_RESPONSE = {"candidates", "prompt_feedback", "usage_metadata", "model_version", "response_id"}


def _read(content: Dict, path: str, calls: Calls, labels: Dict) -> Iterator[Message]:
    role = content.get("role", "user")
    if role == "model":
        calls.begin()
        yield assistant(_parts(content.get("parts", []), path, calls), **labels)
    elif role in ("user", "function"):
        parts = list(_parts(content.get("parts", []), path, calls))
        yield from messages_of(parts)
    else:
        raise CodecError(f"{path}.role", f"{role!r} is no role of Google")


def _system(instruction: object) -> Iterator[SystemMessage]:
    if isinstance(instruction, Mapping) and "parts" in instruction:
        instruction = instruction["parts"]
    listed = instruction if isinstance(instruction, list) else [instruction] if instruction else []
    for item in listed:
        text = item.get("text") if isinstance(item, Mapping) else item
        if isinstance(text, str) and text:
            yield SystemMessage(content=text)


def _parts(parts: object, path: str, calls: Calls) -> Iterator[Any]:
    for _, part in entries(parts, f"{path}.parts"):
        found = _part(_snake(part), calls)
        if not isinstance(found, Text) or found.text or found.provider_options:
            yield found


def _part(part: Dict, calls: Calls) -> Any:
    fields = {key: value for key, value in part.items() if value is not None}
    signature = fields.pop("thought_signature", None)
    if isinstance(signature, str):
        signature = standard_base64(signature)
    if fields.get("thought") and isinstance(text := fields.get("text"), str):
        kept = options("google", {key: value for key, value in fields.items() if key not in ("thought", "text")})
        return Reasoning(text=text, signature=signature, provider="google", **kept)
    thought = fields.pop("thought", None)
    kind = next((name for name in _KINDS if name in fields), None)
    if kind is None:
        return custom("google", part, next(iter(fields), "part"))
    given = fields.pop(kind)
    more = options("google", {"thoughtSignature": signature, "thought": thought or None, **fields})
    if kind == "text" and isinstance(given, str):
        return Text(text=given, **more)
    inner = _snake(given) if isinstance(given, Mapping) else {}
    if kind == "function_call":
        return calls.call(inner.get("id"), inner.get("name"), inner.get("args"), **more)
    if kind == "function_response":
        return calls.result(inner.get("id"), inner.get("name"), _output(inner), **more)
    return _medium(inner, **more) or custom("google", part, kind)


_KINDS = ("text", "function_call", "function_response", "inline_data", "file_data")


def _medium(inner: Dict, **more: Any) -> Image | File | None:
    found = source(inner.get("data") or inner.get("file_uri"), "google", inner.get("mime_type"))
    if found is None:
        return None
    named = {"filename": name} if (name := inner.get("display_name")) else {}
    return medium(found, **named, **more)


def _output(response: Dict) -> ToolOutput:
    value = response.get("response")
    media = [_snake(part) for _, part in entries(response.get("parts") or [], "$.parts")]
    parts = [_medium(_snake(part.get("inline_data") or part.get("file_data") or {})) for part in media]
    match value:
        case {"error": error, **rest} if not rest:
            return ErrorTextOutput(value=error) if isinstance(error, str) else ErrorJsonOutput(value=error)
        case {"result": result, **rest} if not rest:
            value = result
    if parts and all(parts) and (isinstance(value, str) or not value):
        said = [Text(text=value)] if value else []
        return ContentOutput(value=(*said, *(part for part in parts if part is not None)))
    if parts:
        return JsonOutput(value={key: response[key] for key in ("response", "parts") if key in response})
    return TextOutput(value=value) if isinstance(value, str) else JsonOutput(value=value)


def _snake(obj: Mapping[str, Any]) -> Dict:
    """Returns an object with its own keys in snake case; those of what it holds are left alone."""
    return {_HUMP.sub(r"_\1", key).lower(): value for key, value in obj.items()}
