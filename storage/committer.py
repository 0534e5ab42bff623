"""Group commit: one queue for all conversations, one write and one flush for whatever waits.

When it is idle, the committer starts in the step of the loop that brings something, or at its end; what arrives during
a write is the next group. A group goes to the disk, and its outcome to those who wait for it, in two steps and without
a task, because that is what every message waits for. What takes more than one write is left to a task: to look
something up before, to find out who is to blame for a refusal, to tidy up. Items are settled in the order in which they
came, and a group is never given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Protocol

from .engine import Batch, Committed, Partition, Told, check_batch
from .errors import StorageBusy, StorageClosed, StorageError, StorageFailed, TooLarge
from .group import ClientKey, First, Group, Item, MediaKey, Plan, plan_group
from .instants import now_us
from .statistics import Latency, StorageStatistics

__all__ = ["Committer", "Constraint", "Disk", "Done", "Refused"]

MEDIA_UNUSED_S = 86_400
SWEEP_S = 600
GROUP_ROWS_MAX = 512
GROUP_BYTES_MAX = 4 << 20
QUEUE_ROWS_MAX = 10_000
LAZY_S = 0.05
LAZY_PER_GROUP = 8  # more would keep those waiting who are in a hurry
BATCH_ROWS_MAX = 2_000

logger = logging.getLogger("parlatory.storage")

Done = Callable[[Exception | None], None]
"""Is called with what a write failed with, or None."""


class Constraint(Exception):
    """Says that the disk refused a group because of a unique index; nothing was written."""


class Refused(Exception):
    """Says that the disk refused a group because of something in it; nothing was written."""


class Disk(Protocol):
    """Is what the committer needs of a store."""

    def free_key(self) -> int:
        """Returns the lowest key that no conversation has."""

    def write(self, group: Group, done: Done) -> None:
        """Begins to make a group durable, all or nothing.

        `done` is called in a later step: with None, or a Constraint, a Refused or a StorageError. A fault of the group
        may be raised at once.
        """

    async def find(self, wanted: Sequence[ClientKey]) -> dict[ClientKey, First]:
        """Returns those client keys that exist."""

    async def held(self, wanted: Sequence[MediaKey]) -> set[MediaKey]:
        """Returns those media that are there whole."""

    @property
    def untidy(self) -> bool:
        """Says that something has to be done before the next group."""

    async def tidy(self) -> None:
        """Does what has to be done between groups; nobody waits for it but the next group."""


class Committer:
    """Commits batches of many partitions in groups.

    Attributes:
        rows, groups, duplicates: rows committed, groups written and repeats answered since it was made.
        commits: how long the groups took.
        failed: what stopped it for good, or None.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        queue_rows_max: int = QUEUE_ROWS_MAX,
        group_rows_max: int = GROUP_ROWS_MAX,
        group_bytes_max: int = GROUP_BYTES_MAX,
        clock: Callable[[], int] = now_us,
        media_unused_s: float = MEDIA_UNUSED_S,
    ) -> None:
        self.rows = 0
        self.groups = 0
        self.duplicates = 0
        self.commits = Latency()
        self.failed: StorageFailed | None = None
        self._disk = disk
        self._queue_rows_max = queue_rows_max
        self._group_rows_max = group_rows_max
        self._group_bytes_max = group_bytes_max
        self._clock = clock
        self._media_unused_us = int(media_unused_s * 1_000_000)
        self._sweep_at = 0  # the instant from which on the next group takes away media that nobody uses
        # What `submit` has queued, at most `queue_rows_max` rows, and behind that the batches of those who wait in
        # `commit`: one for each waiting task.
        self._queue: deque[Item] = deque()
        self._queued_rows = 0
        # What is in no hurry, at most one item of a partition, and the loop time from which on it has waited enough.
        self._lazy: dict[str, tuple[Item, float]] = {}
        self._lazy_timer: asyncio.TimerHandle | None = None
        # Begins at the end of this step of the loop, where nothing was being written when something was queued.
        self._beginning: asyncio.Handle | None = None
        # Nothing is being written, looked up or tidied up.
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        # What is to be done once a group is told; None while none is being told.
        self._after: list[Callable[[], object]] | None = None
        self._troubled = False
        self._closed = False

    def submit(self, partition: Partition, batch: Batch, told: Told | None) -> asyncio.Future[Committed]:
        """Queues a batch; see `Engine.submit`."""
        if self._queued_rows >= self._queue_rows_max:
            self._check_open()
            raise StorageBusy(f"{self._queued_rows} rows wait to be committed")
        return self._enqueue(partition, batch, told)

    async def commit(self, partition: Partition, batch: Batch, told: Told | None) -> Committed:
        """Waits for its turn and returns the outcome of a batch; see `Engine.commit`."""
        return await self._enqueue(partition, batch, told)

    def begin(self) -> None:
        """Begins to write what was queued in this step, not only at its end; see `Engine.begin`."""
        if self._beginning is not None:
            self._beginning.cancel()
            self._begin()

    def after_telling(self, call: Callable[[], object]) -> None:
        """Calls once the group is told; see `Engine.after_telling`."""
        if self._after is None:
            asyncio.get_running_loop().call_soon(call)
        else:
            self._after.append(call)

    def statistics(self, pinned: int = 0) -> StorageStatistics:
        """Returns what it has done, and what waits; see `Engine.statistics`."""
        return StorageStatistics(self.rows, self.groups, self.duplicates, self._queued_rows, pinned, self.commits)

    async def rest(self) -> None:
        """Returns once nothing waits and nothing is being done."""
        while self._queue or self._lazy or not self._idle.is_set():
            self._hurry(float("inf"))
            self.begin()
            await self._idle.wait()

    async def close(self) -> None:
        """Refuses new batches and returns once the queue is empty."""
        self._closed = True
        await self.rest()
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None

    def _check_open(self) -> None:
        if self.failed is not None:
            raise StorageFailed(*self.failed.args)
        if self._closed:
            raise StorageClosed("the engine is closed")

    def _enqueue(self, partition: Partition, batch: Batch, told: Told | None) -> asyncio.Future[Committed]:
        self._check_open()
        check_batch(batch)
        loop = asyncio.get_running_loop()
        item = Item(partition, batch, told, loop.create_future())
        if len(batch.rows) > BATCH_ROWS_MAX:
            raise TooLarge("a batch", len(batch.rows), BATCH_ROWS_MAX, "rows")
        if item.size > self._group_bytes_max:
            raise TooLarge("a batch", item.size, self._group_bytes_max)
        self._queued_rows += len(batch.rows) or 1
        earlier = self._lazy.pop(partition.name, None) if self._lazy else None
        if earlier is not None:
            self._queue.append(earlier[0])
        elif batch.lazy and not item.asks:
            self._lazy[partition.name] = item, loop.time() + LAZY_S
            if self._lazy_timer is None:
                self._lazy_timer = loop.call_later(LAZY_S, self._hurry_late)
            return item.future
        self._queue.append(item)
        self._begin_soon(loop)
        return item.future

    def _begin_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._beginning is None and self._idle.is_set():
            self._beginning = loop.call_soon(self._begin)

    # -- what is in no hurry

    def _hurry_late(self) -> None:
        """Queues what has waited enough, and looks again when the next one will have."""
        loop = asyncio.get_running_loop()
        self._lazy_timer = None
        self._hurry(loop.time())
        if self._lazy:
            _, at = next(iter(self._lazy.values()))
            self._lazy_timer = loop.call_at(at, self._hurry_late)

    def _hurry(self, now: float) -> None:
        """Queues what has waited enough by a loop time."""
        while self._lazy and next(iter(self._lazy.values()))[1] <= now:
            self._queue.append(self._take_lazy())
            self._begin_soon(asyncio.get_running_loop())

    def _take_lazy(self) -> Item:
        """Takes the one that has waited longest."""
        item, _ = self._lazy.pop(next(iter(self._lazy)))
        return item

    # -- group by group

    def _begin(self) -> None:
        """Begins with the next group, if there is one."""
        self._beginning = None
        items = self._take()
        while items and self.failed is not None:
            self._fail(items, self.failed)
            items = self._take()
        if not items:
            self._idle.set()
            return
        self._idle.clear()
        error: Exception | None = None
        if not any([item.asks for item in items]):
            try:
                plan = self._planned(items, {}, ())
                if plan.group:
                    begun = items[0].future.get_loop().time()
                    self._disk.write(plan.group, partial(self._written, items, plan, begun))
                    return
            except Exception as raised:
                error = raised
        self._attend(items, error)

    def _take(self) -> list[Item]:
        """Takes the next group off the queue: one item, then as many as the caps allow; none that was cancelled."""
        items: list[Item] = []
        rows = size = 0
        while self._queue:
            item = self._queue[0]
            if not item.future.cancelled():
                rows += len(item.batch.rows)
                size += item.size
                if items and (rows > self._group_rows_max or size > self._group_bytes_max):
                    break
                items.append(item)
            self._queue.popleft()
            self._queued_rows -= len(item.batch.rows) or 1
        if items and not self._queue:  # or one that is lazy could overtake what was submitted before it
            self._add_lazy(items, size)
        return items

    def _add_lazy(self, items: list[Item], size: int) -> None:
        """Takes some of what is in no hurry along."""
        for _ in range(min(LAZY_PER_GROUP, len(self._lazy))):
            size += next(iter(self._lazy.values()))[0].size
            if size > self._group_bytes_max:
                break
            item = self._take_lazy()
            self._queued_rows -= len(item.batch.rows) or 1
            if not item.future.cancelled():
                items.append(item)

    def _planned(self, items: list[Item], known: Mapping[ClientKey, First], held: Collection[MediaKey]) -> Plan:
        now = self._clock()
        plan = plan_group(items, known, self._disk.free_key(), now, held)
        if now >= self._sweep_at:
            plan.group.stale = now - self._media_unused_us
        return plan

    def _written(self, items: list[Item], plan: Plan, begun: float, error: Exception | None) -> None:
        """Settles a group that was written; the next one, if some wait, is on its way before anybody is told."""
        if error is not None:
            self._attend(items, error)
            return
        took = items[0].future.get_loop().time() - begun
        after = self._settle(plan)
        if not self._queue:
            after, before = [], after
            _call(before)
        self._count(plan, took)
        if self._disk.untidy:
            self._attend([])
        else:
            self._begin()
        _call(after)

    def _count(self, plan: Plan, took: float) -> None:
        self._troubled = False
        self.groups += 1
        self.rows += len(plan.group.rows)
        self.commits.observe(took)
        if plan.group.stale is not None:
            self._sweep_at = plan.group.stale + self._media_unused_us + SWEEP_S * 1_000_000

    def _settle(self, plan: Plan) -> list[Callable[[], object]]:
        """Moves the heads, tells and resolves, item by item in their order; returns what is to be done behind that."""
        after: list[Callable[[], object]] = []
        self._after = after
        for partition, tip in plan.tips.items():
            partition.key = tip.key
        for item, outcome in plan.outcomes:
            if isinstance(outcome, Exception):
                _reject(item.future, outcome)
                continue
            if outcome.duplicate:
                self.duplicates += 1
            if outcome.rows:
                item.partition.head = outcome.seq
                item.partition.at = outcome.rows[-1].at
            if item.told is not None and not outcome.duplicate:
                try:
                    item.told(outcome)
                except BaseException as error:  # the teller's fault, which only its appender can judge
                    if not _reject(item.future, error):
                        logger.exception("telling of %r failed, its appender is gone", item.partition)
                    _let_end(error)
                    continue
            if not item.future.done():
                item.future.set_result(outcome)
        self._after = None
        return after

    # -- what takes more than one write

    def _attend(self, items: list[Item], error: Exception | None = None) -> None:
        """Deals with a group that failed, or has to be looked up, and with the disk; then the next one has its turn."""
        attending = self._attended(items, error)
        self._task = asyncio.get_running_loop().create_task(attending, name="parlatory committer")
        # The task itself could not do it: one that is cancelled before it begins does nothing.
        self._task.add_done_callback(partial(self._go_on, items))

    def _go_on(self, items: list[Item], attended: asyncio.Task[None]) -> None:
        """Begins with the next group behind one that was attended to."""
        self._task = None
        error = None if attended.cancelled() else attended.exception()
        if error is not None or attended.cancelled():  # by the end of the loop; the disk may be writing still
            self.failed = StorageFailed("storage was interrupted at its work; open the engine again")
            logger.warning("nothing more is written: %s", self.failed, exc_info=error)
            self._fail(items, self.failed)
        self._begin()

    async def _attended(self, items: list[Item], error: Exception | None) -> None:
        if items:
            await self._commit(items, error)
        if self.failed is not None:  # to tidy up is to write, and to flush what may not be flushed again
            return
        try:
            await self._disk.tidy()
        except StorageFailed as failure:
            self._stop(failure)
        except Exception:  # what goes wrong between groups is no reason to write no more of them
            logger.exception("storage was not tidied up")

    async def _commit(self, items: list[Item], error: Exception | None = None) -> None:
        """Writes items as one group and settles them; where the group is refused, finds out who is to blame.

        An `error` is what writing them, planned with nothing looked up, has already failed with.
        """
        if self.failed is not None:
            self._fail(items, self.failed)
            return
        try:
            plan = await self._replanned(items, error)
        except StorageError as failure:
            if isinstance(failure, StorageFailed):
                self._stop(failure)
            elif not self._troubled:
                logger.error("batches are not written: %s", failure)
            self._troubled = True
            self._fail(items, failure)
        except Exception as fault:
            if len(items) > 1:
                for item in items:
                    await self._commit([item])
                return
            if not isinstance(fault, Constraint | Refused):
                logger.error("a batch of %r cannot be written", items[0].partition, exc_info=fault)
            refusal = StorageError(f"the batch was refused: {fault}")
            refusal.__cause__ = fault
            self._fail(items, refusal)
        else:
            _call(self._settle(plan))

    async def _replanned(self, items: list[Item], error: Exception | None) -> Plan:
        """Plans a group and writes it; where a client id turns out to be taken, plans and writes once more."""
        if error is None:
            wanted = [item.client_key for item in items if item.asks and item.client_key]
            known = await self._disk.find(wanted) if wanted else {}
            cited = [(item.partition.name, hash) for item in items for hash in item.refs]
            held = await self._disk.held(cited) if cited else set()
            try:
                return await self._wrote(self._planned(items, known, held))
            except Constraint:
                pass
        elif isinstance(error, Constraint):
            held = set()
        else:
            raise error
        known = await self._disk.find([item.client_key for item in items if item.client_key])
        return await self._wrote(self._planned(items, known, held))

    async def _wrote(self, plan: Plan) -> Plan:
        """Returns a plan once its group, if there is anything to write, is durable."""
        if plan.group:
            loop = asyncio.get_running_loop()
            begun = loop.time()
            written: asyncio.Future[None] = loop.create_future()
            self._disk.write(plan.group, partial(_resolve, written))
            await written
            self._count(plan, loop.time() - begun)
        return plan

    def _stop(self, error: StorageFailed) -> None:
        self.failed = error
        logger.critical("storage has failed, nothing more is written: %s", error)

    def _fail(self, items: list[Item], error: StorageError) -> None:
        """Gives every item an error of its own: one that is shared would gather the tracebacks of all."""
        for item in items:
            failure = type(error)(*error.args)
            failure.__cause__ = error.__cause__
            _reject(item.future, failure)


def _call(calls: list[Callable[[], object]]) -> None:
    """Calls each, whatever becomes of the others."""
    for call in calls:
        try:
            call()
        except BaseException as error:  # as the loop does with what it calls
            context = {"message": f"{call!r} failed behind a commit", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            _let_end(error)


def _let_end(error: BaseException) -> None:
    """Lets what ends a process end the loop, in a step of its own: a group is settled whole."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        asyncio.get_running_loop().call_soon(_raise, error)


def _raise(error: BaseException) -> None:
    raise error


def _resolve(future: asyncio.Future[None], error: Exception | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _reject(future: asyncio.Future[Committed], error: BaseException) -> bool:
    """Gives a future its error, unless nobody waits for it any more."""
    if future.done():
        return False
    if isinstance(error, StopIteration) or not isinstance(error, Exception):  # which would not come out as an error
        error, cause = RuntimeError(f"told raised {type(error).__name__}"), error
        error.__cause__ = cause
    future.set_exception(error)
    return True
