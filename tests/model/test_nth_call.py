"""The n-th call to storage fails, for n = 1, 2, ... until none does (P1, P2): what was acknowledged is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlatory.storage import (
    Batch,
    Committed,
    Engine,
    MessageLog,
    StorageBusy,
    StorageError,
    StorageFailed,
    StorageFull,
    new_row,
    open_engine,
    user_message,
)
from parlatory.storage import sqlite as sqlite_engine
from parlatory.storage.backup import check_data

from .faulty import FAILURES, Faults

EXPECTED = {"full": StorageFull, "write": StorageFull, "busy": StorageBusy, "flush": StorageFailed}
NAMES = ("relay/a", "relay/b")


class Story:
    """Does the same things each time and notes what came of them.

    Attributes:
        acked: what was acknowledged, per conversation: seq to text.
        told: what was told, the same way.
        errors: what was raised.
    """

    def __init__(self) -> None:
        self.acked: dict[str, dict[int, str]] = {name: {} for name in NAMES}
        self.told: dict[str, dict[int, str]] = {name: {} for name in NAMES}
        self.errors: list[StorageError] = []

    async def run(self, engine: Engine) -> None:
        """Appends alone and in groups, repeats, puts keys, reads."""
        for round_ in range(3):
            texts = [f"{round_}.{index}" for index in range(3)]
            await asyncio.gather(*(self.append(engine, name, text) for name in NAMES for text in texts))
            with self.noted():
                partition = await engine.partition(NAMES[0])
                await partition.commit(Batch(puts={"k": b"%d" % round_}, work=True, timers={"t": round_}))
                await partition.keys()
                await MessageLog(partition).last(3)
                await engine.due(now=10)
                await engine.list()

    async def append(self, engine: Engine, name: str, text: str) -> None:
        """Appends, and repeats once what was not acknowledged, as a client does."""
        for _ in range(2):
            with self.noted():
                partition = await engine.partition(name)
                _, row = new_row(user_message(text), by="user:a", client_id=text.replace(".", "-"))

                def told(committed: Committed) -> None:
                    self.told[name][committed.seq] = text

                committed = await partition.commit(Batch(rows=(row,)), told)
                self.acked[name][committed.seq] = text
                return

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Takes note of an error and goes on."""
        try:
            yield
        except StorageError as error:
            self.errors.append(error)


async def logs(directory: Path) -> dict[str, dict[int, str]]:
    engine = await open_engine(f"sqlite:///{directory}")
    found = {}
    for name in NAMES:
        rows = await MessageLog(await engine.partition(name)).all()
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        assert len({row.client_id for row in rows}) == len(rows)
        found[name] = {row.seq: row.text for row in rows}
    await engine.close()
    assert not (await asyncio.to_thread(check_data, directory)).faults
    return found


async def run_with_fault(directory: Path, faults: Faults) -> Story:
    story = Story()
    try:
        engine = await sqlite_engine.SqliteEngine.open(directory, connect=faults.connect)
    except StorageError as error:
        story.errors.append(error)
        return story
    await story.run(engine)
    with story.noted():
        await engine.close()
    return story


@pytest.mark.parametrize("kind", FAILURES)
async def test_the_nth_call_fails(tmp_path: Path, kind: str) -> None:
    """T23: what was not committed is neither acknowledged nor told; what was, is there for ever."""
    n = 0
    while True:
        n += 1
        faults = Faults(kind, n)
        directory = tmp_path / str(n)
        story = await run_with_fault(directory, faults)
        if not faults.failed:
            assert not story.errors
            break
        assert {type(error) for error in story.errors} <= {EXPECTED[kind]}
        found = await logs(directory)
        for name in NAMES:
            assert story.acked[name].items() <= found[name].items(), f"call {n}: acknowledged and gone"
            assert story.told[name].items() <= found[name].items(), f"call {n}: told and gone"
            if kind != "flush":
                assert found[name] == story.acked[name], f"call {n}: there, and never acknowledged"
                assert found[name] == story.told[name], f"call {n}: there, and never told"
    assert n > 30
