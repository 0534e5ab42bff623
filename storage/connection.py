"""A connection in a thread of its own: aiosqlite's, with a write that takes two steps of the loop and no task."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

import aiosqlite
from aiosqlite.core import _STOP_RUNNING_SENTINEL

from .waker import Waker

__all__ = ["Connect", "Connection", "Ended", "connect_aiosqlite"]

STATEMENTS_KEPT = 64
ROWS_PER_FETCH = 64

Ended = Callable[[Exception | None], None]
"""Is called with what a statement failed with, or None."""


class Connection(Protocol):
    """Is what the engine uses of a database connection. Statements run one after the other, as they were begun."""

    async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None) -> Iterable[Any]:
        """Runs one statement and returns its rows."""

    def begin(self, sql: str, parameters: Sequence[Any], ended: Ended) -> None:
        """Begins a statement, in this step of the loop; `ended` is called in a step of its own."""

    async def executescript(self, sql_script: str) -> object:
        """Runs several statements."""

    async def close(self) -> None:
        """Closes the connection."""


Connect = Callable[[str], Awaitable[Connection]]


class ThreadedConnection(aiosqlite.Connection):
    """Is a connection of aiosqlite in autocommit mode.

    Args:
        uri: the file, as SQLite has it.
    """

    def __init__(self, uri: str) -> None:
        def connect() -> sqlite3.Connection:
            return sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=STATEMENTS_KEPT)

        super().__init__(connect, ROWS_PER_FETCH)
        # It would keep a process alive that ends without closing its engine.
        self._thread.daemon = True
        self._waker: Waker | None = None

    def __del__(self) -> None:
        """Ends what nobody closed; aiosqlite's own way tells the loop, which may be gone when a statement ends."""
        if self._waker is not None:
            self._waker.detach()
        if self._connection is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1)
            self._running = False
            self._tx.put_nowait((None, partial(_close, self._connection)))

    def begin(self, sql: str, parameters: Sequence[Any], ended: Ended) -> None:
        """Begins a statement; see `Connection.begin`.

        aiosqlite's own way takes a task to begin with, and a future and one more step of the task to end with.
        """
        if not self._running or self._connection is None:
            raise ValueError("the connection is closed")
        loop = asyncio.get_running_loop()
        if self._waker is None:
            self._waker = Waker(loop)
        wake = self._waker.call if self._waker.loop is loop else loop.call_soon_threadsafe
        # The thread holds on to what it ran until it has something else to run, and to what it runs with until it is
        # awake again: that must not be what was written, nor who is told, nor this.
        job = [(self._connection, wake, sql, parameters, [ended])]
        self._tx.put_nowait((None, lambda: _run(*job.pop())))

    async def close(self) -> None:
        """Closes the connection; see `Connection.close`."""
        try:
            await super().close()
        finally:
            waker, self._waker = self._waker, None
            if waker is not None:
                waker.drain()  # a close that was cancelled has not waited for what was begun before
                waker.detach()

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await super()._execute(fn, *args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            if self._waker is not None:
                self._waker.drain()  # what was begun before has ended, and comes first


def _run(
    connection: sqlite3.Connection,
    wake: Callable[..., object],
    sql: str,
    parameters: Sequence[Any],
    told: list[Ended],
) -> None:
    wake(_end, told, _failure(connection, sql, parameters))


def _failure(connection: sqlite3.Connection, sql: str, parameters: Sequence[Any]) -> Exception | None:
    """Runs a statement that returns no rows, and returns what it failed with.

    As one of many: `execute` lets go of the interpreter's lock twice more, to ask for the last row's id and to fetch,
    and each time a busy loop takes it.
    """
    try:
        connection.executemany(sql, (parameters,))
    except Exception as error:
        return error
    return None


def _close(connection: sqlite3.Connection) -> object:
    """Closes a connection; its thread ends with what this returns."""
    connection.close()
    return _STOP_RUNNING_SENTINEL


def _end(told: list[Ended], error: Exception | None) -> None:
    told.pop()(error)


async def connect_aiosqlite(uri: str) -> Connection:
    """Opens a connection in a thread of its own."""
    connection = ThreadedConnection(uri)
    try:
        await connection
    except Exception:
        # Its thread tells the loop of its end, in vain and with a traceback where that is gone by then.
        await asyncio.to_thread(connection._thread.join)
        raise
    return connection
