"""The log as a running turn sees it: prompts in turn order."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..storage import MessageLog, StoredMessage
from .approvals import in_words
from .tools import waiting_calls

if TYPE_CHECKING:
    from .conversation import TurnStorage

__all__ = ["TurnLog", "in_turn_order"]


class TurnLog(MessageLog):
    """Is a message log whose prompts are in turn order while a turn runs; reads are in log order always."""

    def __init__(self, storage: TurnStorage) -> None:
        super().__init__(storage)
        self._storage = storage

    def _in_prompt_order(self, rows: list[StoredMessage], since: int) -> list[StoredMessage]:
        turn = self._storage.lane.turn
        if turn is not None:
            # A row that stands further back than `since` has others before it that are not among these.
            rows = [row for row in in_turn_order(rows, turn.id) if _place(row) >= since]
        return [in_words(row) for row in rows]

    async def _pending(self, rows: Sequence[StoredMessage]) -> Collection[tuple[int, str]]:
        if any(row.message.tool_calls for row in rows if row.role == "assistant"):
            return await waiting_calls(self._storage.lane.conversation)
        return ()


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
    return sorted(seen, key=lambda row: (_place(row), row.seq))


def _place(row: StoredMessage) -> int:
    return row.turn if isinstance(row.turn, int) else row.seq


def _left(row: StoredMessage) -> bool:
    return row.finish == "interrupted"
