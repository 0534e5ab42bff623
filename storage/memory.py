"""The memory engine: conversations for as long as the process lives. For tests and for trying things out."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence

from .committer import Committer, Constraint, Done
from .engine import (
    LISTED_BYTES_MAX,
    LISTED_ROWS_MAX,
    Batch,
    Committed,
    Due,
    Engine,
    LastRow,
    Listing,
    Order,
    Partition,
    Rows,
    Told,
    check_listing,
)
from .errors import StorageClosed
from .group import ClientKey, First, Group, MediaKey
from .media import PIECE_BYTES, Blob
from .rows import Row
from .statistics import StorageStatistics

__all__ = ["MemoryEngine"]

USER = b'{"role":"user"'


class _Table:
    """Is what one conversation holds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.firsts: dict[tuple[str, str], First] = {}
        self.keys: dict[str, bytes] = {}
        self.timers: dict[str, int] = {}
        self.work: int | None = None
        self.media: dict[str, _Media] = {}
        # The place of its last row among the rows of all conversations.
        self.last = 0


class _Media:
    """Is a picture or a file: its pieces by their start, the last row that refers to it, and when it was last put."""

    def __init__(self) -> None:
        self.pieces: dict[int, Blob] = {}
        self.seq: int | None = None
        self.since = 0

    @property
    def whole(self) -> bool:
        size = next(iter(self.pieces.values())).size
        return sum(len(blob.data) for blob in self.pieces.values()) == size


class MemoryEngine(Engine):
    """Keeps conversations in dictionaries. Made by `open_engine("memory:")`."""

    def __init__(self) -> None:
        super().__init__()
        self.epoch = secrets.token_hex(8)
        self._names: dict[str, int] = {}
        self._tables: dict[int, _Table] = {}
        self._rows = 0
        self._committer = Committer(self)
        self._closed = False

    # -- the port

    async def _open(self, name: str) -> tuple[str, LastRow]:
        self._check_open()
        epoch = f"{self.epoch}.1"
        key = self._names.get(name)
        if key is None:
            return epoch, LastRow()
        rows = self._tables[key].rows
        return epoch, LastRow(key=key, seq=len(rows), at=rows[-1].at if rows else 0)

    def submit(self, partition: Partition, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
        """Queues a batch; see `Engine.submit`."""
        return self._committer.submit(partition, batch, told)

    def commit(self, partition: Partition, batch: Batch, told: Told | None = None) -> Awaitable[Committed]:
        """Commits a batch; see `Engine.commit`."""
        return self._committer.commit(partition, batch, told)

    def begin(self) -> None:
        """Begins to write what was submitted in this step; see `Engine.begin`."""
        self._committer.begin()

    def after_telling(self, call: Callable[[], object]) -> None:
        """Calls once the group is told; see `Engine.after_telling`."""
        self._committer.after_telling(call)

    async def read(
        self, partition: Partition, *, after: int, before: int | None, limit: int, max_bytes: int, newest: bool
    ) -> Rows:
        """Returns committed rows; see `Engine.read`."""
        self._check_open()
        after, end = max(after, 0), partition.head + 1
        before = end if before is None else min(before, end)
        if partition.key is None or limit <= 0 or before - after <= 1:
            return []
        found = self._tables[partition.key].rows[after : before - 1]
        chosen: list[Row] = []
        size = 0
        for row in reversed(found) if newest else found:
            size += len(row.body)
            if chosen and (size > max_bytes or len(chosen) == limit):
                break
            chosen.append(row)
        return chosen[::-1] if newest else chosen

    async def keys(self, partition: Partition, prefix: str) -> dict[str, bytes]:
        """Returns keys; see `Engine.keys`."""
        self._check_open()
        if partition.key is None:
            return {}
        keys = self._tables[partition.key].keys
        return {key: keys[key] for key in sorted(keys) if key.startswith(prefix)}

    async def media(self, partition: Partition, hash: str, start: int) -> Blob | None:
        """Returns a piece of media; see `Engine.media`."""
        self._check_open()
        media = None if partition.key is None else self._tables[partition.key].media.get(hash)
        if media is None or not media.whole:
            return None
        piece = media.pieces.get(start // PIECE_BYTES * PIECE_BYTES)
        return piece if piece is not None and (start < piece.size or start == 0) else None

    async def list(
        self,
        *,
        order: Order = "name",
        agent: str | None = None,
        by: str | None = None,
        search: str = "",
        after: str = "",
        limit: int = 100,
    ) -> Sequence[Listing]:
        """Returns conversations; see `Engine.list`."""
        self._check_open()
        place = check_listing(order, by, search, after)
        tables = [one for one in self._tables.values() if agent is None or one.name.startswith(f"{agent}/")]
        if order == "name":
            tables = sorted((one for one in tables if one.name > after), key=lambda one: one.name)
            return [
                Listing(one.name, len(one.rows), one.rows[-1].at if one.rows else 0, one.name) for one in tables[:limit]
            ]
        sought = search.encode().lower()  # of bytes: ASCII letters only
        found = [
            one
            for one in tables
            if one.rows
            and one.last < place
            and sought in one.name.encode().lower()
            and (by is None or any(row.by == by for row in one.rows))
        ]
        found.sort(key=lambda one: -one.last)
        return [
            Listing(
                one.name,
                len(one.rows),
                one.rows[-1].at,
                str(one.last),
                _short(one.rows[-1:]),
                _short(one.rows[:LISTED_ROWS_MAX], USER),
            )
            for one in found[:limit]
        ]

    async def due(self, *, now: int, after: int = 0, limit: int = 100) -> Sequence[Due]:
        """Returns what waits; see `Engine.due`."""
        self._check_open()
        found: list[Due] = []
        for key in sorted(self._tables):
            table = self._tables[key]
            waiting = [Due(table.name, timer, at, key) for timer, at in sorted(table.timers.items()) if at <= now]
            if table.work is not None:
                waiting.insert(0, Due(table.name, None, table.work, key))
            if key > after and waiting and limit > 0:
                limit -= 1
                found += waiting
        return found

    async def close(self) -> None:
        """Commits what is queued; see `Engine.close`."""
        await self._committer.close()
        self._closed = True

    @property
    def failed(self) -> BaseException | None:
        """Is None: memory does not fail by itself."""
        return self._committer.failed

    @property
    def statistics(self) -> StorageStatistics:
        """Is what was counted; see `Engine.statistics`."""
        return self._committer.statistics()

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed("the engine is closed")

    # -- the committer's disk

    def free_key(self) -> int:
        """Returns the lowest key that no conversation has."""
        return len(self._names) + 1

    def write(self, group: Group, done: Done) -> None:
        """Writes a group; see `Disk.write`."""
        for key, row, _ in group.rows:
            if row.client_id is not None and key in self._tables:
                if (row.by, row.client_id) in self._tables[key].firsts:
                    raise Constraint("a client id is taken")
        self._write(group)
        asyncio.get_running_loop().call_soon(done, None)

    def _write(self, group: Group) -> None:
        for key, name in group.names:
            self._names[name] = key
            self._tables[key] = _Table(name)
        for key, row, digest in group.rows:
            table = self._tables[key]
            self._rows += 1
            table.last = self._rows
            table.rows.append(row)
            if row.client_id is not None:
                table.firsts[row.by, row.client_id] = First(row.seq, digest)
        for (key, name), value in group.puts.items():
            self._tables[key].keys[name] = value
        for key, name in group.deletes:
            self._tables[key].keys.pop(name, None)
        for (key, name), due in group.timers.items():
            if due is None:
                self._tables[key].timers.pop(name, None)
            else:
                self._tables[key].timers[name] = due
        for key, since in group.works.items():
            table = self._tables[key]
            table.work = since if since is None or table.work is None else table.work
        self._write_media(group)

    def _write_media(self, group: Group) -> None:
        for key, now, blob in group.blobs:
            media = self._tables[key].media.setdefault(blob.hash, _Media())
            media.pieces.setdefault(blob.start, blob)
            media.since = now
        for (key, hash), seq in group.uses.items():
            self._tables[key].media[hash].seq = seq
        if group.stale is not None:
            for table in self._tables.values():
                unused = [hash for hash, one in table.media.items() if one.seq is None and one.since < group.stale]
                for hash in unused:
                    del table.media[hash]

    async def find(self, wanted: Sequence[ClientKey]) -> dict[ClientKey, First]:
        """Returns those client keys that exist."""
        found: dict[ClientKey, First] = {}
        for name, author, client_id in wanted:
            key = self._names.get(name)
            first = None if key is None else self._tables[key].firsts.get((author, client_id))
            if first is not None:
                found[name, author, client_id] = first
        return found

    async def held(self, wanted: Sequence[MediaKey]) -> set[MediaKey]:
        """Returns those media that are there whole."""
        held = set()
        for name, hash in wanted:
            key = self._names.get(name)
            media = None if key is None else self._tables[key].media.get(hash)
            if media is not None and media.whole:
                held.add((name, hash))
        return held

    @property
    def untidy(self) -> bool:
        """Is False: there is nothing to do."""
        return False

    async def tidy(self) -> None:
        """Has nothing to do."""


def _short(rows: Sequence[Row], start: bytes = b"") -> Row | None:
    """Returns the first of the rows that is short enough for a list, and whose body starts like this."""
    for row in rows:
        if len(row.body) <= LISTED_BYTES_MAX and row.body.startswith(start):
            return row
    return None
