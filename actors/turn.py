"""A turn: one run of the agent's code for one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ..storage import StoredMessage

__all__ = ["OnBusy", "Turn"]

OnBusy = Literal["queue", "latest", "reject", "preempt"]
"""What happens to a message that comes while a turn runs.

- `queue`: it waits; each message gets its turn, in order.
- `latest`: it waits; of those that wait only the last gets a turn, the others end as `stopped` before they start.
- `reject`: it is refused as `busy` and leaves no row; the client may repeat it later.
- `preempt`: the running turn is stopped, as by a cancel, and this one runs; of those that wait only the last, as with
  `latest`.
"""


class Turn:
    """Is the running turn, as its agent sees it.

    Attributes:
        id: the seq of the message that started it; rows appended in it carry it.
        attempt: 1, or more where an earlier attempt ended with its process.
        trigger: the message that started it.
        rows: what earlier attempts appended, oldest first; their interrupted partials are in it, but in no prompt.
        deadline: the time of the loop at which it is stopped, for `asyncio.timeout_at`; None without a limit.
        waiting: set where the turn ends in state `waiting`, because a tool call needs somebody's approval.
    """

    __slots__ = ("attempt", "deadline", "id", "rows", "trigger", "waiting")

    def __init__(
        self, trigger: StoredMessage, attempt: int, rows: Sequence[StoredMessage], deadline: float | None = None
    ) -> None:
        self.id = trigger.seq
        self.attempt = attempt
        self.trigger = trigger
        self.rows = tuple(rows)
        self.deadline = deadline
        self.waiting = False

    def __repr__(self) -> str:
        return f"<Turn {self.id} attempt={self.attempt}>"
