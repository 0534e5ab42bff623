"""Power loss (P1): whatever goes at any moment, every acknowledged row is there afterwards, at `durability="full"`."""

from __future__ import annotations

import asyncio
import itertools
import random
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest

from parlatory.storage import Batch, MessageLog, Partition, new_row, open_engine, user_message
from parlatory.storage import sqlite as engine_module
from parlatory.storage.backup import check_data
from parlatory.storage.connection import Ended

from .journal import JournalVFS, Op, survivors

CONVERSATIONS = 5
_names = itertools.count()


class ApswConnection:
    """Runs the engine's statements on apsw, in the loop; it serves the reads too, as its WAL has no shared memory."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    async def execute_fetchall(self, sql: str, parameters: Iterable[Any] | None = None) -> Iterable[Any]:
        await asyncio.sleep(0)
        return self.connection.execute(sql, tuple(parameters or ())).fetchall()

    def begin(self, sql: str, parameters: Sequence[Any], ended: Ended) -> None:
        asyncio.get_running_loop().call_soon(self._end, sql, parameters, ended)

    def _end(self, sql: str, parameters: Sequence[Any], ended: Ended) -> None:
        self.connection.execute(sql, tuple(parameters)).fetchall()
        ended(None)

    async def executescript(self, sql_script: str) -> object:
        await asyncio.sleep(0)
        return self.connection.execute(sql_script).fetchall()

    async def close(self) -> None:
        """Stays open: both of the engine's connections are this one; the test closes it."""


class Recorder:
    """Is an engine over a journal, and when what was acknowledged."""

    def __init__(self, directory: Path, durability: Any) -> None:
        self.directory = directory
        self.durability = durability
        self.vfs = JournalVFS(f"journal-{next(_names)}")
        self.connection: apsw.Connection | None = None
        self.acked: list[tuple[int, str, int, str]] = []

    async def connect(self, uri: str) -> ApswConnection:
        if self.connection is None:
            path = str(self.directory / engine_module.FILE)
            self.connection = apsw.Connection(path, vfs=self.vfs.name)
            self.connection.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
        return ApswConnection(self.connection)

    async def run(self, rng: random.Random, rounds: int) -> list[Op]:
        """Appends from several conversations at once, with repeats, refusals and checkpoints in between."""
        engine = await engine_module.SqliteEngine.open(
            self.directory, durability=self.durability, connect=self.connect
        )
        partitions = [await engine.partition(f"relay/{index}") for index in range(CONVERSATIONS)]
        for round_ in range(rounds):
            await asyncio.gather(*(self._append(partition, rng, round_) for partition in partitions))
            if rng.random() < 0.2:
                assert self.connection is not None
                self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        await engine.close()
        assert self.connection is not None
        ops = list(self.vfs.ops)
        self.connection.close()
        return ops

    async def _append(self, partition: Partition, rng: random.Random, round_: int) -> None:
        text = f"{round_} " + "x" * rng.choice([10, 300, 5000])
        _, row = new_row(user_message(text), by="user:a", client_id=f"c{round_}")
        committed = await partition.commit(Batch(rows=(row,), puts={"k": b"%d" % round_}, work=rng.random() < 0.5))
        self.acked.append((len(self.vfs.ops), partition.name, committed.seq, text))


async def after_loss(ops: list[Op], rng: random.Random, directory: Path) -> dict[str, dict[int, str]]:
    """Rebuilds the directory as the power loss left it, opens it as the next process would, and reads every log."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in survivors(ops, rng).items():
        (directory / name).write_bytes(content)
    if not (directory / engine_module.FILE).exists():
        return {}
    engine = await open_engine(f"sqlite:///{directory}")
    logs = {}
    for index in range(CONVERSATIONS):
        log = MessageLog(await engine.partition(f"relay/{index}"))
        rows = await log.all()
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1)), "the log has a gap"
        logs[log.name] = {row.seq: row.text for row in rows}
    await engine.close()
    assert not (await asyncio.to_thread(check_data, directory)).faults
    return logs


@pytest.mark.parametrize("seed", range(4))
async def test_every_acknowledged_row_survives_a_power_loss(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "data").mkdir()
    recorder = Recorder(tmp_path / "data", "full")
    ops = await recorder.run(rng, rounds=25)
    assert any(op.kind == "sync" for op in ops)
    for cut in sorted(rng.sample(range(len(ops)), 12)) + [len(ops)]:
        logs = await after_loss(ops[:cut], rng, tmp_path / "after")
        for at, name, seq, text in recorder.acked:
            if at <= cut:
                assert logs.get(name, {}).get(seq) == text, f"acknowledged row {seq} of {name} is gone (cut {cut})"


async def test_without_the_flush_rows_are_lost(tmp_path: Path) -> None:
    """The test can fail: at `durability="normal"` acknowledged rows do not survive every power loss."""
    rng = random.Random(1)
    (tmp_path / "data").mkdir()
    recorder = Recorder(tmp_path / "data", "normal")
    ops = await recorder.run(rng, rounds=15)
    lost = 0
    for cut in rng.sample(range(len(ops) // 2, len(ops)), 8):
        logs = await after_loss(ops[:cut], rng, tmp_path / "after")
        lost += sum(at <= cut and logs.get(name, {}).get(seq) != text for at, name, seq, text in recorder.acked)
    assert lost
