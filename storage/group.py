"""A group: what one write makes true, and the decision which rows get which seq and who is refused.

`plan_group` is a pure function of the batches and of what is known to be on disk. A plan is not a commit: it moves
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping

import msgspec

from .engine import Batch, Committed, NewRow, Partition, Told
from .errors import ClientIdConflict, Conflict, UnknownMedia
from .media import Blob
from .rows import Row

__all__ = ["ClientKey", "First", "Group", "Item", "MediaKey", "Plan", "plan_group"]

ClientKey = tuple[str, str, str]
"""Conversation, author, client id: unique for ever."""

MediaKey = tuple[str, str]
"""Conversation, hash."""


NO_REFS: Mapping[str, str] = {}


class First(msgspec.Struct, frozen=True):
    """Is the row that a client id stands for: its seq and the digest of its message."""

    seq: int
    digest: int | None


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
        if batch.puts:
            for name, value in batch.puts.items():
                self.puts[key, name] = value
                self.deletes.pop((key, name), None)
        if batch.deletes:
            for name in batch.deletes:
                self.puts.pop((key, name), None)
                self.deletes[key, name] = None
        if batch.timers:
            for name, due in batch.timers.items():
                self.timers[key, name] = due
        if batch.work is not None:
            self.works[key] = now if batch.work else None
        if batch.uploads:
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


class Item:
    """Is a batch in the queue.

    Attributes:
        asks: something has to be looked up on the disk before it is planned.
    """

    __slots__ = ("asks", "batch", "client_key", "future", "partition", "refs", "size", "told")

    def __init__(
        self, partition: Partition, batch: Batch, told: Told | None, future: asyncio.Future[Committed]
    ) -> None:
        self.partition = partition
        self.batch = batch
        self.told = told
        self.future = future
        size = 0
        self.refs: Mapping[str, str] = NO_REFS  # the media that have to be there, and the path that names them
        for row in batch.rows:
            size += len(row.body)
            if row.media:
                size += sum([len(blob.data) for blob in row.media])
            if row.refs:
                self.refs = {**self.refs, **row.refs}
        if batch.puts:
            size += sum([len(value) for value in batch.puts.values()])
        if batch.uploads:
            size += sum([len(blob.data) for blob in batch.uploads])
        self.size = size
        self.client_key: ClientKey | None = None  # that of its only row, if it has one
        if len(batch.rows) == 1 and (client_id := batch.rows[0].client_id) is not None:
            self.client_key = (partition.name, batch.rows[0].by, client_id)
        # A repeat is answered as such even where its `expected_seq` has passed; any other is found when it is written.
        # The same goes for one whose media are no longer there.
        self.asks = bool(self.refs) or (self.client_key is not None and batch.expected_seq is not None)


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
