"""The SQLite engine: the contract, and what only a file can show."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from parlatory.storage import (
    Batch,
    CorruptRow,
    DataLocked,
    Engine,
    EngineContract,
    MessageLog,
    NewRow,
    SchemaMismatch,
    StorageBusy,
    StorageClosed,
    StorageError,
    StorageFailed,
    StorageFull,
    open_engine,
    schema,
    user_message,
)
from parlatory.storage import sqlite as sqlite_module
from parlatory.storage.connection import Connection, connect_aiosqlite
from parlatory.storage.sqlite import FILE, SqliteEngine

from .faulty import Faulty
from .holdings import Holdings


class TestSqlite(EngineContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.folders = (tmp_path / f"d\u00e4ta {number} ?#%41" for number in itertools.count())

    async def open(self) -> Engine:
        return await open_engine(f"sqlite:///{next(self.folders)}")

    async def reopen(self, engine: Engine) -> Engine:
        assert isinstance(engine, SqliteEngine)
        await engine.close()
        return await open_engine(f"sqlite:///{engine.directory}")


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[SqliteEngine]:
    engine = await SqliteEngine.open(tmp_path)
    yield engine
    await engine.close()


def database(directory: Path) -> closing[sqlite3.Connection]:
    """Another program on the file."""
    return closing(sqlite3.connect(directory / FILE, isolation_level=None))


async def texts(engine: Engine, name: str = "bot/a") -> list[str]:
    return [row.text for row in await MessageLog(await engine.partition(name)).all()]


async def append(engine: Engine, *texts: str, name: str = "bot/a") -> int:
    return await MessageLog(await engine.partition(name)).append_many([user_message(text) for text in texts])


def workers() -> set[threading.Thread]:
    """The threads of connections; others are the event loop's."""
    return {thread for thread in threading.enumerate() if "connection_worker" in thread.name}


def none_works() -> bool:
    """Says that the threads of all connections end: each does just after its connection says that it is closed."""
    for thread in workers():
        thread.join(5)
    return not workers()


@pytest.fixture
async def connections() -> list[Faulty]:
    """The writer and the reader of `faulty`."""
    return []


@pytest.fixture
async def faulty(tmp_path: Path, connections: list[Faulty]) -> AsyncIterator[SqliteEngine]:
    async def connect(uri: str) -> Connection:
        connections.append(Faulty(await connect_aiosqlite(uri)))
        return connections[-1]

    engine = await SqliteEngine.open(tmp_path, connect=connect)
    yield engine
    await engine.close()


# -- the file


async def test_settings(engine: SqliteEngine, tmp_path: Path) -> None:
    await append(engine, "hi")
    with database(tmp_path) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert other.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        assert other.execute("PRAGMA user_version").fetchone() == (schema.VERSION,)
        assert other.execute("PRAGMA application_id").fetchone() == (0x7061726C,)
        # Whoever looks into the file finds what was said as text.
        assert other.execute("SELECT json_extract(body, '$.content') FROM message").fetchone() == ("hi",)


async def test_nothing_is_left_open(tmp_path: Path) -> None:
    gc.collect()  # what others left behind
    before = set(os.listdir("/proc/self/fd"))
    engine = await SqliteEngine.open(tmp_path)
    await append(engine, "hi")
    assert len(workers()) == 2
    await engine.close()
    assert none_works()
    assert set(os.listdir("/proc/self/fd")) == before
    assert sorted(os.listdir(tmp_path)) == ["LOCK", FILE]


async def test_t12_conversations_cost_no_descriptors(engine: SqliteEngine) -> None:
    """2,000 conversations are touched: no thread and no file more than for one, and no object is kept."""
    held = Holdings()
    await append(engine, "hi")
    before = await held.quiet(engine)

    async def touch(number: int) -> None:
        await append(engine, "hi", name=f"bot/{number}")
        assert await texts(engine, f"bot/{number}") == ["hi"]

    await asyncio.gather(*(touch(number) for number in range(2000)))
    assert await held.quiet(engine) == before
    gc.collect()
    assert len(engine._partitions) == 0
    assert len(await engine.list(limit=3000)) == 2001


async def test_t16_vacuum_changes_no_order(engine: SqliteEngine, tmp_path: Path) -> None:
    names = [f"bot/{number}" for number in range(5)]
    for number in range(60):
        await append(engine, str(number), name=names[number * 7 % 5])
    before = [await texts(engine, name) for name in names]
    await engine.close()
    with database(tmp_path) as other:
        other.execute("DELETE FROM message WHERE conversation = 1 AND seq = 12")
        other.execute("VACUUM")
    again = await SqliteEngine.open(tmp_path)
    assert [await texts(again, name) for name in names[1:]] == before[1:]
    assert (await texts(again, names[0])) == before[0][:-1]
    await again.close()


async def test_t14_a_corrupt_row_spoils_only_itself(engine: SqliteEngine, tmp_path: Path) -> None:
    await append(engine, "1", "2", "3", "4")
    with database(tmp_path) as other:
        other.execute("UPDATE message SET body = CAST(x'ff00fe' AS TEXT) WHERE seq = 2")
        other.execute("UPDATE message SET body = '{' WHERE seq = 3")
    log = MessageLog(await engine.partition("bot/a"))
    for seq in (2, 3):
        with pytest.raises(CorruptRow) as caught:
            await log.get(seq)
        assert (caught.value.conversation, caught.value.seq) == ("bot/a", seq)
    with pytest.raises(CorruptRow) as caught:
        await log.all()
    assert caught.value.seq == 2
    first, last = await log.get(1), await log.last()
    assert first is not None
    assert last is not None
    assert (first.text, last.text) == ("1", "4")
    assert await append(engine, "5") == 5


async def test_a_full_page_is_not_read_behind_its_end(engine: SqliteEngine) -> None:
    """Rows behind the end in bytes are not touched: a page of big rows costs what it holds."""
    partition = await engine.partition("bot/a")
    for _ in range(20):
        await partition.commit(Batch(rows=[NewRow(body=b"x" * (1 << 20), by="user")]))
    assert [row.seq for row in await partition.read(limit=200, max_bytes=2 << 20)] == [1, 2]
    assert [row.seq for row in await partition.read(limit=200, max_bytes=2 << 20, newest=True)] == [19, 20]


# -- versions and other files


async def test_a_newer_schema_is_refused_before_a_write(engine: SqliteEngine, tmp_path: Path) -> None:
    await engine.close()
    with database(tmp_path) as other:
        other.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    before = (tmp_path / FILE).read_bytes()
    refusal = f"schema {schema.VERSION + 1}, not {schema.VERSION}: install a newer parlatory"
    for read_only in (False, True):
        with pytest.raises(SchemaMismatch, match=refusal):
            await SqliteEngine.open(tmp_path, read_only=read_only)
    assert (tmp_path / FILE).read_bytes() == before
    assert (tmp_path / "LOCK").read_bytes() == b""


async def test_files_that_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database " * 100)
    with pytest.raises(SchemaMismatch, match="is no SQLite database"):
        await SqliteEngine.open(tmp_path)
    (tmp_path / FILE).unlink()
    with database(tmp_path) as other:
        other.execute("CREATE TABLE x (y)")
    with pytest.raises(SchemaMismatch, match="was not written by parlatory"):
        await SqliteEngine.open(tmp_path)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    with pytest.raises(StorageError, match="cannot open"):
        await SqliteEngine.open(tmp_path)


async def test_a_truncated_file(engine: SqliteEngine, tmp_path: Path) -> None:
    await append(engine, *("x" * 1000 for _ in range(100)))
    await engine.close()
    os.truncate(tmp_path / FILE, 8192)
    with pytest.raises(StorageError):
        await SqliteEngine.open(tmp_path)


async def test_a_file_from_before_the_first_schema(tmp_path: Path) -> None:
    """A server that was killed while it made the file left it empty: readers say so, the next server makes it."""
    (tmp_path / FILE).touch()
    with pytest.raises(SchemaMismatch, match="has schema 0"):
        await SqliteEngine.open(tmp_path, read_only=True)
    engine = await SqliteEngine.open(tmp_path)
    assert await append(engine, "hi") == 1
    await engine.close()


async def test_a_file_system_without_wal(tmp_path: Path) -> None:
    class NoWal(Faulty):
        async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None) -> Iterable[Any]:
            return [("delete",)] if "journal_mode" in sql else await super().execute_fetchall(sql, parameters)

    async def connect(uri: str) -> Connection:
        return NoWal(await connect_aiosqlite(uri))

    with pytest.raises(StorageError, match="cannot be kept in WAL mode"):
        await SqliteEngine.open(tmp_path, connect=connect)


async def test_an_error_while_opening_leaves_nothing_open(tmp_path: Path) -> None:
    for planted in ("PRAGMA auto_vacuum", "SELECT coalesce"):

        async def connect(uri: str, planted: str = planted) -> Connection:
            connection = Faulty(await connect_aiosqlite(uri))
            connection.faults[planted] = ["SQLITE_BUSY"]
            return connection

        with pytest.raises(StorageBusy):
            await SqliteEngine.open(tmp_path, connect=connect)
    assert none_works()
    await (await SqliteEngine.open(tmp_path)).close()


# -- reading only


async def test_reading_beside_a_live_server(engine: SqliteEngine, tmp_path: Path) -> None:
    await append(engine, "1", "2")
    reader = await open_engine(f"sqlite:///{tmp_path}", read_only=True)
    assert await texts(reader) == ["1", "2"]
    assert (await reader.partition("bot/a")).epoch == (await engine.partition("bot/a")).epoch
    await append(engine, "3")
    assert await texts(reader) == ["1", "2", "3"]
    partition = await reader.partition("bot/a")
    with pytest.raises(StorageError, match="opened to read only"):
        partition.submit(Batch())
    with pytest.raises(StorageError, match="opened to read only"):
        await partition.commit(Batch())
    await reader.close()
    with pytest.raises(StorageClosed):
        await partition.read()
    assert await append(engine, "4") == 4


async def test_reading_after_a_clean_stop(engine: SqliteEngine, tmp_path: Path) -> None:
    await append(engine, "1", "2")
    await engine.close()
    reader = await open_engine(f"sqlite:///{tmp_path}", read_only=True)
    assert await texts(reader) == ["1", "2"]
    server = await SqliteEngine.open(tmp_path)  # no reader keeps a server from starting
    assert await append(server, "3") == 3
    await server.close()
    await reader.close()
    again = await SqliteEngine.open(tmp_path)
    assert await texts(again) == ["1", "2", "3"]
    await again.close()


async def test_the_mark_of_normal_durability_is_itself_durable(tmp_path: Path) -> None:
    """Synchronous is FULL until the mark is written: a power loss could take it together with the rows behind it."""
    statements: list[str] = []

    class Spy(Faulty):
        async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None) -> Iterable[Any]:
            statements.append(sql)
            return await super().execute_fetchall(sql, parameters)

    async def connect(uri: str) -> Connection:
        return Spy(await connect_aiosqlite(uri))

    engine = await SqliteEngine.open(tmp_path, durability="normal", connect=connect)
    await engine.close()
    important = [sql for sql in statements if "synchronous" in sql or "clean" in sql]
    assert important == [
        "PRAGMA synchronous=FULL",
        "INSERT OR REPLACE INTO meta VALUES ('clean', ?)",
        "PRAGMA synchronous=NORMAL",
        "INSERT OR REPLACE INTO meta VALUES ('clean', '1')",
    ]


# -- faults of the disk


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_FULL", StorageFull),
        ("SQLITE_IOERR_WRITE", StorageFull),
        ("SQLITE_BUSY", StorageBusy),
        ("SQLITE_BUSY_SNAPSHOT", StorageBusy),
        ("SQLITE_TOOBIG", StorageError),
        ("SQLITE_IOERR_READ", StorageError),
        ("SQLITE_CORRUPT", StorageError),
        ("", StorageError),
    ],
)
async def test_errors_of_a_write(
    faulty: SqliteEngine, connections: list[Faulty], name: str, kind: type[StorageError]
) -> None:
    """Each has its type; nothing was written, and the engine goes on."""
    await append(faulty, "1")
    connections[0].faults["INSERT INTO"] = [name]
    with pytest.raises(StorageError) as caught:
        await append(faulty, "lost")
    assert type(caught.value) is kind
    assert faulty.failed is None
    assert await append(faulty, "2") == 2
    assert await texts(faulty) == ["1", "2"]


@pytest.mark.parametrize("name", ["SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC"])
async def test_a_failed_flush_is_the_end(
    faulty: SqliteEngine, connections: list[Faulty], tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[object] = []
    log = MessageLog(await faulty.partition("bot/a"), told.extend)
    await log.append(user_message("1"))
    connections[0].faults["INSERT INTO"] = [name]
    for _ in range(2):
        with pytest.raises(StorageFailed):
            await log.append(user_message("2"))
    assert len(told) == 1
    assert isinstance(faulty.failed, StorageFailed)
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    wal = (tmp_path / f"{FILE}-wal").read_bytes()
    await faulty.close()
    assert (tmp_path / f"{FILE}-wal").read_bytes() == wal  # nothing is moved of what may not be on the disk


async def test_a_value_that_no_file_takes(engine: SqliteEngine, caplog: pytest.LogCaptureFixture) -> None:
    partition = await engine.partition("bot/a")
    batches = [Batch(rows=[NewRow(body=b"{}", by=by)]) for by in ("a", "\ud83d", "b")]
    outcomes = await asyncio.gather(*(partition.submit(batch) for batch in batches), return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Committed", "StorageError", "Committed"]
    assert [(row.seq, row.by) for row in await partition.read()] == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("error", ["SQLITE_IOERR_READ", "SQLITE_BUSY"])
async def test_errors_of_a_read(faulty: SqliteEngine, connections: list[Faulty], error: str) -> None:
    await append(faulty, "1")
    connections[1].faults["\nSELECT"] = [error]
    with pytest.raises(StorageError):
        await texts(faulty)
    assert await texts(faulty) == ["1"]


async def test_t09_another_program_writes(
    engine: SqliteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The wait for it is bounded; then the appenders know, and the next append works."""
    writer = engine._disk._writer
    assert writer is not None
    await writer.execute_fetchall("PRAGMA busy_timeout=20")
    with database(tmp_path) as other:
        other.execute("BEGIN IMMEDIATE")
        outcomes = await asyncio.gather(*(append(engine, str(number)) for number in range(50)), return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {StorageBusy}
        other.execute("ROLLBACK")
    assert await append(engine, "x") == 1


# -- the WAL


async def test_t10_readers_do_not_let_the_wal_grow(
    engine: SqliteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four who page through everything, all the time, and appends: the WAL is moved in time. (Here at 1 of 16 MiB.)"""
    monkeypatch.setattr(sqlite_module, "CHECKPOINT_BYTES", 1 << 20)
    done = asyncio.Event()

    async def page(number: int) -> int:
        rows = 0
        while not done.is_set():
            async for row in MessageLog(await engine.partition(f"bot/{number}")):
                rows = max(rows, row.seq)
            await asyncio.sleep(0)
        return rows

    async def write(number: int) -> None:
        for _ in range(100):
            await append(engine, "x" * 1000, name=f"bot/{number}")

    readers = [asyncio.create_task(page(number)) for number in range(4)]
    await asyncio.gather(*(write(number) for number in range(20)))
    done.set()
    assert max(await asyncio.gather(*readers)) > 0
    assert (tmp_path / f"{FILE}-wal").stat().st_size < 3 << 20


async def test_a_checkpoint_holds_the_reader(faulty: SqliteEngine, connections: list[Faulty]) -> None:
    """A checkpoint waits for the reads in flight, and reads that come then wait for it."""
    await append(faulty, "1")
    disk = faulty._disk
    disk._written_bytes = sqlite_module.CHECKPOINT_BYTES
    reads = [asyncio.create_task(texts(faulty))]
    await asyncio.sleep(0)
    checkpoint = asyncio.create_task(disk.tidy())
    await asyncio.sleep(0)
    reads += [asyncio.create_task(texts(faulty)) for _ in range(3)]
    await asyncio.sleep(0)
    assert not disk._may_read.is_set()
    assert await asyncio.gather(*reads) == [["1"]] * 4
    await checkpoint
    assert disk._written_bytes == 0


async def test_a_foreign_reader_pins_the_wal(
    engine: SqliteEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned of once; the checkpoint is tried again, and the next complete one ends the matter."""
    monkeypatch.setattr(sqlite_module, "PINNED_BYTES_WARN", 1 << 14)
    disk = engine._disk
    await append(engine, "0")
    for _ in range(2):  # pinned, set free, pinned again
        with database(tmp_path) as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM message").fetchone()
            for _ in range(3):
                await append(engine, "x" * 10_000)
                disk._written_bytes = sqlite_module.CHECKPOINT_BYTES
                await append(engine, "x")
                await disk.tidy()
                assert 0 < disk._written_bytes < sqlite_module.CHECKPOINT_BYTES
        disk._written_bytes = sqlite_module.CHECKPOINT_BYTES
        await disk.tidy()
        assert disk._written_bytes == 0
    assert ["another program keeps reading" in record.getMessage() for record in caplog.records] == [True, True]


async def test_a_checkpoint_that_fails(
    faulty: SqliteEngine, connections: list[Faulty], caplog: pytest.LogCaptureFixture
) -> None:
    connections[0].faults["PRAGMA wal_checkpoint"] = ["SQLITE_FULL", "SQLITE_IOERR_FSYNC"]
    faulty._disk._written_bytes = sqlite_module.CHECKPOINT_BYTES
    assert await append(faulty, "1") == 1
    assert await append(faulty, "2") == 2
    assert await texts(faulty) == ["1", "2"]
    assert faulty.failed is None
    assert "will be repeated" in caplog.records[0].getMessage()
    faulty._disk._written_bytes = sqlite_module.CHECKPOINT_BYTES
    assert await append(faulty, "3") == 3  # durable in the WAL before the checkpoint was tried
    with pytest.raises(StorageFailed):
        await append(faulty, "4")
    assert await texts(faulty) == ["1", "2", "3"]


# -- closing


async def test_closing_beside_a_foreign_reader(engine: SqliteEngine, tmp_path: Path) -> None:
    writer = engine._disk._writer
    assert writer is not None
    await writer.execute_fetchall("PRAGMA busy_timeout=20")
    await append(engine, "1")
    with database(tmp_path) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM message").fetchone()
        await append(engine, "2")
        await engine.close()
    again = await SqliteEngine.open(tmp_path)
    assert await texts(again) == ["1", "2"]
    await again.close()


async def test_closing_on_a_full_disk(
    faulty: SqliteEngine, connections: list[Faulty], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It closes all the same: what is committed lies in the WAL."""
    await append(faulty, "1")
    connections[0].faults["PRAGMA wal_checkpoint"] = ["SQLITE_FULL"]
    await faulty.close()
    assert "without a checkpoint" in caplog.records[0].getMessage()
    again = await SqliteEngine.open(tmp_path)
    assert await texts(again) == ["1"]
    await again.close()


async def test_closing_while_others_read_and_append(engine: SqliteEngine, tmp_path: Path) -> None:
    """Each of them gets what he asked for, or is told that the engine is closed."""
    partition = await engine.partition("bot/a")
    log = MessageLog(partition)
    appends = [asyncio.create_task(log.append(user_message(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    tasks: list[asyncio.Task[Any]] = []
    closing = asyncio.create_task(engine.close())
    while not closing.done():
        tasks.append(asyncio.create_task(texts(engine)))
        tasks.append(asyncio.create_task(append(engine, "late")))
        await asyncio.wait({closing}, timeout=0.0001)  # a busy loop would keep the engine's threads from the GIL
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {list, int, StorageClosed}
    assert [type(each) for each in await asyncio.gather(*appends, return_exceptions=True)] == [int] * 20
    again = await SqliteEngine.open(tmp_path)
    assert len(await texts(again)) == 20 + sum(isinstance(outcome, int) for outcome in outcomes)
    await again.close()


async def test_closing_goes_on_when_its_caller_is_cancelled(engine: SqliteEngine, tmp_path: Path) -> None:
    await append(engine, "1")
    task = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await engine.close()
    await (await SqliteEngine.open(tmp_path)).close()


async def test_a_forgotten_engine_says_so(tmp_path: Path) -> None:
    engine: SqliteEngine | None = await SqliteEngine.open(tmp_path)
    await asyncio.sleep(0)  # the step that was woken with it still holds it
    assert engine is not None
    disk, lock = engine._disk, engine._lock
    assert lock is not None
    with pytest.warns(ResourceWarning, match="was not closed"):
        engine = None
    await disk.close(failed=False)
    lock.release()


async def test_a_second_engine_is_refused_while_the_first_lives(engine: SqliteEngine, tmp_path: Path) -> None:
    with pytest.raises(DataLocked, match=f"pid {os.getpid()} "):
        await SqliteEngine.open(tmp_path)
    assert await append(engine, "1") == 1
