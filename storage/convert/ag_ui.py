"""Messages of the Agent User Interaction Protocol (AG-UI 1.0), as a frontend shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from ..messages import File, Image, Reasoning, Text
from ..rows import StoredMessage
from .labels import Labels
from .media import Medium, foreign_ids, medium
from .notes import Note
from .openai import call_dict
from .outputs import failed, media_in, output_text
from .turns import Turn, media_note, turns

__all__ = ["render"]

_ANY = re.compile(r".+", re.DOTALL)
_NOTHING = re.compile(r"(?!)")
_KINDS = ("audio", "image", "video")


def render(rows: Sequence[StoredMessage], notes: list[Note], conversation: str = "") -> dict[str, Any]:
    """Returns `messages`, each with an id: its own, or one of the conversation and its seq.

    Args:
        rows: repaired rows.
        notes: where to say what was changed.
        conversation: what the ids of messages without one begin with.
    """
    messages: list[dict[str, Any]] = []
    for turn in turns(rows, Labels(_ANY, _ANY, _NOTHING, notes), notes):
        id = turn.row.message.id or f"{conversation}:{turn.row.seq}"
        content: Any = turn.content
        if turn.role == "assistant":
            messages += _said(turn, id, notes)
            messages += _results(turn, id, notes)
            continue
        if type(content) is list:
            content = [_part(turn.row, part, notes) for part in content]
        messages.append(_named(turn, {"id": id, "role": turn.role, "content": content}))
    return {"messages": messages}


def _named(turn: Turn, message: dict[str, Any]) -> dict[str, Any]:
    name = turn.row.message.name
    return message if name is None else message | {"name": name}


def _said(turn: Turn, id: str, notes: list[Note]) -> Iterable[dict[str, Any]]:
    """Yields what the assistant thought, each thought a message of its own, and what it said and asked for."""
    if type(turn.content) is str:
        yield _named(turn, {"id": id, "role": "assistant", "content": turn.content})
        return
    texts = []
    for index, part in enumerate(turn.content):
        if type(part) is Text:
            texts.append(part.text)
        elif type(part) is Reasoning:
            thought = {"id": f"{id}:thought:{index}", "role": "reasoning", "content": part.text}
            hidden = part.data or part.signature
            yield thought if hidden is None else thought | {"encryptedValue": hidden}
    message: dict[str, Any] = {"id": id, "role": "assistant"}
    if texts:
        message["content"] = "".join(texts)
    if turn.calls:
        message["toolCalls"] = [call_dict(call, turn.row.seq, notes) for call in turn.calls]
    if len(message) > 2:
        yield _named(turn, message)


def _results(turn: Turn, id: str, notes: list[Note]) -> Iterable[dict[str, Any]]:
    for call in turn.calls:
        text = output_text(call.output)
        content: Any = text
        if shown := media_in(call.output):
            content = [{"type": "text", "text": text}, *(_part(turn.row, part, notes) for part in shown)]
        message = {"id": f"{id}:{call.id}", "role": "tool", "toolCallId": call.id, "content": content}
        yield message | {"error": text} if failed(call.output) else message


def _part(row: StoredMessage, part: object, notes: list[Note]) -> dict[str, Any]:
    if isinstance(part, Image | File):
        found = medium(part, "ag-ui")
        shown = _elsewhere(part) if found is None else _medium(found)
        return shown or {"type": "text", "text": media_note(row, part, notes)}
    assert isinstance(part, Text)
    return {"type": "text", "text": part.text}


def _elsewhere(part: Image | File) -> dict[str, Any] | None:
    """Returns a medium that only its provider has, by the id it has there."""
    for provider, id in foreign_ids(part).items():
        return {
            "type": _kind(part.media_type or part.type),
            "source": {"type": "file", "value": id, "provider": provider},
        }
    return None


def _medium(found: Medium) -> dict[str, Any] | None:
    kind = _kind(found.type or found.kind)
    if found.data is not None:
        data = {"type": "data", "value": found.data, "mimeType": found.type}
        return {"type": kind, "source": data} if found.type else None
    source: dict[str, Any] = (
        {"type": "file", "value": found.id} if found.url is None else {"type": "url", "value": found.url}
    )
    return {"type": kind, "source": source | {"mimeType": found.type} if found.type else source}


def _kind(type: str) -> str:
    main = type.partition("/")[0]
    return main if main in _KINDS else "document"
