"""The mailbox: a bounded queue drained one item at a time, by a task that exists only while there is work.

An idle mailbox is a deque and nothing else, so that a hundred thousand of them cost no tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from .errors import MailboxFull

__all__ = ["Mailbox", "MailboxStatistics"]

Item = TypeVar("Item")

logger = logging.getLogger("parlatory.actors")


class MailboxStatistics(NamedTuple):
    """Is what a mailbox holds: items that wait, whether one is being handled, posts that wait for room."""

    waiting: int
    busy: bool
    blocked: int


class Mailbox(Generic[Item]):
    """Hands items to `handle`, in order, never two at once.

    Args:
        handle: what to do with an item. It deals with its own errors; one that escapes is logged and costs the item.
        limit: how many items may wait.
        name: for errors and the log.
    """

    __slots__ = ("_blocked", "_handle", "_items", "_task", "limit", "name")

    def __init__(self, handle: Callable[[Item], Awaitable[None]], *, limit: int, name: str) -> None:
        if limit < 1:
            raise ValueError("a mailbox takes at least one item")
        self.limit = limit
        self.name = name
        self._handle = handle
        self._items: deque[Item] = deque()
        # Posts that wait for room, in order, each with its item: whoever makes room moves the items in.
        self._blocked: dict[asyncio.Future[None], Item] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Says that nothing waits and nothing is being handled."""
        return self._task is None

    def post_nowait(self, item: Item) -> None:
        """Adds an item; raises MailboxFull where too many wait."""
        if len(self._items) >= self.limit:
            raise MailboxFull(self.name, self.limit)
        self._items.append(item)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain(), name=f"parlatory mailbox {self.name!r}")

    async def post(self, item: Item) -> None:
        """Adds an item, waiting for room first, in order; a post that is cancelled may have added it all the same."""
        if len(self._items) < self.limit:
            self.post_nowait(item)
            return
        accepted = asyncio.get_running_loop().create_future()
        self._blocked[accepted] = item
        try:
            await accepted
        finally:
            self._blocked.pop(accepted, None)

    async def join(self) -> None:
        """Returns once the mailbox is idle."""
        while self._task is not None:
            await asyncio.wait({self._task})

    def clear(self) -> None:
        """Forgets the items that wait; the one being handled goes on, and so do posts that wait for room."""
        self._items.clear()
        self._refill()

    def statistics(self) -> MailboxStatistics:
        """Returns what the mailbox holds now."""
        return MailboxStatistics(len(self._items), self._task is not None, len(self._blocked))

    def _refill(self) -> None:
        while self._blocked and len(self._items) < self.limit:
            accepted = next(iter(self._blocked))
            item = self._blocked.pop(accepted)
            if not accepted.cancelled():
                accepted.set_result(None)
                self._items.append(item)

    async def _drain(self) -> None:
        try:
            while self._items:
                item = self._items.popleft()
                self._refill()
                try:
                    await self._handle(item)
                except Exception:  # the drain outlives whatever one item does
                    logger.exception("an item of the mailbox of %r was lost", self.name)
        finally:
            self._task = None
