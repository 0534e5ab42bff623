"""The log as a running turn sees it: prompts in turn order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..storage import MessageLog, StoredMessage
from .tools import prompt_rows

if TYPE_CHECKING:
    from .conversation import TurnStorage

__all__ = ["TurnLog", "in_turn_order"]


class TurnLog(MessageLog):
    """Is a message log whose prompts are in turn order while a turn runs; reads are in log order always."""

    def __init__(self, storage: TurnStorage) -> None:
        super().__init__(storage)
        self._storage = storage

    async def history(self) -> list[StoredMessage]:
        """Returns the rows of a prompt: without what has no turn yet, each reply and result behind what it answers."""
        rows = await self.all()
        turn = self._storage.lane.turn
        if turn is None:
            return rows
        return await prompt_rows(in_turn_order(rows, turn.id), self._storage.lane.conversation)


def in_turn_order(rows: list[StoredMessage], turn: int) -> list[StoredMessage]:
    """Returns rows as the turn of message `turn` is to see them.

    A message that came later is not in it; a row that a turn appended stands behind the message of that turn. What an
    interrupted attempt left is not in it where the turn was attempted again: now, or earlier with an answer. Pure.
    """
    again: set[int | str | None] = {turn}
    again.update(row.turn for row in rows if row.turn is not None and row.role == "assistant" and not _left(row))
    seen = [
        row
        for row in rows
        if not (row.turn is None and row.role == "user" and row.seq > turn) and not (_left(row) and row.turn in again)
    ]
    return sorted(seen, key=lambda row: (row.turn if isinstance(row.turn, int) else row.seq, row.seq))


def _left(row: StoredMessage) -> bool:
    return row.finish == "interrupted"
