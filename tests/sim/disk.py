"""A disk for one simulated process: connections to a real SQLite file, run in the loop, late and with faults on
command.

Fault model. Each connection runs its statements one after the other, as a thread of its own would: a statement
begins some time after it was asked for, and its result comes some time after it was run, whether or not
somebody still waits. A write may fail with nothing written: disk full, write error, file busy. It may fail in
its flush: then it may be in the file, and nobody knows. A read may fail. A process may be killed at any moment:
what was not run is gone, the file and its WAL stay as they are, and the next process gets a copy of them.

Unrealistic: `truth` learns of each commit in the step that makes it durable. Power loss is `tests/power`.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from parlatory.storage.connection import Ended

from .history import Truth, TruthRow
from .loop import SimLoop, Simulation

__all__ = ["FILE", "Disk", "read_file"]

FILE = "parlatory.sqlite"
ROWS = """
SELECT m.id, c.name, m.seq, m.at, m.author, m.client_id, m.turn, m.finish, CAST(m.body AS BLOB)
FROM message AS m JOIN conversation AS c ON c.id = m.conversation WHERE m.id > ? ORDER BY m.id
"""
HANDLED = (
    "SELECT c.name, k.value FROM key AS k JOIN conversation AS c ON c.id = k.conversation WHERE k.key = 'turn.handled'"
)
KEY = "SELECT k.value FROM key AS k JOIN conversation AS c ON c.id = k.conversation WHERE c.name = ? AND k.key = ?"
# What a fault is called in commands, and what SQLite calls it.
NAMES = {
    "full": "SQLITE_FULL",
    "write": "SQLITE_IOERR_WRITE",
    "busy": "SQLITE_BUSY",
    "flush": "SQLITE_IOERR_FSYNC",
    "read": "SQLITE_IOERR_READ",
}


def read_file(path: Path) -> tuple[list[TruthRow], dict[str, int]]:
    """Returns the rows of a file, in the order of their commits, and how far messages are handled."""
    database = sqlite3.connect(path)
    try:
        if not database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'work'").fetchone()[0]:
            return [], {}  # its process did not come as far as to make the tables
        rows = [TruthRow(*row[1:]) for row in database.execute(ROWS, (0,))]
        return rows, {name: int(value) for name, value in database.execute(HANDLED)}
    finally:
        database.close()


class Disk:
    """Is the disk of one process.

    Attributes:
        directory: the data directory.
        faults: what happens to the next writes and reads: kind to how many.
        delay_s: the range of how long either half of a statement takes.
    """

    def __init__(
        self, simulation: Simulation, loop: SimLoop, directory: Path, truth: Truth, delay_s: tuple[float, float]
    ) -> None:
        self.directory = directory
        self.faults: dict[str, int] = {}
        self.delay_s = delay_s
        self.loop = loop
        self.simulation = simulation
        self.truth = truth
        self.failed = False
        self._last_id = 0
        self._connections: list[SimConnection] = []

    async def connect(self, uri: str) -> SimConnection:
        """Opens a connection; fits `storage.sqlite.Connect`."""
        connection = SimConnection(self, uri)
        self._connections.append(connection)
        return connection

    def delay(self) -> float:
        """Returns how long half a statement takes."""
        return self.simulation.random.uniform(*self.delay_s)

    def next_fault(self, *kinds: str) -> str | None:
        """Takes the next fault of these kinds that was commanded."""
        for kind in kinds:
            if self.faults.get(kind, 0) > 0:
                self.faults[kind] -= 1
                return kind
        return None

    def observe(self, database: sqlite3.Connection, values: tuple[Any, ...]) -> None:
        """Tells the truth what has become durable by a statement with these values."""
        before = self._last_id
        for row in database.execute(ROWS, (before,)):
            self._last_id = row[0]
            self.truth.committed(TruthRow(*row[1:]))
        if self._last_id == before:
            self.truth.marked(any(isinstance(value, str) and "turn.handled" in value for value in values))

    def opened(self) -> None:
        """Notes which rows were there before."""
        self._last_id = sum(map(len, self.truth.rows.values()))
        self.truth.stored = self._stored

    def _stored(self, conversation: str, key: str) -> bytes | None:
        """Reads a key in the step in which somebody wants to know what is durable."""
        for (value,) in self._connections[0].database.execute(KEY, (conversation, key)):
            return bytes(value, "utf-8") if isinstance(value, str) else bytes(value)
        return None

    def reread(self) -> None:
        """Compares the file with the truth; to be called while a killed process still has it open, or after its end.

        A connection that is the only one would move the WAL when it closes.
        """
        path = self.directory / FILE
        if path.exists():
            self.truth.reopened(*read_file(path))

    def copy_to(self, directory: Path) -> None:
        """Copies what a killed process leaves."""
        directory.mkdir()
        for path in self.directory.iterdir():
            if path.name in (FILE, f"{FILE}-wal"):
                shutil.copyfile(path, directory / path.name)

    def close(self) -> None:
        """Lets go of the file, without the process that used it."""
        for connection in self._connections:
            connection.database.close()


class SimConnection:
    """Is one connection and the thread that would run it; fits `storage.sqlite.Connection`."""

    def __init__(self, disk: Disk, uri: str) -> None:
        self.database = sqlite3.connect(uri, uri=True, isolation_level=None, cached_statements=64)
        self._disk = disk
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, sqlite3.Error | None], None]]] = deque()
        self._running = False

    async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None) -> Iterable[Any]:
        values = tuple(parameters or ())
        return await self._run(lambda: self._execute(sql, values))  # type: ignore[no-any-return]

    def begin(self, sql: str, parameters: Sequence[Any], ended: Ended) -> None:
        values = tuple(parameters)
        self._add(lambda: self._execute(sql, values), lambda _, error: ended(error))

    async def executescript(self, sql_script: str) -> object:
        return await self._run(lambda: self.database.executescript(sql_script))

    async def close(self) -> None:
        await self._run(self.database.close)

    async def _run(self, job: Callable[[], Any]) -> Any:
        future = self._disk.loop.create_future()
        self._add(job, partial(self._finish, future))
        return await future

    def _add(self, job: Callable[[], Any], done: Callable[[Any, sqlite3.Error | None], None]) -> None:
        self._jobs.append((job, done))
        if not self._running:
            self._running = True
            self._disk.loop.call_later(self._disk.delay(), self._next)

    def _next(self) -> None:
        if self._disk.loop.dead:
            return
        job, done = self._jobs.popleft()
        try:
            outcome, error = job(), None
        except sqlite3.Error as raised:
            outcome, error = None, raised
        self._disk.loop.call_later(self._disk.delay(), self._done, done, outcome, error)
        if self._jobs:
            self._disk.loop.call_later(self._disk.delay(), self._next)
        else:
            self._running = False

    def _done(
        self, done: Callable[[Any, sqlite3.Error | None], None], outcome: Any, error: sqlite3.Error | None
    ) -> None:
        if not self._disk.loop.dead:
            done(outcome, error)

    def _finish(self, future: asyncio.Future[Any], outcome: Any, error: sqlite3.Error | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(outcome)
        else:
            future.set_exception(error)

    def _execute(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        disk = self._disk
        writes = sql.lstrip().startswith(("INSERT", "UPDATE", "DELETE")) and " meta " not in sql
        if writes or "wal_checkpoint(" in sql:
            fault = disk.next_fault("full", "write", "busy", "flush")
        elif sql.lstrip().startswith(("SELECT", "WITH")):
            fault = disk.next_fault("read")
        else:
            fault = None
        if disk.failed and writes:
            disk.truth.note("a write after a failed flush")
        if fault == "flush":
            disk.failed = True
            if disk.simulation.random.random() < 0.5:
                with contextlib.suppress(sqlite3.Error):
                    self.database.execute(sql, values).fetchall()
        if fault is not None:
            error = sqlite3.OperationalError(f"simulated: {fault}")
            error.sqlite_errorname = NAMES[fault]
            raise error
        rows = self.database.execute(sql, values).fetchall()
        if writes:
            disk.observe(self.database, values)
        return rows
