"""What subscribers are told. An event is made once and handed to all; whoever encodes it keeps the bytes on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from ..storage import Row

__all__ = [
    "Closed",
    "DeltaTold",
    "DraftEnded",
    "DraftTold",
    "Event",
    "Live",
    "Opened",
    "Presence",
    "RowsTold",
    "Signal",
    "TurnState",
    "TurnTold",
]

TurnState = Literal["idle", "queued", "running", "waiting", "done", "stopped", "error"]


class Event:
    """Is something told about one conversation. `wire` is its encoded form, once somebody has made it."""

    __slots__ = ("conversation", "wire")

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        self.wire: bytes | None = None

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self).__slots__ if name != "wire")
        return f"<{type(self).__name__} {fields}>"


class Opened(Event):
    """Is the answer to an open: the position that was accepted or, with a `reason`, the one given instead."""

    __slots__ = ("epoch", "floor", "head", "reason", "start", "turn", "turn_id")

    def __init__(
        self,
        conversation: str,
        epoch: str,
        floor: int,
        head: int,
        start: int,
        reason: str | None,
        turn: TurnState,
        turn_id: int | str | None,
    ) -> None:
        super().__init__(conversation)
        self.epoch = epoch
        self.floor = floor
        self.head = head
        self.start = start
        self.reason = reason
        self.turn = turn
        self.turn_id = turn_id


class RowsTold(Event):
    """Is a run of consecutive committed rows."""

    __slots__ = ("epoch", "rows")

    def __init__(self, conversation: str, epoch: str, rows: Sequence[Row]) -> None:
        super().__init__(conversation)
        self.epoch = epoch
        self.rows = rows


class Live(Event):
    """Says that everything up to `seq` has been told; what follows is live."""

    __slots__ = ("seq",)

    def __init__(self, conversation: str, seq: int) -> None:
        super().__init__(conversation)
        self.seq = seq


class TurnTold(Event):
    """Is the state of a turn; `queued` says how many wait, itself included, where it is one of them."""

    __slots__ = ("id", "queued", "state")

    def __init__(self, conversation: str, id: int | str, state: TurnState, queued: int | None = None) -> None:
        super().__init__(conversation)
        self.id = id
        self.state = state
        self.queued = queued


class DraftTold(Event):
    """Sets a draft: what it holds after its first `index` writes, as JSON terms of a message."""

    __slots__ = ("id", "index", "message", "turn")

    def __init__(self, conversation: str, id: str, turn: int | str, index: int, message: dict[str, Any]) -> None:
        super().__init__(conversation)
        self.id = id
        self.turn = turn
        self.index = index
        self.message = message


class DeltaTold(Event):
    """Is what was written to a draft between two indexes."""

    __slots__ = ("end", "id", "ops", "start")

    def __init__(self, conversation: str, id: str, start: int, end: int, ops: Sequence[dict[str, Any]]) -> None:
        super().__init__(conversation)
        self.id = id
        self.start = start
        self.end = end
        self.ops = ops


class DraftEnded(Event):
    """Says that a draft is over; with `seq`, that row holds what it became."""

    __slots__ = ("finish", "id", "seq")

    def __init__(self, conversation: str, id: str, seq: int | None, finish: str) -> None:
        super().__init__(conversation)
        self.id = id
        self.seq = seq
        self.finish = finish


class Signal(Event):
    """Is something ephemeral from one principal to the other subscribers; `data` is its JSON or None."""

    __slots__ = ("by", "data", "name")

    def __init__(self, conversation: str, name: str, data: bytes | None, by: str) -> None:
        super().__init__(conversation)
        self.name = name
        self.data = data
        self.by = by


class Presence(Event):
    """Is who has the conversation open: how many principals and, up to a hundred, their names."""

    __slots__ = ("count", "principals")

    def __init__(self, conversation: str, count: int, principals: list[str] | None) -> None:
        super().__init__(conversation)
        self.count = count
        self.principals = principals


class Closed(Event):
    """Says that the subscription was ended, and why (an error code)."""

    __slots__ = ("code",)

    def __init__(self, conversation: str, code: str) -> None:
        super().__init__(conversation)
        self.code = code
