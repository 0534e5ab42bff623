"""The message that a turn is writing: an assistant message that grows by writes, and the ops that tell its growth.

Pure: no clock, no await. A write is one delta; a flush takes all deltas since the last one as a few ops (PROTOCOL
section 3, `ops`). Text may come in any pieces: a character whose surrogate halves come in two of them is held back
until it is whole, so that no client ever sees half a character.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import msgspec

__all__ = ["Delta", "DraftMessage", "weight_of"]

Op = dict[str, Any]

_encode = msgspec.json.Encoder().encode


class Delta(msgspec.Struct, frozen=True, gc=False):
    """Is what was written between two indexes of a draft."""

    start: int
    end: int
    ops: tuple[Op, ...]


class DraftMessage:
    """Grows by writes.

    Attributes:
        index: how many writes there were.
        size: characters of text, and of parts as JSON, that were written; says when to tell and when to store.
        weight: bytes of the message as JSON, or a little more; says when it is full.
    """

    __slots__ = ("_flushed", "_held", "_ops", "_parts", "_tail", "index", "size", "weight")

    def __init__(self) -> None:
        self.index = 0
        self.size = 0
        self.weight = 0
        self._parts: list[dict[str, Any]] | None = None
        # The end of the text that grows, in pieces: of the content where it is a string, else of the last part. They
        # are joined only when somebody wants to see them, so that a write costs the same however long the text is.
        self._tail: list[str] = []
        self._held = ("", "")
        self._ops: list[Op] = []
        self._flushed = 0

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Self:
        """Returns a message that others wrote, to be written on.

        Raises:
            ValueError: it is none of an assistant.
        """
        made = cls()
        match message:
            case {"role": "assistant", "content": str(text)}:
                made._tail = [text] if text else []
            case {"role": "assistant", "content": [*parts]} if all(isinstance(part, dict) for part in parts):
                made._parts = [dict(part) for part in parts]
            case _:
                raise ValueError("a draft is a message of an assistant")
        return made

    def __bool__(self) -> bool:
        return bool(self._tail or self._parts)

    @property
    def unflushed(self) -> int:
        """Is how many writes wait for the next flush."""
        return self.index - self._flushed

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Are the parts so far; none where the content is a string."""
        self._join()
        return [] if self._parts is None else [dict(part) for part in self._parts]

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
        self._weigh(part)
        return len(parts) - 1

    def replace(self, place: int, part: Mapping[str, Any]) -> None:
        """Replaces the part at a place.

        Raises:
            IndexError: there is none.
        """
        self._release()
        parts = self._as_parts()
        if not 0 <= place < len(parts):
            raise IndexError(f"the draft has {len(parts)} parts, and none at {place}")
        self.index += 1
        self._weigh(part, parts[place])
        parts[place] = dict(part)
        self._ops.append({"set": place, "part": dict(part)})

    def apply(self, op: Op) -> None:
        """Repeats a write from the op that told it.

        Raises:
            ValueError: it is no op.
            LookupError: it does not fit this message.
        """
        match op:
            case {"add": str(text)}:
                self.add(text)
            case {"reasoning": str(text)}:
                self.reason(text)
            case {"set": int(place), "part": dict(part)}:
                self.replace(place, part)
            case {"part": dict(part)}:
                self.put(part)
            case _:
                raise ValueError(f"{op!r} is no op of a draft")

    def finish(self) -> None:
        """Ends the writing: half a character that never became whole shows as U+FFFD."""
        if self._held[1]:
            self.index += 1  # it is one more write, or nobody would be told
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
        self._join()
        if self._parts is None:
            return {"role": "assistant", "content": self._tail[0] if self._tail else ""}
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
        self.weight += len(_encode(text)) - 2
        if self._ops and op in self._ops[-1]:
            self._ops[-1][op] += text
        else:
            self._ops.append({op: text})
        if op == "reasoning" or self._parts is not None:
            kind = "text" if op == "add" else "reasoning"
            parts = self._as_parts() if self._parts is None else self._parts
            if not parts or parts[-1]["type"] != kind:
                self._join()
                part = {"type": kind, "text": ""}
                parts.append(part)
                self.weight += len(_encode(part)) + 1
        self._tail.append(text)

    def _weigh(self, part: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> None:
        length = len(_encode(part)) + 1
        self.size += length
        self.weight += length - (0 if old is None else len(_encode(old)) + 1)

    def _join(self) -> None:
        """Puts the pieces of the text that grows together."""
        if self._parts is None:
            if len(self._tail) > 1:
                self._tail = ["".join(self._tail)]
        elif self._tail:
            last = self._parts[-1]
            last["text"] = "".join((last.get("text", ""), *self._tail))
            self._tail = []

    def _as_parts(self) -> list[dict[str, Any]]:
        """Returns the parts, all text in them; content that is a string becomes one."""
        self._join()
        if self._parts is None:
            self._parts = [{"type": "text", "text": text} for text in self._tail]
            self._tail = []
        return self._parts


def _whole(text: str) -> str:
    """Returns text with its surrogate halves joined, and what stays half as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def weight_of(text: str) -> int:
    """Returns the bytes of text in JSON; quick where it is plain."""
    return len(_encode(_whole(text))) - 2
