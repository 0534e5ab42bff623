"""What storage holds of a conversation's turns, so that no message is forgotten and none is answered twice (P7).

The queue of messages is the log. These keys say how far it has been worked off:

- `turn.handled`: every message up to this seq has had its turn.
- `turn.since`: where there is no `turn.handled` yet, the row behind which messages get a turn. It commits with the
  first message of a client that is to be answered. A conversation with neither key was never answered by anybody: an
  agent class that gains its `on_message` later answers what comes from now on, not the whole history.
- `turn.skipped`: messages above, whose turn was cancelled before it began.
- `turn.attempt`: how often the turn of a message was begun: from the second attempt on, or once one was cut by a drain.
- `turn.draft` and what is below it: the draft that is being written, as far as it is stored (`checkpoints.py`).

Beside them there is the engine's work mark, by which a starting runtime finds the conversation without a scan. It
commits with a client's row, and goes in the batch that finds nothing left.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec

from ..storage import (
    Batch,
    CodecError,
    Committed,
    NewRow,
    Row,
    StorageBusy,
    StorageError,
    StorageFull,
    Told,
    new_row,
)
from .checkpoints import CHECKPOINT, checkpoint_keys, restored

if TYPE_CHECKING:
    from .conversation import Conversation

__all__ = ["HANDLED", "SINCE", "SKIPPED", "Attempt", "TurnMarks", "is_trigger"]

KEYS = "turn."
HANDLED = "turn.handled"
SINCE = "turn.since"
SKIPPED = "turn.skipped"
ATTEMPT = "turn.attempt"
PAGE_ROWS = 64
PAGE_BYTES = 64 << 10
UNMARKED_ROWS_MAX = 1024  # so many rows above the mark, and no message among them: the mark is moved over them
USER_BODY = b'{"role":"user"'  # the codec writes the role first, and this is asked of every row

logger = logging.getLogger("parlatory.actors")


class Attempt(msgspec.Struct, omit_defaults=True):
    """Is how often the turn of a message has been attempted; `drained` of these ended because the process was stopped.

    These are no fault of the message, and do not count where it is given up.
    """

    seq: int
    number: int
    drained: int = 0


_encode = msgspec.json.Encoder().encode
_attempt = msgspec.json.Decoder(Attempt)
_seqs = msgspec.json.Decoder(list[int])


def is_trigger(row: Row | NewRow) -> bool:
    """Says whether a row starts a turn: a message of a user that no turn appended."""
    return row.turn is None and row.body.startswith(USER_BODY)


class TurnMarks:
    """Is how far the log of one conversation has been worked off: in storage, and as it is read here.

    Args:
        conversation: whose.
        answers: whether its agent answers messages at all.
        before: those of the record that this one follows, if there was one.

    Attributes:
        read: how far the log is read: every message up to it has had its turn, or has it now. None: storage was not
            asked yet.
        marked: storage may hold the work mark.
        checkpoints: how many keys of a draft's checkpoints storage may hold.
        refused: rows of turns that storage refused; they go in front of what the lane commits next.
    """

    def __init__(self, conversation: Conversation, answers: bool, before: TurnMarks | None = None) -> None:
        self._conversation = conversation
        self._answers = answers
        self.read: int | None = None
        self.marked = False
        self.checkpoints = 0
        self.refused: tuple[NewRow, ...] = ()
        self._saving = asyncio.Lock()
        self._page: deque[Row] = deque()
        self._loading = asyncio.Lock()
        # Messages whose turn was cancelled before it began, and those for which this is being committed.
        self._skipped: set[int] = set()
        self._skipping: set[int] = set()
        # The message that an earlier process may have begun, and how often: the first that waits, up to the head that
        # it left, which is 0 once that one is found.
        self._begun: Attempt | None = None
        self._left_head = 0
        # Batches with the work mark that are on their way. Nobody knows the outcome of those whose appender was
        # cancelled, until a later batch has one.
        self._sent = 0
        self._unknown = 0
        # Storage holds `turn.handled` or `turn.since`; until it does, this is what goes there.
        self._based: bool = before is not None and before._based
        self._since: int = conversation.head if before is None else before._since

    @property
    def busy(self) -> bool:
        """Says that batches with the work mark are on their way."""
        return self._sent > 0

    @property
    def left(self) -> bool:
        """Says that a message waits, as far as the log is read: behind `settle` that is all of it."""
        return bool(self._page)

    # -- the work mark

    def stamp(self, batch: Batch) -> Batch:
        """Returns a batch with the work mark, if a row of it will start a turn."""
        if not self._answers or not any(is_trigger(row) for row in batch.rows):
            return batch
        puts = batch.puts if self._based else {**batch.puts, SINCE: b"%d" % self._since}
        return msgspec.structs.replace(batch, puts=puts, work=True)

    def sent(self) -> None:
        """Takes note of a batch with the work mark: until it has arrived the mark is not taken away."""
        self._sent += 1

    def arrived(self, known: bool = True, written: bool = False) -> None:
        """Takes note of the outcome of a batch with the work mark: whether it is known, and whether it was written."""
        self._sent -= 1
        self._unknown += not known
        self._based = self._based or written

    def found(self) -> None:
        """Takes note that storage holds the work mark, as the runtime found at its start."""
        self.marked = True
        if not self._based and not self._sent:  # a mark without the key: whoever set it wants everything answered
            self._since = 0
            if self.read is not None:
                self.read = 0
                self._page.clear()

    # -- what storage holds

    async def recover(self) -> bool:
        """Makes good what an earlier process left; says whether there is something to do."""
        conversation = self._conversation
        if not self._answers or not conversation.head:
            return False
        self._left_head = conversation.head
        try:
            start = await self._load()
            position = await self.skip()
            if not self._page:
                if position - start > UNMARKED_ROWS_MAX:
                    await conversation.commit(Batch(puts={HANDLED: b"%d" % position}))
                return False
        except (StorageBusy, StorageFull) as error:  # it can be read all the same; the lane tries again
            logger.error("what a crash left in %r waits", conversation.name, exc_info=error)
        return True

    async def _load(self) -> int:
        """Reads the keys, once; the partial that a crash left becomes a row. Returns the reading position."""
        conversation = self._conversation
        async with self._loading:
            if self.read is not None:
                return self.read
            keys = await conversation.keys(KEYS)
            left = tuple(name for name in keys if name.startswith(CHECKPOINT))
            if left:
                await conversation.commit(Batch(rows=self._interrupted(keys), deletes=left))
            start = keys.get(HANDLED) or keys.get(SINCE)
            self._based = start is not None
            self.read = self._since if start is None else int(start)
            self._skipped = {seq for seq in _seqs.decode(keys.get(SKIPPED, b"[]")) if seq > self.read}
            self._begun = _attempt.decode(keys[ATTEMPT]) if ATTEMPT in keys else None
            return self.read

    def _interrupted(self, keys: Mapping[str, bytes]) -> tuple[NewRow, ...]:
        if CHECKPOINT not in keys:
            return ()
        try:
            left = restored(keys)
            return (new_row(left.message, by="agent", turn=left.turn, finish="interrupted")[1],)
        except (CodecError, msgspec.MsgspecError, ValueError):  # a conversation that cannot be opened would be worse
            logger.exception("the partial answer that a crash left in %r is lost", self._conversation.name)
            return ()

    # -- reading the queue

    async def next(self) -> Row | None:
        """Returns the next row that starts a turn, or None; moves the reading position behind it."""
        await self.skip()
        if not self._page:
            return None
        row = self._page.popleft()
        self.read = row.seq
        return row

    def put_back(self, rows: Iterable[Row]) -> None:
        """Puts rows back that `next` gave last, oldest first: their turn could not begin."""
        back = list(rows)
        self._page.extendleft(reversed(back))
        self.read = back[0].seq - 1

    async def skip(self) -> int:
        """Moves the reading position over rows that start no turn, up to one that does or to the head; returns it."""
        conversation = self._conversation
        read = self.read
        if read is None:
            read = await self._load()
        while True:
            while self._page and (not is_trigger(self._page[0]) or self._page[0].seq in self._skipped):
                read = self.read = self._page.popleft().seq
            if self._page or read >= conversation.head:
                self._find_begun()
                return read
            if not self._answers:  # of a class that once did: nothing of it is left to do
                read = self.read = conversation.head
                return read
            rows = conversation.hub.recall(read) or await conversation.read(
                after=read, limit=PAGE_ROWS, max_bytes=PAGE_BYTES
            )
            if not rows:
                raise StorageError(f"{conversation.name!r} has no row {read + 1} below its head")
            self._page.extend(rows)

    def _find_begun(self) -> None:
        """Takes the first message that an earlier process left for begun: its first attempt leaves no trace."""
        first = self._page[0].seq if self._page else self._left_head + 1
        if first <= self._left_head and not self.has_begun(first):
            self._begun = Attempt(first, 1)
        self._left_head = 0

    # -- writing

    def has_begun(self, seq: int) -> bool:
        """Says whether an earlier process may have begun the turn of a message."""
        return self._begun is not None and self._begun.seq == seq

    async def count_attempt(self, seq: int) -> Attempt:
        """Returns which attempt at a turn begins; from the second on the number is durable before it does."""
        if self._begun is None or self._begun.seq != seq:
            return Attempt(seq, 1)
        attempt = Attempt(seq, self._begun.number + 1, self._begun.drained)
        await self._conversation.commit(Batch(puts={ATTEMPT: _encode(attempt)}))
        self._begun = None
        return attempt

    async def excuse(self, attempt: Attempt) -> None:
        """Makes durable that an attempt ended because the process is being stopped, so that it does not count."""
        excused = msgspec.structs.replace(attempt, drained=attempt.drained + 1)
        batch, told = Batch(puts={ATTEMPT: _encode(excused)}), None
        if self.refused:  # what storage holds of a draft is theirs; else it is what the next process makes a row of
            batch, told = self._closing(batch, None)
        await self._conversation.commit(batch, told)

    async def skip_turn(self, seq: int) -> bool:
        """Makes durable that a message gets no turn; says whether that is so, which it is once, and not if it began.

        Raises:
            StorageError: it is not durable.
        """
        conversation = self._conversation
        await self._load()
        rows = conversation.hub.recall(seq - 1) or await conversation.read(after=seq - 1, limit=1)
        taken = self._skipped | self._skipping
        if seq in taken or not rows or not is_trigger(rows[0]) or self._has_read(seq):
            return False
        self._skipping.add(seq)
        try:
            await conversation.commit(Batch(puts={SKIPPED: _encode(sorted({*taken, seq}))}))
        finally:
            self._skipping.discard(seq)
        if self._has_read(seq):
            return False
        self._skipped.add(seq)
        return True

    def _has_read(self, seq: int) -> bool:
        return self.read is not None and seq <= self.read

    async def save_refused(self) -> None:
        """Commits the rows that storage refused before, if there are any."""
        async with self._saving:
            if self.refused:
                await self.end_draft()

    async def end_draft(self, rows: tuple[NewRow, ...] = (), told: Told | None = None) -> None:
        """Commits rows, and with them that no draft is being written any more."""
        batch, told = self._closing(Batch(rows=rows), told)
        if batch.rows or batch.deletes:
            await self._conversation.commit(batch, told)

    def _closing(self, batch: Batch, told: Told | None) -> tuple[Batch, Told]:
        """Returns a batch with what storage refused before and without what it holds of a draft, and its teller.

        That takes note of both in the very step that tells: the next draft may begin in it.
        """
        refused = self.refused

        def closed(committed: Committed) -> None:
            self.checkpoints = 0
            self.refused = self.refused[len(refused) :]
            if told is not None:
                told(committed)

        deletes = (*batch.deletes, *checkpoint_keys(self.checkpoints))
        return msgspec.structs.replace(batch, rows=(*refused, *batch.rows), deletes=deletes), closed

    async def settle(self, batch: Batch, told: Told | None = None) -> Committed:
        """Commits a batch and, with it, how far messages are handled; and that nothing is left, where that is so."""
        conversation = self._conversation
        read = await self.skip()
        puts: dict[str, bytes] = {**batch.puts, HANDLED: b"%d" % read}
        passed = {seq for seq in self._skipped if seq <= read}
        if passed:
            puts[SKIPPED] = _encode(sorted((self._skipped | self._skipping) - passed))
        batch, told = self._closing(msgspec.structs.replace(batch, puts=puts), told)
        # A mark on its way is set in front of this batch, which must not take it away.
        unknown = self._unknown
        done = not self._page and not self._sent and not unknown
        try:
            future = conversation.submit(msgspec.structs.replace(batch, work=False if done else None), told)
        except StorageBusy:
            # It waits for a place, and what others append meanwhile comes in front of it.
            committed = await conversation.commit(batch, told)
        else:
            self.marked = not done
            try:
                committed = await future
            except BaseException:
                self.marked = True
                raise
            self._unknown -= unknown
        self._based = True
        self._skipped -= passed
        return committed
