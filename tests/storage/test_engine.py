"""What the port does by itself: opening once, and the rules of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from parlatory.storage import (
    Batch,
    Blob,
    Committed,
    Due,
    Engine,
    InvalidName,
    Listing,
    NewRow,
    Partition,
    Row,
    StorageError,
    StorageStatistics,
    Told,
)
from parlatory.storage.engine import LastRow, check_batch


class Gate(Engine):
    """An engine of one method: opening waits for the test. Nothing can be written to it or read from it."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.gate = asyncio.Event()
        self.error: StorageError | None = None

    async def _open(self, name: str) -> tuple[str, LastRow]:
        self.opened.append(name)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return "e.1", LastRow(key=3, floor=2, seq=9, at=4)

    def submit(self, partition: Partition, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
        raise NotImplementedError

    async def commit(self, partition: Partition, batch: Batch, told: Told | None = None) -> Committed:
        raise NotImplementedError

    async def read(
        self, partition: Partition, *, after: int, before: int | None, limit: int, max_bytes: int, newest: bool
    ) -> list[Row]:
        raise NotImplementedError

    async def keys(self, partition: Partition, prefix: str) -> dict[str, bytes]:
        raise NotImplementedError

    async def media(self, partition: Partition, hash: str, start: int) -> Blob | None:
        raise NotImplementedError

    async def list(self, **_: object) -> Sequence[Listing]:
        raise NotImplementedError

    async def due(self, *, now: int, after: int = 0, limit: int = 100) -> Sequence[Due]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    @property
    def failed(self) -> BaseException | None:
        return None

    @property
    def statistics(self) -> StorageStatistics:
        raise NotImplementedError


async def test_those_who_open_at_once_share_one_reading() -> None:
    engine = Gate()
    waiting = [asyncio.create_task(engine.partition("bot/a")) for _ in range(3)]
    await asyncio.sleep(0)
    engine.gate.set()
    first, second, third = await asyncio.gather(*waiting)
    assert first is second is third is await engine.partition("bot/a")
    assert (first.epoch, first.key, first.floor, first.head, first.at) == ("e.1", 3, 2, 9, 4)
    assert engine.opened == ["bot/a"]
    assert repr(first) == "<Partition 'bot/a' head=9>"


async def test_a_cancelled_opener_takes_nobody_with_him() -> None:
    engine = Gate()
    one, other = (asyncio.create_task(engine.partition("bot/a")) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    await asyncio.wait({one})
    engine.gate.set()
    assert (await other).name == "bot/a"
    assert one.cancelled()


async def test_a_failed_opening_is_tried_again() -> None:
    engine = Gate()
    engine.gate.set()
    engine.error = StorageError("no")
    with pytest.raises(StorageError):
        await engine.partition("bot/a")
    engine.error = None
    assert (await engine.partition("bot/a")).head == 9


async def test_a_partition_that_nobody_holds_is_gone() -> None:
    engine = Gate()
    engine.gate.set()
    await engine.partition("bot/a")
    await asyncio.sleep(0)  # the step that was woken with it still holds it
    await engine.partition("bot/a")
    assert engine.opened == ["bot/a", "bot/a"]


async def test_a_bad_name_is_not_opened() -> None:
    engine = Gate()
    with pytest.raises(InvalidName):
        await engine.partition("bot")
    assert engine.opened == []


def test_rules_of_a_batch() -> None:
    plain, named = NewRow(body=b"{}", by="user"), NewRow(body=b"{}", by="user", client_id="c")
    for batch in (
        Batch(),
        Batch(rows=[plain, plain]),
        Batch(rows=[named]),
        Batch(puts={"k" * 2048: b"1"}, deletes=["\u00e9"], timers={" ": None}),
    ):
        check_batch(batch)
    with pytest.raises(ValueError, match="only row"):
        check_batch(Batch(rows=[plain, named]))
    with pytest.raises(ValueError, match="surrogate"):
        check_batch(Batch(puts={"\ud83d": b"1"}))
    for key in ("", "k" * 2049, "\u00e9" * 1025, "a\0b", "\x7f"):
        with pytest.raises(ValueError, match="1 to 2048 bytes"):
            check_batch(Batch(deletes=[key]))
