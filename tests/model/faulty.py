"""A connection that fails when it is told to: aiosqlite's, with errors as SQLite raises them.

Unrealistic: a failing call fails at once and as a whole. Realistic: the error's class and name, and that a failed flush
may have written all the same.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from parlatory.storage.connection import Connection, Ended, connect_aiosqlite

__all__ = ["FAILURES", "Faults"]

FAILURES = {
    "full": (sqlite3.OperationalError, "SQLITE_FULL", 13, "database or disk is full"),
    "write": (sqlite3.OperationalError, "SQLITE_IOERR_WRITE", 778, "disk I/O error"),
    "busy": (sqlite3.OperationalError, "SQLITE_BUSY", 5, "database is locked"),
    "flush": (sqlite3.OperationalError, "SQLITE_IOERR_FSYNC", 1034, "disk I/O error"),
}


def failure(kind: str) -> sqlite3.Error:
    """Returns an error as SQLite raises it."""
    error_type, name, code, text = FAILURES[kind]
    error = error_type(text)
    error.sqlite_errorname, error.sqlite_errorcode = name, code
    return error


class Faults:
    """Counts the calls of all connections it opens, and makes the n-th one fail.

    Attributes:
        calls: how many there were.
        fail_at: the call that fails, 0 for none.
        failed: whether it came to that.
    """

    def __init__(self, kind: str, fail_at: int = 0) -> None:
        self.kind = kind
        self.fail_at = fail_at
        self.calls = 0
        self.failed = False

    async def connect(self, uri: str) -> Connection:
        """Opens a connection whose calls are counted."""
        return _Connection(await connect_aiosqlite(uri), self)

    def due(self) -> bool:
        """Counts a call; says whether it is the one that fails."""
        self.calls += 1
        self.failed = self.failed or self.calls == self.fail_at
        return self.calls == self.fail_at


class _Connection:
    def __init__(self, inner: Connection, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None) -> Iterable[Any]:
        if self._faults.due():
            if self._faults.kind == "flush":
                await self._inner.execute_fetchall(sql, parameters)
            raise failure(self._faults.kind)
        return await self._inner.execute_fetchall(sql, parameters)

    def begin(self, sql: str, parameters: Sequence[Any], ended: Ended) -> None:
        if not self._faults.due():
            self._inner.begin(sql, parameters, ended)
            return
        error = failure(self._faults.kind)
        if self._faults.kind == "flush":
            self._inner.begin(sql, parameters, lambda _: ended(error))
        else:
            asyncio.get_running_loop().call_soon(ended, error)

    async def executescript(self, sql_script: str) -> object:
        if self._faults.due():
            raise failure(self._faults.kind)
        return await self._inner.executescript(sql_script)

    async def close(self) -> None:
        await self._inner.close()
