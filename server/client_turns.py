"""What an agent does, out of what a server tells of its turns. Pure.

At most one turn runs, others may be queued. A subscription that lagged hears only the last states, so ends are missed:
a turn that runs shows that no other one does any more, and so does the end of one that ran. Only one that was queued
and is stopped may not have run. Whether others are still queued nobody knows behind a lag.
"""

from __future__ import annotations

from .client_frames import TurnState

__all__ = ["Turns"]

QUEUED_MAX = 1000
"""Queued turns that are remembered; above that the oldest is forgotten."""


class Turns:
    """Is what is known of the turns of one conversation."""

    def __init__(self) -> None:
        self._last = TurnState("idle")
        self._running: TurnState | None = None
        self._queued: dict[int | str | None, TurnState] = {}

    @property
    def now(self) -> TurnState:
        """Is the turn that runs, else the first one queued, else what was told last."""
        return self._running or next(iter(self._queued.values()), self._last)

    @property
    def stoppable(self) -> int | str | None:
        """Names the turn that a stop means: the one that runs, else the first one queued, else None."""
        now = self.now
        return now.id if now.state in ("running", "queued") else None

    def opened(self, turn: TurnState) -> None:
        """Begins anew with what a subscription is told first."""
        self._running = None
        self._queued.clear()
        self.told(turn)

    def lagged(self) -> None:
        """The subscription lagged, and hears the last states next."""
        self._queued.clear()
        if self._last.state == "queued":
            self._last = TurnState("idle")

    def told(self, turn: TurnState) -> None:
        """Takes in a state."""
        self._last = turn
        self._queued.pop(None, None)  # which one it was that waited, the answer to `open` did not say
        was_queued = self._queued.pop(turn.id, None) is not None
        if turn.state == "queued":
            self._queued[turn.id] = turn
            if len(self._queued) > QUEUED_MAX:
                del self._queued[next(iter(self._queued))]
        elif turn.state == "running":
            self._running = turn
        elif not (was_queued and turn.state == "stopped"):
            self._running = None
