"""The turn lane: runs the user's code of one conversation, one item at a time (P5), and forgets no message (P7).

The queue of messages is the log; `turn_marks.py` says how far it has been worked off. The lane reads the next message,
runs `on_message`, and commits that it is handled. A turn ends in one of these ways:

- its handler returns: `done` (or `waiting`). Where a finished draft was its answer, the row of that draft and the mark
  that the message is handled were one batch; what the handler does behind it is no part of the answer.
- its handler raises, or is over its time: `error`. A stop: `stopped`. What was written is kept, and the message is
  handled.
- the process ends: nothing is told, and the message is delivered again by the next process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from ..storage import (
    Batch,
    Committed,
    NewRow,
    Row,
    StorageClosed,
    StorageError,
    StorageFailed,
    assistant_message,
    new_row,
)
from .agent import Agent
from .approvals import decides
from .draft import Draft
from .events import DraftEnded, TurnState, TurnTold
from .handler import Ended, Handler, StopCause
from .mailbox import Mailbox, MailboxStatistics
from .turn import Turn
from .turn_marks import HANDLED, Attempt, TurnMarks, is_trigger

if TYPE_CHECKING:
    from .conversation import Conversation

__all__ = ["TurnLane"]

GIVEN_UP = "This could not be answered."
ITEMS_MAX = 64
EARLIER_PAGE_ROWS = 200
RETRY_S = 1.0
RETRY_MAX_S = 30.0

logger = logging.getLogger("parlatory.actors")


class TurnLane:
    """Is where one conversation's user code runs.

    Attributes:
        agent: the class.
        marks: how far the log has been worked off.
        turn: the running turn, once its agent sees it.
    """

    def __init__(self, conversation: Conversation, agent: type[Agent], before: TurnLane | None = None) -> None:
        self.agent = agent
        self.turn: Turn | None = None
        self._conversation = conversation
        self._answers = agent.on_message is not Agent.on_message
        self.marks: TurnMarks = TurnMarks(conversation, self._answers, None if before is None else before.marks)
        self._instance: Agent | None = None
        self._mailbox: Mailbox[Callable[[], Awaitable[None]]] = Mailbox(
            lambda item: item(), limit=ITEMS_MAX, name=conversation.name
        )
        # Messages that wait, of those committed since the lane is there, and the first of these. What was left by an
        # earlier process is not counted: `behind` says that there may be some.
        self._waiting = 0
        self._counted_from: int | None = None
        self._behind = False
        # The last message that may supersede others: one that is no approval.
        self._newest = 0
        # A look at the log is queued: one at most, so that what clients send costs the mailbox nothing.
        self._posted = False
        # The running turn, the user code that runs, and the draft that it has open.
        self._turn: int | None = None
        self._handler: Handler | None = None
        self._draft: Draft | None = None
        # The finish of the draft that was the answer of the running turn: its message is marked as handled already.
        self._answer: str | None = None
        # The turn that is over and whose mark storage refused: its end is told, and another one begins, when that is
        # durable. Otherwise a crash would deliver both again, and only the first would be known to have begun.
        self._owed: int | None = None
        # Ends of drafts that are being committed, and queued turns that are being cancelled.
        self._ending: set[asyncio.Task[None]] = set()
        self._cancelling: set[asyncio.Task[None]] = set()
        # No handler begins any more.
        self._interrupted = False
        # The instance is being let go, or will be before anything else is done.
        self.leaving = False
        # Storage did not answer the last look; the next one is by the timer, or by the next message.
        self._stalled = False
        self._retry: asyncio.TimerHandle | None = None
        self._retry_s = RETRY_S
        self._deserted: asyncio.TimerHandle | None = None

    # -- what others ask

    @property
    def quiet(self) -> bool:
        """Says that no user code runs or waits; an instance may be there."""
        return self._mailbox.idle

    @property
    def idle(self) -> bool:
        """Says that no user code runs or waits, and no instance is there."""
        return self._instance is None and self._mailbox.idle and self._retry is None and not self._cancelling

    @property
    def busy(self) -> bool:
        """Says that a turn runs or waits."""
        return self.state[0] != "idle"

    @property
    def conversation(self) -> Conversation:
        """Is the record that the lane belongs to."""
        return self._conversation

    @property
    def cause(self) -> StopCause | None:
        """Is why the running handler was stopped."""
        return None if self._handler is None else self._handler.cause

    @property
    def writing(self) -> bool:
        """Says that a draft is open."""
        return self._draft is not None

    @property
    def interrupted(self) -> bool:
        """Says that the running handler was cut off, to be delivered again."""
        return self.cause == "interrupt"

    @property
    def state(self) -> tuple[TurnState, int | None]:
        """Is what a turn is doing now, and which."""
        running = self._turn or self._owed
        if running is not None:
            return "running", running
        return ("queued" if self._waiting or self._behind else "idle"), None

    @property
    def resident(self) -> bool:
        """Says that an instance of the agent is there."""
        return self._instance is not None

    @property
    def queued(self) -> int:
        """Is how many messages wait for their turn, of those committed since the lane is there."""
        return self._waiting

    @property
    def draft(self) -> Draft | None:
        """Is the draft that is being written."""
        return self._draft

    @property
    def mailbox(self) -> MailboxStatistics:
        """Is what waits for the lane."""
        return self._mailbox.statistics()

    def stamped(self, batch: Batch) -> Batch:
        """Returns a batch of user code, its rows belonging to the running turn."""
        if self._turn is None or not batch.rows:
            return batch
        rows = tuple(msgspec.structs.replace(row, turn=self._turn) for row in batch.rows)
        return msgspec.structs.replace(batch, rows=rows)

    # -- what is committed

    def mark_arrived(self, known: bool = True, written: bool = False) -> None:
        """Takes note of the outcome of a batch with the mark; looks again if a mark was kept only for its sake."""
        marks = self.marks
        marks.arrived(known, written)
        if marks.marked and not marks.busy and self._mailbox.idle and not self._stalled:
            self._look()

    def committed(self, rows: Sequence[Row]) -> None:
        """Takes note of committed rows, and goes to work on those that start a turn."""
        if not self._answers:
            return
        for row in rows:
            if is_trigger(row):
                self.marks.marked = True
                self._waiting += 1
                if self._counted_from is None:
                    self._counted_from = row.seq
                if self._turn is not None or self._waiting > 1 or self._behind:
                    self._tell(row.seq, "queued", self._waiting)
                self._look()
                if self.agent.on_busy == "preempt" and not self._decides(row):
                    self._newest = row.seq
                    self._stop("stop")

    async def recover(self) -> None:
        """Makes good what an earlier process left: the partial of a draft becomes a row, and what waits is taken up."""
        if await self.marks.recover():
            self._take_up()

    def redeliver(self) -> None:
        """Goes to work on what an earlier process left unfinished, as its mark in storage says."""
        self.marks.found()
        self._take_up()

    def _take_up(self) -> None:
        self.marks.marked = True
        self._behind = self.marks.left or (self.marks.read or 0) < self._conversation.head
        self._look()

    # -- stopping

    def cancel(self, turn: int | str | None) -> None:
        """Stops the running turn, if it is the one named or none is named, or a queued one that is named."""
        read = self.marks.read or 0
        if self._turn is not None and turn in (None, self._turn):
            self._stop("stop")
        elif isinstance(turn, int) and self._answers and read < turn <= self._conversation.head:
            name = f"parlatory cancel {self._conversation.name!r} {turn}"
            task = asyncio.get_running_loop().create_task(self._cancel_queued(turn), name=name)
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    def _stop(self, cause: StopCause) -> None:
        """Stops the running turn, unless its answer is being committed: nothing is left to stop then."""
        answering = self._draft is not None and self._draft.final
        if self._turn is not None and self._handler is not None and not answering:
            self._handler.stop(cause)

    @contextmanager
    def _limit(self, what: str, seconds: float | None) -> Iterator[float | None]:
        """Stops the user code inside once its time is over; yields the loop time of that, if it has an end."""
        if seconds is None:
            yield None
            return
        timer = asyncio.get_running_loop().call_later(seconds, self._overdue, what, seconds)
        try:
            yield timer.when()
        finally:
            timer.cancel()

    def _overdue(self, what: str, seconds: float) -> None:
        logger.error("%s of %r is over its %s s", what, self._conversation.name, seconds)
        if self._turn is not None:
            self._stop("timeout")
        elif self._handler is not None:
            self._handler.stop("timeout")

    async def _cancel_queued(self, turn: int) -> None:
        """Makes it durable that a message gets no turn, then tells its end."""
        try:
            skipped = await self.marks.skip_turn(turn)
        except StorageError as error:
            logger.error("turn %d of %r cannot be cancelled", turn, self._conversation.name, exc_info=error)
            return
        if skipped:
            self._count_off(turn)
            self._tell(turn, "stopped")
        elif self._turn == turn:  # it began meanwhile
            self._stop("stop")

    def watched(self, anybody: bool) -> None:
        """Takes note that somebody subscribes, or nobody any more, which may end a turn (`cancel_when_empty_s`)."""
        if self._deserted is not None:
            self._deserted.cancel()
            self._deserted = None
        after = self.agent.cancel_when_empty_s
        if not anybody and after is not None and self._turn is not None:
            self._deserted = asyncio.get_running_loop().call_later(after, self._stop, "stop")

    def dismiss(self) -> None:
        """Lets the instance go, after what waits."""
        if self._instance is not None:
            self.leaving = self._mailbox.idle
            self._mailbox.post_nowait(self._drop)

    async def join(self) -> None:
        """Returns once no user code runs or waits."""
        await self._mailbox.join()

    @property
    def cancelling(self) -> Collection[asyncio.Task[None]]:
        """Are the queued turns that are being cancelled, which is durable when they end."""
        return tuple(self._cancelling)

    async def interrupt(self) -> None:
        """Ends the running handler as a crash would, its message unhandled; one that is stuck is not waited for."""
        self._mailbox.clear()
        self._posted = self.leaving = False
        self._interrupted = True
        try:
            if self._draft is not None and self._draft.final:
                # The answer is being committed: the turn is not cut any more.
                await asyncio.wait({self._draft.end(self._draft.finish)})
            if self._handler is not None:
                self._handler.stop("interrupt")
                if not await self._handler.over():
                    return
            await self._mailbox.join()
        finally:
            self._interrupted = False

    def close(self) -> None:
        """Looks at the log no more."""
        for timer in (self._retry, self._deserted):
            if timer is not None:
                timer.cancel()
        self._retry = self._deserted = None

    # -- messages

    def _tell(self, turn: int, state: TurnState, queued: int | None = None) -> None:
        conversation = self._conversation
        conversation.runtime.counters.told(state)
        conversation.hub.tell_turn(TurnTold(conversation.name, turn, state, queued))

    def _count_off(self, seq: int) -> None:
        if self._counted_from is not None and seq >= self._counted_from:
            self._waiting -= 1

    def _look(self) -> None:
        if not self._posted and not self._conversation.runtime.draining:
            self._posted = True
            self._mailbox.post_nowait(self._next_message)

    async def _next_message(self) -> None:
        """Runs the turn of the next message; where none is left, takes the mark of unfinished work away."""
        self._posted = False
        runtime = self._conversation.runtime
        marks = self.marks
        try:
            if not runtime.draining:
                await self._settle_owed()
            row = None if runtime.draining else await marks.next()
            if runtime.draining:
                return
            if row is not None and self.agent.on_busy in ("latest", "preempt"):
                row = await self._latest(row)
            if row is not None:
                await self._run_turn(row)
            else:
                self._behind = False
                if marks.marked or marks.refused:
                    await self._settle(Batch())
        except Exception as error:  # storage does not answer: what is left stays marked and is taken up again
            self._stall(error)
            return
        self._stalled = False
        self._retry_s = RETRY_S
        if row is not None and runtime.residency.yields(self):
            await self._drop()
        if row is not None or (marks.marked and not marks.busy):
            self._look()

    async def _settle_owed(self) -> None:
        """Makes durable what storage refused at the end of a turn, and tells that end."""
        if self._owed is not None:
            await self._settle(Batch())
            owed, self._owed = self._owed, None
            self._tell(owed, "error")

    def _stall(self, error: Exception) -> None:
        logger.error("the turn lane of %r stops", self._conversation.name, exc_info=error)
        self._stalled = True
        if self._retry is None and not isinstance(error, StorageFailed | StorageClosed):
            self._retry = asyncio.get_running_loop().call_later(self._retry_s, self._try_again)
            self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    def _try_again(self) -> None:
        self._retry = None
        self._look()

    async def _latest(self, row: Row) -> Row:
        """Returns the last message that waits; the others end before they start.

        An approval is no newer question: it supersedes nothing, and nothing supersedes it.
        """
        marks = self.marks
        rows = [row]
        try:
            while not self._decides(rows[-1]) and (later := await marks.next()) is not None:
                if self._decides(later):
                    marks.put_back([later])
                    break
                rows.append(later)
            *superseded, last = rows
            if superseded:
                await self._conversation.commit(Batch(puts={HANDLED: b"%d" % superseded[-1].seq}))
        except BaseException:
            marks.put_back(rows)
            raise
        for one in superseded:
            self._count_off(one.seq)
            self._tell(one.seq, "stopped")
        return last

    def _decides(self, row: Row) -> bool:
        return decides(row, self._conversation.name)

    async def _run_turn(self, row: Row) -> None:
        handler = self._new_handler(f"turn {row.seq}")
        self._turn, self._answer = row.seq, None
        try:
            earlier = await self._earlier(row.seq) if self.marks.has_begun(row.seq) else []
            attempt = await self.marks.count_attempt(row.seq)
        except BaseException:  # it did not begin
            self.marks.put_back([row])
            handler.close()
            self._turn = self._handler = None
            if handler.cause == "stop":
                self.cancel(row.seq)
            raise
        self._count_off(row.seq)
        self._tell(row.seq, "running")
        if self._newest > row.seq and not self._decides(row):  # another one came just before it began
            handler.stop("stop")
        self.watched(bool(self._conversation.hub.subscriptions))
        state: TurnState | None = None
        try:
            state = await self._play(row, attempt, earlier, handler)
        finally:
            handler.close()
            cut = self._cut(handler)
            self._turn = self.turn = self._handler = None
            self.watched(True)
            if state is None:  # it could not be made durable
                self._owed = None if cut else row.seq
            elif not cut:
                self._tell(row.seq, state)

    def _cut(self, handler: Handler) -> bool:
        """Says that a turn ended with its process, so that its message is delivered again."""
        return handler.cause == "interrupt" and self._answer is None

    async def _play(self, row: Row, attempt: Attempt, earlier: list[Row], handler: Handler) -> TurnState:
        """Runs the user code of a turn, sees to its draft and its mark, and returns how it ended."""
        given_up = attempt.number - attempt.drained > self.agent.max_attempts
        if given_up:
            logger.error("turn %d of %r is given up: %d attempts", row.seq, self._conversation.name, attempt.number - 1)
            _, said = new_row(assistant_message(GIVEN_UP), by="agent", turn=row.seq, finish="error")
            self.marks.refused += (said,)
            await self._settle(Batch())
            self._answer = "error"
        ended = await handler.run(self._deliver(row, attempt.number, earlier, given_up))
        if self._draft is not None:  # left open, or its end has been waited for no longer
            self._draft.end(self.finish(ended))
        if self._ending:
            await asyncio.wait(self._ending)
        if self._cut(handler):
            await self.marks.excuse(attempt)
        elif self._answer is None:
            await self._settle(Batch())
        if given_up:
            return "error"
        if ended == "stopped":
            return "done" if self._answer == "done" else "error" if handler.cause == "timeout" else "stopped"
        return "waiting" if ended == "done" and self.turn is not None and self.turn.waiting else ended

    async def _deliver(self, row: Row, attempt: int, earlier: list[Row], given_up: bool) -> None:
        name = self._conversation.name
        stored = row.stored(name)
        before = [one.stored(name) for one in earlier]
        agent = await self._activated()
        what, seconds = f"turn {row.seq}", self.agent.turn_timeout_s
        if given_up:
            what, seconds = f"on_turn_failed {row.seq}", self.agent.method_timeout_s
        with self._limit(what, seconds) as deadline:
            self.turn = Turn(stored, attempt, before, deadline)
            await (agent.on_turn_failed(stored) if given_up else agent.on_message(stored))

    async def _earlier(self, turn: int) -> list[Row]:
        """Returns the rows that earlier attempts of a turn appended."""
        found: list[Row] = []
        after = turn
        while rows := await self._conversation.read(after=after, limit=EARLIER_PAGE_ROWS):
            found += [row for row in rows if row.turn == turn]
            after = rows[-1].seq
        return found

    async def _settle(self, batch: Batch, told: Callable[[Committed], object] | None = None) -> Committed:
        """Commits a batch with the mark of what is handled."""
        committed = await self.marks.settle(batch, told)
        self._behind = self._behind and self.marks.left
        return committed

    # -- drafts

    async def save_refused(self) -> None:
        """Commits what storage refused before: nothing of its turn comes in front of it; raises StorageError."""
        if self.marks.refused:
            saving = asyncio.create_task(self.marks.save_refused(), name=f"parlatory save {self._conversation.name!r}")
            self.own_end(saving)
            await asyncio.shield(saving)

    def begin_draft(self, draft: Draft) -> None:
        """Takes note of a draft; one at a time, in its turn."""
        if self._turn is None or draft.turn != self._turn:
            raise RuntimeError("a draft belongs to its turn: open it while on_message runs")
        if self._draft is not None:
            raise RuntimeError("a draft is open in this turn: end it before the next one")
        self._draft = draft
        self._conversation.hub.open_draft(draft)

    def finish(self, ended: Ended) -> str:
        """Returns the finish of a draft whose turn, or whose own block, ends like this."""
        if ended != "stopped":
            return ended
        return {"interrupt": "interrupted", "timeout": "error"}.get(self.cause or "stop", "stopped")

    async def commit_draft(self, draft: Draft, row: NewRow | None) -> None:
        """Commits what a draft became: its row, if it is the answer with the mark that its message is handled."""

        def told(committed: Committed) -> None:
            # In the very step that tells the row: nobody is told of one without the other.
            if draft.final:
                self._answer = draft.finish
            self.end_draft(draft, committed.rows[-1].seq)

        if row is None:
            await self.marks.end_draft()
            return
        try:
            if draft.final:
                await self._settle(Batch(rows=(row,)), told)
            else:
                await self.marks.end_draft((row,), told)
        except StorageError:
            self.marks.refused += (msgspec.structs.replace(row, finish="error"),)
            raise

    def own_end(self, task: asyncio.Task[None]) -> None:
        """Takes the task that commits the end of a draft: the turn does not end before it."""
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.add_done_callback(_retrieved)

    def end_draft(self, draft: Draft, seq: int | None) -> None:
        """Tells the end of a draft, once."""
        if self._draft is draft:
            self._draft = None
            draft.seq = seq
            lost = seq is None and draft.finish == "done" and not draft.empty
            finish = "error" if lost else draft.finish
            self._conversation.hub.close_draft(DraftEnded(self._conversation.name, draft.id, seq, finish))

    # -- user code

    def _new_handler(self, what: str) -> Handler:
        runtime = self._conversation.runtime
        handler = Handler(self._conversation.name, what, runtime.stop_grace_s, runtime.watchdog)
        if self._interrupted:
            handler.stop("interrupt")
        self._handler = handler
        return handler

    async def _activated(self) -> Agent:
        """Returns the instance; makes and starts it first if there is none."""
        residency = self._conversation.runtime.residency
        if self._instance is None:
            await residency.enter(self)
            try:
                instance = self.agent(self._conversation.name.partition("/")[2], self._conversation.turn_storage())
                with self._limit("on_start", self.agent.method_timeout_s):
                    await instance.on_start()
            except BaseException:
                residency.leave(self)
                raise
            self._instance = instance
        residency.touch(self)
        return self._instance

    async def _drop(self) -> None:
        if (instance := self._instance) is not None:
            self.leaving = True
            try:
                handler = self._new_handler("on_stop")
                with self._limit("on_stop", self.agent.method_timeout_s):
                    await handler.run(instance.on_stop())
            finally:
                self._instance = self._handler = None
                self.leaving = False
                self._conversation.runtime.counters.evictions += 1
                self._conversation.runtime.residency.leave(self)


def _retrieved(task: asyncio.Task[None]) -> None:
    """Takes the error of a task whose handler may not be there any more to see it."""
    if not task.cancelled():
        task.exception()
