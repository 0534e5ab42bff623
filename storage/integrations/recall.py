"""What a library remembers of a log: its own items as they were, the rows of others as a prompt has them.

A log forgets nothing, but libraries want to take an item back, or to begin anew. That is a row too, an assistant
message with one custom part of kind `parlatory.forgotten`: it says which rows are not recalled any more. So it is
durable and ordered, clients are told, and no provider ever sees it. The rows stay in the log, for its readers and for
its own prompts; who has to erase them deletes the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import structs

from ..convert.ingest import Dict, runs
from ..convert.prompt import Prompt, Provider
from ..errors import Conflict
from ..log import MessageLog
from ..messages import AssistantMessage, Custom, Message
from ..rows import StoredMessage

__all__ = ["FORGOTTEN", "Recall"]

FORGOTTEN = "parlatory.forgotten"
"""The kind of the custom part that says what is forgotten: rows up to `through`, or those in `rows`."""


class Recall:
    """Is the part of a log that a library recalls, as items in JSON terms.

    An item is in the metadata of its row, under `<provider>:item`. A row with a client id is of others in any case:
    what a client says of an item or of forgetting is not believed, or it could put words into the mouth of the model.

    Args:
        log: where it is kept.
        provider: whose prompt the rows of others come as.
        items_of: returns the items in such a prompt.
    """

    def __init__(self, log: MessageLog, provider: Provider, items_of: Callable[[Prompt], list[Dict]]) -> None:
        self._log = log
        self._provider = provider
        self._key = f"{provider}:item"
        self._items_of = items_of

    async def add(self, items: Sequence[tuple[Dict | None, Sequence[Message]]]) -> None:
        """Appends items, all or nothing.

        Args:
            items: each with the messages that it is for others; None instead of an item that these give back.
        """
        rows: list[Message] = []
        for item, messages in items:
            for index, message in enumerate(messages):
                if item is not None:
                    kept = {**(message.metadata or {}), self._key: False if index else item}
                    message = structs.replace(message, metadata=kept)
                rows.append(message)
        await self._log.append(rows)

    async def items(self) -> list[Dict]:
        """Returns what is recalled, oldest first."""
        return await self._read(await self._rows())

    async def pop(self) -> Dict | None:
        """Forgets the last item and returns it; None where there is none.

        Of a row that others appended, the last item is returned and the whole row forgotten.
        """
        while True:
            head = await self._log.count()
            rows = await self._rows()
            items = await self._read(rows)
            forgotten: list[int] = []
            while items and rows:
                row = rows.pop()
                forgotten.append(row.seq)
                if self._kept(row) or (self._kept(row) is None and await self._read([row])):
                    break
            if not items:
                return None
            try:
                await self._log.append(_forgotten({"rows": forgotten}), expected_seq=head)
            except Conflict:
                continue  # somebody appended meanwhile: another item is the last
            return items[-1]

    async def clear(self) -> None:
        """Forgets all there is."""
        rows = await self._rows()
        if rows:
            await self._log.append(_forgotten({"through": max(row.seq for row in rows)}))

    async def _read(self, rows: Sequence[StoredMessage]) -> list[Dict]:
        found: list[Dict] = []
        for others, run in runs(rows, lambda row: self._kept(row) is None):
            if others:
                found += self._items_of(await self._log.prompt(self._provider, window=run))
            else:
                found += (item for row in run if (item := self._kept(row)))
        return found

    async def _rows(self) -> list[StoredMessage]:
        """Returns the rows that are recalled, in the order of a prompt."""
        rows = await self._log.context()
        through, taken = 0, set[int]()
        for row in rows:
            if (said := _said(row)) is not None:
                taken |= {row.seq, *said.get("rows", ())}
                through = max(through, said.get("through", 0))
        return [row for row in rows if row.seq > through and row.seq not in taken]

    def _kept(self, row: StoredMessage) -> Any:
        """Returns the item in a row, False where that is in a row before it, None in a row of others."""
        return None if row.client_id is not None else (row.message.metadata or {}).get(self._key)


def _forgotten(what: Dict) -> AssistantMessage:
    return AssistantMessage(content=(Custom(kind=FORGOTTEN, data=what),))


def _said(row: StoredMessage) -> Dict | None:
    """Returns what a row says is forgotten, or None where it says nothing of the kind."""
    match row.message:
        case AssistantMessage(content=(Custom(kind=kind, data=dict() as data),)) if kind == FORGOTTEN:
            return data if row.client_id is None else None
    return None
