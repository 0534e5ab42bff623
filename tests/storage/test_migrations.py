"""Files of every schema there has been, as they were written then, opened by this version."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from parlatory.storage import MessageLog, SchemaMismatch, backup_data, check_data, restore_data, schema
from parlatory.storage.sqlite import FILE, SqliteEngine

GOLDEN = Path(__file__).parent / "golden"


def make(directory: Path, version: int) -> None:
    """Makes a data directory as a server of that schema left it."""
    script = (GOLDEN / f"schema-{version}.sql").read_text(encoding="utf-8")
    directory.mkdir(exist_ok=True)
    with closing(sqlite3.connect(directory / FILE)) as database:
        database.executescript(script)


async def test_a_file_of_schema_1_is_brought_up_to_date(tmp_path: Path) -> None:
    """Rows, client ids, keys, timers and the epoch are as they were; media are stored from now on."""
    make(tmp_path, 1)
    with pytest.raises(SchemaMismatch, match=f"has schema 1: opened by a server, it would get {schema.VERSION}"):
        await SqliteEngine.open(tmp_path, read_only=True)
    assert await asyncio.to_thread(check_data, tmp_path) == (2, 5, ())
    engine = await SqliteEngine.open(tmp_path)
    log = MessageLog(await engine.partition("bot/ann"))
    assert [row.text for row in await log.all()] == ["hi", "look", "nice \u00e9 \U0001f600"]
    assert await log.append({"role": "user", "content": "hi"}, client_id="c1") == 1
    assert await (await engine.partition("bot/ann")).keys() == {"turn.handled": b"2"}
    assert [due.timer for due in await engine.due(now=2_000_000_000_000_000)] == [None, "t"]
    assert engine.epoch == "363b302996215481"
    ref = await log.put_media(b"x" * 300_000, "application/pdf")
    assert (await log.media(ref)).data == b"x" * 300_000
    await engine.close()
    assert await asyncio.to_thread(check_data, tmp_path) == (2, 5, ())


def test_a_file_of_schema_1_is_checked_and_copied(tmp_path: Path) -> None:
    make(tmp_path / "data", 1)
    backup_data(tmp_path / "data", tmp_path / "backup")
    restore_data(tmp_path / "backup", tmp_path / "again")
    assert check_data(tmp_path / "again") == (2, 5, ())
