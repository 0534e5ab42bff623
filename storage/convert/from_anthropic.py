"""Anthropic's messages to ours: answers, message dicts, blocks, whole requests."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import CodecError
from ..messages import Message, Reasoning, SystemMessage, Text
from .ingest import Calls, Dict, assistant, custom, entries, label, medium, messages_of, options, output_of, plain

__all__ = ["from_anthropic"]


def from_anthropic(obj: object) -> list[Message]:
    """Returns the messages of a response, of messages, of the blocks of an answer, or of a request.

    A user turn with tool results becomes a tool message and a user message. What the provider ran itself (web search,
    code execution) stays as it is, in custom parts.

    Args:
        obj: objects of the `anthropic` SDK, dicts, or JSON text; a request is `{"system": ..., "messages": ...}`.

    Raises:
        CodecError: it is none of these, or a role is unknown; the path says where.
    """
    data = plain(obj)
    calls, found = Calls(), list[Message]()
    if isinstance(data, Mapping) and "messages" in data:
        found += _system(data.get("system"))
        data = data["messages"]
    turns = entries(data)
    if turns and all("role" not in turn and "type" in turn for _, turn in turns):
        turns = [("$", {"role": "assistant", "content": data if isinstance(data, list) else [data]})]
    for path, turn in turns:
        found += _read(turn, path, calls)
    return found


def _read(turn: Dict, path: str, calls: Calls) -> Iterator[Message]:
    content = turn.get("content", "")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    match turn.get("role"):
        case "assistant":
            calls.begin()
            id = label(turn.get("id"))
            yield assistant(_parts(blocks, path, calls), **({} if id is None else {"id": id}))
        case "user":
            yield from messages_of(_parts(blocks, path, calls))
        case "system":
            yield from _system(blocks)
        case role:
            raise CodecError(f"{path}.role", f"{role!r} is no role of Anthropic")


def _system(content: object) -> Iterator[SystemMessage]:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    for path, block in entries(blocks, "$.system"):
        if block.pop("type", "text") != "text" or not isinstance(text := block.pop("text", None), str):
            raise CodecError(path, "must be a text block")
        if text:
            yield SystemMessage(content=text, **options("anthropic", block))


def _parts(blocks: object, path: str, calls: Calls) -> Iterator[Any]:
    for _, block in entries(blocks, f"{path}.content"):
        kind = block.get("type")
        if kind == "tool_use":
            fields = {key: value for key, value in block.items() if key != "type"}
            id, name, given = (fields.pop(key, None) for key in ("id", "name", "input"))
            yield calls.call(id, name, given, **options("anthropic", fields))
        elif kind == "tool_result":
            fields = {key: value for key, value in block.items() if key != "type"}
            id, content, failed = (fields.pop(key, None) for key in ("tool_use_id", "content", "is_error"))
            output = output_of(content, _part, failed=bool(failed))
            yield calls.result(id, None, output, **options("anthropic", fields))
        else:
            part = _part(block) or custom("anthropic", block)
            # The API returns empty blocks, and refuses them.
            if not isinstance(part, Text) or part.text:
                yield part


def _part(block: Mapping[str, Any]) -> Any:
    """Returns the part for a block, or None where it is of no known kind."""
    fields = dict(block)
    match fields.pop("type", None):
        case "text" if isinstance(text := fields.pop("text", None), str):
            return Text(text=text, **options("anthropic", fields))
        case "thinking":
            text, signature = fields.pop("thinking", None) or "", fields.pop("signature", None)
            if not text and not signature:
                return Text(text="")
            more = options("anthropic", fields)
            return Reasoning(text=text, signature=signature or None, provider="anthropic", **more)
        case "redacted_thinking" if isinstance(data := fields.pop("data", None), str):
            return Reasoning(data=data, provider="anthropic", **options("anthropic", fields))
        case "image" | "document" as kind if isinstance(given := fields.pop("source", None), Mapping):
            found = _source(given, kind)
            if found is None:
                return None
            named = {"filename": title} if kind == "document" and (title := fields.pop("title", None)) else {}
            return medium(found, image=kind == "image", **named, **options("anthropic", fields))
    return None


def _source(given: Mapping[str, Any], kind: str) -> Dict | None:
    media_type = given.get("media_type")
    match given:
        case {"type": "base64", "data": str() as data}:
            found: Dict = {"data": data}
        case {"type": "url", "url": str() as url}:
            found = {"url": url}
            media_type = media_type or ("application/pdf" if kind == "document" else None)  # the only one by URL
        case {"type": "text", "data": str() as text}:
            found, media_type = {"data": b64encode(text.encode()).decode()}, media_type or "text/plain"
        case {"type": "file", "file_id": str() as id}:
            found = {"ref": {"anthropic": id}}
        case _:
            return None
    return found if media_type is None else {**found, "media_type": media_type}
