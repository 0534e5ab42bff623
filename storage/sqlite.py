"""The SQLite engine: one file for all conversations, one connection that writes, one that reads.

The writer alone writes and checkpoints; two connections that write one WAL file are exposed to a fault of SQLite before
3.51.3. Every statement is bound to the integer key of one conversation, so the isolation of conversations is by API.

Durability. `full` (the default) flushes the WAL at every commit. `normal` flushes at checkpoints only: after a power
loss rows that were told may be gone, so the epoch changes at each open that follows an unclean end, and every client
starts over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import sqlite3
import warnings
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from . import activity, schema
from .committer import Committer, Constraint, Done
from .connection import Connect, Connection, connect_aiosqlite
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
from .errors import SchemaMismatch, StorageClosed, StorageError, StorageFailed
from .filesystem import network_file_system
from .group import ClientKey, First, Group, MediaKey
from .lock import DirectoryLock
from .media import Blob
from .rows import Row
from .sqlite_errors import name_of, translated
from .statistics import StorageStatistics
from .wal_room import WalRoom

__all__ = ["Durability", "SqliteDisk", "SqliteEngine"]

Durability = Literal["full", "normal"]

FILE = "parlatory.sqlite"
BUSY_TIMEOUT_MS = 5_000
CHECKPOINT_BYTES = 16 << 20
PINNED_BYTES_WARN = 256 << 20
WAL_KEPT_BYTES = 64 << 20
FRAME_BYTES = 4096 + 24
LAST_NAME = "\U0010ffff"
# How many fresh rows are folded into the index of activity at a time; a list reads as many.
FOLD_ROWS = 1024
# So many conversations are sorted for a list sooner than the activity is followed until enough of them are found.
FEW_CONVERSATIONS = 4_000
LIKE_LITERALLY = str.maketrans({character: f"|{character}" for character in "|%_"})

logger = logging.getLogger("parlatory.storage")
_encode = msgspec.json.Encoder().encode
_client_key = msgspec.json.Decoder(ClientKey).decode


class SqliteDisk:
    """Is the file: the connection that writes it (None: read only), the one that reads it, and the gate between them.

    The committer writes through it (`committer.Disk`). It does not know its engine, so that an engine which nobody
    closed is freed, and says so, as soon as it is forgotten.

    Attributes:
        epoch: names this incarnation of the file.
        pinned: how often the WAL was found grown over what is warned of.
    """

    def __init__(
        self,
        path: Path,
        writer: Connection | None,
        reader: Connection,
        epoch: str,
        free_key: int,
        fresh: int,
        room: WalRoom | None = None,
    ) -> None:
        self.epoch = epoch
        self.pinned = 0
        self._path = path
        self._writer = writer
        self._reader = reader
        self._free_key = free_key
        self._fresh = fresh  # rows that are not in the index of activity
        self._written_bytes = 0  # bytes that the WAL has grown by since the last complete checkpoint, an upper estimate
        self._room = room
        self._pinned_warned = False
        self._reads = 0
        self._no_reads = asyncio.Event()
        self._no_reads.set()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closed = False

    @classmethod
    async def open(cls, path: Path, durability: Durability | None, connect: Connect) -> SqliteDisk:
        """Opens the file, to read only where `durability` is None; else makes it and brings it up to date."""
        async with contextlib.AsyncExitStack() as undo:
            writer = None
            if durability is not None:
                writer = await _connected(connect, path, "rwc")
                undo.push_async_callback(writer.close)
                await _prepare_writer(writer, path, durability)
            reader = await _connected(connect, path, "ro")
            undo.push_async_callback(reader.close)
            epoch, highest, fresh = await _prepare_reader(reader, path)
            undo.pop_all()
        room = WalRoom(path.with_name(f"{path.name}-wal"), CHECKPOINT_BYTES) if durability == "full" else None
        return cls(path, writer, reader, epoch, highest + 1, fresh, room)

    @property
    def read_only(self) -> bool:
        """Says whether it has no writer."""
        return self._writer is None

    async def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Reads with the reader, which rests while a checkpoint runs: a read in flight would pin the WAL.

        A read whose caller is cancelled ends in its thread, uncounted. At worst one checkpoint has to be repeated.
        """
        while not self._may_read.is_set():
            await self._may_read.wait()
        if self._closed:
            raise StorageClosed("the engine is closed")
        self._reads += 1
        self._no_reads.clear()
        try:
            return list(await self._reader.execute_fetchall(sql, parameters))
        except sqlite3.Error as error:
            raise translated(error) from error
        finally:
            self._reads -= 1
            if not self._reads:
                self._no_reads.set()

    # -- for the committer

    def free_key(self) -> int:
        """Returns the lowest key that no conversation has."""
        return self._free_key

    def write(self, group: Group, done: Done) -> None:
        """Writes a group in one statement; see `Disk.write`."""
        assert self._writer is not None
        ended = partial(self._written, group, done)
        if (lone := group.lone_row) is not None:
            self._writer.begin(schema.INSERT_ROW, _row_parameters(*lone), ended)
        elif group.concerns_media:
            self._writer.begin(schema.INSERT_MEDIA_BATCH, _media_parameters(group), ended)
        else:
            self._writer.begin(schema.INSERT_BATCH, _parameters(group), ended)

    def _written(self, group: Group, done: Done, error: Exception | None) -> None:
        if error is None:
            self._free_key += len(group.names)
            self._fresh += len(group.rows)
            self._written_bytes += _wal_bytes(group)
            done(None)
            return
        failure = error
        if isinstance(error, sqlite3.Error):
            failure = Constraint(str(error)) if isinstance(error, sqlite3.IntegrityError) else translated(error)
            failure.__cause__ = error
        done(failure)

    async def find(self, wanted: Sequence[ClientKey]) -> dict[ClientKey, First]:
        """Returns those client keys that exist."""
        rows = await self.fetch(schema.FIND, (_json(wanted),))
        return {_client_key(key): First(seq, digest) for key, seq, digest in rows}

    async def held(self, wanted: Sequence[MediaKey]) -> set[MediaKey]:
        """Returns those media that are there whole."""
        return {(name, hash) for name, hash in await self.fetch(schema.HELD, (_json(wanted),))}

    @property
    def untidy(self) -> bool:
        """Says that it is time for one of what `tidy` does."""
        if self._fresh >= FOLD_ROWS or self._written_bytes >= CHECKPOINT_BYTES:
            return True
        return self._room is not None and self._room.wanted(self._written_bytes)

    async def tidy(self) -> None:
        """Folds what is fresh, checkpoints, and makes room in the WAL, if it is time; see `Disk.tidy`."""
        if self._fresh >= FOLD_ROWS:
            await self._fold()
        if self._written_bytes >= CHECKPOINT_BYTES:
            await self._checkpoint()
        elif self._room is not None and self._room.wanted(self._written_bytes):
            await asyncio.to_thread(self._room.make, self._written_bytes)

    async def _fold(self) -> None:
        assert self._writer is not None
        try:
            await self._writer.execute_fetchall(activity.FOLD)
        except sqlite3.Error as error:
            if isinstance(failure := translated(error), StorageFailed):
                raise failure from error
            logger.warning("the index of activity of %s lags behind, lists take longer: %s", self._path, error)
            self._fresh = FOLD_ROWS // 2
            return
        # Three trees, of more than 64 entries a page.
        self._written_bytes += 3 * FRAME_BYTES * min(self._fresh, 1 + self._free_key // 64)
        self._fresh = 0

    async def _checkpoint(self) -> None:
        assert self._writer is not None
        self._may_read.clear()
        try:
            await self._no_reads.wait()
            ((_, frames, moved),) = await self._writer.execute_fetchall("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.Error as error:
            if isinstance(failure := translated(error), StorageFailed):
                raise failure from error
            logger.warning("a checkpoint of %s failed and will be repeated: %s", self._path, error)
            self._written_bytes = CHECKPOINT_BYTES // 2
            return
        finally:
            self._may_read.set()
        if moved >= frames:
            self._written_bytes, self._pinned_warned = 0, False
            return
        self._written_bytes = CHECKPOINT_BYTES * 3 // 4  # pinned by somebody else's reader: again after 4 MiB
        if frames * FRAME_BYTES > PINNED_BYTES_WARN and not self._pinned_warned:
            self._pinned_warned = True
            self.pinned += 1
            size = frames * FRAME_BYTES >> 20
            logger.warning("the WAL of %s has grown to %d MiB: another program keeps reading it", self._path, size)

    async def close(self, *, failed: bool) -> None:
        """Closes the connections; unless storage has `failed`, the WAL goes into the file before."""
        self._closed = True
        async with contextlib.AsyncExitStack() as stack:
            if self._writer is None:
                stack.push_async_callback(self._reader.close)
            elif failed:
                # A connection that can write and closes last moves the WAL. What that holds is not known: let it lie.
                stack.push_async_callback(self._reader.close)
                stack.push_async_callback(self._writer.close)
            else:
                stack.push_async_callback(self._writer.close)
                stack.push_async_callback(_finish, self._writer, self._path)
                stack.push_async_callback(self._reader.close)


class SqliteEngine(Engine):
    """Keeps conversations in `parlatory.sqlite` of a directory. Made by `open_engine`, not by its constructor.

    Attributes:
        directory: the data directory.
        epoch: the epoch of the file; a conversation's epoch starts with it.
    """

    def __init__(self, directory: Path, disk: SqliteDisk, lock: DirectoryLock | None) -> None:
        super().__init__()
        self.directory = directory
        self.epoch = disk.epoch
        self._disk = disk
        self._lock = lock
        self._committer = Committer(disk)
        self._closing: asyncio.Task[None] | None = None

    def __del__(self) -> None:
        if self._closing is None:
            warnings.warn(f"the engine of {self.directory} was not closed", ResourceWarning, stacklevel=1)

    @classmethod
    async def open(
        cls,
        directory: Path,
        *,
        durability: Durability = "full",
        read_only: bool = False,
        connect: Connect = connect_aiosqlite,
    ) -> SqliteEngine:
        """Opens a data directory, making it if it is not there; see `open_engine`."""
        path = directory / FILE
        async with contextlib.AsyncExitStack() as undo:
            lock = None
            if not read_only:
                await asyncio.to_thread(_make, directory)
                lock = DirectoryLock(directory)
                undo.callback(lock.release)
                await asyncio.to_thread(lock.acquire)
            elif not await asyncio.to_thread(path.exists):
                raise StorageError(f"{directory} holds no parlatory data")
            disk = await SqliteDisk.open(path, None if read_only else durability, connect)
            undo.pop_all()
        return cls(directory, disk, lock)

    async def _open(self, name: str) -> tuple[str, LastRow]:
        rows = await self._disk.fetch(schema.OPEN, (name,))
        if not rows:
            return f"{self.epoch}.1", LastRow()
        key, generation, floor, seq, at = rows[0]
        last = LastRow(key=key, floor=floor, seq=floor if seq is None else seq, at=at or 0)
        return f"{self.epoch}.{generation}", last

    def submit(self, partition: Partition, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
        """Queues a batch; see `Engine.submit`."""
        self._check_writable()
        return self._committer.submit(partition, batch, told)

    def commit(self, partition: Partition, batch: Batch, told: Told | None = None) -> Awaitable[Committed]:
        """Commits a batch; see `Engine.commit`."""
        self._check_writable()
        return self._committer.commit(partition, batch, told)

    def begin(self) -> None:
        """Begins to write what was submitted in this step; see `Engine.begin`."""
        self._committer.begin()

    def after_telling(self, call: Callable[[], object]) -> None:
        """Calls once the group is told; see `Engine.after_telling`."""
        self._committer.after_telling(call)

    def _check_writable(self) -> None:
        if self._disk.read_only:
            raise StorageError(f"{self.directory} was opened to read only")

    async def read(
        self, partition: Partition, *, after: int, before: int | None, limit: int, max_bytes: int, newest: bool
    ) -> Rows:
        """Returns committed rows; see `Engine.read`."""
        end = partition.head + 1
        before = end if before is None else min(before, end)
        if partition.key is None or limit <= 0 or before - after <= 1:
            return []
        statement = schema.READ_LAST if newest else schema.READ_FIRST
        rows = await self._disk.fetch(statement, (partition.key, after, before, limit, max_bytes))
        return [Row(*row) for row in rows]

    async def keys(self, partition: Partition, prefix: str) -> dict[str, bytes]:
        """Returns keys; see `Engine.keys`."""
        if partition.key is None:
            return {}
        return dict(await self._disk.fetch(schema.KEYS, (partition.key, prefix)))

    async def media(self, partition: Partition, hash: str, start: int) -> Blob | None:
        """Returns a piece of media; see `Engine.media`."""
        if partition.key is None or start < 0:
            return None
        for media_type, size, begin, data in await self._disk.fetch(schema.MEDIA, (partition.key, hash, start)):
            return Blob(hash=hash, media_type=media_type, size=size, start=begin, data=data)
        return None

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
        place = check_listing(order, by, search, after)
        # "0" is the character behind "/".
        start, end = ("", LAST_NAME) if agent is None else (f"{agent}/", f"{agent}0")
        if order == "name":
            found = await self._disk.fetch(schema.LIST, (max(after, start), end, limit))
            return [Listing(name, head, at, name) for name, head, at in found]
        pattern = f"%{search.translate(LIKE_LITERALLY)}%"
        few = await self._few(by, pattern if search else None)
        parameters = [place, start, end, pattern, by, limit, LISTED_BYTES_MAX, LISTED_ROWS_MAX]
        if few is None:
            return [_listing(*row) for row in await self._disk.fetch(activity.LIST_ALL, parameters)]
        return [_listing(*row) for row in await self._disk.fetch(activity.LIST_FEW, (*parameters, _json(few)))]

    async def _few(self, by: str | None, pattern: str | None) -> Sequence[int] | None:
        """Returns the conversations that an author or a text leaves, if there are few; None if there are many."""
        for statement, wanted in ((activity.FEW_BY, by), (activity.FEW_NAMED, pattern)):
            if wanted is not None:
                found = await self._disk.fetch(statement, (wanted, FEW_CONVERSATIONS + 1))
                if len(found) <= FEW_CONVERSATIONS:
                    return [key for (key,) in found]
        return None

    async def due(self, *, now: int, after: int = 0, limit: int = 100) -> Sequence[Due]:
        """Returns what waits; see `Engine.due`."""
        return [Due(*row) for row in await self._disk.fetch(schema.DUE, (now, after, limit))]

    async def close(self) -> None:
        """Commits what is queued, checkpoints, and lets the directory go; see `Engine.close`."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="parlatory storage close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._committer.close()
            await self._disk.close(failed=self.failed is not None)
        finally:
            if self._lock is not None:
                await asyncio.to_thread(self._lock.release)

    @property
    def failed(self) -> BaseException | None:
        """Is the error that stopped the engine for good; see `Engine.failed`."""
        return self._committer.failed

    @property
    def statistics(self) -> StorageStatistics:
        """Is what was counted; see `Engine.statistics`."""
        return self._committer.statistics(self._disk.pinned)


def _listing(name: str, head: int, at: int, place: int, *columns: Any) -> Listing:
    """Returns a row of a list by activity."""
    last = None if columns[4] is None else Row(head, at, *columns[:5])
    return Listing(name, head, at, str(place), last, None if columns[5] is None else Row(*columns[5:]))


def _json(rows: object) -> str:
    return _encode(rows).decode()


def _row_parameters(key: int, row: Row, digest: int | None) -> tuple[object, ...]:
    """Returns what `INSERT_ROW` takes."""
    size = len(row.body)
    return key, row.seq, row.at, row.by, row.client_id, digest, row.turn, row.finish, size, row.body


def _parameters(group: Group) -> tuple[object, ...]:
    """Returns what `INSERT_BATCH` takes: a JSON list per table, None where there is nothing for it."""
    rows = []
    offset = 1  # SQL counts from 1
    for key, row, digest in group.rows:
        size = len(row.body)
        rows.append((key, row.seq, row.at, row.by, row.client_id, digest, row.turn, row.finish, size, offset))
        offset += size
    return (
        _json(rows) if rows else None,
        b"".join([row.body for _, row, _ in group.rows]),
        _json(group.names) if group.names else None,
        _json([(key, name, value.decode()) for (key, name), value in group.puts.items()]) if group.puts else None,
        _json(list(group.deletes)) if group.deletes else None,
        _json([(key, name, due) for (key, name), due in group.timers.items()]) if group.timers else None,
        _json(list(group.works.items())) if group.works else None,
    )


def _media_parameters(group: Group) -> tuple[object, ...]:
    """Returns what `INSERT_MEDIA_BATCH` takes: as `INSERT_BATCH`, with the pieces of media behind the bodies."""
    rows, bodies, *others = _parameters(group)
    assert isinstance(bodies, bytes)
    offset = len(bodies) + 1
    blobs = []
    for key, now, blob in group.blobs:
        blobs.append((key, blob.hash, blob.media_type, blob.size, now, blob.start, len(blob.data), offset))
        offset += len(blob.data)
    return (
        rows,
        b"".join([bodies, *(blob.data for *_, blob in group.blobs)]),
        *others,
        _json(blobs) if blobs else None,
        _json([(key, hash, seq) for (key, hash), seq in group.uses.items()]) if group.uses else None,
        group.stale,
    )


def _wal_bytes(group: Group) -> int:
    """Returns how much the WAL grows by a group, rather more than less: its bytes, and a page for each leaf."""
    if group.lone_row is not None:  # what is waited for most; the same as below, with a client id
        return group.bytes + FRAME_BYTES * 4
    conversations = {key for key, _, _ in group.rows}
    client_ids = [row for _, row, _ in group.rows if row.client_id is not None]
    leaves = 2 + len(conversations) + len(client_ids) + 2 * len(group.names) + len(group.puts) + len(group.deletes)
    leaves += 3 * len(group.timers) + len(group.works) + 5 * len(group.blobs) + 3 * len(group.uses)
    return group.bytes + FRAME_BYTES * leaves


def _make(directory: Path) -> None:
    """Makes a data directory that is still there after a power loss; refuses one on a network file system."""
    made = not directory.is_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if kind := network_file_system(directory):
            raise StorageError(f"{directory} lies on {kind}, a network file system: keep data on a local disk")
        if not made:
            return
        parent = os.open(directory.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except OSError as error:
        raise StorageError(f"cannot make the data directory {directory}: {error.strerror}") from error


async def _connected(connect: Connect, path: Path, mode: str) -> Connection:
    try:
        return await connect(f"file:{quote(str(path))}?mode={mode}")
    except sqlite3.Error as error:
        raise StorageError(f"cannot open {path}: {error}") from error


async def _prepare_writer(writer: Connection, path: Path, durability: Durability) -> None:
    """Sets the writer up and brings the schema and the epoch up to date."""
    run = writer.execute_fetchall
    try:
        await run(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        version = await _check_version(writer, path)
        await run("PRAGMA auto_vacuum=INCREMENTAL")
        ((journal,),) = await run("PRAGMA journal_mode=WAL")
        if journal != "wal":
            raise StorageError(f"{path} cannot be kept in WAL mode, which this file system does not support")
        await run("PRAGMA synchronous=FULL")
        await run("PRAGMA fullfsync=ON")  # macOS only; elsewhere it does nothing
        await run("PRAGMA wal_autocheckpoint=0")
        await run(f"PRAGMA journal_size_limit={WAL_KEPT_BYTES}")
        await run("PRAGMA cache_size=-2048")
        await run("PRAGMA trusted_schema=OFF")
        for target in range(version + 1, schema.VERSION + 1):
            await writer.executescript(
                f"BEGIN IMMEDIATE; {schema.MIGRATIONS[target]}"
                f"PRAGMA application_id={schema.APPLICATION_ID}; PRAGMA user_version={target}; COMMIT;"
            )
        await writer.executescript(schema.TEMPORARY)
        meta = dict(await run("SELECT key, value FROM meta"))
        if "epoch" not in meta or meta.get("clean") == "0":
            await run("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (secrets.token_hex(8),))
        # Durable before anything that could be lost behind it, hence still at FULL.
        await run("INSERT OR REPLACE INTO meta VALUES ('clean', ?)", ("0" if durability == "normal" else "1",))
        await run(f"PRAGMA synchronous={durability.upper()}")
    except sqlite3.Error as error:
        raise translated(error) from error


async def _prepare_reader(reader: Connection, path: Path) -> tuple[str, int, int]:
    """Sets the reader up; returns the epoch, the highest key of a conversation, and how many rows are fresh."""
    run = reader.execute_fetchall
    try:
        await run(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")
        version = await _check_version(reader, path)  # before anything that reads the file: it names it
        await run("PRAGMA cache_size=-2048")
        await run("PRAGMA trusted_schema=OFF")
        if version < schema.VERSION:
            raise SchemaMismatch(f"{path} has schema {version}: opened by a server, it would get {schema.VERSION}")
        ((epoch,),) = await run("SELECT value FROM meta WHERE key = 'epoch'")
        ((highest,),) = await run("SELECT coalesce(max(id), 0) FROM conversation")
        ((fresh,),) = await run(activity.FRESH)
    except sqlite3.Error as error:
        raise translated(error) from error
    return epoch, highest, fresh


async def _finish(writer: Connection, path: Path) -> None:
    """Moves the WAL into the file, then notes that nothing was left behind."""
    try:
        await writer.execute_fetchall("PRAGMA wal_checkpoint(TRUNCATE)")
        await writer.execute_fetchall("INSERT OR REPLACE INTO meta VALUES ('clean', '1')")
    except sqlite3.Error as error:  # what is committed lies in the WAL, for the next who opens the file
        logger.warning("%s was closed without a checkpoint: %s", path, error)


async def _check_version(connection: Connection, path: Path) -> int:
    """Returns the version of a file; refuses a newer one, or one of another program, before anything is written."""
    try:
        ((version,),) = await connection.execute_fetchall("PRAGMA user_version")
        ((application,),) = await connection.execute_fetchall("PRAGMA application_id")
        ((tables,),) = await connection.execute_fetchall("SELECT count(*) FROM sqlite_master")
    except sqlite3.DatabaseError as error:
        if name_of(error) != "SQLITE_NOTADB":
            raise
        raise SchemaMismatch(f"{path} is no SQLite database: {error}") from error
    if tables and application != schema.APPLICATION_ID:
        raise SchemaMismatch(f"{path} was not written by parlatory")
    if version > schema.VERSION:
        raise SchemaMismatch(f"{path} has schema {version}, not {schema.VERSION}: install a newer parlatory")
    return int(version)
