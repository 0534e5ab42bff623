"""Checkpoints: what storage holds of a draft while it is written, so that a crash costs a second of it.

The first one is the message so far, at `turn.draft`. Each one behind it holds the ops since the last one, at
`turn.draft.01` and so on: it costs what was written, however long the answer is. Behind the last name the message is
stored whole again, in place of them all. One whose outcome nobody knows comes once more under its name, with what was
written since.

Pure: no clock, no await.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..storage import Batch
from .draft_message import DraftMessage

__all__ = ["CHECKPOINT", "Checkpoint", "Checkpoints", "checkpoint_keys", "restored"]

CHECKPOINT = "turn.draft"
KEYS_MAX = 64
NAMES = (CHECKPOINT, *(f"{CHECKPOINT}.{number:02}" for number in range(1, KEYS_MAX)))
TEXTS = ("add", "reasoning")

logger = logging.getLogger("parlatory.actors")

Op = dict[str, Any]
Run = tuple[str, Any]  # a kind of text and its pieces; or "" and an op of another kind


class Checkpoint(msgspec.Struct):
    """Is a draft as far as it is stored."""

    id: str
    turn: int
    message: dict[str, Any]


class Piece(msgspec.Struct):
    """Is what was written to a draft since the last checkpoint."""

    id: str
    ops: list[Op]


_encode = msgspec.json.Encoder().encode
_checkpoint = msgspec.json.Decoder(Checkpoint)
_piece = msgspec.json.Decoder(Piece)


class Checkpoints:
    """Makes the checkpoints of one draft, one after the other.

    Attributes:
        keys: how many keys storage may hold of it, in the order of `checkpoint_keys`.
    """

    def __init__(self, id: str, turn: int) -> None:
        self.keys = 0
        self._id = id
        self._turn = turn
        # How many keys hold what was stored; 0 where the message has to be stored whole. And how many it will be.
        self._stored = 0
        self._next = 0
        # What is not stored, adjacent texts of a kind as one run: a text costs no object that the garbage collector
        # counts, and thousands of drafts do not make it run. So many runs, from the beginning, are on their way, or
        # were and may be durable: the last of these grows no more.
        self._runs: list[Run] = []
        self._storing = 0

    def add(self, ops: Iterable[Op], *, more: bool = False) -> None:
        """Takes ops that are to be stored; they do not change any more.

        Where what is not stored has become `more` than the message, the next one holds that instead.
        """
        if more:
            self._runs.clear()
            self._stored = self._next = self._storing = 0
            return
        for op in ops:
            kind = next(iter(op))
            if kind not in TEXTS:
                self._runs.append(("", op))
            elif len(self._runs) > self._storing and self._runs[-1][0] == kind:
                self._runs[-1][1].append(op[kind])
            else:
                self._runs.append((kind, [op[kind]]))

    def next(self, message: Mapping[str, Any], held: int = 0, *, lazy: bool = False) -> Batch:
        """Returns the batch that stores all that was added so far.

        Args:
            message: what that has become.
            held: how many keys storage may hold, of an earlier draft too.
            lazy: it may wait for what others commit.
        """
        place = self._stored % KEYS_MAX
        self._next, self._storing = place + 1, len(self._runs)
        self.keys = max(self.keys, self._next)
        if place:
            ops = [_op(kind, content) for kind, content in self._runs]
            return Batch(puts={NAMES[place]: _encode(Piece(self._id, ops))}, lazy=lazy)
        whole = Checkpoint(self._id, self._turn, dict(message))
        return Batch(puts={CHECKPOINT: _encode(whole)}, deletes=NAMES[1 : max(held, self.keys)], lazy=lazy)

    def stored(self) -> None:
        """Takes note that the last batch is durable."""
        self._stored = self._next
        del self._runs[: self._storing]
        self._storing = 0


def checkpoint_keys(count: int) -> tuple[str, ...]:
    """Returns the names of the first keys of a draft's checkpoints."""
    return NAMES[:count]


def restored(keys: Mapping[str, bytes]) -> Checkpoint:
    """Returns the draft that keys hold; without what is behind one that cannot be read.

    Raises:
        msgspec.MsgspecError, ValueError: the first one cannot be read.
    """
    left = _checkpoint.decode(keys[CHECKPOINT])
    message = DraftMessage.of(left.message)
    restored = message.message()
    try:
        for name in NAMES[1:]:
            if name not in keys or (piece := _piece.decode(keys[name])).id != left.id:
                break
            for op in piece.ops:
                message.apply(op)
            restored = message.message()
    except (msgspec.MsgspecError, ValueError, LookupError, TypeError):
        logger.exception("the end of a partial answer that a crash left is lost")
    return Checkpoint(left.id, left.turn, restored)


def _op(kind: str, content: Any) -> Op:
    """Returns a run as one op."""
    return {kind: "".join(content)} if kind else content
