"""What the readers of providers' objects share: objects in JSON terms, and parts on their way into messages.

A reader knows objects by their shape: of an SDK, as dicts, or as JSON text. What it does not understand is kept: an
item as a custom part of kind `provider.type`, a field of a part under its `providerOptions`. What a response says of
itself (its model, its usage, why it stopped) is no message: read it off the response.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from ..dialects import tool_input
from ..errors import CodecError
from ..messages import (
    AssistantMessage,
    ContentOutput,
    Custom,
    ErrorJsonOutput,
    ErrorTextOutput,
    File,
    Image,
    JsonOutput,
    Message,
    Text,
    TextOutput,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolResult,
    UserMessage,
)
from ..rules import ID_CHARACTERS_MAX
from .media import SOME_IMAGE, type_of_address

__all__ = [
    "SOME_BYTES",
    "UNNAMED_TOOL",
    "Calls",
    "Dict",
    "assistant",
    "custom",
    "entries",
    "failure",
    "label",
    "medium",
    "messages_of",
    "options",
    "output_of",
    "plain",
    "runs",
    "source",
    "standard_base64",
]

Dict: TypeAlias = dict[str, Any]

SOME_BYTES = "application/octet-stream"
UNNAMED_TOOL = "tool"

_DATA_URL = re.compile(r"data:([^;,]+)(?:;[^;,]+)*;base64,(.*)", re.DOTALL)
_URL = re.compile(r"https?://|data:", re.IGNORECASE)
_URL_SAFE = str.maketrans("-_", "+/")


def plain(obj: object, path: str = "$") -> Any:
    """Returns objects of an SDK, or JSON text, in JSON terms; bytes become base64.

    Raises:
        CodecError: something in it is no data, or the text is no JSON.
    """
    try:
        if isinstance(obj, str | bytes | bytearray):
            return msgspec.json.decode(obj)
        return _listed(msgspec.to_builtins(obj, enc_hook=_dumped))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise CodecError(path, f"cannot be read: {error}") from error


def _listed(value: Any) -> Any:
    """Returns a value with its tuples as the lists that they are in JSON."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value


def _dumped(obj: object) -> Any:
    dump = getattr(obj, "model_dump", None)
    if dump is None:
        if isinstance(obj, Mapping):
            return dict(obj)
        if isinstance(obj, Iterable):
            return list(obj)
        raise TypeError(f"{type(obj).__name__} is no data")
    # An SDK builds its objects unchecked; that one of them is not what its type says is no news of ours.
    fields = dict(dump(exclude_unset=True, warnings=False))
    kind = getattr(obj, "type", None)
    return {"type": kind, **fields} if isinstance(kind, str) else fields


def entries(obj: object, path: str = "$") -> list[tuple[str, Dict]]:
    """Returns the objects of a list, or the one object, each with its path; a null field is an absent one.

    Raises:
        CodecError: it is neither.
    """
    listed = [(path, obj)] if isinstance(obj, Mapping) else _numbered(obj, path)
    found = []
    for place, item in listed:
        if not isinstance(item, Mapping):
            raise CodecError(place, f"must be an object, not a {type(item).__name__}")
        found.append((place, {key: value for key, value in item.items() if value is not None}))
    return found


def _numbered(obj: object, path: str) -> list[tuple[str, object]]:
    if not isinstance(obj, list | tuple):
        raise CodecError(path, f"must be an object or a list of them, not a {type(obj).__name__}")
    return [(f"{path}[{index}]", item) for index, item in enumerate(obj)]


# ---- parts --------------------------------------------------------------------------------------------------------


def options(provider: str, rest: Mapping[str, Any]) -> Dict:
    """Returns `provider_options` for the fields of a part that nothing else holds, as keyword arguments."""
    kept = {key: value for key, value in rest.items() if value is not None and value != []}
    return {"provider_options": {provider: kept}} if kept else {}


def custom(provider: str, item: Mapping[str, Any], kind: str | None = None) -> Custom:
    """Returns the part that keeps an item as it is."""
    return Custom(kind=f"{provider}.{kind or item.get('type') or 'unknown'}", data=dict(item))


def label(id: object) -> str | None:
    """Returns the id for a message, where the provider gave one that fits."""
    return id if isinstance(id, str) and len(id) <= ID_CHARACTERS_MAX else None


def source(value: object, provider: str, media_type: object = None) -> Dict | None:
    """Returns where a medium is, as keyword arguments: base64, a URL, or what only its provider can resolve."""
    given = {"media_type": media_type} if isinstance(media_type, str) and media_type else {}
    if not isinstance(value, str) or not value:
        return None
    if match := _DATA_URL.fullmatch(value):
        return {"media_type": match[1], **given, "data": match[2]}
    if _URL.match(value):
        return {**given, "url": value}
    if ":" in value:
        return {**given, "ref": {provider: value}}
    return {**given, "data": standard_base64(value)}


def standard_base64(data: str) -> str:
    """Returns base64 in its usual alphabet, padded."""
    data = data.translate(_URL_SAFE)
    return data + "=" * (-len(data) % 4)


def medium(fields: Mapping[str, Any], *, image: bool | None = None, **more: Any) -> Image | File:
    """Returns the part for what `source` returned: a picture if it is said to be one, else if its type says so."""
    if image is None:
        image = str(fields.get("media_type")).startswith("image/")
    if not image:
        return File(**{"media_type": SOME_BYTES, **fields}, **more)
    ending = type_of_address(str(fields.get("url", "")))
    if ending and not ending.startswith("image/"):  # a picture all the same: the provider says so
        fields = {"media_type": SOME_IMAGE, **fields}
    return Image(**fields, **more)


# ---- tools --------------------------------------------------------------------------------------------------------


class Calls:
    """Gives calls ids that can be stored, and results the names and ids of what they answer."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._open: dict[str, str] = {}
        self._here: set[str] = set()

    def begin(self) -> None:
        """Begins a message: ids are unique in each."""
        self._here = set()

    def call(self, id: object, name: object, arguments: object, **more: Any) -> ToolCall:
        """Returns a tool call; one without id gets one, and so does the second of an id."""
        name = name if isinstance(name, str) and name else "unknown"
        first = found = id if isinstance(id, str) and id else f"call_{len(self._names)}"
        count = 1
        while found in self._here or (not id and found in self._names):
            found, count = f"{first}_{count}", count + 1
        self._here.add(found)
        self._names[found] = self._open[found] = name
        return ToolCall(**{"tool_call_id": found, "tool_name": name, **tool_input(arguments), **more})

    def result(self, id: object, name: object, output: ToolOutput, **more: Any) -> ToolResult:
        """Returns a tool result; one without id answers the oldest open call of its name, one without name its call."""
        if not isinstance(id, str) or not id:
            named = (key for key, value in self._open.items() if value == name)
            id = next(named, f"call_{len(self._names)}")
        if not isinstance(name, str) or not name:
            name = self._names.get(id, UNNAMED_TOOL)
        self._open.pop(id, None)
        return ToolResult(tool_call_id=id, tool_name=name, output=output, **more)


def output_of(content: object, read: Callable[[Mapping[str, Any]], object], *, failed: bool = False) -> ToolOutput:
    """Returns the output that a provider gives as text or blocks; blocks that no part can be are kept as JSON.

    Args:
        content: text, blocks, or JSON.
        read: returns the part for a block, or None where it knows none.
        failed: it is an error; a picture of one is JSON.
    """
    if content is None or content == []:
        content = ""
    if isinstance(content, str):
        return ErrorTextOutput(value=content) if failed else TextOutput(value=content)
    if isinstance(content, list) and all(isinstance(block, Mapping) and "type" in block for block in content):
        parts = [read(block) for block in content]
        texts = [part.text for part in parts if isinstance(part, Text) and part.provider_options is None]
        if failed and len(texts) == len(parts):
            return ErrorTextOutput(value="\n".join(texts))
        if not failed and all(isinstance(part, Text | Image | File) for part in parts):
            if len(texts) == len(parts) == 1:
                return TextOutput(value=texts[0])
            return ContentOutput(value=tuple(part for part in parts if isinstance(part, Text | Image | File)))
    return ErrorJsonOutput(value=content) if failed else JsonOutput(value=content)


def failure(output: ToolOutput) -> ToolOutput:
    """Returns an output as an error."""
    match output:
        case TextOutput(value=text):
            return ErrorTextOutput(value=text)
        case JsonOutput(value=value):
            return ErrorJsonOutput(value=value)
        case ContentOutput(value=parts):
            return ErrorJsonOutput(value=plain(parts))
    return output


# ---- messages -----------------------------------------------------------------------------------------------------


def assistant(parts: Iterable[Any], **fields: Any) -> AssistantMessage:
    """Returns what a model said: text alone as text, a picture as the file that it is there."""
    return AssistantMessage(content=_settled([_as_file(part) for part in parts]), **fields)


def _as_file(part: Any) -> Any:
    if not isinstance(part, Image):
        return part
    held = {name: getattr(part, name) for name in ("data", "url", "ref", "filename", "detail", "provider_options")}
    return File(media_type=part.media_type or SOME_BYTES, **held)


def messages_of(parts: Iterable[Any], **fields: Any) -> Iterator[Message]:
    """Returns the parts of a turn that a provider calls the user's: runs of results as tool messages, the rest as user.

    Args:
        parts: in order; none is an empty message.
        **fields: of the first message.
    """
    for results, run in runs(parts, lambda part: isinstance(part, ToolResult)) or [(False, [])]:
        yield ToolMessage(content=tuple(run), **fields) if results else UserMessage(content=_settled(run), **fields)
        fields = {}


def runs(items: Iterable[Any], key: Callable[[Any], Any]) -> list[tuple[Any, list[Any]]]:
    """Returns the runs of items with an equal key."""
    found: list[tuple[Any, list[Any]]] = []
    for item in items:
        kind = key(item)
        if not found or found[-1][0] != kind:
            found.append((kind, []))
        found[-1][1].append(item)
    return found


def _settled(parts: Sequence[Any]) -> Any:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], Text) and parts[0].provider_options is None:
        return parts[0].text
    return tuple(parts)
