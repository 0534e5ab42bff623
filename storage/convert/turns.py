"""What is common to all renderers: repaired rows without what no prompt holds, each call with its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from msgspec import MsgspecError
from msgspec.json import Decoder

from ..messages import (
    AssistantMessage,
    File,
    Image,
    JsonObject,
    Reasoning,
    Text,
    ToolCall,
    ToolMessage,
    ToolOutput,
)
from ..rows import StoredMessage
from .labels import Labels
from .media import placeholder
from .notes import Note
from .outputs import media_in

__all__ = [
    "OPENING",
    "Call",
    "Part",
    "Turn",
    "arguments",
    "later_system",
    "media_note",
    "option",
    "shown_behind",
    "turns",
]

_JSON: Decoder[Any] = Decoder()

OPENING = "[...]"
"""What the user is made to say first where a conversation would begin with the assistant."""


class Call:
    """Is a tool call with the id and the name it has in this prompt, and its result."""

    __slots__ = ("id", "name", "output", "part")

    def __init__(self, part: ToolCall, id: str, name: str) -> None:
        self.part = part
        self.id = id
        self.name = name
        self.output: ToolOutput  # comes with the row behind


Part: TypeAlias = Text | Image | File | Reasoning | Call


class Turn:
    """Is a row that a prompt holds: a system, user or assistant one. Its results are those of its calls.

    `content` is text that is not blank, or parts of which none is blank, and never empty.
    """

    __slots__ = ("calls", "content", "role", "row")

    def __init__(self, row: StoredMessage, content: str | list[Part], calls: Sequence[Call] = ()) -> None:
        self.row = row
        self.role: str = row.message.role
        self.content = content
        self.calls = calls


def turns(rows: Sequence[StoredMessage], labels: Labels, notes: list[Note], *, said_files: bool = False) -> list[Turn]:
    """Returns the turns of repaired rows. Blank text and what only a vendor or a newer version knows is left out.

    Args:
        rows: what `repair` returned.
        labels: how calls and tools are called.
        notes: where to say what was changed.
        said_files: whether the provider takes files as said by its model; else their names stand for them.
    """
    found: list[Turn] = []
    calls: list[Call] = []
    for row in rows:
        message = row.message
        content = message.content
        if type(content) is str:
            if content and not content.isspace():
                found.append(Turn(row, content))
            else:
                notes.append(Note("message_dropped", f"a blank {message.role} message is dropped", row.seq))
        elif type(message) is ToolMessage:
            for call, result in zip(calls, message.content, strict=True):
                call.output = result.output  # type: ignore[union-attr]  # repaired: there are only results
        else:
            calls = []
            parts = _parts(row, calls, labels, notes, said_files)
            if parts:
                found.append(Turn(row, parts, calls))
            else:
                notes.append(Note("message_dropped", f"an empty {message.role} message is dropped", row.seq))
    return found


def _parts(row: StoredMessage, calls: list[Call], labels: Labels, notes: list[Note], said_files: bool) -> list[Part]:
    no_files = type(row.message) is AssistantMessage and not said_files
    parts: list[Part] = []
    part: Any
    for index, part in enumerate(row.message.content):
        kind = type(part)
        if kind is Text:
            if part.text and not part.text.isspace():
                parts.append(part)
            else:
                notes.append(Note("blank_dropped", "a blank text is dropped", row.seq, index))
        elif kind is ToolCall:
            seq = row.seq
            call = Call(part, labels.call_id(part.tool_call_id, seq), labels.tool_name(part.tool_name, seq))
            parts.append(call)
            calls.append(call)
        elif kind is File and no_files:
            parts.append(Text(text=media_note(row, part, notes)))
        elif kind is Image or kind is File or kind is Reasoning:
            parts.append(part)
        else:
            what = f"{part.kind!r}" if part.type == "custom" else f"of type {part.type!r}"
            notes.append(Note("part_dropped", f"a part {what} is dropped", row.seq, index))
    return parts


def arguments(call: Call, seq: int, notes: list[Note]) -> JsonObject:
    """Returns the arguments of a call: `_value` holds JSON that was no object, `_raw` the text that was no JSON."""
    invalid = call.part.invalid
    if invalid is None:
        return call.part.input
    try:
        value = _JSON.decode(invalid or "null")
    except (MsgspecError, RecursionError):
        wrapped: JsonObject = {"_raw": invalid}
    else:
        if value is None or isinstance(value, dict):
            return value or {}
        wrapped = {"_value": value}
    notes.append(Note("arguments_wrapped", f"the arguments of {call.part.tool_call_id!r} are no JSON object", seq))
    return wrapped


def later_system(turn: Turn, notes: list[Note]) -> str:
    """Returns a system message that cannot stand where it is, as text of the user."""
    notes.append(Note("system_moved", "a later system message is text of the user", turn.row.seq))
    return f"<system>\n{turn.content}\n</system>"


def media_note(row: StoredMessage, part: Image | File, notes: list[Note]) -> str:
    """Notes that a medium is named only, since the provider cannot be given it, and returns that name."""
    text = placeholder(part)
    notes.append(Note("media_as_text", f"{text} stands for a medium that cannot be sent", row.seq))
    return text


def shown_behind(
    turn: Turn, show: Callable[[StoredMessage, Image | File, list[Note]], JsonObject], notes: list[Note]
) -> list[JsonObject]:
    """Returns what the results of a turn show as a message of the user, if they show anything: they hold text only."""
    shown = [show(turn.row, part, notes) for call in turn.calls for part in media_in(call.output)]
    if not shown:
        return []
    notes.append(Note("media_moved", "what results show follows them as a user message", turn.row.seq))
    return [{"role": "user", "content": shown}]


def option(part: Any, provider: str, name: str) -> Any:
    """Returns one option that a part has for a provider, or None."""
    options = part.provider_options
    if not options:
        return None
    own = options.get(provider)
    return own.get(name) if isinstance(own, dict) else None
