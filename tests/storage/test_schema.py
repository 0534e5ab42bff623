"""The statements by themselves: what they cost, what they keep, and what they ask of SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlatory.storage import schema

STATEMENTS = {
    name: getattr(schema, name)
    for name in ("OPEN", "READ_FIRST", "READ_LAST", "FIND", "KEYS", "MEDIA", "HELD", "LIST", "DUE")
}


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    database = sqlite3.connect(":memory:", isolation_level=None)
    for version in range(1, schema.VERSION + 1):
        database.executescript(schema.MIGRATIONS[version])
    database.execute("PRAGMA trusted_schema=OFF")
    database.executescript(schema.TEMPORARY)
    yield database
    database.close()


def write(database: sqlite3.Connection, *columns: object) -> None:
    """Writes a group: one without media where none of the last columns is given."""
    statement = schema.INSERT_MEDIA_BATCH if len(columns) > schema.INSERT_BATCH.count("?") else schema.INSERT_BATCH
    database.execute(statement, (*columns, *[None] * (statement.count("?") - len(columns))))


def insert(database: sqlite3.Connection, bodies: list[bytes], conversation: int = 1, first: int = 1) -> None:
    rows, offset = [], 1
    for seq, body in enumerate(bodies, first):
        rows.append((conversation, seq, 5, "user", f"c{seq}", seq, seq, None, len(body), offset))
        offset += len(body)
    write(database, json.dumps(rows), b"".join(bodies))


def media_of(conversation: int, hash: str, data: bytes, since: int = 5, offset: int = 2) -> tuple[str, str]:
    """Returns the columns `blobs` and `uses` for media of one piece, used by row 1."""
    blob = (conversation, hash, "image/png", len(data), since, 0, len(data), offset)
    return json.dumps([blob]), json.dumps([(conversation, hash, 1)])


def count(database: sqlite3.Connection, table: str) -> int:
    return int(database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_migrations_are_without_gaps() -> None:
    assert list(schema.MIGRATIONS) == list(range(1, schema.VERSION + 1))


def test_old_versions_of_sqlite_will_do() -> None:
    """Nothing newer than SQLite 3.31: no `->`, no RETURNING, no STRICT, no json_* of later years."""
    text = "\n".join([*schema.MIGRATIONS.values(), schema.TEMPORARY, *STATEMENTS.values()])
    for newer in ("->", "RETURNING", "STRICT", "iif(", "unixepoch", "jsonb", "octet_length", "string_agg"):
        assert newer not in text


def test_bodies_are_cut_where_they_end(database: sqlite3.Connection) -> None:
    bodies = [b"a\0b", "\u00e9\U0001f600".encode(), b'"\\"', b"x" * 70_000, b"{}"]
    insert(database, bodies)
    found = database.execute(schema.READ_FIRST, (1, 0, 10, 10, 1 << 30)).fetchall()
    assert [row[-1] for row in found] == bodies
    assert database.execute("SELECT DISTINCT typeof(body), typeof(turn), typeof(digest) FROM message").fetchall() == [
        ("text", "integer", "integer")
    ]


def test_a_group_is_all_or_nothing(database: sqlite3.Connection) -> None:
    insert(database, [b"1"])
    rows = json.dumps([(conversation, 1, 5, "user", None, None, None, None, 1, 1) for conversation in (2, 1)])
    changes = json.dumps([(1, "k", "1")])
    with pytest.raises(sqlite3.IntegrityError):
        write(database, rows, b"x", '[[1,"bot/a"]]', changes, None, None, "[[1,5]]", *media_of(1, "h", b"y"))
    assert database.execute("SELECT count(*) FROM message").fetchone() == (1,)
    for table in ("conversation", "key", "work", "media", "piece"):
        assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_search_and_do_not_scan(database: sqlite3.Connection, name: str) -> None:
    database.executescript("ANALYZE")
    statement = STATEMENTS[name]
    parameters = {"OPEN": 1, "FIND": 1, "KEYS": 2, "MEDIA": 3, "HELD": 1, "LIST": 3, "DUE": 3}.get(name, 5)
    plan = database.execute(f"EXPLAIN QUERY PLAN {statement}", ["[]"] * parameters).fetchall()
    tables = ("message", "conversation", "key", "timer", "work", "media", "piece", "m", "c", "p")
    for *_, step in plan:
        assert not step.startswith(tuple(f"SCAN {table}" for table in tables)), step
    indexes = {"KEYS": "PRIMARY KEY", "DUE": "timer_due", "FIND": "message_client", "HELD": "piece_start"}
    assert any(indexes.get(name, "INDEX") in step for *_, step in plan)


# -- media


def test_media_of_a_file_of_before_are_made_room_for() -> None:
    """A file of schema 1, as it was written then, keeps what it holds and takes media from now on."""
    database = sqlite3.connect(":memory:", isolation_level=None)
    database.executescript((Path(__file__).parent / "golden" / "schema-1.sql").read_text(encoding="utf-8"))
    before = database.execute("SELECT * FROM message").fetchall()
    for version in range(2, schema.VERSION + 1):
        database.executescript(schema.MIGRATIONS[version])
    database.executescript(schema.TEMPORARY)
    assert database.execute("SELECT * FROM message").fetchall() == before
    write(database, None, b"png", None, None, None, None, None, *media_of(1, "h", b"png", offset=1))
    assert database.execute(schema.MEDIA, (1, "h", 0)).fetchall() == [("image/png", 3, 0, b"png")]
    assert database.execute(schema.HELD, ('[["bot/ann","h"],["bot/bob","h"]]',)).fetchall() == [("bot/ann", "h")]
    database.close()


def test_media_are_stored_once(database: sqlite3.Connection) -> None:
    blobs, uses = media_of(1, "h", b"one", offset=1)
    write(database, None, b"one", None, None, None, None, None, blobs, None)
    write(database, None, b"two", None, None, None, None, None, *media_of(1, "h", b"two", since=9, offset=1))
    assert database.execute("SELECT conversation, hash, size, seq, since FROM media").fetchall() == [(1, "h", 3, 1, 9)]
    assert database.execute("SELECT start, data FROM piece").fetchall() == [(0, b"one")]
    write(database, None, b"", None, None, None, None, None, None, uses.replace("1]", "8]"))
    assert database.execute("SELECT seq FROM media").fetchall() == [(8,)]


def test_media_go_with_the_rows_that_refer_to_them(database: sqlite3.Connection) -> None:
    """A trimmed conversation loses those of its trimmed rows, a deleted one all of them, another one none."""
    for conversation in (1, 2):
        database.execute("INSERT INTO conversation (id, name) VALUES (?, ?)", (conversation, f"bot/{conversation}"))
        for hash, seq in (("old", 1), ("new", 2)):
            blobs, _ = media_of(conversation, hash, b"x", offset=1)
            write(database, None, b"x", None, None, None, None, None, blobs, json.dumps([(conversation, hash, seq)]))
        blobs, _ = media_of(conversation, "upload", b"x", offset=1)
        write(database, None, b"x", None, None, None, None, None, blobs)
    database.execute("UPDATE conversation SET floor = 1 WHERE id = 1")
    found = database.execute("SELECT hash FROM media WHERE conversation = 1 ORDER BY hash").fetchall()
    assert [hash for (hash,) in found] == ["new", "upload"]
    assert count(database, "piece") == 5
    database.execute("DELETE FROM conversation WHERE id = 1")
    assert database.execute("SELECT DISTINCT conversation FROM media").fetchall() == [(2,)]
    assert count(database, "piece") == count(database, "media") == 3


def test_sweeping_takes_some_at_a_time(database: sqlite3.Connection) -> None:
    """What is old and used by no row goes, the oldest first, and no scan looks for it."""
    for index in range(103):
        blobs, uses = media_of(1, f"h{index}", b"x", since=index, offset=1)
        write(database, None, b"x", None, None, None, None, None, blobs, uses if index == 0 else None)
    write(database, *[None] * 9, 102)
    assert database.execute("SELECT since FROM media").fetchall() == [(0,), (101,), (102,)]
    write(database, *[None] * 9, 102)
    assert count(database, "piece") == count(database, "media") == 2
    sweep = "SELECT id FROM media WHERE seq IS NULL AND since < 5 ORDER BY since LIMIT 100"
    ((*_, step),) = database.execute(f"EXPLAIN QUERY PLAN {sweep}").fetchall()
    assert "media_unused" in step
