"""Reads the dialects in which others write messages, and gives the one form that is stored.

Dialects: the structs and their JSON; the flat form (`toolCalls [{id, name, args}]`, `toolCallId`), also with `images`;
the parts of the AI SDK; OpenAI chat dicts. A dialect is only rewritten here. What comes out goes through the strict
reader, so what no dialect explains is refused, never dropped.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import MsgspecError
from msgspec.json import Decoder

from .codec import check_message, encode_json, parse_message
from .errors import CodecError, kind_of
from .messages import AssistantMessage, Message, SystemMessage, ToolMessage, UserMessage

__all__ = ["normalize", "normalize_all", "tool_input"]

_Fields = dict[str, Any]

_CAMEL = {
    "media_type": "mediaType",
    "mime_type": "mediaType",
    "mimeType": "mediaType",
    "provider_executed": "providerExecuted",
    "provider_options": "providerOptions",
    "tool_call_id": "toolCallId",
    "tool_calls": "toolCalls",
    "tool_name": "toolName",
}
_MESSAGES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)
_BYTES = (bytes, bytearray, memoryview)
_ARGUMENTS: Decoder[_Fields] = Decoder(_Fields)
_DATA_URL = re.compile(r"data:([^;,]+);base64,(.*)", re.DOTALL)
_AUDIO = {"wav": "audio/wav", "mp3": "audio/mpeg"}
_SOME_BYTES = "application/octet-stream"
# Keys of an OpenAI answer that mean nothing while they are empty.
_OPENAI_EXTRAS = ("annotations", "refusal")


def normalize(obj: object) -> Message:
    """Returns the message that `obj` is in one of the dialects; a message struct is returned as it is.

    What it returns is well formed, but has still to pass `check_message`.

    Raises:
        CodecError: the path is that in `obj` where a dialect is broken, else that in the canonical form.
    """
    if isinstance(obj, _MESSAGES):
        return obj
    fields = {key: value for key, value in _fields(obj, "$").items() if value is not None}
    role = fields.get("role")
    if role == "developer":
        fields["role"] = role = "system"
    if isinstance(role, str) and role in _BY_ROLE:
        _BY_ROLE[role](fields)
    return parse_message(encode_json(fields))


def normalize_all(obj: object, *, trusted: bool = False) -> list[Message]:
    """Returns the messages of an array, each as `normalize` and `check_message` want it.

    Args:
        obj: a list or tuple.
        trusted: only looks whether it is one, of message structs, and at nothing in them; for an array that came from
            the log or the helpers. An append checks them all the same.

    Raises:
        CodecError: the path begins with the place in the array, such as `$[3].content`.
    """
    found = []
    for index, item in enumerate(_list(obj, "$")):
        try:
            if trusted:
                _check_is_message(item)
            else:
                item = normalize(item)
                check_message(item)
        except CodecError as error:
            raise CodecError(f"$[{index}]{error.path[1:]}", error.reason) from error
        found.append(item)
    return found


def tool_input(arguments: object) -> dict[str, Any]:
    """Returns `input` of a tool call, and `invalid` if the arguments are neither a JSON object nor the text of one."""
    if isinstance(arguments, Mapping):
        return {"input": dict(arguments)}
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {"input": {}}
    if not isinstance(arguments, str):
        return {"input": {}, "invalid": encode_json(arguments).decode()}
    try:
        return {"input": _ARGUMENTS.decode(arguments)}
    except (MsgspecError, RecursionError, UnicodeError):
        return {"input": {}, "invalid": arguments}


def _check_is_message(item: object) -> None:
    if not isinstance(item, _MESSAGES):
        raise CodecError("$", f"is a {type(item).__name__}, not a message; only without trusted=True it may become one")


# ---- roles --------------------------------------------------------------------------------------------------------


def _system(fields: _Fields) -> None:
    if isinstance(fields.get("content"), list | tuple):
        fields["content"] = _only_text(fields["content"])


def _user(fields: _Fields) -> None:
    parts = _parts(fields)
    for index, image in enumerate(_list(fields.pop("images", ()), "$.images")):
        path = f"$.images[{index}]"
        parts.append(_image({"image": image} if isinstance(image, (str, *_BYTES)) else _fields(image, path), path))
    _settle(fields, parts)


def _assistant(fields: _Fields) -> None:
    fields.setdefault("content", "")
    for extra in _OPENAI_EXTRAS:
        if extra in fields and not fields[extra]:
            del fields[extra]
    parts = _parts(fields)
    if "reasoning_content" in fields:
        parts.insert(0, {"type": "reasoning", "text": fields.pop("reasoning_content")})
    if "refusal" in fields:
        parts.append({"type": "text", "text": fields.pop("refusal")})
    for index, call in enumerate(_list(fields.pop("toolCalls", ()), "$.toolCalls")):
        path = f"$.toolCalls[{index}]"
        parts.append(_flat_call(_fields(call, path), path))
    _settle(fields, parts)


def _tool(fields: _Fields) -> None:
    if "toolCallId" not in fields:
        fields["content"] = _parts(fields)
        return
    if "content" not in fields:
        raise CodecError("$.content", "is missing")
    content = fields["content"]
    if isinstance(content, list | tuple):
        content = _only_text(content)
    # Where a tool message is flat, its name is that of the tool.
    name = fields.pop("toolName", None) or fields.pop("name", "tool")
    output = {"type": "text" if isinstance(content, str) else "json", "value": content}
    result = {"type": "tool-result", "toolCallId": fields.pop("toolCallId"), "toolName": name, "output": output}
    fields["content"] = [result]


_BY_ROLE: dict[str, Callable[[_Fields], None]] = {
    "system": _system,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
}


def _parts(fields: _Fields) -> list[_Fields]:
    content = fields.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return [_part(part, f"$.content[{index}]") for index, part in enumerate(_list(content, "$.content"))]


def _settle(fields: _Fields, parts: list[_Fields]) -> None:
    """Makes the parts the content, unless that is text and nothing came to it."""
    content = fields["content"]
    if not isinstance(content, str) or len(parts) > bool(content):
        fields["content"] = parts


def _only_text(content: object) -> str:
    texts = []
    for index, item in enumerate(_list(content, "$.content")):
        part = _fields(item, f"$.content[{index}]")
        if part.keys() != {"type", "text"} or part["type"] != "text" or not isinstance(part["text"], str):
            raise CodecError(f"$.content[{index}]", "must be a text part")
        texts.append(part["text"])
    return "".join(texts)


def _flat_call(fields: _Fields, path: str) -> _Fields:
    kind = fields.pop("type", "function")
    if kind not in ("function", "tool_call", "tool-call"):
        raise CodecError(f"{path}.type", "must be function")
    if "function" in fields:  # OpenAI
        fields |= _fields(fields.pop("function"), f"{path}.function")
    id, name = _one(fields, path, "id", "toolCallId"), _one(fields, path, "name", "toolName")
    fields |= {"type": "tool-call", "toolCallId": id, "toolName": name}
    return fields | tool_input(_one(fields, path, "args", "arguments", "input", default=None))


# ---- parts --------------------------------------------------------------------------------------------------------


def _part(obj: object, path: str) -> _Fields:
    fields = _fields(obj, path)
    kind = fields.get("type")
    rewrite = _BY_TYPE.get(kind) if isinstance(kind, str) else None
    return rewrite(fields, path) if rewrite else fields


def _tool_call(fields: _Fields, path: str) -> _Fields:
    given = _one(fields, path, "input", "args", default=None)
    return tool_input(given) | fields


def _tool_result(fields: _Fields, path: str) -> _Fields:
    output = fields.get("output")
    if "result" in fields:  # the AI SDK before version 5
        output = fields.pop("result")
        kind = "text" if isinstance(output, str) else "json"
        fields["output"] = {"type": f"error-{kind}" if fields.pop("isError", False) else kind, "value": output}
    elif isinstance(output, str):
        fields["output"] = {"type": "text", "value": output}
    elif isinstance(output, Mapping) and output.get("type") == "content":
        spot = f"{path}.output.value"
        parts = [_part(part, f"{spot}[{index}]") for index, part in enumerate(_list(output.get("value"), spot))]
        fields["output"] = {**output, "value": parts}
    return fields


def _image(fields: _Fields, path: str) -> _Fields:
    return _media(fields, path) | {"type": "image"}


def _file(fields: _Fields, path: str) -> _Fields:
    if "file" in fields:  # OpenAI
        inner, spot = _fields(fields.pop("file"), f"{path}.file"), f"{path}.file"
        id = inner.pop("file_id", None)
        source = {"ref": {"openai": id}} if id else _source(_one(inner, spot, "file_data"), f"{spot}.file_data")
        return {"mediaType": _SOME_BYTES} | source | inner | fields
    return _media(fields, path) | {"type": "file"}


def _file_url(fields: _Fields, path: str) -> _Fields:
    return {"mediaType": _SOME_BYTES} | _file(fields, path)


def _image_url(fields: _Fields, path: str) -> _Fields:
    given, spot = fields.pop("image_url", None), f"{path}.image_url"
    inner = {"url": given} if isinstance(given, str) else _fields(given, spot)
    return _source(_one(inner, spot, "url"), f"{spot}.url") | inner | fields | {"type": "image"}


def _input_audio(fields: _Fields, path: str) -> _Fields:
    spot = f"{path}.input_audio"
    inner = _fields(fields.pop("input_audio", None), spot)
    media_type = _AUDIO.get(str(inner.pop("format", None)), _SOME_BYTES)
    return {"mediaType": media_type} | inner | fields | {"type": "file"}


def _refusal(fields: _Fields, path: str) -> _Fields:
    return {"text": _one(fields, path, "refusal")} | fields | {"type": "text"}


def _either(fields: _Fields, path: str) -> _Fields:
    return (_image if str(fields.get("mediaType")).startswith("image/") else _file)(fields, path)


_BY_TYPE: dict[str, Callable[[_Fields, str], _Fields]] = {
    "tool-call": _tool_call,
    "tool-result": _tool_result,
    "image": _image,
    "image-data": _image,
    "image-url": _image,
    "file": _file,
    "file-data": _file,
    "file-url": _file_url,
    "media": _either,
    "image_url": _image_url,
    "input_audio": _input_audio,
    "refusal": _refusal,
}


def _media(fields: _Fields, path: str) -> _Fields:
    """Puts what `image`, `base64` or `data` holds where it belongs; `url` and `ref` are there already."""
    held = [key for key in ("image", "base64", "data") if fields.get(key) is not None]
    if not held:
        return fields
    source = _source(_one(fields, path, *held), f"{path}.{held[0]}")
    if fields.keys() & source.keys() - {"mediaType"}:
        raise CodecError(path, "must have exactly one of data, url and ref")
    return source | fields


def _source(value: object, path: str) -> _Fields:
    """Tells the ways apart in which one value holds a medium: bytes, base64, a URL, or one of those with its tag."""
    match value:
        case str():
            if match := _DATA_URL.fullmatch(value):
                return {"mediaType": match[1], "data": match[2]}
            return {"url" if ":" in value else "data": value}  # base64 has no colon
        case _ if isinstance(value, _BYTES):
            return {"data": b64encode(value).decode()}
        case {"type": "data", "data": inner} | {"type": "url", "url": inner}:
            return _source(inner, path)
        case {"type": "reference", "reference": inner}:
            return {"ref": inner}
    raise CodecError(path, "must be base64, a URL or bytes")


# ---- reading ------------------------------------------------------------------------------------------------------


def _fields(obj: object, path: str) -> _Fields:
    """Returns a copy of an object with the keys we know in camel case."""
    if not isinstance(obj, Mapping):
        raise CodecError(path, f"must be an object, not {kind_of(obj)}")
    fields: _Fields = {_CAMEL[key] if key in _CAMEL else key: value for key, value in obj.items()}
    if len(fields) < len(obj):
        raise CodecError(path, "has a field twice, in two spellings")
    return fields


def _list(value: object, path: str) -> list[Any] | tuple[Any, ...]:
    if isinstance(value, list | tuple):
        return value
    raise CodecError(path, "is missing" if value is None else f"must be a list, not {kind_of(value)}")


_REQUIRED = object()


def _one(fields: _Fields, path: str, *spellings: str, default: object = _REQUIRED) -> Any:
    """Removes the one field that has one of these spellings, and returns its value."""
    found = [key for key in spellings if key in fields]
    if len(found) > 1:
        raise CodecError(path, f"has {' and '.join(found)}, which mean the same")
    if not found and default is _REQUIRED:
        raise CodecError(f"{path}.{spellings[0]}", "is missing")
    return fields.pop(found[0]) if found else default
