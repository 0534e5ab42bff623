"""The runtime's record of one conversation: its partition, its hub, its turn lane. There is never a second one.

The log lane is what clients do: append, read, subscribe, signal. It goes straight to the partition and the hub and
never waits for user code. The turn lane (`turns.py`) runs user code, one item at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ..storage import Batch, Blob, Committed, NewRow, Partition, Row, StorageBusy, Told, instant_text
from .errors import Draining, MailboxFull, TurnBusy
from .events import Opened, Signal
from .hub import Hub, Sink, Subscription
from .picture import ConversationPicture, SubscriberPicture
from .position import PositionRequest, decide_start
from .turn_marks import is_trigger
from .turns import TurnLane

if TYPE_CHECKING:
    from .agent import Agent
    from .runtime import Runtime

__all__ = ["Conversation", "TurnStorage"]

Settled = Callable[[asyncio.Future[Committed]], object]
"""Is called with the future of a batch that has its outcome."""


class Conversation:
    """Is one durable actor, as long as somebody needs it.

    Attributes:
        name: `<agent>/<name>`.
        hub: who is told.
        lane: where user code runs.
        touched: loop time of the last use.
        gone: set when the runtime has let the record go. Who still holds it may use it all the same: it passes on what
            it is asked to its successor.
    """

    def __init__(
        self, runtime: Runtime, agent: type[Agent], partition: Partition, before: Conversation | None = None
    ) -> None:
        self.runtime = runtime
        self.name = partition.name
        self.gone = False
        self._partition = partition
        self.lane: TurnLane = TurnLane(self, agent, None if before is None else before.lane)
        self.hub = Hub(partition, self.lane.watched)
        self._in_flight = 0
        self._loop = asyncio.get_running_loop()
        self.touched = self._loop.time()

    @property
    def partition(self) -> Partition:
        """Is where the conversation lies."""
        return self._partition

    @property
    def current(self) -> Conversation:
        """Is the record in use: this one or, where the runtime has let it go, its successor."""
        return self.runtime.successor(self) if self.gone else self

    def touch(self) -> None:
        """Notes that the record was used."""
        self.touched = self._loop.time()

    def close(self) -> None:
        """Ends the record: nobody is told any more, no timer is left."""
        self.gone = True
        self.lane.close()
        self.hub.close()

    @property
    def idle(self) -> bool:
        """Says that nobody subscribes, nothing is being committed, and no turn runs or waits."""
        return not self._in_flight and self.hub.idle and self.lane.idle

    @property
    def in_flight(self) -> int:
        """Is how many batches are being committed."""
        return self._in_flight

    def picture(self) -> ConversationPicture:
        """Returns what goes on."""
        lane = self.lane
        (state, turn), draft = lane.state, lane.draft
        return ConversationPicture(
            lane.resident,
            state,
            turn,
            None if lane.turn is None else lane.turn.attempt,
            lane.queued,
            lane.mailbox,
            self._in_flight,
            None if draft is None else draft.picture(),
            tuple(SubscriberPicture(one.sink, one.principal, one.position, one.live) for one in self.hub.subscriptions),
        )

    # -- the log, as `LogStorage`

    @property
    def head(self) -> int:
        """Is the seq of the last committed row."""
        return self._partition.head

    @property
    def floor(self) -> int:
        """Is the seq up to which rows are trimmed."""
        return self._partition.floor

    @property
    def epoch(self) -> str:
        """Is the epoch of the log."""
        return self._partition.epoch

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> list[Row]:
        """Returns rows; see `Partition.read`."""
        return await self._partition.read(after=after, before=before, limit=limit, max_bytes=max_bytes, newest=newest)

    async def media(self, hash: str, start: int = 0) -> Blob | None:
        """Returns a piece of media; see `Partition.media`."""
        return await self._partition.media(hash, start)

    async def keys(self, prefix: str) -> dict[str, bytes]:
        """Returns keys; see `Partition.keys`."""
        return await self._partition.keys(prefix)

    async def commit(self, batch: Batch, told: Told | None = None) -> Committed:
        """Commits a batch and tells its rows; waits where storage has too much to do.

        Where its appender is cancelled, the batch may commit all the same, and is told then.
        """
        record = self.current
        try:
            future = record.submit(batch, told)
        except StorageBusy:
            marked = record.lane.marks.stamp(batch)
            waiting = record._partition.commit(marked, record._teller(told))
            future = record._sent(self._loop.create_task(waiting, name=f"parlatory commit {self.name!r}"), marked)
        return await future

    def submit(
        self, batch: Batch, told: Told | None = None, settled: Settled | None = None
    ) -> asyncio.Future[Committed]:
        """Commits a batch, at once in order, and tells its rows; raises StorageBusy where storage has no room."""
        record = self.current
        marked = record.lane.marks.stamp(batch)
        return record._sent(record._partition.submit(marked, record._teller(told)), marked, settled)

    def post(self, row: NewRow, told: Told | None = None, settled: Settled | None = None) -> asyncio.Future[Committed]:
        """Appends a client's message, at once in order; it is told before the future has its outcome.

        Args:
            row: the message.
            told: is called when the row is durable and told to the subscribers; not for a repeat.
            settled: is called with the future, in a step behind its outcome; every message pays for each callback.

        Raises:
            Draining: the runtime is stopping.
            MailboxFull: too many messages of this conversation are being committed.
            TurnBusy: a turn runs or waits, and the agent refuses messages meanwhile.
            StorageBusy, StorageFailed, StorageClosed: storage takes no more.
        """
        if self.runtime.draining:
            raise Draining
        record = self.current
        if record._in_flight >= self.runtime.mailbox_max:
            raise MailboxFull(self.name, self.runtime.mailbox_max)
        if record.lane.agent.on_busy == "reject" and record.lane.busy and is_trigger(row):
            raise TurnBusy(self.name)
        return record.submit(Batch(rows=(row,)), told, settled)

    def _sent(
        self, future: asyncio.Future[Committed], batch: Batch, settled: Settled | None = None
    ) -> asyncio.Future[Committed]:
        self._in_flight += 1
        if batch.work:
            self.lane.marks.sent()
        done = self._done_marked if batch.work else self._done
        future.add_done_callback(done if settled is None else partial(_both, done, settled))
        return future

    def _done(self, _future: object) -> None:
        self._in_flight -= 1
        self.touched = self._loop.time()

    def _done_marked(self, future: asyncio.Future[Committed]) -> None:
        self._done(future)
        known = not future.cancelled()
        written = known and future.exception() is None and not future.result().duplicate
        self.lane.mark_arrived(known, written)

    def _teller(self, told: Told | None) -> Told:
        if told is None:
            return self._committed

        def both(committed: Committed) -> None:
            self._committed(committed)
            told(committed)

        return both

    def _committed(self, committed: Committed) -> None:
        """Tells what has become durable: subscribers first, then the turn lane."""
        if committed.rows:
            # The record may have been let go: a batch whose appender was cancelled holds it no longer, and may commit.
            record = self.current
            record.hub.committed(committed.rows)
            record.lane.committed(committed.rows)

    def turn_storage(self) -> TurnStorage:
        """Returns the log as user code has it."""
        return TurnStorage(self)

    # -- subscribers

    async def open(
        self, sink: Sink, principal: str, request: PositionRequest, old: Subscription | None
    ) -> Subscription:
        """Answers an open and subscribes the sink, or moves its subscription `old`.

        Raises:
            StorageError: the log cannot be read.
        """
        instant = None
        if request.at is not None and 0 < request.after <= self.head and request.epoch == self.epoch:
            instant = await self._instant(request.after)
        # From here to the end in one step: nothing can be committed between the answer and the subscription, and the
        # record, which may have been let go during the read, is the one that is told.
        record = self.current
        start = decide_start(request, epoch=self.epoch, floor=self.floor, head=self.head, instant=instant)
        if old is not None:
            old.unsubscribe()
        state, turn = record.lane.state
        sink.tell(Opened(self.name, self.epoch, self.floor, self.head, start.seq, start.reason, state, turn))
        record.touch()
        return record.hub.subscribe(sink, principal, start.seq)

    async def _instant(self, seq: int) -> str | None:
        rows = self.hub.recall(seq - 1) or await self.read(after=seq - 1, before=seq + 1, limit=1)
        return instant_text(rows[0].at) if rows and rows[0].seq == seq else None

    def signal(self, event: Signal, sender: Sink) -> None:
        """Relays a signal to the other subscribers."""
        record = self.current
        record.touch()
        record.hub.signal(event, sender)


def _both(first: Settled, second: Settled, future: asyncio.Future[Committed]) -> None:
    try:
        first(future)
    finally:
        second(future)


class TurnStorage:
    """Is the log as the user's code in the turn lane has it: what it appends carries the turn.

    It outlives the record, because user code may keep it: then it works on the record that there is.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    @property
    def name(self) -> str:
        """Is the conversation."""
        return self._conversation.name

    @property
    def head(self) -> int:
        """Is the seq of the last committed row."""
        return self._conversation.head

    @property
    def lane(self) -> TurnLane:
        """Is the lane in which the user code runs."""
        return self._conversation.lane

    async def commit(self, batch: Batch, told: Told | None = None) -> Committed:
        """Commits a batch whose rows belong to the running turn, if one runs, behind what storage refused before."""
        conversation = self._conversation = self._conversation.current
        await conversation.lane.save_refused()
        return await conversation.commit(conversation.lane.stamped(batch), told)

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> list[Row]:
        """Returns rows; see `Partition.read`."""
        return await self._conversation.read(
            after=after, before=before, limit=limit, max_bytes=max_bytes, newest=newest
        )

    async def media(self, hash: str, start: int = 0) -> Blob | None:
        """Returns a piece of media; see `Partition.media`."""
        return await self._conversation.media(hash, start)
