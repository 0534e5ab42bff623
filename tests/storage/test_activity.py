"""The index of activity: what is folded, what is fresh, and that it is never behind for who lists."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from parlatory.storage import Batch, Engine, NewRow, StorageFailed, activity, schema
from parlatory.storage import sqlite as sqlite_module
from parlatory.storage.connection import Connection, connect_aiosqlite
from parlatory.storage.sqlite import FILE, SqliteEngine

from .faulty import Faulty

BODY = b'{"role":"user","content":"hi"}'


@pytest.fixture(autouse=True)
def fold_at_four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_module, "FOLD_ROWS", 4)


async def say(engine: Engine, *names: str, by: str = "ann") -> None:
    for name in names:
        await (await engine.partition(name)).commit(Batch(rows=[NewRow(body=BODY, by=by)]))


async def names(engine: Engine, by: str | None = None, search: str = "") -> list[str]:
    return [one.name.removeprefix("bot/") for one in await engine.list(order="activity", by=by, search=search)]


def folded(directory: Path) -> tuple[int, int]:
    """How many conversations and how many members the index holds."""
    with closing(sqlite3.connect(directory / FILE)) as other:
        ((conversations, members),) = other.execute(
            "SELECT (SELECT count(*) FROM activity), (SELECT count(*) FROM member)"
        )
        return conversations, members


async def test_what_is_fresh_is_listed_and_folded_later(tmp_path: Path) -> None:
    engine = await SqliteEngine.open(tmp_path)
    await say(engine, "bot/a", "bot/b", "bot/a")
    assert folded(tmp_path) == (0, 0)
    assert await names(engine) == ["a", "b"]
    await say(engine, "bot/c", by="bob")
    await engine.close()
    assert folded(tmp_path) == (3, 3)

    engine = await SqliteEngine.open(tmp_path)
    await say(engine, "bot/b", by="bob")  # its index says otherwise, and does not know this author in it
    assert await names(engine) == ["b", "c", "a"]
    assert await names(engine, by="ann") == ["b", "a"]
    assert await names(engine, by="bob") == ["b", "c"]
    assert [one.head for one in await engine.list(order="activity")] == [2, 1, 2]
    await engine.close()


async def test_rows_of_earlier_processes_are_folded_with_the_next_ones(tmp_path: Path) -> None:
    for name in "abcd":
        engine = await SqliteEngine.open(tmp_path)
        await say(engine, f"bot/{name}")
        await engine.close()
        if name != "d":
            assert folded(tmp_path) == (0, 0)
    assert folded(tmp_path) == (4, 4)


async def test_a_reader_lists_what_it_cannot_fold(tmp_path: Path) -> None:
    writer = await SqliteEngine.open(tmp_path)
    await say(writer, *"bot/a bot/b bot/c bot/d bot/a bot/e".split())
    reader = await SqliteEngine.open(tmp_path, read_only=True)
    assert await names(reader) == ["e", "a", "d", "c", "b"]
    await reader.close()
    await writer.close()


@pytest.mark.parametrize("few", [0, 1, 4_000])
async def test_few_and_many_give_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(sqlite_module, "FEW_CONVERSATIONS", few)
    engine = await SqliteEngine.open(tmp_path)
    await say(engine, *"bot/a1 bot/a2 bot/b1 bot/b2".split())
    await say(engine, *"bot/a3 bot/a1 bot/b3 bot/a2".split(), by="bob")
    await say(engine, "bot/b1")
    assert await names(engine, search="a") == ["a2", "a1", "a3"]
    assert await names(engine, by="bob") == ["a2", "b3", "a1", "a3"]
    assert await names(engine, by="bob", search="a") == ["a2", "a1", "a3"]
    assert await names(engine, by="ann", search="3") == []
    assert await names(engine, search="B1") == ["b1"]
    await engine.close()


async def test_an_older_file_is_folded_when_it_is_opened(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / FILE)) as old:
        old.executescript(schema.MIGRATIONS[1])
        old.executescript(f"PRAGMA application_id={schema.APPLICATION_ID}; PRAGMA user_version=1;")
        for key, name in enumerate("abc", 1):
            old.execute("INSERT INTO conversation (id, name) VALUES (?, ?)", (key, f"bot/{name}"))
        for key, seq, author in ((1, 1, "ann"), (2, 1, "bob"), (1, 2, "bob")):
            old.execute(
                "INSERT INTO message (conversation, seq, at, size, author, body) VALUES (?, ?, 5, ?, ?, ?)",
                (key, seq, len(BODY), author, BODY.decode()),
            )
        old.commit()
    engine = await SqliteEngine.open(tmp_path)
    assert folded(tmp_path) == (2, 3)
    assert await names(engine) == ["a", "b"]
    assert await names(engine, by="ann") == ["a"]
    assert (await engine.partition("bot/a")).head == 2
    await say(engine, "bot/b")
    assert await names(engine, by="ann") == ["b", "a"]
    await engine.close()


async def test_an_index_that_cannot_be_written_is_behind_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connections: list[Faulty] = []

    async def connect(uri: str) -> Connection:
        connections.append(Faulty(await connect_aiosqlite(uri)))
        return connections[-1]

    engine = await SqliteEngine.open(tmp_path, connect=connect)
    connections[0].faults[activity.FOLD] = ["SQLITE_FULL"]
    await say(engine, *"bot/a bot/b bot/c bot/d".split())
    await say(engine, "bot/e")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "lags behind" in caplog.text
    assert (await names(engine), folded(tmp_path)) == (["e", "d", "c", "b", "a"], (0, 0))
    await say(engine, "bot/f")
    await names(engine)
    assert engine.failed is None
    connections[0].faults[activity.FOLD] = ["SQLITE_IOERR_FSYNC"]
    await say(engine, *"bot/g bot/h bot/i bot/j".split())
    with pytest.raises(StorageFailed):
        await say(engine, "bot/k")
    await engine.close()
    assert folded(tmp_path) == (6, 6)


def test_lists_search_and_do_not_scan() -> None:
    """Only a text that is looked for in names goes through all of them, along their index."""
    with closing(sqlite3.connect(":memory:")) as database:
        for version in range(1, schema.VERSION + 1):
            database.executescript(schema.MIGRATIONS[version])
        for statement, parameters in ((activity.LIST_ALL, 8), (activity.LIST_FEW, 9), (activity.FEW_BY, 2)):
            plan = database.execute(f"EXPLAIN QUERY PLAN {statement}", ["[]"] * parameters).fetchall()
            steps = [step for *_, step in plan]
            for table in ("c", "m", "f", "b", "message", "activity", "member", "conversation"):
                assert not any(step == f"SCAN {table}" or step.startswith(f"SCAN {table} ") for step in steps), plan
            if statement == activity.LIST_ALL:
                assert any(step.startswith("SEARCH a USING") and "last<?" in step for step in steps), plan
