"""Group commit: one queue for all conversations, one write and one flush for whatever waits.

The committer starts at once when it is idle; what arrives during a write is the next group. It decides with a pure
function, `plan_group`, which rows get which seq and who is refused, hands the group to the disk, and settles each item
in the order it came. It is never cancelled inside a group.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from .engine import Batch, Committed, NewRow, Partition, Told, check_batch
from .errors import (
    ClientIdConflict,
    Conflict,
    StorageBusy,
    StorageClosed,
    StorageError,
    StorageFailed,
    TooLarge,
    UnknownMedia,
)
from .instants import now_us
from .media import Blob
from .rows import Row
from .statistics import Latency, StorageStatistics

__all__ = [
    "ClientKey",
    "Committer",
    "Constraint",
    "Disk",
    "First",
    "Group",
    "Item",
    "MediaKey",
    "Plan",
    "Refused",
    "plan_group",
]

MEDIA_UNUSED_S = 86_400
SWEEP_S = 600
GROUP_ROWS_MAX = 512
GROUP_BYTES_MAX = 4 << 20
QUEUE_ROWS_MAX = 10_000
BATCH_ROWS_MAX = 2_000

logger = logging.getLogger("parlatory.storage")

ClientKey = tuple[str, str, str]
"""Conversation, author, client id: unique for ever."""

MediaKey = tuple[str, str]
"""Conversation, hash."""


NO_REFS: Mapping[str, str] = {}


class First(msgspec.Struct, frozen=True):
    """Is the row that a client id stands for: its seq and the digest of its message."""

    seq: int
    digest: int | None


class Constraint(Exception):
    """Says that the disk refused a group because of a unique index; nothing was written."""


class Refused(Exception):
    """Says that the disk refused a group because of something in it; nothing was written."""


class Tip:
    """Is where a partition will stand behind the batches planned so far."""

    __slots__ = ("at", "head", "key", "new")

    def __init__(self, key: int, head: int, at: int, new: bool) -> None:
        self.key = key
        self.head = head
        self.at = at
        self.new = new


class Group:
    """Is what one write makes true: rows of tables, with `key` for the conversation. Later puts of a key come later.

    Attributes:
        blobs: pieces of media, with the instant they are put; what is there already stays as it is.
        uses: the last row that refers to some media, which are there or among the blobs.
        stale: media that no row refers to go if they were put before this instant; some of them, where they are many.
    """

    __slots__ = ("blobs", "bytes", "deletes", "names", "puts", "rows", "stale", "timers", "uses", "works")

    def __init__(self) -> None:
        self.names: list[tuple[int, str]] = []
        self.rows: list[tuple[int, Row, int | None]] = []
        self.puts: dict[tuple[int, str], bytes] = {}
        self.deletes: dict[tuple[int, str], None] = {}
        self.timers: dict[tuple[int, str], int | None] = {}
        self.works: dict[int, int | None] = {}
        self.blobs: list[tuple[int, int, Blob]] = []
        self.uses: dict[tuple[int, str], int] = {}
        self.stale: int | None = None
        self.bytes = 0

    def add(self, key: int, batch: Batch, now: int) -> None:
        """Adds what a batch changes beside its rows; the last change of a key wins."""
        for name, value in batch.puts.items():
            self.puts[key, name] = value
            self.deletes.pop((key, name), None)
        for name in batch.deletes:
            self.puts.pop((key, name), None)
            self.deletes[key, name] = None
        for name, due in batch.timers.items():
            self.timers[key, name] = due
        if batch.work is not None:
            self.works[key] = now if batch.work else None
        for blob in batch.uploads:
            self.blobs.append((key, now, blob))

    def add_media(self, key: int, row: NewRow, seq: int, now: int) -> None:
        """Adds the media of a row."""
        for blob in row.media:
            self.blobs.append((key, now, blob))
            self.uses[key, blob.hash] = seq
        for hash in row.refs:
            self.uses[key, hash] = seq

    @property
    def lone_row(self) -> tuple[int, Row, int | None] | None:
        """Is the row of a group that holds one row and nothing else: what a quiet server mostly writes."""
        if len(self.rows) != 1 or self.names or self.puts or self.deletes or self.timers or self.works:
            return None
        return None if self.concerns_media else self.rows[0]

    @property
    def concerns_media(self) -> bool:
        """Says whether media are written, used or taken away."""
        return bool(self.uses or self.blobs or self.stale is not None)

    def __bool__(self) -> bool:
        return bool(self.rows or self.names or self.puts or self.deletes or self.timers or self.works or self.blobs)


class Disk(Protocol):
    """Is what the committer needs of a store."""

    def free_key(self) -> int:
        """Returns the lowest key that no conversation has."""

    async def write(self, group: Group) -> None:
        """Makes a group durable, all or nothing; raises Constraint, Refused or a StorageError."""

    async def find(self, wanted: Sequence[ClientKey]) -> dict[ClientKey, First]:
        """Returns those client keys that exist."""

    async def held(self, wanted: Sequence[MediaKey]) -> set[MediaKey]:
        """Returns those media that are there whole."""

    async def tidy(self) -> None:
        """Does what has to be done between groups; nobody waits for it but the next group."""


class Item:
    """Is a batch in the queue."""

    __slots__ = ("batch", "client_key", "future", "partition", "refs", "size", "told")

    def __init__(
        self, partition: Partition, batch: Batch, told: Told | None, future: asyncio.Future[Committed]
    ) -> None:
        self.partition = partition
        self.batch = batch
        self.told = told
        self.future = future
        self.size = sum([len(row.body) for row in batch.rows])
        if batch.puts:
            self.size += sum([len(value) for value in batch.puts.values()])
        if batch.uploads:
            self.size += sum([len(blob.data) for blob in batch.uploads])
        self.refs: Mapping[str, str] = NO_REFS  # the media that have to be there, and the path that names them
        for row in batch.rows:
            if row.media:
                self.size += sum([len(blob.data) for blob in row.media])
            if row.refs:
                self.refs = {**self.refs, **row.refs}
        self.client_key: ClientKey | None = None  # that of its only row, if it has one
        if len(batch.rows) == 1 and (client_id := batch.rows[0].client_id) is not None:
            self.client_key = (partition.name, batch.rows[0].by, client_id)


class Plan:
    """Is the decision over some items: the group to write, what each item comes to, and where partitions will stand."""

    __slots__ = ("group", "outcomes", "tips")

    def __init__(self) -> None:
        self.group = Group()
        self.outcomes: list[tuple[Item, Committed | Exception]] = []
        self.tips: dict[Partition, Tip] = {}


def plan_group(
    items: Iterable[Item],
    known: Mapping[ClientKey, First],
    free_key: int,
    now: int,
    held: Collection[MediaKey] = (),
) -> Plan:
    """Decides over items in order: assigns seqs and instants, answers repeats, refuses what conflicts.

    Args:
        items: the batches, in the order in which they were submitted.
        known: client keys that are known to be on disk.
        free_key: the first key for conversations that have none yet.
        now: the instant of the commit; a row never gets one before the row in front of it.
        held: media that are known to be on disk.
    """
    plan = Plan()
    firsts = dict(known)
    there = set(held)
    for item in items:
        batch, partition = item.batch, item.partition
        tip = plan.tips.get(partition)
        if tip is None:
            new = partition.key is None
            tip = Tip(free_key if partition.key is None else partition.key, partition.head, partition.at, new)
        client_key = item.client_key
        if client_key is not None and (first := firsts.get(client_key)) is not None:
            plan.outcomes.append((item, _repeat(client_key, first, batch.rows[0])))
            continue
        if batch.expected_seq is not None and batch.expected_seq != tip.head:
            plan.outcomes.append((item, Conflict(batch.expected_seq, tip.head)))
            continue
        lacking = [hash for hash in item.refs if (partition.name, hash) not in there] if item.refs else None
        if lacking:
            plan.outcomes.append((item, UnknownMedia(lacking[0], item.refs[lacking[0]])))
            continue
        if partition not in plan.tips:
            plan.tips[partition] = tip
            if tip.new:
                plan.group.names.append((tip.key, partition.name))
                free_key += 1
        rows = []
        for new_row in batch.rows:
            tip.head += 1
            tip.at = max(tip.at, now)
            row = Row(tip.head, tip.at, new_row.by, new_row.client_id, new_row.turn, new_row.finish, new_row.body)
            rows.append(row)
            plan.group.rows.append((tip.key, row, new_row.digest))
            if new_row.media or new_row.refs:
                plan.group.add_media(tip.key, new_row, tip.head, now)
                there.update([(partition.name, blob.hash) for blob in new_row.media])
        if client_key is not None:
            firsts[client_key] = First(tip.head, batch.rows[0].digest)
        plan.group.add(tip.key, batch, now)
        plan.group.bytes += item.size
        plan.outcomes.append((item, Committed(tip.head, tuple(rows))))
    return plan


def _repeat(client_key: ClientKey, first: First, row: NewRow) -> Committed | ClientIdConflict:
    if first.digest == row.digest:
        return Committed(first.seq, (), True)
    return ClientIdConflict(client_key[2], first.seq)


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
        self._task: asyncio.Task[None] | None = None
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

    def statistics(self, pinned: int = 0) -> StorageStatistics:
        """Returns what it has done, and what waits; see `Engine.statistics`."""
        return StorageStatistics(self.rows, self.groups, self.duplicates, self._queued_rows, pinned, self.commits)

    async def close(self) -> None:
        """Refuses new batches and returns once the queue is empty."""
        self._closed = True
        while self._task is not None:
            await asyncio.wait({self._task})

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
        self._queue.append(item)
        self._queued_rows += len(batch.rows) or 1
        if self._task is None:
            self._task = loop.create_task(self._run(), name="parlatory committer")
        return item.future

    async def _run(self) -> None:
        try:
            while self._queue:
                await self._commit(self._take())
                try:
                    await self._disk.tidy()
                except StorageFailed as error:
                    self._stop(error)
                except Exception:  # what goes wrong between groups is no reason to write no more of them
                    logger.exception("storage was not tidied up")
        finally:
            self._task = None

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
        return items

    async def _commit(self, items: list[Item]) -> None:
        """Writes items as one group and settles them; where the group is refused, finds out who is to blame."""
        if self.failed is not None:
            self._fail(items, self.failed)
            return
        try:
            plan = await self._written(items)
        except StorageError as error:
            if isinstance(error, StorageFailed):
                self._stop(error)
            elif not self._troubled:
                logger.error("batches are not written: %s", error)
            self._troubled = True
            self._fail(items, error)
        except Exception as error:
            if len(items) > 1:
                for item in items:
                    await self._commit([item])
                return
            if not isinstance(error, Constraint | Refused):
                logger.exception("a batch of %r cannot be written", items[0].partition)
            refusal = StorageError(f"the batch was refused: {error}")
            refusal.__cause__ = error
            self._fail(items, refusal)
        else:
            self._troubled = False
            self._settle(plan)

    async def _written(self, items: list[Item]) -> Plan:
        """Plans a group and writes it; where a client id turns out to be taken, plans and writes once more."""
        # A repeat is answered as such even where its `expected_seq` has passed; any other is found when it is written.
        # The same goes for one whose media are no longer there.
        wanted = [
            item.client_key for item in items if item.client_key and (item.batch.expected_seq is not None or item.refs)
        ]
        known = await self._disk.find(wanted) if wanted else {}
        cited = [(item.partition.name, hash) for item in items if item.refs for hash in item.refs]
        held = await self._disk.held(cited) if cited else set()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        plan = self._planned(items, known, held)
        if plan.group:
            try:
                await self._disk.write(plan.group)
            except Constraint:
                known = await self._disk.find([item.client_key for item in items if item.client_key])
                plan = self._planned(items, known, held)
                if plan.group:
                    await self._disk.write(plan.group)
            self.commits.observe(loop.time() - begun)
            if plan.group.stale is not None:
                self._sweep_at = plan.group.stale + self._media_unused_us + SWEEP_S * 1_000_000
        return plan

    def _planned(self, items: list[Item], known: dict[ClientKey, First], held: set[MediaKey]) -> Plan:
        now = self._clock()
        plan = plan_group(items, known, self._disk.free_key(), now, held)
        if now >= self._sweep_at:
            plan.group.stale = now - self._media_unused_us
        return plan

    def _stop(self, error: StorageFailed) -> None:
        self.failed = error
        logger.critical("storage has failed, nothing more is written: %s", error)

    def _settle(self, plan: Plan) -> None:
        """Moves the heads, tells and resolves, item by item in their order."""
        if plan.group:
            self.groups += 1
            self.rows += len(plan.group.rows)
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
                except Exception as error:  # the teller's fault, which only its appender can judge
                    if not _reject(item.future, error):
                        logger.exception("telling of %r failed, its appender is gone", item.partition)
                    continue
            if not item.future.done():
                item.future.set_result(outcome)

    def _fail(self, items: list[Item], error: StorageError) -> None:
        """Gives every item an error of its own: one that is shared would gather the tracebacks of all."""
        for item in items:
            failure = type(error)(*error.args)
            failure.__cause__ = error.__cause__
            _reject(item.future, failure)


def _reject(future: asyncio.Future[Committed], error: Exception) -> bool:
    """Gives a future its error, unless nobody waits for it any more."""
    if future.done():
        return False
    if isinstance(error, StopIteration):  # which a future cannot hold
        error, cause = RuntimeError("told raised StopIteration"), error
        error.__cause__ = cause
    future.set_exception(error)
    return True
