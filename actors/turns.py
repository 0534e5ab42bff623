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

from ..storage import (
    Batch,
    Committed,
    CorruptRow,
    NewRow,
    Row,
    StorageBusy,
    StorageClosed,
    StorageError,
    StorageFailed,
    assistant_message,
    decode_message,
    new_row,
)
from .agent import Agent
from .draft import CHECKPOINT, Checkpoint, Draft
from .events import DraftEnded, TurnState, TurnTold
from .mailbox import Mailbox
from .turn import Turn

if TYPE_CHECKING:
    from .conversation import Conversation

__all__ = ["TurnLane", "is_trigger"]

KEYS = "turn."
HANDLED = "turn.handled"
ATTEMPT = "turn.attempt"
SKIPPED = "turn.skipped"
ATTEMPTS_MAX = 3
GIVEN_UP = "This could not be answered."
ITEMS_MAX = 64
PAGE_ROWS = 64
PAGE_BYTES = 64 << 10
RETRY_S = 1.0
RETRY_MAX_S = 30.0
USER_BODY = b'{"role":"user"'  # the codec writes the role first, and this is asked of every row

logger = logging.getLogger("parlatory.actors")


class Attempt(msgspec.Struct):
    """Is how often the turn of a message has been attempted."""

    seq: int
    number: int


_encode = msgspec.json.Encoder().encode
_checkpoint = msgspec.json.Decoder(Checkpoint)
_attempt = msgspec.json.Decoder(Attempt)
_seqs = msgspec.json.Decoder(list[int])


def is_trigger(row: Row | NewRow) -> bool:
    """Says whether a row starts a turn: a message of a user that no turn appended."""
    return row.turn is None and row.body.startswith(USER_BODY)


class TurnLane:
    """Is where one conversation's user code runs.

    Attributes:
        agent: the class.
        turn: the running turn, once its agent sees it.
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
        # What the agent sees of it, the draft that it writes, and whether its message is marked as handled already.
        self.turn: Turn | None = None
        self._draft: Draft | None = None
        self._settled = False
        # Messages whose turn was cancelled before it began.
        self._skipped: set[int] = set()
        self._cancelling: set[asyncio.Task[None]] = set()
        # The message that an earlier process may have begun, and how often.
        self._begun: Attempt | None = None
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
    def busy(self) -> bool:
        """Says that a turn runs or waits."""
        return self._turn is not None or self._waiting > 0 or self._behind

    @property
    def conversation(self) -> Conversation:
        """Is the record that the lane belongs to."""
        return self._conversation

    @property
    def interrupted(self) -> bool:
        """Says that the running handler was cut off, to be delivered again."""
        return self._cut

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
                if self.agent.on_busy == "preempt" and self._turn is not None:
                    self._stop_handler()

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
        """Stops the running turn, if it is the one named or none is named, or a queued one that is named."""
        if self._turn is not None and turn in (None, self._turn):
            self._stop_handler()
        elif isinstance(turn, int) and self._answers and (self._read or 0) < turn <= self._conversation.head:
            task = asyncio.get_running_loop().create_task(
                self._cancel_queued(turn), name=f"parlatory cancel {self._conversation.name!r} {turn}"
            )
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)

    def _stop_handler(self) -> None:
        # A draft whose end is being committed is the end of the turn: there is nothing left to stop.
        if self._handler is not None and not self._settled and not (self._draft is not None and self._draft.ending):
            self._handler.cancel()

    async def _cancel_queued(self, turn: int) -> None:
        """Makes it durable that a message gets no turn, then tells its end."""
        conversation = self._conversation
        try:
            rows = conversation.hub.recall(turn - 1) or await conversation.read(after=turn - 1, limit=1)
            if turn in self._skipped or not rows or not is_trigger(rows[0]):
                return
            self._skipped.add(turn)
            await conversation.commit(Batch(puts={SKIPPED: _encode(sorted(self._skipped))}))
        except StorageError as error:
            self._skipped.discard(turn)
            logger.error("turn %d of %r cannot be cancelled", turn, conversation.name, exc_info=error)
            return
        if self._turn == turn:  # it began meanwhile
            self._stop_handler()
            return
        if self._counted_from is not None and turn >= self._counted_from:
            self._waiting -= 1
        conversation.hub.tell_turn(TurnTold(conversation.name, turn, "stopped"))

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
            if row is not None and self.agent.on_busy == "latest":
                row = await self._latest(row)
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

    async def _latest(self, row: Row) -> Row:
        """Returns the last message that waits; the others end before they start."""
        superseded = []
        while (later := await self._next()) is not None:
            superseded.append(row.seq)
            row = later
        if superseded:
            conversation = self._conversation
            await conversation.commit(Batch(puts={HANDLED: b"%d" % superseded[-1]}))
            for seq in superseded:
                if self._counted_from is not None and seq >= self._counted_from:
                    self._waiting -= 1
                conversation.hub.tell_turn(TurnTold(conversation.name, seq, "stopped"))
        return row

    async def recover(self) -> None:
        """Makes good what an earlier process left: the partial of a draft becomes a row, and what waits is taken up."""
        conversation = self._conversation
        if not self._answers or not conversation.head:
            return
        keys = await conversation.keys(KEYS)
        self._read = int(keys.get(HANDLED, b"0"))
        self._skipped = set(_seqs.decode(keys.get(SKIPPED, b"[]")))
        if CHECKPOINT in keys:
            left = _checkpoint.decode(keys[CHECKPOINT])
            _, row = new_row(left.message, by="agent", turn=left.turn, finish="interrupted")
            await conversation.partition.commit(Batch(rows=(row,), deletes=(CHECKPOINT,)))
        await self._skip()
        if self._page:
            first = self._page[0].seq
            begun = _attempt.decode(keys[ATTEMPT]) if ATTEMPT in keys else None
            self._begun = begun if begun is not None and begun.seq == first else Attempt(first, 1)
            self.redeliver()

    async def _skip(self) -> int:
        """Moves the reading position over rows that start no turn, up to one that does or to the head; returns it."""
        conversation = self._conversation
        read = self._read
        if read is None:
            keys = await conversation.keys(HANDLED)
            read = self._read = int(keys.get(HANDLED, b"0"))
        while True:
            while self._page and (not is_trigger(self._page[0]) or self._page[0].seq in self._skipped):
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
        self._cut = self._settled = False
        conversation.hub.tell_turn(TurnTold(conversation.name, row.seq, "running"))
        ended: TurnState = "error"  # what cannot be made durable is not told as done
        try:
            attempt = await self._count_attempt(row.seq)
            deliver = self._deliver(row, attempt) if attempt <= ATTEMPTS_MAX else self._give_up(row, attempt)
            state = await self._handle(deliver)
            if not self._cut and not self._settled:
                await self._settle()
            if attempt > ATTEMPTS_MAX:
                ended = "error"
            elif state == "done" and self.turn is not None and self.turn.waiting:
                ended = "waiting"
            else:
                ended = state
        finally:
            self._turn = self.turn = None
            if not self._cut:
                conversation.hub.tell_turn(TurnTold(conversation.name, row.seq, ended))

    async def _count_attempt(self, seq: int) -> int:
        """Returns which attempt this is; from the second on the number is durable before the attempt starts."""
        begun, self._begun = self._begun, None
        if begun is None or begun.seq != seq:
            return 1
        number = begun.number + 1
        await self._conversation.commit(Batch(puts={ATTEMPT: _encode(Attempt(seq, number))}))
        return number

    async def _deliver(self, row: Row, attempt: int) -> None:
        stored = row.stored(self._conversation.name)
        agent = await self._activated()
        self.turn = Turn(stored, attempt, await self._earlier(row.seq) if attempt > 1 else ())
        await agent.on_message(stored)

    async def _earlier(self, turn: int) -> list[Any]:
        """Returns the rows that earlier attempts of a turn appended."""
        conversation = self._conversation
        found = []
        after = turn
        while rows := await conversation.read(after=after, limit=PAGE_ROWS):
            found += [row.stored(conversation.name) for row in rows if row.turn == turn]
            after = rows[-1].seq
        return found

    async def _give_up(self, row: Row, attempt: int) -> None:
        """Ends a turn whose every attempt took the process down: a row says so, and the agent is told."""
        logger.error("turn %d of %r is given up after %d attempts", row.seq, self._conversation.name, attempt - 1)
        _, said = new_row(assistant_message(GIVEN_UP), by="agent", turn=row.seq, finish="error")
        await self._settle(Batch(rows=(said,)))
        self._settled = True
        stored = row.stored(self._conversation.name)
        await (await self._activated()).on_turn_failed(stored)

    async def _settle(self, batch: Batch | None = None) -> Committed:
        """Commits a batch and, with it, how far messages are handled; and that nothing is left, where that is so."""
        conversation = self._conversation
        batch = batch or Batch()
        read = await self._skip()
        puts: dict[str, bytes] = {**batch.puts, HANDLED: b"%d" % read}
        if passed := {seq for seq in self._skipped if seq <= read}:
            self._skipped -= passed
            puts[SKIPPED] = _encode(sorted(self._skipped))
        # A mark on its way is set in front of this batch, which must not take it away.
        unknown = self._marks_unknown
        done = not self._page and not self._marks_sent and not unknown
        batch = msgspec.structs.replace(batch, puts=puts)
        try:
            future = conversation.submit(msgspec.structs.replace(batch, work=False if done else None))
        except StorageBusy:
            # It waits for a place, and what others append meanwhile comes in front of it.
            return await conversation.commit(batch)
        self._marked = not done
        try:
            committed = await future
        except BaseException:
            self._marked = True
            raise
        self._marks_unknown -= unknown
        return committed

    # -- drafts

    def begin_draft(self, draft: Draft) -> None:
        """Takes note of a draft; one at a time, in a turn."""
        if self._turn is None:
            raise RuntimeError("a draft belongs to a turn: open it in on_message")
        if self._draft is not None:
            raise RuntimeError("a draft is open in this turn: end it before the next one")
        self._draft = draft
        self._conversation.hub.open_draft(draft)

    async def commit_draft(self, batch: Batch, *, final: bool) -> Committed:
        """Commits the row of a draft; a final one with the mark that the turn's message is handled."""
        if not final:
            return await self._conversation.commit(batch)
        committed = await self._settle(batch)
        self._settled = True
        return committed

    def end_draft(self, event: DraftEnded) -> None:
        """Takes note of the end of the draft, and tells it behind its row."""
        self._draft = None
        self._conversation.hub.close_draft(event)

    @staticmethod
    def has_open_calls(row: NewRow) -> bool:
        """Says whether a row asks for tools, so that more of the answer is to come."""
        return b'"tool-call"' in row.body and bool(decode_message(row.body).tool_calls)

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
