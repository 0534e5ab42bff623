"""The turn lane: runs the user's code of one conversation, one item at a time (P5), and forgets no message (P7).

The queue of messages is the log. The lane keeps one number, `turn.handled`: every message up to it has had its turn. It
reads the next one behind it, runs `on_message`, and commits the new number. A mark that commits with a client's row
says that the conversation has unfinished work, so that a starting runtime finds it without a scan.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ..storage import Batch, CorruptRow, NewRow, Row, StorageBusy, StorageClosed, StorageError, StorageFailed
from .agent import Agent
from .events import TurnState, TurnTold
from .mailbox import Mailbox

if TYPE_CHECKING:
    from .conversation import Conversation

__all__ = ["TurnLane", "is_trigger"]

HANDLED = "turn.handled"
ITEMS_MAX = 64
PAGE_ROWS = 64
PAGE_BYTES = 64 << 10
RETRY_S = 1.0
RETRY_MAX_S = 30.0
USER_BODY = b'{"role":"user"'  # the codec writes the role first, and this is asked of every row

logger = logging.getLogger("parlatory.actors")


def is_trigger(row: Row | NewRow) -> bool:
    """Says whether a row starts a turn: a message of a user that no turn appended."""
    return row.turn is None and row.body.startswith(USER_BODY)


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
        # How far the log is read: every message up to it has had its turn, or has it now. None: storage was not asked.
        self._read: int | None = None
        self._page: deque[Row] = deque()
        # Messages that wait, of those committed since the lane is there, and the first of these. What was left by an
        # earlier process is not counted: `behind` says that there may be some.
        self._waiting = 0
        self._counted_from: int | None = None
        self._behind = False
        # A look at the log is queued: one at most, so that what clients send costs the mailbox nothing.
        self._posted = False
        # Storage may hold a mark of unfinished work; and how many batches that set it are on their way.
        # Nobody knows the outcome of those whose appender was cancelled, until a later batch has one.
        self._marked = False
        self._marks_sent = 0
        self._marks_unknown = 0
        self._turn: int | None = None
        self._handler: asyncio.Task[None] | None = None
        # The running handler was cut off, so that its message is not handled.
        self._cut = False
        # Storage did not answer the last look; the next one is by the timer, or by the next message.
        self._stalled = False
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S

    # -- what others ask

    @property
    def quiet(self) -> bool:
        """Says that no user code runs or waits; an instance may be there."""
        return self._mailbox.idle

    @property
    def idle(self) -> bool:
        """Says that no user code runs or waits, and no instance is there."""
        return self._instance is None and self._mailbox.idle and self._retry is None

    @property
    def state(self) -> tuple[TurnState, int | None]:
        """Is what a turn is doing now, and which."""
        if self._turn is not None:
            return "running", self._turn
        return ("queued" if self._waiting or self._behind else "idle"), None

    def stamped(self, batch: Batch) -> Batch:
        """Returns a batch of user code, its rows belonging to the running turn."""
        if self._turn is None or not batch.rows:
            return batch
        rows = tuple(msgspec.structs.replace(row, turn=self._turn) for row in batch.rows)
        return msgspec.structs.replace(batch, rows=rows)

    # -- what is committed

    def marked(self, batch: Batch) -> Batch:
        """Returns a batch with the mark of unfinished work, if a row of it will start a turn."""
        if self._answers and any(is_trigger(row) for row in batch.rows):
            return msgspec.structs.replace(batch, work=True)
        return batch

    def mark_sent(self) -> None:
        """Takes note of a batch with the mark: until it has arrived the mark is not taken away."""
        self._marks_sent += 1

    def mark_arrived(self, known: bool = True) -> None:
        """Takes note of the outcome of a batch with the mark; looks again if a mark was kept only for its sake."""
        self._marks_sent -= 1
        self._marks_unknown += not known
        if self._marked and not self._marks_sent and self._mailbox.idle and not self._stalled:
            self._look()

    def committed(self, rows: Sequence[Row]) -> None:
        """Takes note of committed rows, and goes to work on those that start a turn."""
        if not self._answers:
            return
        for row in rows:
            if is_trigger(row):
                self._marked = True
                self._waiting += 1
                if self._counted_from is None:
                    self._counted_from = row.seq
                if self._turn is not None or self._waiting > 1 or self._behind:
                    self._conversation.hub.tell_turn(
                        TurnTold(self._conversation.name, row.seq, "queued", self._waiting)
                    )
                self._look()

    def redeliver(self) -> None:
        """Goes to work on what an earlier process left unfinished."""
        self._marked = self._behind = True
        self._look()

    # -- the end

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
        self._mailbox.clear()
        self._posted = False
        for _ in range(2):
            handler = self._handler
            if handler is None or handler.done():
                break
            self._cut = True
            handler.cancel()
            await asyncio.wait({handler}, timeout=grace_s)
        if self._handler is not None and not self._handler.done():
            logger.error("the handler of %r is stuck: it swallows its cancellation", self._conversation.name)
            return
        await self._mailbox.join()

    def close(self) -> None:
        """Looks at the log no more."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # -- messages

    def _look(self) -> None:
        if not self._posted and not self._conversation.runtime.draining:
            self._posted = True
            self._mailbox.post_nowait(self._next_message)

    async def _next_message(self) -> None:
        """Runs the turn of the next message; where none is left, takes the mark of unfinished work away."""
        self._posted = False
        runtime = self._conversation.runtime
        try:
            row = None if runtime.draining else await self._next()
            if runtime.draining:
                return
            if row is not None:
                await self._run_turn(row)
            else:
                self._behind = False
                if self._marked:
                    await self._settle()
        except Exception as error:  # storage does not answer: what is left stays marked and is taken up again
            self._stall(error)
            return
        self._stalled = False
        self._retry_s = RETRY_S
        if row is not None and runtime.residency.yields(self):
            await self._drop()
        if row is not None or (self._marked and not self._marks_sent):
            self._look()

    def _stall(self, error: Exception) -> None:
        logger.error("the turn lane of %r stops", self._conversation.name, exc_info=error)
        self._stalled = True
        if self._retry is None and not isinstance(error, StorageFailed | StorageClosed):
            self._retry = asyncio.get_running_loop().call_later(self._retry_s, self._try_again)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _try_again(self) -> None:
        self._retry = None
        self._look()

    async def _next(self) -> Row | None:
        """Returns the next row that starts a turn, or None; moves the reading position behind it."""
        await self._skip()
        if not self._page:
            return None
        row = self._page.popleft()
        self._read = row.seq
        return row

    async def _skip(self) -> int:
        """Moves the reading position over rows that start no turn, up to one that does or to the head; returns it."""
        conversation = self._conversation
        read = self._read
        if read is None:
            keys = await conversation.keys(HANDLED)
            read = self._read = int(keys.get(HANDLED, b"0"))
        while True:
            while self._page and not is_trigger(self._page[0]):
                read = self._read = self._page.popleft().seq
            if self._page or read >= conversation.head:
                return read
            if not self._answers:  # of a class that once did: nothing of it is left to do
                read = self._read = conversation.head
                return read
            rows = conversation.hub.recall(read) or await conversation.read(
                after=read, limit=PAGE_ROWS, max_bytes=PAGE_BYTES
            )
            if not rows:
                raise StorageError(f"{conversation.name!r} has no row {read + 1} below its head")
            self._page.extend(rows)

    async def _run_turn(self, row: Row) -> None:
        conversation = self._conversation
        if self._counted_from is not None and row.seq >= self._counted_from:
            self._waiting -= 1
        self._turn = row.seq
        self._cut = False
        conversation.hub.tell_turn(TurnTold(conversation.name, row.seq, "running"))
        ended: TurnState = "error"  # what cannot be made durable is not told as done
        try:
            state = await self._handle(self._deliver(row))
            if not self._cut:
                await self._settle()
            ended = state
        finally:
            self._turn = None
            if not self._cut:
                conversation.hub.tell_turn(TurnTold(conversation.name, row.seq, ended))

    async def _deliver(self, row: Row) -> None:
        stored = row.stored(self._conversation.name)
        agent = await self._activated()
        await agent.on_message(stored)

    async def _settle(self) -> None:
        """Commits how far messages are handled; and that nothing is left, where that is so."""
        conversation = self._conversation
        puts = {HANDLED: b"%d" % await self._skip()}
        # A mark on its way is set in front of this batch, which must not take it away.
        unknown = self._marks_unknown
        done = not self._page and not self._marks_sent and not unknown
        try:
            future = conversation.submit(Batch(puts=puts, work=False if done else None))
        except StorageBusy:
            # It waits for a place, and what others append meanwhile comes in front of it.
            await conversation.commit(Batch(puts=puts))
            return
        self._marked = not done
        try:
            await future
        except BaseException:
            self._marked = True
            raise
        self._marks_unknown -= unknown

    # -- user code

    async def _handle(self, coroutine: Coroutine[Any, Any, None]) -> TurnState:
        """Runs user code in a task of its own, which alone is cancelled; returns how it ended."""
        handler = asyncio.get_running_loop().create_task(
            coroutine, name=f"parlatory handler {self._conversation.name!r}"
        )
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
        where = "on_stop" if self._turn is None else f"turn {self._turn}"
        logger.error("%s of %r failed in %s", what, self._conversation.name, where, exc_info=error)
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
