"""The message that an agent is still writing, as a client knows it (PROTOCOL section 3, `draft` and `delta`). Pure.

A draft is told whole once, then by deltas that say which of the agent's writes they hold. A delta fits if it begins
where the draft is; one that is known already is dropped; any other, or one that changes what is not there, shows that
something was missed, and only telling the draft anew helps.

Drafts move no position. What counts is the row that a draft becomes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..storage import AssistantMessage, CodecError, decode_message
from .client_frames import Delta, DraftSet, Op

__all__ = ["LOST", "Draft", "OpenDraft"]

LOST = "lost"
"""The `finish` of a draft whose end was not heard: the rows tell what became of it."""

_encode = msgspec.json.Encoder().encode


class Draft(msgspec.Struct, frozen=True):
    """Is what an agent has written so far of a message; a later snapshot of the same `id` replaces it.

    `turn` names the turn that writes it. When it is over, `finish` is `done`, `stopped`, `error` or `interrupted`, and
    `seq` is the row that it became, which came before and holds the same message; None if it became none. A `finish` of
    `lost` says that the connection was away at its end: if it became a row, that came as any other.
    """

    id: str
    turn: int | str
    message: AssistantMessage
    finish: str | None = None
    seq: int | None = None

    @property
    def text(self) -> str:
        """Joins the text of the message."""
        return self.message.text


class OpenDraft:
    """Is a draft that grows. `index` counts the agent's writes in it."""

    __slots__ = ("_content", "_message", "_snapshot", "id", "index", "turn")

    def __init__(self, frame: DraftSet) -> None:
        self.id = frame.id
        self.turn = frame.turn
        self.index = frame.index
        self._message = frame.message
        content = frame.message.get("content")
        self._content: str | list[Any] = content if isinstance(content, str | list) else ""
        # What `snapshot` returns; False if that is to be made.
        self._snapshot: Draft | None | bool = False

    @property
    def size(self) -> int:
        """Is how many bytes are written."""
        return len(_encode(self._content))

    def apply(self, delta: Delta) -> bool:
        """Applies a delta; returns whether it fits. After one that does not the draft is of no use."""
        if delta.start != self.index:
            return False
        self._snapshot = False
        self.index = delta.to
        return all(self._apply(op) for op in delta.ops)

    def snapshot(self) -> Draft | None:
        """Returns what is written so far; None if it is no message that can be read."""
        if isinstance(self._snapshot, bool):
            self._snapshot = self._read()
        return self._snapshot

    def _read(self) -> Draft | None:
        try:
            message = decode_message(_encode({**self._message, "content": self._content}))
        except CodecError:
            return None
        return Draft(self.id, self.turn, message) if isinstance(message, AssistantMessage) else None

    def _apply(self, op: Op) -> bool:
        if op.add is not None and isinstance(self._content, str):
            self._content += op.add
            return True
        parts = self._content
        if isinstance(parts, str):
            parts = self._content = [{"type": "text", "text": parts}] if parts else []
        if op.add is not None:
            return _append(parts, "text", op.add)
        if op.reasoning is not None:
            return _append(parts, "reasoning", op.reasoning)
        if op.part is None:
            return False
        if op.set is None:
            parts.append(op.part)
        elif 0 <= op.set < len(parts):
            parts[op.set] = op.part
        else:
            return False
        return True


def _append(parts: list[Any], kind: str, text: str) -> bool:
    """Appends text to the last part if that is of this kind, else as a new part."""
    last = parts[-1] if parts else None
    if isinstance(last, dict) and last.get("type") == kind and isinstance(last.get("text"), str):
        last["text"] += text
    else:
        parts.append({"type": kind, "text": text})
    return True
