"""A connection that fails when a test says so."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from parlatory.storage.connection import Connection, Ended


class Faulty:
    """Is a connection whose next statements fail as the test says. Unlike on a disk, nothing of them is done before.

    Attributes:
        faults: by how a statement starts, SQLite's name of the error that it gives, once for each name.
    """

    def __init__(self, real: Connection) -> None:
        self.real = real
        self.faults: dict[str, list[str]] = {}

    def planted(self, sql: str) -> sqlite3.OperationalError | None:
        for start, names in self.faults.items():
            if names and sql.startswith(start):
                error = sqlite3.OperationalError("planted")
                error.sqlite_errorname = names.pop(0)
                return error
        return None

    async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None) -> Iterable[Any]:
        if error := self.planted(sql):
            raise error
        return await self.real.execute_fetchall(sql, parameters)

    def begin(self, sql: str, parameters: Sequence[Any], ended: Ended) -> None:
        if error := self.planted(sql):
            asyncio.get_running_loop().call_soon(ended, error)
        else:
            self.real.begin(sql, parameters, ended)

    async def executescript(self, sql_script: str) -> object:
        return await self.real.executescript(sql_script)

    async def close(self) -> None:
        await self.real.close()
