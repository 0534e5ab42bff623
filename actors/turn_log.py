"""The log as a running turn sees it: prompts in turn order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage import MessageLog, StoredMessage

if TYPE_CHECKING:
    from .conversation import TurnStorage

__all__ = ["TurnLog", "in_turn_order"]


class TurnLog(MessageLog):
    """Is a message log whose prompts are in turn order while a turn runs; reads are in log order always."""

    def __init__(self, storage: TurnStorage) -> None:
        super().__init__(storage)
        self._storage = storage

    async def history(self) -> list[StoredMessage]:
        """Returns the rows of a prompt: without what has no turn yet, each reply behind the message it answers."""
        rows = await self.all()
        turn = self._storage.lane.turn
        return rows if turn is None else in_turn_order(rows, turn.id)


def in_turn_order(rows: list[StoredMessage], turn: int) -> list[StoredMessage]:
    """Returns rows as the turn of message `turn` is to see them.

    A message that came later is not in it, nor what interrupted attempts of this turn left; a row that a turn appended
    stands behind the message of that turn. Pure.
    """
    seen = [
        row
        for row in rows
        if not (row.turn is None and row.role == "user" and row.seq > turn)
        and not (row.turn == turn and row.finish == "interrupted")
    ]
    return sorted(seen, key=lambda row: (row.turn if isinstance(row.turn, int) else row.seq, row.seq))
