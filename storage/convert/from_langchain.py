"""LangChain's messages to ours."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import CodecError
from ..messages import Message, Reasoning, SystemMessage, Text, ToolCall, ToolMessage
from .from_openai import chat_part
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

__all__ = ["from_langchain"]

_ROLES = {"human": "user", "ai": "assistant", "developer": "system", "function": "tool", "model": "assistant"}
_PROVIDERS = {"azure": "openai", "google_genai": "google", "google_vertexai": "google", "bedrock_converse": "bedrock"}
_MEDIA = ("image", "file", "audio", "video", "text-plain", "media")
_TOOLS = ("tool_call", "tool_use", "invalid_tool_call", "input_json_delta", "tool_call_chunk")


def from_langchain(obj: object) -> list[Message]:
    """Returns the message for each LangChain message, or for those of an agent's state (`{"messages": [...]}`).

    `additional_kwargs` that say something else than the content, and a tool's `artifact`, are kept in the metadata,
    under `langchain`.

    Args:
        obj: messages of `langchain-core`, or chunks that were added up; dicts, also those of `message_to_dict`; or
            JSON text.

    Raises:
        CodecError: it is none of these, or a role is unknown; the path says where.
    """
    if isinstance(obj, Mapping) and "messages" in obj:
        obj = obj["messages"]
    data = plain([_standard(item) for item in obj] if isinstance(obj, list | tuple) else _standard(obj))
    calls, found = Calls(), list[Message]()
    for path, fields in entries(data):
        if isinstance(inner := fields.get("data"), Mapping) and "role" not in fields:  # of message_to_dict
            fields = {"type": fields.get("type"), **{key: value for key, value in inner.items() if value is not None}}
        found += _read(fields, path, calls)
    return found


def _standard(message: object) -> object:
    """Returns a message of the package with its content in standard blocks, whichever provider it came from."""
    blocks = getattr(message, "content_blocks", None)
    if blocks is None:
        return message
    fields: Dict = {
        name: value
        for name in ("type", "role", "name", "id", "additional_kwargs", "response_metadata", "tool_calls")
        + ("invalid_tool_calls", "tool_call_id", "status", "artifact", "content")
        if (value := getattr(message, name, None)) is not None
    }
    # Text that is a string stays one: as blocks it would count what is in other fields a second time.
    return fields if isinstance(fields["content"], str) else {**fields, "content": blocks}


def _read(fields: Dict, path: str, calls: Calls) -> Iterator[Message]:
    kind = str(fields.get("type") or fields.get("role")).removesuffix("MessageChunk").lower()
    role = str(fields.get("role")) if kind == "chat" else kind
    role = _ROLES.get(role, role)
    named: Dict = {key: value for key in ("name", "id") if (value := label(fields.get(key))) is not None}
    extra = dict(given) if isinstance(given := fields.get("additional_kwargs"), Mapping) else {}
    content = fields.get("content", "")
    match role:
        case "system":
            text = "".join(part.text for part in _parts(content, "langchain") if isinstance(part, Text))
            yield SystemMessage(content=text, **named, **_kept(extra))
        case "user":
            yield from messages_of(_parts(content, "langchain"), **named, **_kept(extra))
        case "assistant":
            calls.begin()
            parts = _said(fields, extra, calls)
            yield assistant(parts, **named, **_kept(extra))
        case "tool":
            named.pop("name", None)
            output = output_of(content, _part, failed=fields.get("status") == "error")
            result = calls.result(fields.get("tool_call_id"), fields.get("name"), output)
            yield ToolMessage(content=(result,), **named, **_kept(extra, artifact=fields.get("artifact")))
        case _:
            raise CodecError(f"{path}.type", f"{role!r} is no message that says something")


def _kept(extra: Mapping[str, Any], artifact: object = None) -> Dict:
    kept = {key: value for key, value in extra.items() if value not in (None, "", [], {})}
    held = {**({"additional_kwargs": kept} if kept else {}), **({} if artifact is None else {"artifact": artifact})}
    return {"metadata": {"langchain": held}} if held else {}


def _said(fields: Dict, extra: Dict, calls: Calls) -> list[Any]:
    about = fields.get("response_metadata")
    origin = str(about.get("model_provider", "")) if isinstance(about, Mapping) else ""
    provider = _PROVIDERS.get(origin, origin)
    parts = list(_parts(fields.get("content", ""), provider or "langchain"))
    if isinstance(thought := extra.pop("reasoning_content", None), str) and thought:
        parts.insert(0, Reasoning(text=thought, provider=provider or None))
    if isinstance(refusal := extra.pop("refusal", None), str) and refusal:
        parts.append(Text(text=refusal))
    extra.pop("tool_calls", None)  # the raw form of those below
    listed = entries(fields.get("tool_calls") or [], "$.tool_calls")
    listed += entries(fields.get("invalid_tool_calls") or [], "$.invalid_tool_calls")
    # Blocks say where a call stood, the lists what it is.
    said = [part.data for part in parts if _is_call(part)]
    ids = {call.get("id") for _, call in listed}
    listed += [("$", dict(block)) for block in said if block.get("id") not in ids and "name" in block]
    found = [part for part in parts if not _is_call(part)]
    return found + [_call(call, calls) for _, call in listed]


def _is_call(part: Any) -> bool:
    return getattr(part, "kind", None) in {f"langchain.{kind}" for kind in _TOOLS}


def _call(call: Dict, calls: Calls) -> ToolCall:
    if isinstance(function := call.get("function"), Mapping):  # OpenAI's form, in dicts
        return calls.call(call.get("id"), function.get("name"), function.get("arguments"))
    return calls.call(call.get("id"), call.get("name"), call.get("args", call.get("input")))


def _parts(content: object, provider: str) -> Iterator[Any]:
    if isinstance(content, str):
        if content:
            yield Text(text=content)
        return
    for item in content if isinstance(content, list) else [content]:
        if isinstance(item, str):
            if item:
                yield Text(text=item)
        else:
            for _, block in entries(item, "$.content"):
                yield _part(block, provider) or custom("langchain", block)


def _part(block: Mapping[str, Any], provider: str = "langchain") -> Any:
    """Returns the part for a content block, or None where it is of no known kind."""
    fields = {key: value for key, value in block.items() if key not in ("type", "index") and value is not None}
    if str(fields.get("id")).startswith("lc_"):  # made up by the package, another one each time
        del fields["id"]
    match kind := block.get("type"):
        case "text" | "refusal" if isinstance(text := fields.pop(kind, None), str):
            return Text(text=text, **options("langchain", fields))
        case "reasoning" | "thinking" | "redacted_thinking":
            return _reasoning(fields, "anthropic" if kind != "reasoning" else provider)
        case _ if kind in _MEDIA and (found := _source(fields, provider)) is not None:
            extras = fields.get("extras")
            title = fields.pop("title", None) or fields.pop("filename", None)
            if title is None and isinstance(extras, Mapping):
                title = extras.get("filename")
                fields["extras"] = {key: value for key, value in extras.items() if key != "filename"} or None
            named = {"filename": title} if isinstance(title, str) else {}
            return medium(found, image=kind == "image", **named, **options("langchain", fields))
        case "image_url" | "input_audio":
            return chat_part(block)
    return None


def _reasoning(fields: Dict, provider: str) -> Reasoning:
    text = fields.pop("reasoning", None) or fields.pop("thinking", None) or ""
    extras = dict(given) if isinstance(given := fields.pop("extras", None), Mapping) else {}
    signature = fields.pop("signature", None) or extras.pop("signature", None)
    data = fields.pop("data", None) or extras.pop("data", None)
    # OpenAI's own form of it, where nothing made it a standard block.
    data = data or fields.pop("encrypted_content", None) or extras.pop("encrypted_content", None)
    summary = fields.pop("summary", None)
    if not text and isinstance(summary, list):
        text = "\n\n".join(piece.get("text") or "" for _, piece in entries(summary, "$.summary"))
    held: Dict = {"id": fields.pop("id", None), "signature": signature, "data": data}
    if provider != "langchain":
        held["provider"] = provider
    return Reasoning(text=text, **held, **options("langchain", {**fields, "extras": extras or None}))


def _source(fields: Dict, provider: str) -> Dict | None:
    media_type = fields.pop("mime_type", None) or fields.pop("media_type", None)
    for name in ("base64", "url", "data"):
        if isinstance(value := fields.pop(name, None), str):
            fields.pop("source_type", None)
            return source(value, provider, media_type)
    given = {"media_type": media_type} if isinstance(media_type, str) else {}
    if isinstance(id := fields.pop("file_id", None), str):
        return {**given, "ref": {provider: id}}
    if isinstance(text := fields.pop("text", None), str):  # of a text file
        return source(f"data:text/plain;base64,{b64encode(text.encode()).decode()}", provider, media_type)
    if isinstance(inner := fields.pop("source", None), Mapping):  # Anthropic's
        return source(inner.get("data") or inner.get("url"), provider, inner.get("media_type"))
    return None
