"""The rules a message obeys before it is stored, and the irregularities that are stored but worth a note.

Types are the codec's business; these rules are what types cannot say. A value of a wrong type may pass here, it does
not pass `codec.check_message`.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence

from .errors import CodecError, kind_of
from .messages import (
    AssistantMessage,
    ContentOutput,
    Custom,
    File,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    ToolCall,
    ToolMessage,
    ToolResult,
    UnknownPart,
    UserMessage,
)

__all__ = ["ID_CHARACTERS_MAX", "NAME_CHARACTERS_MAX", "REF_KEY", "check_rules", "irregularities"]

NAME_CHARACTERS_MAX = 64
ID_CHARACTERS_MAX = 128
REF_KEY = "parlatory"
"""Whose media a `ref` names, where they lie in the conversation itself."""

# An unknown part was valid for the newer version that wrote it; only its own version can judge it.
_PARTS: dict[type, tuple[type, ...]] = {
    SystemMessage: (),
    UserMessage: (Text, Image, File, Custom, UnknownPart),
    AssistantMessage: (Text, Reasoning, File, ToolCall, ToolResult, Custom, UnknownPart),
    ToolMessage: (ToolResult, UnknownPart),
}
_OUTPUT_PARTS = (Text, Image, File, UnknownPart)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OWN_REF = re.compile(r"sha256:[0-9a-f]{64}")
_URL = re.compile(r"https?://\S|data:\S", re.IGNORECASE)


def check_rules(message: Message) -> None:
    """Refuses a message that breaks a rule of its role or of one of its parts.

    Raises:
        CodecError: with the path of the first offence.
    """
    allowed = _PARTS.get(type(message))
    if allowed is None:
        raise CodecError("$", f"is {kind_of(message)}, not a message; normalize() may make it one")
    if message.name is not None or message.id is not None:
        _check_labels(message)
    content = message.content
    if isinstance(content, str):
        if type(message) is ToolMessage:
            raise CodecError("$.content", "must be tool results, not text")
    elif not allowed:
        raise CodecError("$.content", "must be text")
    elif not isinstance(content, tuple):
        raise CodecError("$.content", f"must be text or a tuple of parts, not {kind_of(content)}")
    else:
        _check_parts(message, content, allowed)


def _check_labels(message: Message) -> None:
    name, id = message.name, message.id
    if isinstance(name, str) and (len(name) > NAME_CHARACTERS_MAX or _CONTROL.search(name)):
        raise CodecError("$.name", f"must have at most {NAME_CHARACTERS_MAX} characters and no control characters")
    if isinstance(id, str) and len(id) > ID_CHARACTERS_MAX:
        raise CodecError("$.id", f"must have at most {ID_CHARACTERS_MAX} characters")


def _check_parts(message: Message, content: tuple[object, ...], allowed: tuple[type, ...]) -> None:
    called: dict[str, bool] = {}  # call id -> did the provider run it
    if not content and type(message) is ToolMessage:
        raise CodecError("$.content", "must hold at least one tool result")
    for index, part in enumerate(content):
        if type(part) not in allowed:
            raise _offence((index,), "", f"{_kind(part)} has no place in a {message.role} message")
        if isinstance(part, ToolCall):
            _check_tool(part, index)
            if part.tool_call_id in called:
                raise _offence((index,), ".toolCallId", "is used twice in this message")
            called[part.tool_call_id] = part.provider_executed
        elif isinstance(part, ToolResult):
            _check_tool(part, index)
            if isinstance(part.output, ContentOutput):
                _check_output(part.output, index)
            if type(message) is AssistantMessage and not called.get(part.tool_call_id):
                raise _offence((index,), "", "must follow a call of this id in this message that the provider executed")
        elif isinstance(part, (Image, File)):
            _check_media(part, (index,))


def _check_tool(part: ToolCall | ToolResult, index: int) -> None:
    if not part.tool_call_id:
        raise _offence((index,), ".toolCallId", "must not be empty")
    if not part.tool_name:
        raise _offence((index,), ".toolName", "must not be empty")


def _check_output(output: ContentOutput, index: int) -> None:
    if not isinstance(output.value, tuple):
        kind = type(output.value).__name__
        raise _offence((index,), ".output.value", f"must be a tuple of parts, not a {kind}")
    for inner, part in enumerate(output.value):
        if type(part) not in _OUTPUT_PARTS:
            raise _offence((index, inner), "", f"{_kind(part)} has no place in a tool result")
        if isinstance(part, (Image, File)):
            _check_media(part, (index, inner))


def _check_media(part: Image | File, where: tuple[int, ...]) -> None:
    if (part.data is not None) + (part.url is not None) + (part.ref is not None) != 1:
        raise _offence(where, "", "must have exactly one of data, url and ref")
    if isinstance(part, File) and not part.media_type:
        raise _offence(where, ".mediaType", "must not be empty")
    if isinstance(part.data, str):
        try:
            binascii.a2b_base64(part.data, strict_mode=True)
        except ValueError as error:
            raise _offence(where, ".data", f"is not base64: {error}") from None
    elif isinstance(part.url, str) and not _URL.match(part.url):
        raise _offence(where, ".url", "must be an http, https or data URL")
    elif part.ref == {}:
        raise _offence(where, ".ref", "must name a provider")
    elif isinstance(part.ref, dict) and REF_KEY in part.ref:
        own = part.ref[REF_KEY]
        if not isinstance(own, str) or not _OWN_REF.fullmatch(own):
            raise _offence(where, f".ref.{REF_KEY}", "must be sha256: and 64 digits of lower-case hex")
        if not part.media_type:
            raise _offence(where, ".mediaType", "must be given beside a ref to media of the conversation")


def _kind(part: object) -> str:
    kind = getattr(part, "type", None)
    return f"a {kind} part" if isinstance(kind, str) else kind_of(part)


def _offence(where: tuple[int, ...], field: str, reason: str) -> CodecError:
    """Makes the error for a part at `where`: its index, and the index in its output if it lies there."""
    path = ".output.value".join(f"[{index}]" for index in where)
    return CodecError(f"$.content{path}{field}", reason)


def irregularities(message: Message, before: Sequence[Message]) -> list[str]:
    """Names what is accepted at append but refused by `strict=True`.

    Args:
        message: the message to append; it obeys the rules.
        before: the messages of the log, in order, at least from the oldest open call on.

    Returns:
        One sentence, with a path, for each result whose call is not open, each second result, new calls while calls
        are open, and empty content.
    """
    open_calls, answered = _calls(before)
    found = []
    if isinstance(message, ToolMessage):
        for index, part in enumerate(message.content):
            if not isinstance(part, ToolResult):
                continue
            if part.tool_call_id in open_calls:
                open_calls.remove(part.tool_call_id)
                answered.add(part.tool_call_id)
            elif part.tool_call_id in answered:
                found.append(f"$.content[{index}]: call {part.tool_call_id!r} has a result already")
            else:
                found.append(f"$.content[{index}]: call {part.tool_call_id!r} is not open")
    elif open_calls and any(not call.provider_executed for call in message.tool_calls):
        found.append(f"$.content: new calls while {', '.join(map(repr, sorted(open_calls)))} wait for results")
    if not message.content or (not message.text and all(isinstance(part, Text) for part in message.content)):
        found.append("$.content: is empty")
    return found


def _calls(messages: Sequence[Message]) -> tuple[set[str], set[str]]:
    """Returns the ids of the open calls and of the answered ones; calls that the provider executes are its own."""
    open_calls: set[str] = set()
    answered: set[str] = set()
    for message in messages:
        if isinstance(message, AssistantMessage):
            # Providers use ids again: a new call of an old id is open.
            calls = {call.tool_call_id for call in message.tool_calls if not call.provider_executed}
            open_calls |= calls
            answered -= calls
        elif isinstance(message, ToolMessage):
            results = {result.tool_call_id for result in message.tool_results} & open_calls
            open_calls -= results
            answered |= results
    return open_calls, answered
