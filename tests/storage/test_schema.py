"""The statements by themselves: what they cost, what they keep, and what they ask of SQLite."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator

import pytest

from parlatory.storage import schema

STATEMENTS = {
    name: getattr(schema, name) for name in ("OPEN", "READ_FIRST", "READ_LAST", "FIND", "KEYS", "LIST", "DUE")
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


def insert(database: sqlite3.Connection, bodies: list[bytes], conversation: int = 1, first: int = 1) -> None:
    rows, offset = [], 1
    for seq, body in enumerate(bodies, first):
        rows.append((conversation, seq, 5, "user", f"c{seq}", seq, seq, None, len(body), offset))
        offset += len(body)
    database.execute(schema.INSERT_BATCH, (json.dumps(rows), b"".join(bodies), None, None, None, None, None))


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
        database.execute(schema.INSERT_BATCH, (rows, b"x", '[[1,"bot/a"]]', changes, None, None, "[[1,5]]"))
    assert database.execute("SELECT count(*) FROM message").fetchone() == (1,)
    for table in ("conversation", "key", "work"):
        assert database.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


@pytest.mark.parametrize("name", STATEMENTS)
def test_statements_search_and_do_not_scan(database: sqlite3.Connection, name: str) -> None:
    database.executescript("ANALYZE")
    statement = STATEMENTS[name]
    parameters = {"OPEN": 1, "FIND": 1, "KEYS": 2, "LIST": 3, "DUE": 3}.get(name, 5)
    plan = database.execute(f"EXPLAIN QUERY PLAN {statement}", ["[]"] * parameters).fetchall()
    tables = ("message", "conversation", "key", "timer", "work", "m", "c")
    for *_, step in plan:
        assert not step.startswith(tuple(f"SCAN {table}" for table in tables)), step
    indexes = {"KEYS": "PRIMARY KEY", "DUE": "timer_due", "FIND": "message_client"}
    assert any(indexes.get(name, "INDEX") in step for *_, step in plan)
