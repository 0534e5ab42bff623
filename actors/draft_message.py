"""The message that a turn is writing: an assistant message that grows by writes, and the ops that tell its growth.

Pure: no clock, no await. A write is one delta; a flush takes all deltas since the last one as a few ops (PROTOCOL
section 3, `ops`). Text may come in any pieces: a character whose surrogate halves come in two of them is held back
until it is whole, so that no client ever sees half a character.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["Delta", "DraftMessage"]

Op = dict[str, Any]


class Delta(NamedTuple):
    """Is what was written between two indexes of a draft."""

    start: int
    end: int
    ops: tuple[Op, ...]


class DraftMessage:
    """Grows by writes.

    Attributes:
        index: how many writes there were.
        size: characters of text written, for limits.
    """

    __slots__ = ("_chunks", "_flushed", "_held", "_ops", "_parts", "index", "size")

    def __init__(self) -> None:
        self.index = 0
        self.size = 0
        # Text that lies in one string is kept in pieces: joined only when somebody wants to see it.
        self._chunks: list[str] = []
        self._parts: list[dict[str, Any]] | None = None
        self._held = ("", "")
        self._ops: list[Op] = []
        self._flushed = 0

    def __bool__(self) -> bool:
        return bool(self._chunks or self._parts)

    @property
    def unflushed(self) -> int:
        """Is how many writes wait for the next flush."""
        return self.index - self._flushed

    def add(self, text: str) -> None:
        """Appends text to the answer."""
        self._say("add", text)

    def reason(self, text: str) -> None:
        """Appends text to the reasoning."""
        self._say("reasoning", text)

    def put(self, part: Mapping[str, Any]) -> int:
        """Appends a part; returns its place."""
        self.index += 1
        self._release()
        parts = self._as_parts()
        parts.append(dict(part))
        self._ops.append({"part": dict(part)})
        return len(parts) - 1

    def replace(self, place: int, part: Mapping[str, Any]) -> None:
        """Replaces the part at a place."""
        self.index += 1
        self._release()
        parts = self._as_parts()
        parts[place] = dict(part)
        self._ops.append({"set": place, "part": dict(part)})

    def finish(self) -> None:
        """Ends the writing: half a character that never became whole shows as U+FFFD."""
        self._release()

    def flush(self) -> Delta | None:
        """Returns what was written since the last flush, or None if nothing was."""
        if self.index == self._flushed:
            return None
        delta = Delta(self._flushed, self.index, tuple(self._ops))
        self._flushed, self._ops = self.index, []
        return delta

    def message(self) -> dict[str, Any]:
        """Returns the message so far, in JSON terms."""
        if self._parts is None:
            if len(self._chunks) > 1:
                self._chunks = ["".join(self._chunks)]
            return {"role": "assistant", "content": self._chunks[0] if self._chunks else ""}
        return {"role": "assistant", "content": [dict(part) for part in self._parts]}

    def _say(self, op: str, text: str) -> None:
        self.index += 1
        kind, held = self._held
        if kind != op:
            self._release()
            held = ""
        text = held + text
        self._held = ("", "")
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held = (op, text[-1])
            text = text[:-1]
        if text:
            self._append(op, _whole(text))

    def _release(self) -> None:
        kind, held = self._held
        if held:
            self._held = ("", "")
            self._append(kind, _whole(held))

    def _append(self, op: str, text: str) -> None:
        self.size += len(text)
        if self._ops and op in self._ops[-1]:
            self._ops[-1][op] += text
        else:
            self._ops.append({op: text})
        if op == "add" and self._parts is None:
            self._chunks.append(text)
            return
        kind = "text" if op == "add" else "reasoning"
        parts = self._as_parts()
        if parts and parts[-1]["type"] == kind:
            parts[-1]["text"] += text
        else:
            parts.append({"type": kind, "text": text})

    def _as_parts(self) -> list[dict[str, Any]]:
        if self._parts is None:
            text = "".join(self._chunks)
            self._parts = [{"type": "text", "text": text}] if text else []
            self._chunks = []
        return self._parts


def _whole(text: str) -> str:
    """Returns text with its surrogate halves joined, and what stays half as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
