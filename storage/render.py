"""The full history in the shapes of others: OpenAI chat, Anthropic, LangChain.

Nothing is windowed or repaired here, and nothing noted: `prompt()` does that. Parts that only their own vendor
understands, and parts of a newer version, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.json import encode

from .messages import (
    AssistantMessage,
    ContentOutput,
    ErrorJsonOutput,
    ErrorTextOutput,
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
    ToolMessage,
    ToolOutput,
    ToolResult,
    UserMessage,
)

__all__ = ["to_anthropic", "to_langchain", "to_openai"]

_Dict = dict[str, Any]
_Render = Callable[[object], _Dict | None]
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)


def to_openai(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Returns the messages as OpenAI chat completions take them; each tool result is a message."""
    rendered: list[_Dict] = []
    for message in messages:
        if not isinstance(message, ToolMessage):
            turn: _Dict = {"role": message.role, "content": _content(message, _openai_part)}
            if message.name is not None:
                turn["name"] = message.name
            if calls := [_openai_call(call) for call in message.tool_calls]:
                turn["tool_calls"] = calls
            rendered.append(turn)
        for result in message.tool_results:
            text = _output_text(result.output)
            rendered.append({"role": "tool", "tool_call_id": result.tool_call_id, "content": text})
    return rendered


def to_anthropic(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Returns the messages as Anthropic's `messages`; system ones are left out, they go into the parameter `system`.

    Tool results are blocks of user turns, those of adjacent tool messages in one. A message of nothing but what
    Anthropic does not take is left out, because an empty turn is refused.
    """
    turns: list[_Dict] = []
    results: list[_Dict] | None = None
    for message in messages:
        if isinstance(message, SystemMessage):
            continue
        if not isinstance(message, ToolMessage):
            results = None
            if content := _content(message, _anthropic_block):
                turns.append({"role": message.role, "content": content})
        if blocks := [_anthropic_result(result) for result in message.tool_results]:
            if results is None:
                results = []
                turns.append({"role": "user", "content": results})
            results += blocks
    return turns


def to_langchain(messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Returns the messages as dicts that LangChain's `convert_to_messages` takes."""
    rendered: list[_Dict] = []
    for message in messages:
        if not isinstance(message, ToolMessage):
            turn: _Dict = {"role": message.role, "content": _content(message, _langchain_block)}
            labels = {"id": message.id, "name": message.name}
            turn |= {key: label for key, label in labels.items() if label is not None}
            if calls := [_langchain_call(call) for call in message.tool_calls]:
                turn["tool_calls"] = calls
            rendered.append(turn)
        rendered += (_langchain_result(result) for result in message.tool_results)
    return rendered


def _content(message: SystemMessage | UserMessage | AssistantMessage, render: _Render) -> str | list[_Dict]:
    """Returns text as text and parts as what `render` makes of them; what an assistant only said, as text again."""
    if isinstance(message.content, str):
        return message.content
    if isinstance(message, UserMessage):
        return _rendered(message.content, render)
    # No provider takes a file as said by its model.
    parts = (Text(text=_placeholder(part)) if isinstance(part, File) else part for part in message.content)
    blocks = _rendered(parts, render)
    return blocks if any(block["type"] != "text" for block in blocks) else "".join(block["text"] for block in blocks)


def _rendered(parts: Iterable[object], render: _Render) -> list[_Dict]:
    return [block for part in parts if (block := render(part)) is not None]


def _arguments(call: ToolCall) -> _Dict:
    return call.input if call.invalid is None else {"_raw": call.invalid}


def _output_text(output: ToolOutput) -> str:
    match output:
        case TextOutput(value=text) | ErrorTextOutput(value=text):
            return text
        case JsonOutput(value=value) | ErrorJsonOutput(value=value):
            return encode(value).decode()
        case ContentOutput(value=parts):
            texts = (part.text if isinstance(part, Text) else _placeholder(part) for part in parts)
            return "\n".join(text for text in texts if text)
    return f"Tool execution was denied. {output.reason or ''}".rstrip()


def _failed(output: ToolOutput) -> bool:
    return isinstance(output, ErrorTextOutput | ErrorJsonOutput | ExecutionDenied)


def _placeholder(part: object) -> str:
    """Stands for a medium where only text can go."""
    if isinstance(part, Image | File):
        return f"[{part.filename or part.media_type or part.type}]"
    return ""


def _split(part: Image | File) -> tuple[str | None, str | None]:
    """Returns media type and base64 of what is inline, also in a data URL."""
    if part.url is not None and (match := _DATA_URL.fullmatch(part.url)):
        return match[1], match[2]
    return part.media_type, part.data


def _text(text: str) -> _Dict:
    return {"type": "text", "text": text}


# ---- OpenAI -------------------------------------------------------------------------------------------------------


def _openai_part(part: object) -> _Dict | None:
    match part:
        case Text(text=text):
            return _text(text)
        case Image():
            media_type, data = _split(part)
            url = part.url if data is None else f"data:{media_type or 'image/png'};base64,{data}"
            if url is None:
                return _text(_placeholder(part))
            detail = {} if part.detail is None else {"detail": part.detail}
            return {"type": "image_url", "image_url": {"url": url, **detail}}
        case File():
            media_type, data = _split(part)
            if part.ref and "openai" in part.ref:
                return {"type": "file", "file": {"file_id": part.ref["openai"]}}
            if data is None:
                return _text(part.url or _placeholder(part))
            file = {"filename": part.filename or "file", "file_data": f"data:{media_type};base64,{data}"}
            return {"type": "file", "file": file}
    return None


def _openai_call(call: ToolCall) -> _Dict:
    function = {"name": call.tool_name, "arguments": encode(_arguments(call)).decode()}
    return {"id": call.tool_call_id, "type": "function", "function": function}


# ---- Anthropic ----------------------------------------------------------------------------------------------------


def _anthropic_block(part: object) -> _Dict | None:
    match part:
        case Text(text=text):
            return _text(text) if text.strip() else None  # a blank block is refused
        case Reasoning(provider="anthropic", data=str(redacted)):
            return {"type": "redacted_thinking", "data": redacted}
        case Reasoning(provider="anthropic", signature=str(signature)):
            return {"type": "thinking", "thinking": part.text, "signature": signature}
        case ToolCall():
            return {"type": "tool_use", "id": part.tool_call_id, "name": part.tool_name, "input": _arguments(part)}
        case Image() | File():
            media_type, data = _split(part)
            kind = "image" if isinstance(part, Image) else "document"
            if data is not None:
                source: _Dict = {"type": "base64", "media_type": media_type or "image/png", "data": data}
                return {"type": kind, "source": source}
            if part.url is not None:
                return {"type": kind, "source": {"type": "url", "url": part.url}}
            return _text(_placeholder(part))
    return None


def _anthropic_result(result: ToolResult) -> _Dict:
    content: str | list[_Dict] = _output_text(result.output)
    if isinstance(result.output, ContentOutput):
        content = _rendered(result.output.value, _anthropic_block)
    block = {"type": "tool_result", "tool_use_id": result.tool_call_id, "content": content or "(no output)"}
    return block | {"is_error": True} if _failed(result.output) else block


# ---- LangChain ----------------------------------------------------------------------------------------------------


def _langchain_block(part: object) -> _Dict | None:
    match part:
        case Text(text=text):
            return _text(text)
        case Image() | File():
            media_type, data = _split(part)
            if data is None and part.url is None:
                return _text(_placeholder(part))
            source = {"url": part.url} if data is None else {"base64": data}
            if media_type is not None:
                source["mime_type"] = media_type
            return {"type": part.type, **source}
    return None


def _langchain_call(call: ToolCall) -> _Dict:
    return {"type": "tool_call", "id": call.tool_call_id, "name": call.tool_name, "args": _arguments(call)}


def _langchain_result(result: ToolResult) -> _Dict:
    status = "error" if _failed(result.output) else "success"
    content = _output_text(result.output)
    name, id = result.tool_name, result.tool_call_id
    return {"role": "tool", "tool_call_id": id, "name": name, "status": status, "content": content}
