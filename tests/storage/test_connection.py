from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading
import weakref
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from parlatory.storage.connection import Connection, ThreadedConnection, connect_aiosqlite
from parlatory.storage.waker import Waker


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    opened = await connect_aiosqlite(f"file:{tmp_path / 'file'}?mode=rwc")
    await opened.executescript("CREATE TABLE t (x UNIQUE)")
    yield opened
    await opened.close()


class Ending:
    """Is what becomes of a statement."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.told = asyncio.Event()

    def ended(self, error: Exception | None) -> None:
        self.error = error
        self.told.set()


async def test_statements_run_in_the_order_in_which_they_were_begun(connection: Connection) -> None:
    endings = [Ending() for _ in range(3)]
    for number, ending in enumerate(endings):
        connection.begin("INSERT INTO t VALUES (?)", (number,), ending.ended)
    assert await connection.execute_fetchall("SELECT x FROM t") == [(0,), (1,), (2,)]
    assert all(ending.told.is_set() for ending in endings), "each was told before what came behind it"
    assert [ending.error for ending in endings] == [None] * 3


async def test_what_a_statement_fails_with_is_told(connection: Connection) -> None:
    for _ in range(2):
        ending = Ending()
        connection.begin("INSERT INTO t VALUES (?)", ("twice",), ending.ended)
        assert not ending.told.is_set(), "it is told in a step of its own"
        await ending.told.wait()
    assert isinstance(ending.error, sqlite3.IntegrityError)
    assert await connection.execute_fetchall("SELECT count(*) FROM t") == [(1,)]


async def test_its_thread_keeps_nothing_of_what_it_ran(connection: Connection) -> None:
    """Else a quiet engine would hold on to its last group, and the conversations in it."""
    ending = Ending()
    connection.begin("INSERT INTO t VALUES (?)", (1,), ending.ended)
    await ending.told.wait()
    freed = weakref.ref(ending)
    del ending
    gc.collect()
    assert freed() is None


async def test_its_thread_holds_nobody_who_is_told_when_it_wakes_the_loop(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be kept from its next line for long: by then the process may end, and an engine that nobody closed is to
    say so."""
    leave = threading.Event()
    wake = Waker.call

    def woken(waker: Waker, *values: Any) -> None:
        wake(waker, *values)
        leave.wait(60)

    monkeypatch.setattr(Waker, "call", woken)
    ending = Ending()
    freed = weakref.ref(ending)
    connection.begin("INSERT INTO t VALUES (?)", (1,), ending.ended)
    await ending.told.wait()
    del ending
    try:
        gc.collect()
        assert freed() is None
    finally:
        leave.set()


async def test_one_that_is_closed_begins_nothing(tmp_path: Path) -> None:
    connection = await connect_aiosqlite(f"file:{tmp_path / 'file'}?mode=rwc")
    await connection.close()
    with pytest.raises(ValueError, match="closed"):
        connection.begin("SELECT 1", (), Ending().ended)


async def test_it_can_be_used_in_another_loop_than_its_first(connection: Connection) -> None:
    ending = Ending()
    connection.begin("INSERT INTO t VALUES (?)", (1,), ending.ended)
    await ending.told.wait()

    async def elsewhere() -> threading.Thread | None:
        other, heard = Ending(), list[threading.Thread]()

        def ended(error: Exception | None) -> None:
            heard.append(threading.current_thread())
            other.ended(error)

        connection.begin("INSERT INTO t VALUES (?)", (2,), ended)
        await other.told.wait()
        return heard[0]

    thread = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert thread is not threading.current_thread()
    assert await connection.execute_fetchall("SELECT x FROM t") == [(1,), (2,)]


async def test_one_that_nobody_closed_leaves_its_loop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    opened = await connect_aiosqlite(f"file:{tmp_path / 'file'}?mode=rwc")
    ending = Ending()
    opened.begin("CREATE TABLE t (x)", (), ending.ended)
    await ending.told.wait()
    assert isinstance(opened, ThreadedConnection)
    assert opened._waker is not None
    left = weakref.ref(opened._waker)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del opened
        gc.collect()
    assert left() is None
    assert not loop.is_closed()


async def test_a_close_that_is_cancelled_tells_what_was_begun_before(tmp_path: Path) -> None:
    connection = await connect_aiosqlite(f"file:{tmp_path / 'file'}?mode=rwc")
    endings = [Ending() for _ in range(3)]
    for ending in endings:
        connection.begin("SELECT 1", (), ending.ended)
    closing = asyncio.create_task(connection.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert all(ending.told.is_set() for ending in endings)


def test_one_that_is_forgotten_in_mid_statement_ends_quietly(tmp_path: Path) -> None:
    """Its loop is gone when the statement ends: nobody is told, and nothing is raised in its thread."""
    raised = list[threading.ExceptHookArgs]()
    slow = "WITH RECURSIVE n (x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 300000) SELECT count(*) FROM n"

    async def forget() -> threading.Thread:
        opened = await connect_aiosqlite(f"file:{tmp_path / 'file'}?mode=rwc")
        assert isinstance(opened, ThreadedConnection)
        opened.begin(slow, (), Ending().ended)
        return opened._thread

    hook, threading.excepthook = threading.excepthook, raised.append
    try:
        with pytest.warns(ResourceWarning, match="was not closed"):
            thread = asyncio.run(forget())
            gc.collect()
        thread.join(60)
    finally:
        threading.excepthook = hook
    assert not thread.is_alive()
    assert raised == []


async def test_one_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    """Which would tell a loop that is gone by then of its end."""
    before = set(threading.enumerate())
    for number in range(20):
        with pytest.raises(sqlite3.OperationalError):
            await connect_aiosqlite(f"file:{tmp_path / 'none'}/{number}?mode=rw")
        left = [thread for thread in set(threading.enumerate()) - before if not thread.name.startswith("asyncio")]
        assert left == []
