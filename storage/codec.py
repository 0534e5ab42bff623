"""Messages to bytes and back. What is stored reads back equal, or is refused with the path of the offence.

Writes are strict, reads are tolerant. The fast paths do nothing but encode, decode and compare; where the fault is,
is looked for only after there is one.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Union, cast

from msgspec import MsgspecError, Raw, Struct, ValidationError, defstruct, structs
from msgspec.json import Decoder, Encoder

from .errors import CodecError, TooLarge
from .messages import (
    AssistantMessage,
    AssistantPart,
    ContentOutput,
    Custom,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Message,
    OutputPart,
    Reasoning,
    SystemMessage,
    Text,
    TextOutput,
    ToolCall,
    ToolMessage,
    ToolPart,
    ToolResult,
    UnknownPart,
    UserMessage,
    UserPart,
)
from .rules import check_rules

__all__ = [
    "DEPTH_MAX",
    "MESSAGE_BYTES_MAX",
    "check_message",
    "decode_message",
    "encode_json",
    "encode_message",
    "message_digest",
    "parse_message",
]

MESSAGE_BYTES_MAX = 1 << 20
DEPTH_MAX = 200
"""Levels of objects and arrays; the message itself is the first."""

# What encoding raises for a value that is not JSON, and decoding for bytes that are not ours. ValueError covers
# MsgspecError, UnicodeError and an integer of more digits than Python prints.
_UNWRITABLE = (TypeError, ValueError, OverflowError, RecursionError)
_UNREADABLE = (MsgspecError, UnicodeError, RecursionError)
_TOO_DEEP = f"nests deeper than {DEPTH_MAX} levels"


def _verbatim(value: object) -> Raw:
    if isinstance(value, UnknownPart):
        return value.raw
    raise TypeError(f"{type(value).__name__} is not JSON")


def _reordered(value: object) -> Any:
    return _ANY.decode(_verbatim(value))


_ANY: Decoder[Any] = Decoder()
_ENCODER = Encoder(enc_hook=_verbatim)
_CANONICAL = Encoder(enc_hook=_reordered, order="deterministic")
_DECODER: Decoder[Message] = Decoder(Message)


def encode_message(message: Message) -> bytes:
    """Returns the message as JSON, unchecked; unknown parts are verbatim."""
    return _ENCODER.encode(message)


def check_message(message: Message, *, max_bytes: int = MESSAGE_BYTES_MAX) -> bytes:
    """Returns the bytes to store, once it is proven that they read back as this message.

    Raises:
        CodecError: the message breaks a rule, or holds what JSON cannot; with the path.
        TooLarge: the message has more than `max_bytes`.
    """
    check_rules(message)
    try:
        body = _ENCODER.encode(message)
    except _UNWRITABLE as error:
        raise _located(message, CodecError("$", f"is not JSON: {error}")) from error
    if len(body) > max_bytes:
        raise TooLarge("message", len(body), max_bytes)
    if _is_deep(body):
        raise _located(message, CodecError("$", _TOO_DEEP))
    if decode_message(body) != message:
        raise _located(message, CodecError("$", "does not come back equal from JSON"))
    return body


def encode_json(value: object) -> bytes:
    """Returns a plain JSON value as bytes, once it is proven that they read back equal.

    Raises:
        CodecError: the value holds what JSON cannot; with the path.
    """
    try:
        body = _ENCODER.encode(value)
        if not _is_deep(body) and _ANY.decode(body) == value:
            return body
    except _UNWRITABLE as error:
        raise _located(value, CodecError("$", f"is not JSON: {error}"), free=True) from error
    raise _located(value, CodecError("$", "does not come back equal from JSON"), free=True)


def message_digest(message: Message) -> int:
    """Returns a signed 64-bit digest that equal messages share, whatever the order of their keys was."""
    return int.from_bytes(blake2b(_CANONICAL.encode(message), digest_size=8).digest(), "big", signed=True)


# ---- strict reads -------------------------------------------------------------------------------------------------


def _twin(cls: type[Struct], **fields: Any) -> Any:
    """Makes the struct that refuses unknown fields; `fields` are those that hold further twins."""
    return defstruct(cls.__name__, list(fields.items()), bases=(cls,), forbid_unknown_fields=True)


def _one_of(*types: Any) -> Any:
    return Union[types]  # noqa: UP007 - a union of values known only at run time


def _many(*types: Any) -> Any:
    return tuple.__class_getitem__((_one_of(*types), ...))


_TEXT, _IMAGE, _FILE, _CUSTOM = _twin(Text), _twin(Image), _twin(File), _twin(Custom)
_OUTPUT = _one_of(
    *(_twin(cls) for cls in (TextOutput, JsonOutput, ErrorTextOutput, ErrorJsonOutput, ExecutionDenied)),
    _twin(ContentOutput, value=_many(_TEXT, _IMAGE, _FILE)),
)
_RESULT = _twin(ToolResult, output=_OUTPUT)
_SAID = _many(_TEXT, _twin(Reasoning), _FILE, _twin(ToolCall), _RESULT, _CUSTOM)
_STRICT: Decoder[Message] = Decoder(
    _one_of(
        _twin(SystemMessage),
        _twin(UserMessage, content=_one_of(str, _many(_TEXT, _IMAGE, _FILE, _CUSTOM))),
        _twin(AssistantMessage, content=_one_of(str, _SAID)),
        _twin(ToolMessage, content=_many(_RESULT)),
    )
)


def parse_message(data: bytes | Raw) -> Message:
    """Reads a message that is about to be appended: nothing unknown is let through, because it would be lost.

    The rules are checked by `check_message`, not here.

    Raises:
        CodecError: the data is no JSON, no message, deeper than 200 levels, or holds an unknown role, part or field.
    """
    try:
        _STRICT.decode(data)  # judges; its structs are twins, which equal no message
        message = _DECODER.decode(data)
    except _UNREADABLE as error:
        refusal = _refusal(error)
        if not isinstance(error, ValidationError) or "[...]" in str(error):
            refusal = _explained(bytes(data), refusal)
        raise refusal from error
    if _is_deep(bytes(data)):
        raise _explained(bytes(data), CodecError("$", _TOO_DEEP))
    return message


# ---- tolerant reads -----------------------------------------------------------------------------------------------


class _Tag(Struct):
    type: str


_TAG = Decoder(_Tag)
_FIELDS: Decoder[dict[str, Raw]] = Decoder(dict[str, Raw])
_ITEMS: Decoder[tuple[Raw, ...]] = Decoder(tuple[Raw, ...])
_OUTPUT_PART: Decoder[Any] = Decoder(OutputPart)
_ROLE_PART: dict[type, Decoder[Any]] = {
    UserMessage: Decoder(UserPart),
    AssistantMessage: Decoder(AssistantPart),
    ToolMessage: Decoder(ToolPart),
}
_OUTPUTS = {"text", "json", "error-text", "error-json", "content", "execution-denied"}
_KNOWN = {"text", "image", "file", "reasoning", "tool-call", "tool-result", "custom"}
_NO_PARTS = Raw(b"[]")


def decode_message(data: bytes) -> Message:
    """Reads a stored message, also one that a newer version wrote: unknown fields are ignored, unknown parts kept.

    Raises:
        CodecError: the data is no message, or a part of a known type is broken.
    """
    try:
        return _DECODER.decode(data)
    except _UNREADABLE as error:
        refusal = _refusal(error)
    try:
        fields = _FIELDS.decode(data)
        items = _ITEMS.decode(fields["content"])
        message = _DECODER.decode(_ENCODER.encode({**fields, "content": _NO_PARTS}))
    except (KeyError, *_UNREADABLE):
        raise refusal from None
    return structs.replace(message, content=_read_parts(items, _ROLE_PART[type(message)], "$.content"))


def _read_parts(items: Iterable[Raw], decoder: Decoder[Any], path: str) -> tuple[Any, ...]:
    return tuple(_read_part(item, decoder, f"{path}[{index}]") for index, item in enumerate(items))


def _read_part(raw: Raw, decoder: Decoder[Any], path: str) -> Any:
    try:
        return decoder.decode(raw)
    except _UNREADABLE as error:
        refusal = _refusal(error, path)
    try:
        _ANY.decode(raw)  # the other decoders skip over what they do not read, even over bytes that are not UTF-8
        tag = _TAG.decode(raw).type
        if tag not in _KNOWN:
            return UnknownPart(tag, raw.copy())
        if tag == "tool-result":
            return _read_result(raw, refusal, f"{path}.output.value")
    except (KeyError, *_UNREADABLE):
        pass
    raise refusal


def _read_result(raw: Raw, refusal: CodecError, path: str) -> ToolResult | UnknownPart:
    fields = _FIELDS.decode(raw)
    tag = _TAG.decode(fields["output"]).type
    if tag not in _OUTPUTS:
        return UnknownPart("tool-result", raw.copy())
    if tag != "content":
        raise refusal
    output = _FIELDS.decode(fields["output"])
    items = _ITEMS.decode(output["value"])
    hollow: dict[str, object] = {**fields, "output": {**output, "value": _NO_PARTS}}
    result: ToolResult = _ROLE_PART[ToolMessage].decode(_ENCODER.encode(hollow))
    value = _read_parts(items, _OUTPUT_PART, path)
    return structs.replace(result, output=structs.replace(cast(ContentOutput, result.output), value=value))


# ---- where the fault is -------------------------------------------------------------------------------------------

_PLACE = re.compile(r"(.*?)(?: - at `(?:key` in `)?(\$.*)`)?", re.DOTALL)
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_REASON_CHARACTERS_MAX = 200
_KEY_CHARACTERS_MAX = 64
_EXPLAINED_BYTES_MAX = 1 << 16

_STEPS = bytes({0x5B: 1, 0x7B: 1, 0x5D: 0xFF, 0x7D: 0xFF}.get(byte, 0) for byte in range(256))
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def _is_deep(body: bytes) -> bool:
    """Tells whether valid JSON nests too deep: counts brackets outside of strings, if there are enough of them."""
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return False
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return max(accumulate(array("b", outside.translate(_STEPS, _NOT_BRACKETS)))) > DEPTH_MAX


def _refusal(error: Exception, prefix: str = "$") -> CodecError:
    """Turns a decoder's error into ours. The path of msgspec ends early at `[...]`: it does not know the key."""
    if isinstance(error, RecursionError):
        return CodecError(prefix, _TOO_DEEP)
    reason, place = cast(re.Match[str], _PLACE.fullmatch(str(error))).groups()
    path = prefix + (place or "$")[1:].partition("[...]")[0]
    if unknown := _UNKNOWN_FIELD.fullmatch(reason):
        return CodecError(_step(path, unknown[1]), "is unknown here")
    return CodecError(path, reason[:_REASON_CHARACTERS_MAX])


def _explained(data: bytes, refusal: CodecError) -> CodecError:
    """Looks for the place that msgspec does not name; not in so many bytes that the event loop would stall."""
    if len(data) > _EXPLAINED_BYTES_MAX:
        return refusal
    # The stdlib reads what msgspec does not: lone surrogates, NaN, numbers out of range.
    try:
        return _located(json.loads(data), refusal)
    except (ValueError, RecursionError):
        return refusal


def _located(value: object, otherwise: CodecError, *, free: bool = False) -> CodecError:
    return next((CodecError(*fault) for fault in _faults(value, "$", 1, free)), otherwise)


def _faults(value: object, path: str, depth: int, free: bool) -> Iterator[tuple[str, str]]:
    """Yields path and reason of what JSON does not bring back; `free` is inside of values without a type of their own.

    Only there is a tuple or a struct a fault, since nothing says that the list or object shall become one again.
    """
    children: Iterable[tuple[str, object]]
    match value:
        case dict():
            for key in value:
                if isinstance(key, str):
                    yield from _leaf_faults(key, _step(path, key))
                else:
                    yield path, f"has a key of type {type(key).__name__}; keys must be text"
            children, free = ((_step(path, key), item) for key, item in value.items()), True
        case list() | tuple() if not (free and isinstance(value, tuple)):
            children = ((f"{path}[{index}]", item) for index, item in enumerate(value))
        case Struct() if not free:
            named = structs.fields(value)
            children = ((f"{path}.{field.encode_name}", getattr(value, field.name)) for field in named)
            free = isinstance(value, JsonOutput | ErrorJsonOutput | Custom)
        case UnknownPart() if not free:
            return
        case _:
            yield from _leaf_faults(value, path)
            return
    if depth > DEPTH_MAX:
        yield path, _TOO_DEEP
    else:
        for place, child in children:
            yield from _faults(child, place, depth + 1, free)


def _leaf_faults(value: object, path: str) -> Iterator[tuple[str, str]]:
    what = value if isinstance(value, float) else f"a value of type {type(value).__name__}"
    reason = f"{what} does not come back equal from JSON"
    try:
        if _ANY.decode(_ENCODER.encode(value)) == value:
            return
    except UnicodeError:
        reason = "holds a lone surrogate"
    except _UNWRITABLE:
        pass
    yield path, reason


def _step(path: str, key: str) -> str:
    if key.isidentifier() and len(key) <= _KEY_CHARACTERS_MAX:
        return f"{path}.{key}"
    return f"{path}[{json.dumps(key[:_KEY_CHARACTERS_MAX])}]"
