"""The turn lane: runs the user's code of one conversation, one item at a time (P5), and forgets no message (P7).

The queue of messages is the log. The lane keeps one number, `handled`: every message up to it has had its turn. It reads
the next one behind it, runs `on_message`, and commits the new number. A mark that commits with a client's row says that
the conversation has unfinished work, so that a starting runtime finds it without a scan.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..storage import Batch, CorruptRow, NewRow, Row, StorageBusy, StorageError
from .agent import Agent
from .events import TurnState, TurnTold
from .mailbox import Mailbox

if TYPE_CHECKING:
    from .conversation import Conversation

__all__ = ["TurnLane"]

HANDLED = "turn.handled"
ITEMS_MAX = 64
PAGE_ROWS = 64
PAGE_BYTES = 64 << 10

logger = logging.getLogger("parlatory.actors")


class _Role(msgspec.Struct):
    role: str


_role = msgspec.json.Decoder(_Role)


def is_trigger(row: Row | NewRow) -> bool:
    """Says whether a row starts a turn: a message of a user that no turn appended."""
    return row.turn is None and _role.decode(row.body).role == "user"


class TurnLane:
    """Is where one conversation's user code runs.

    Attributes:
        agent: the class.
    """

    def __init__(self, conversation: Conversation, agent: type[Agent]) -> None:
        self.agent = agent
        self._conversation = conversation
        self._answers = agent.on_message is not Agent.on_message
        self._instance: Agent | None = None
        self._mailbox: Mailbox[Callable[[], Awaitable[None]]] = Mailbox(
            lambda item: item(), limit=ITEMS_MAX, name=conversation.name
        )
        self._handled: int | None = None
        self._read = 0
        self._page: deque[Row] = deque()
        self._waiting = 0
        self._posted = False
        self._turn: int | None = None
        self._handler: asyncio.Task[None] | None = None
        self._interrupted = False
        self._marked = False

    # -- what others ask

    @property
    def quiet(self) -> bool:
        """Says that no user code runs or waits; an instance may be there."""
        return self._mailbox.idle

    @property
    def idle(self) -> bool:
        """Says that no user code runs or waits and no instance is there."""
        return self._instance is None and self._mailbox.idle

    @property
    def state(self) -> tuple[TurnState, int | None]:
        """Is what a turn is doing now, and which."""
        if self._turn is not None:
            return "running", self._turn
        return ("queued" if self._waiting or self._posted else "idle"), None

    def marked(self, batch: Batch) -> Batch:
        """Returns a batch with the mark of unfinished work, if a row of it will start a turn."""
        if self._answers and any(is_trigger(row) for row in batch.rows):
            return msgspec.structs.replace(batch, work=True)
        return batch

    def stamped(self, batch: Batch) -> Batch:
        """Returns a batch of user code, its rows belonging to the running turn."""
        if self._turn is None or not batch.rows:
            return batch
        rows = tuple(msgspec.structs.replace(row, turn=self._turn) for row in batch.rows)
        return msgspec.structs.replace(batch, rows=rows)

    def committed(self, rows: Sequence[Row]) -> None:
        """Takes note of committed rows, and goes to work on those that start a turn."""
        if not self._answers:
            return
        for row in rows:
            if is_trigger(row):
                self._waiting += 1
                if self._turn is not None or self._waiting > 1:
                    self._conversation.hub.tell_turn(
                        TurnTold(self._conversation.name, row.seq, "queued", self._waiting)
                    )
                self._post_message()

    def redeliver(self) -> None:
        """Goes to work on what an earlier process left unfinished."""
        self._marked = True
        self._post_message()

    def dismiss(self) -> None:
        """Lets the instance go, after what waits."""
        if self._instance is not None:
            self._mailbox.post_nowait(self._drop)

    def cancel(self, turn: int | str | None) -> None:
        """Stops the running turn, if it is the one named or none is named; otherwise it does nothing."""
        if self._turn is not None and turn in (None, self._turn) and self._handler is not None:
            self._handler.cancel()

    async def join(self) -> None:
        """Returns once no user code runs or waits."""
        await self._mailbox.join()

    async def interrupt(self, grace_s: float) -> None:
        """Ends the running handler as a crash would, its message unhandled: one cancel, `grace_s`, another, a word."""
        self._interrupted = True
        for attempt in (1, 2):
            handler = self._handler
            if handler is None or handler.done():
                break
            handler.cancel()
            await asyncio.wait({handler}, timeout=grace_s)
            if attempt == 2 and not handler.done():
                logger.error("the handler of %r is stuck: it swallows its cancellation", self._conversation.name)
                return
        await self._mailbox.join()

    # -- messages

    def _post_message(self) -> None:
        """Queues one look at the log; one at a time, so that what clients send costs the mailbox nothing."""
        if not self._posted and not self._conversation.runtime.draining:
            self._posted = True
            self._mailbox.post_nowait(self._next_message)

    async def _next_message(self) -> None:
        self._posted = False
        if self._conversation.runtime.draining:
            return
        try:
            row = await self._next()
            if row is not None:
                await self._run_turn(row)
            elif self._marked:
                await self._settle()
        except StorageError:
            # Its work mark stays: the next start, or the next message, takes it up again.
            logger.exception("the turn lane of %r stops: storage does not answer", self._conversation.name)
            return
        if row is not None and not self._interrupted:
            self._post_message()

    async def _next(self) -> Row | None:
        """Returns the next row that starts a turn, or None; moves the reading position behind it."""
        if not await self._skip():
            return None
        row = self._page.popleft()
        self._read = row.seq
        return row

    async def _skip(self) -> bool:
        """Moves the reading position over rows that start no turn; says whether one that does stands behind it."""
        conversation = self._conversation
        if self._handled is None:
            keys = await conversation.keys(HANDLED)
            self._handled = self._read = int(keys.get(HANDLED, b"0"))
        while True:
            while self._page:
                if is_trigger(self._page[0]):
                    return True
                self._read = self._page.popleft().seq
            if self._read >= conversation.head:
                return False
            rows = conversation.hub.recall(self._read)
            if rows is None:
                rows = await conversation.read(after=self._read, limit=PAGE_ROWS, max_bytes=PAGE_BYTES)
            self._page.extend(rows)

    async def _run_turn(self, row: Row) -> None:
        conversation = self._conversation
        hub = conversation.hub
        self._waiting = max(0, self._waiting - 1)
        self._turn = row.seq
        hub.tell_turn(TurnTold(conversation.name, row.seq, "running"))
        try:
            ended = await self._handle(self._deliver(row))
            if self._interrupted:
                return
            await self._settle()
        finally:
            self._turn = None
        hub.tell_turn(TurnTold(conversation.name, row.seq, ended))

    async def _deliver(self, row: Row) -> None:
        stored = row.stored(self._conversation.name)
        agent = await self._activated()
        await agent.on_message(stored)

    async def _settle(self) -> None:
        """Commits how far messages are handled; and that nothing is left, where that is so."""
        conversation = self._conversation
        more = await self._skip()
        self._handled = self._read
        puts = {HANDLED: b"%d" % self._read}
        # A batch in flight may be a message: its own mark is set in front of this batch, which must not take it away.
        done = not more and not conversation.in_flight
        try:
            future = conversation.submit(Batch(puts=puts, work=False if done else None))
        except StorageBusy:
            # It waits for a place, and what others append meanwhile comes in front of it.
            await conversation.commit(Batch(puts=puts))
            return
        await future
        self._marked = self._marked and not done

    # -- user code

    async def _handle(self, coroutine: Coroutine[Any, Any, None]) -> TurnState:
        """Runs user code in a task of its own, which alone is cancelled; returns how it ended."""
        handler = asyncio.get_running_loop().create_task(coroutine, name=f"parlatory handler {self._conversation.name!r}")
        self._handler = handler
        try:
            await asyncio.wait({handler})
        finally:
            self._handler = None
        if handler.cancelled():
            return "stopped"
        error = handler.exception()
        if error is None:
            return "done"
        what = "a row" if isinstance(error, CorruptRow) else "the handler"
        logger.error("%s of %r failed in turn %s", what, self._conversation.name, self._turn, exc_info=error)
        return "error"

    async def _activated(self) -> Agent:
        """Returns the instance; makes and starts it first if there is none."""
        residency = self._conversation.runtime.residency
        if self._instance is None:
            await residency.enter(self)
            try:
                instance = self.agent(self._conversation.name.partition("/")[2], self._conversation.turn_storage())
                await instance.on_start()
            except BaseException:
                residency.leave(self)
                raise
            self._instance = instance
        residency.touch(self)
        return self._instance

    async def _drop(self) -> None:
        instance = self._instance
        if instance is not None:
            try:
                await self._handle(instance.on_stop())
            finally:
                self._instance = None
                self._conversation.runtime.residency.leave(self)
