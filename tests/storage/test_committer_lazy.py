"""Group commit of what is in no hurry: it goes with others, in its place, and never without an end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from parlatory.storage import Batch
from parlatory.storage import committer as committer_module
from parlatory.storage.committer import Committer

from .batches import partition, rows, with_media
from .fake_disk import FakeDisk


@pytest.fixture
async def disk() -> FakeDisk:
    return FakeDisk()


def lazy(value: bytes = b"1") -> Batch:
    return Batch(puts={"k": value}, lazy=True)


def names(disk: FakeDisk) -> list[list[str]]:
    return [[name for _, name in group.names] for group in disk.groups]


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lazy waits until others come."""
    monkeypatch.setattr(committer_module, "LAZY_S", 3600.0)


@pytest.mark.usefixtures("never")
async def test_what_is_lazy_goes_with_what_others_commit(disk: FakeDisk) -> None:
    committer = Committer(disk)
    futures = [committer.submit(partition(f"bot/lazy-{number}"), lazy(), None) for number in range(10)]
    assert committer.statistics().queued_rows == 10
    await committer.commit(partition("bot/a"), rows("a"), None)
    most = committer_module.LAZY_PER_GROUP
    assert [future.done() for future in futures] == [True] * most + [False] * (10 - most), "not with too many at once"
    assert names(disk) == [["bot/a", *(f"bot/lazy-{number}" for number in range(most))]]
    await committer.commit(partition("bot/b"), rows("b"), None)
    assert all(future.done() for future in futures) and len(disk.groups) == 2
    assert committer.statistics().queued_rows == 0
    await committer.close()


async def test_what_is_lazy_waits_no_longer_than_it_may(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer_module, "LAZY_S", 0.01)
    monkeypatch.setattr(committer_module, "LAZY_PER_GROUP", 0)
    committer, loop = Committer(disk), asyncio.get_running_loop()
    start = loop.time()
    await committer.submit(partition("bot/a"), lazy(), None)
    assert loop.time() - start >= 0.01
    first = committer.submit(partition("bot/b"), lazy(), None)
    monkeypatch.setattr(committer_module, "LAZY_S", 3600.0)
    second = committer.submit(partition("bot/c"), lazy(), None)
    await first
    assert not second.done(), "it has its own time"
    await committer.close()
    assert names(disk) == [["bot/a"], ["bot/b"], ["bot/c"]]


@pytest.mark.usefixtures("never")
async def test_what_is_lazy_keeps_its_place_in_its_partition(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    first = committer.submit(a, lazy(b"1"), None)
    second = committer.submit(a, lazy(b"2"), None)
    await asyncio.gather(first, second)
    assert [dict(group.puts) for group in disk.groups] == [{(1, "k"): b"2"}]
    third = committer.submit(a, lazy(b"3"), None)
    await committer.commit(a, Batch(deletes=["k"]), None)
    assert third.done() and (not disk.groups[1].puts, list(disk.groups[1].deletes)) == (True, [(1, "k")])


@pytest.mark.usefixtures("never")
async def test_what_is_lazy_does_not_overtake_what_waits_in_the_queue(disk: FakeDisk) -> None:
    committer, a, b = Committer(disk, group_rows_max=1), partition("bot/a"), partition("bot/b")
    before = [committer.submit(each, rows("x"), None) for each in (b, a)]
    behind = committer.submit(a, lazy(), None)
    await asyncio.gather(*before, behind)
    assert [(len(group.rows), len(group.puts)) for group in disk.groups] == [(1, 0), (1, 1)]


@pytest.mark.usefixtures("never")
async def test_what_is_lazy_does_not_make_a_group_too_large(disk: FakeDisk) -> None:
    committer = Committer(disk, group_bytes_max=10)
    waiting = committer.submit(partition("bot/lazy"), lazy(b"12345678"), None)
    await committer.commit(partition("bot/a"), rows("abc"), None)
    assert not waiting.done()
    await committer.commit(partition("bot/b"), rows("a"), None)
    assert waiting.done()


@pytest.mark.usefixtures("never")
async def test_what_is_lazy_and_given_up_is_not_written(disk: FakeDisk) -> None:
    committer = Committer(disk)
    committer.submit(partition("bot/lazy"), lazy(), None).cancel()
    await committer.commit(partition("bot/a"), rows("a"), None)
    committer.submit(partition("bot/lazy"), lazy(), None).cancel()
    await committer.close()
    assert names(disk) == [["bot/a"]] and committer.statistics().queued_rows == 0


@pytest.mark.usefixtures("never")
async def test_what_is_lazy_is_written_before_the_end(disk: FakeDisk) -> None:
    committer = Committer(disk)
    future = committer.submit(partition("bot/lazy"), lazy(), None)
    await committer.close()
    assert future.done() and names(disk) == [["bot/lazy"]]


@pytest.mark.usefixtures("never")
async def test_what_is_lazy_and_has_to_be_looked_up_is_not_put_off(disk: FakeDisk) -> None:
    """Or a message that somebody waits for would be looked up as well."""
    disk.media = {("bot/a", "h")}
    committer = Committer(disk)
    await committer.submit(partition("bot/a"), msgspec.structs.replace(with_media(refs=["h"]), lazy=True), None)
