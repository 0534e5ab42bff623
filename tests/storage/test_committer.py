"""Group commit: what goes into a group, and what becomes of it when the disk refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from parlatory.storage import (
    Batch,
    Committed,
    Conflict,
    Image,
    MessageLog,
    StorageBusy,
    StorageClosed,
    StorageError,
    StorageFailed,
    StorageFull,
    TooLarge,
    UnknownMedia,
    open_engine,
    user_message,
)
from parlatory.storage.committer import Committer, Constraint, Refused
from parlatory.storage.group import ClientKey, First
from parlatory.storage.instants import now_us
from parlatory.storage.memory import MemoryEngine
from parlatory.storage.sqlite import SqliteEngine

from .batches import blob, partition, row, rows, seqs, with_media
from .fake_disk import FakeDisk


@pytest.fixture
async def disk() -> FakeDisk:
    return FakeDisk()


async def test_what_arrives_meanwhile_is_the_next_group(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    disk.gate.clear()
    first = [committer.submit(a, rows(text), None) for text in "ab"]
    await disk.writing.wait()
    later = [asyncio.create_task(committer.commit(a, rows(text), None)) for text in "cde"]
    await asyncio.sleep(0)
    disk.gate.set()
    assert [outcome.seq for outcome in await asyncio.gather(*first, *later)] == [1, 2, 3, 4, 5]
    assert [len(group.rows) for group in disk.groups] == [2, 3]
    assert (committer.groups, committer.rows, a.key, a.head) == (2, 5, 1, 5)
    assert [group.names for group in disk.groups] == [[(1, "bot/a")], []]


async def test_who_knows_that_nothing_more_comes_need_not_wait_for_the_end_of_the_step(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    committer.begin()
    assert not disk.writing.is_set(), "there is nothing to write"
    futures = [committer.submit(a, rows(text), None) for text in "ab"]
    assert not disk.writing.is_set(), "it may not be all"
    committer.begin()
    assert disk.writing.is_set()
    futures.append(committer.submit(a, rows("c"), None))
    committer.begin()
    await asyncio.gather(*futures)
    assert [len(group.rows) for group in disk.groups] == [2, 1]


async def test_what_is_put_off_is_done_when_the_group_is_told_and_the_next_is_on_its_way(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    said: list[object] = []

    def tell(committed: Committed) -> None:
        said.append(committed.seq)
        committer.after_telling(lambda: said.append((committed.seq, len(disk.groups), disk.writing.is_set())))

    disk.gate.clear()
    futures = [committer.submit(a, rows(text), tell) for text in "ab"]
    await disk.writing.wait()
    futures.append(committer.submit(a, rows("c"), None))
    disk.writing.clear()
    disk.gate.set()
    await futures[0]
    assert said == [1, 2, (1, 1, True), (2, 1, True)]
    await asyncio.gather(*futures)
    committer.after_telling(lambda: said.append("alone"))
    assert said[4:] == []
    await asyncio.sleep(0)
    assert said[4:] == ["alone"]


async def test_what_is_put_off_and_fails_keeps_nothing_from_happening(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    said: list[str] = []

    def fail() -> None:
        raise KeyError("mine")

    def tell(_: Committed) -> None:
        committer.after_telling(fail)
        committer.after_telling(lambda: said.append("called"))

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(f"{context['message']}: {context['exception']!r}"))
    assert (await committer.commit(a, rows("a"), tell)).seq == 1
    assert (await committer.commit(a, rows("b"), None)).seq == 2
    assert len(said) == 2
    assert "failed behind a commit: KeyError('mine')" in said[0]
    assert said[1] == "called"


async def test_a_group_that_cannot_even_be_begun(disk: FakeDisk) -> None:
    """A fault that is raised at once is as one that is found later."""
    committer, a = Committer(disk), partition()
    disk.refuses = [ValueError("no such bytes")] * 2
    found = await asyncio.gather(*(committer.submit(a, rows(text), None) for text in "ab"), return_exceptions=True)
    assert [type(one) for one in found] == [StorageError, Committed]
    assert (await committer.commit(a, rows("c"), None)).seq == 2


async def test_a_batch_of_nothing(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition(key=1, head=5)
    told: list[Committed] = []
    assert await committer.commit(a, Batch(), told.append) == Committed(5)
    assert (disk.groups, committer.groups) == ([], 0)


@pytest.mark.parametrize("steps", [0, 1])
async def test_the_end_of_the_loop_in_the_middle_of_trouble(disk: FakeDisk, steps: int) -> None:
    """What became of the group is not known where the task that deals with trouble is cancelled: nothing is written."""
    committer, a = Committer(disk), partition(key=1)
    disk.gate.clear()
    asking = committer.submit(a, Batch(rows=[row(client_id="c")], expected_seq=0), None)
    committer.begin()
    for _ in range(steps):
        await asyncio.sleep(0)
    behind = committer.submit(a, rows("x"), None)
    task = committer._task
    assert task is not None
    task.cancel()
    await committer.close()
    assert isinstance(asking.exception(), StorageFailed)
    assert isinstance(behind.exception(), StorageFailed)
    assert asyncio.all_tasks() - {asyncio.current_task(), *disk.tasks} == set()
    disk.gate.set()
    await asyncio.gather(*disk.tasks)


def test_the_end_of_the_process_in_the_middle_of_trouble() -> None:
    class EndingDisk(FakeDisk):
        async def find(self, wanted: Sequence[ClientKey]) -> dict[ClientKey, First]:
            raise KeyboardInterrupt

    with asyncio.Runner() as runner:

        async def begun() -> tuple[Committer, asyncio.Future[Committed]]:
            committer = Committer(EndingDisk())
            asking = Batch(rows=[row(client_id="c")], expected_seq=0)
            return committer, committer.submit(partition(), asking, None)

        committer, future = runner.run(begun())
        with pytest.raises(KeyboardInterrupt):
            runner.get_loop().run_until_complete(asyncio.Event().wait())
        runner.run(committer.close())
        assert isinstance(future.exception(), StorageFailed)


async def test_groups_have_caps(disk: FakeDisk) -> None:
    committer, a = Committer(disk, group_rows_max=3, group_bytes_max=10), partition()
    batches = [rows("x", "x"), rows("x"), rows("x"), rows("x" * 10), rows("x" * 6), rows("x" * 4), rows(*"wxyz")]
    await asyncio.gather(*(committer.submit(a, batch, None) for batch in batches))
    assert [len(group.rows) for group in disk.groups] == [3, 1, 1, 2, 4]


async def test_batches_over_the_caps(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    with pytest.raises(TooLarge) as caught:
        committer.submit(a, rows(*["x"] * 2001), None)
    assert (caught.value.size, caught.value.limit, caught.value.unit) == (2001, 2000, "rows")
    big = Batch(rows=[row("x")], puts={"k": b"x" * (4 << 20)})
    with pytest.raises(TooLarge) as caught:
        await committer.commit(a, big, None)
    assert (caught.value.size, caught.value.unit) == ((4 << 20) + 1, "bytes")
    await committer.commit(a, rows(*["x" * 2097] * 2000), None)
    assert a.head == 2000


async def test_a_full_queue(disk: FakeDisk) -> None:
    """Who submits is refused, who commits waits; both in the order they came."""
    committer, a = Committer(disk, queue_rows_max=4), partition()
    disk.gate.clear()
    futures = [committer.submit(a, rows("0"), None)]
    await disk.writing.wait()
    futures += [committer.submit(a, batch, None) for batch in (rows("1", "2"), Batch(puts={"k": b"1"}), rows("3"))]
    with pytest.raises(StorageBusy, match="4 rows wait"):
        committer.submit(a, rows("4"), None)
    waiting = asyncio.create_task(committer.commit(a, rows("5"), None))
    await asyncio.sleep(0)
    with pytest.raises(StorageBusy):
        committer.submit(a, rows("6"), None)
    disk.gate.set()
    assert (await waiting).seq == 5
    assert [future.result().seq for future in futures] == [1, 3, 3, 4]
    assert (await committer.submit(a, rows("7"), None)).seq == 6


async def test_who_is_cancelled_in_the_queue_is_not_written(disk: FakeDisk) -> None:
    committer, a = Committer(disk, queue_rows_max=2), partition()
    told: list[int] = []

    def tell(committed: Committed) -> None:
        told.append(committed.seq)

    disk.gate.clear()
    written = asyncio.create_task(committer.commit(a, rows("a"), tell))
    await disk.writing.wait()
    queued = [asyncio.create_task(committer.commit(a, rows(text), tell)) for text in "bc"]
    await asyncio.sleep(0)
    for task in (written, *queued):
        task.cancel()
    await asyncio.wait({written, *queued})
    disk.gate.set()
    assert (await committer.commit(a, rows("d"), tell)).seq == 2
    assert told == [1, 2]  # the first was on its way to the disk
    only = asyncio.create_task(committer.commit(a, rows("e"), tell))
    await asyncio.sleep(0)
    only.cancel()
    await committer.close()
    assert [seqs(group) for group in disk.groups] == [[(1, 1)], [(1, 2)]]


async def test_the_clock_is_asked_per_group(disk: FakeDisk) -> None:
    """T17: a clock that stands or goes back makes instants equal, never less."""
    times = [100, 100, 40, 101]
    committer, a = Committer(disk, clock=lambda: times.pop(0)), partition()
    outcomes = [await committer.commit(a, rows("x"), None) for _ in range(4)]
    assert [(outcome.seq, outcome.rows[0].at) for outcome in outcomes] == [(1, 100), (2, 100), (3, 100), (4, 101)]
    assert a.at == 101


async def test_a_taken_client_id_is_found_when_it_is_written(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition(key=1, head=5)
    disk.taken["bot/a", "user", "c"] = First(2, 1)
    disk.errors = [Constraint("unique")]
    batches = [rows("x"), Batch(rows=[row(client_id="c", digest=1)]), Batch(rows=[row(client_id="d", digest=1)])]
    found = await asyncio.gather(*(committer.submit(a, batch, None) for batch in batches))
    assert [(outcome.seq, outcome.duplicate) for outcome in found] == [(6, False), (2, True), (7, False)]
    assert [seqs(group) for group in disk.groups] == [[(1, 6), (1, 7)]]
    assert disk.finds == [[("bot/a", "user", "c"), ("bot/a", "user", "d")]]


async def test_a_repeat_alone_is_not_written_again(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition(key=1, head=5)
    disk.taken["bot/a", "user", "c"] = First(2, 1)
    disk.errors = [Constraint("unique")]
    assert (await committer.commit(a, Batch(rows=[row(client_id="c", digest=1)]), None)).seq == 2
    assert (disk.groups, committer.groups) == ([], 0)


async def test_a_repeat_is_looked_up_first_where_the_head_is_expected(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition(key=1, head=5)
    disk.taken["bot/a", "user", "c"] = First(2, 1)
    repeat = Batch(rows=[row(client_id="c", digest=1)], expected_seq=1)
    assert await committer.commit(a, repeat, None) == Committed(2, (), True)
    with pytest.raises(Conflict):
        await committer.commit(a, Batch(rows=[row(client_id="new", digest=1)], expected_seq=1), None)
    assert disk.groups == []


@pytest.mark.parametrize(
    "error", [Refused("too big"), Constraint("unique"), UnicodeEncodeError("utf-8", "", 0, 1, "x")]
)
async def test_only_the_guilty_one_fails(disk: FakeDisk, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """The group is refused, then each is written alone; those behind the guilty one take its seq."""
    committer, a = Committer(disk), partition()
    whole = [error, error] if isinstance(error, Constraint) else [error]
    alone = whole  # of the second item; a constraint is met twice, because it is planned again in between
    disk.errors = [*whole, None, *alone, None]
    found = await asyncio.gather(*(committer.submit(a, rows(text), None) for text in "abc"), return_exceptions=True)
    first, refused, third = found
    assert isinstance(first, Committed)
    assert isinstance(third, Committed)
    assert (first.seq, third.seq, a.head) == (1, 2, 2)
    assert type(refused) is StorageError
    assert refused.__cause__ is error
    assert [seqs(group) for group in disk.groups] == [[(1, 1)], [(1, 2)]]
    assert len(caplog.records) == isinstance(error, UnicodeEncodeError)  # a fault of ours is logged with its traceback


async def test_a_full_disk_refuses_and_goes_on(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    committer, a = Committer(disk), partition()
    for _ in range(2):
        cause = OSError("no space")
        error = StorageFull("the disk is full")
        error.__cause__ = cause
        disk.errors = [error]
        found = await asyncio.gather(*(committer.submit(a, rows(text), None) for text in "ab"), return_exceptions=True)
        assert [type(each) for each in found] == [StorageFull, StorageFull]
        assert found[0] is not found[1]
        assert isinstance(found[0], StorageFull)
        assert found[0].__cause__ is cause
    assert [record.levelno for record in caplog.records] == [logging.ERROR]  # once, not for every group
    assert (committer.failed, a.head) == (None, 0)
    assert (await committer.commit(a, rows("c"), None)).seq == 1
    disk.errors = [StorageBusy("held")]
    with pytest.raises(StorageBusy):
        await committer.commit(a, rows("d"), None)
    assert len(caplog.records) == 2


async def test_a_failed_flush_stops_everything(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    committer, a = Committer(disk, group_rows_max=1), partition()
    disk.errors = [StorageFailed("flush")]
    found = await asyncio.gather(*(committer.submit(a, rows(text), None) for text in "abc"), return_exceptions=True)
    assert [type(each) for each in found] == [StorageFailed] * 3
    assert isinstance(committer.failed, StorageFailed)
    assert (disk.groups, a.head) == ([], 0)
    with pytest.raises(StorageFailed):
        committer.submit(a, rows("d"), None)
    with pytest.raises(StorageFailed):
        await committer.commit(a, rows("d"), None)
    assert [record.levelno for record in caplog.records] == [logging.CRITICAL]
    await committer.close()


async def test_a_full_queue_says_first_that_storage_has_failed(disk: FakeDisk) -> None:
    committer, a = Committer(disk, queue_rows_max=0), partition()
    with pytest.raises(StorageBusy):
        committer.submit(a, rows("a"), None)
    await committer.close()
    with pytest.raises(StorageClosed):
        committer.submit(a, rows("a"), None)


async def test_a_failed_flush_between_groups_stops_everything(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    disk.tidy_errors = [StorageFailed("flush")]
    assert (await committer.commit(a, rows("a"), None)).seq == 1
    await asyncio.sleep(0)
    assert committer.failed is not None


async def test_a_failed_flush_is_the_last_thing_that_is_done_to_a_disk(disk: FakeDisk) -> None:
    """Tidying up flushes too, and a second flush that succeeds says nothing about the first."""
    committer, a = Committer(disk, group_rows_max=1), partition()
    disk.tidy_errors = [StorageFailed("flush"), RuntimeError("tidied up again")]
    found = await asyncio.gather(*(committer.submit(a, rows(text), None) for text in "abc"), return_exceptions=True)
    assert [type(one) for one in found] == [Committed, StorageFailed, StorageFailed]
    assert (len(disk.groups), disk.tidied) == (1, 1)


async def test_a_flush_that_fails_in_a_group_is_followed_by_nothing(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()
    disk.errors = [StorageFailed("flush")]
    disk.tidy_errors = [RuntimeError("tidied up")]
    with pytest.raises(StorageFailed):
        await committer.commit(a, rows("a"), None)
    await committer.close()
    assert disk.tidied == 0


async def test_any_other_fault_between_groups_does_not(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    committer, a = Committer(disk, group_rows_max=1), partition()
    disk.tidy_errors = [RuntimeError("what")]
    await asyncio.gather(*(committer.submit(a, rows(text), None) for text in "ab"))
    assert [record.getMessage() for record in caplog.records] == ["storage was not tidied up"]


async def test_a_teller_that_raises_for_nobody(disk: FakeDisk, caplog: pytest.LogCaptureFixture) -> None:
    """Its appender is gone, so the log has to say it; the committer goes on."""
    committer, a = Committer(disk), partition()

    def fail(committed: Committed) -> None:
        raise KeyError(committed.seq)

    disk.gate.clear()
    task = asyncio.create_task(committer.commit(a, rows("a"), fail))
    await disk.writing.wait()
    task.cancel()
    await asyncio.wait({task})
    disk.gate.set()
    assert (await committer.commit(a, rows("b"), None)).seq == 2
    (record,) = caplog.records
    assert "its appender is gone" in record.getMessage()
    assert record.exc_info is not None


async def test_a_teller_that_raises_stop_iteration(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition()

    def fail(committed: Committed) -> None:
        next(iter(()))

    with pytest.raises(RuntimeError) as caught:
        await committer.commit(a, rows("a"), fail)
    assert isinstance(caught.value.__cause__, StopIteration)
    assert (await committer.commit(a, rows("b"), None)).seq == 2


@pytest.mark.parametrize("asks", [False, True])
async def test_a_teller_that_is_cancelled(disk: FakeDisk, asks: bool) -> None:
    """It asks for a future that is cancelled, say: all others are told, and what they put off is done."""
    committer, a = Committer(disk), partition()
    said: list[object] = []

    def tell(committed: Committed) -> None:
        committer.after_telling(lambda: said.append(committed.seq))
        if committed.seq == 1:
            raise asyncio.CancelledError

    batches = [Batch(rows=[row(client_id="c")], expected_seq=0) if asks else rows("a"), rows("b")]
    found = await asyncio.gather(*(committer.submit(a, batch, tell) for batch in batches), return_exceptions=True)
    assert isinstance(found[0], RuntimeError)
    assert isinstance(found[0].__cause__, asyncio.CancelledError)
    assert isinstance(found[1], Committed)
    assert said == [1, 2]
    assert (await committer.commit(a, rows("c"), tell)).seq == 3
    await committer.close()


@pytest.mark.parametrize("late", [False, True])
def test_a_teller_that_ends_the_process(late: bool) -> None:
    """The loop ends with it, in a step of its own; whoever runs the loop once more, to close, gets what is due."""
    with asyncio.Runner() as runner:
        loop = runner.get_loop()

        async def begun() -> tuple[Committer, list[asyncio.Future[Committed]]]:
            committer, a = Committer(FakeDisk()), partition()

            def end() -> None:
                raise SystemExit(3)

            def tell(committed: Committed) -> None:
                if committed.seq == 1:
                    committer.after_telling(end) if late else end()

            return committer, [committer.submit(a, rows(text), tell) for text in "ab"]

        committer, (first, second) = runner.run(begun())
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.Event().wait())
        runner.run(committer.close())
        assert second.result().seq == 2
        if late:
            assert first.result().seq == 1
        else:
            assert isinstance(first.exception(), RuntimeError)
        assert (committer.groups, committer.rows) == (1, 2)


async def test_how_long_a_group_took_is_known_before_anybody_is_told(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What subscribers do when they are told is no part of a commit."""
    committer, a = Committer(disk), partition()
    now = 0.0

    def tell(_: Committed) -> None:
        nonlocal now
        now += 1.0
        committer.after_telling(lambda: None)

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    await committer.commit(a, rows("x"), tell)
    await committer.commit(a, Batch(rows=[row(client_id="c")], expected_seq=1), tell)
    assert (now, committer.commits.count, committer.commits.total_s) == (2.0, 2, 0.0)


async def test_whom_a_cancelled_appender_lets_down(disk: FakeDisk) -> None:
    """Errors of a group find nobody where its appenders are gone, and do no harm."""
    committer, a = Committer(disk), partition()
    disk.gate.clear()
    disk.errors = [StorageFull("full")]
    task = asyncio.create_task(committer.commit(a, rows("a"), None))
    await disk.writing.wait()
    task.cancel()
    await asyncio.wait({task})
    disk.gate.set()
    assert (await committer.commit(a, rows("b"), None)).seq == 1


async def test_close_waits_for_all(disk: FakeDisk) -> None:
    committer, a = Committer(disk, group_rows_max=1, queue_rows_max=2), partition()
    disk.gate.clear()
    tasks = [asyncio.create_task(committer.commit(a, rows(str(number)), None)) for number in range(5)]
    await disk.writing.wait()
    closing = asyncio.create_task(committer.close())
    await asyncio.sleep(0)
    assert not closing.done()
    with pytest.raises(StorageClosed):
        await committer.commit(a, rows("late"), None)
    disk.gate.set()
    await closing
    assert [task.result().seq for task in tasks] == [1, 2, 3, 4, 5]
    await committer.close()


# -- media


async def test_the_disk_is_asked_for_media_that_rows_refer_to(disk: FakeDisk) -> None:
    committer, a = Committer(disk), partition(key=1)
    disk.media = {("bot/a", "1")}
    disk.taken["bot/a", "user", "c"] = First(4, 1)
    repeat = with_media(refs=["2"], client_id="c", digest=1)
    batches = [with_media(refs=["1"]), with_media(refs=["2"]), with_media(blob("3")), repeat]
    found = await asyncio.gather(*(committer.submit(a, batch, None) for batch in batches), return_exceptions=True)
    assert [type(one) for one in found] == [Committed, UnknownMedia, Committed, Committed]
    assert found[3] == Committed(4, (), True)
    assert disk.asked == [[("bot/a", "1"), ("bot/a", "2"), ("bot/a", "2")]]


async def test_a_batch_is_as_big_as_its_media(disk: FakeDisk) -> None:
    committer, a = Committer(disk, group_bytes_max=10), partition()
    for batch in (with_media(blob(data=b"x" * 10)), Batch(uploads=[blob(data=b"x" * 11)])):
        with pytest.raises(TooLarge):
            await committer.commit(a, batch, None)
    await committer.commit(a, with_media(blob(data=b"x" * 9)), None)


async def test_unused_media_are_swept_now_and_then(disk: FakeDisk) -> None:
    """The first group takes away what is too old, and then one group in ten minutes, if it was written."""
    second = 1_000_000
    clock = [500 * second]
    committer, a = Committer(disk, clock=lambda: clock[0], media_unused_s=60), partition(key=1)
    disk.errors = [StorageFull("full")]
    with pytest.raises(StorageFull):
        await committer.commit(a, rows("x"), None)
    for clock[0] in (500 * second, 501 * second, 1099 * second, 1100 * second, 1101 * second):
        await committer.commit(a, rows("x"), None)
    stale = [None if group.stale is None else group.stale // second for group in disk.groups]
    assert stale == [440, None, None, 1040, None]
    assert [group.lone_row is None for group in disk.groups] == [True, False, False, True, False]


@pytest.mark.parametrize("address", ["memory:", "sqlite"])
async def test_an_upload_that_no_row_takes_up_goes_after_a_day(address: str, tmp_path: Path) -> None:
    engine = await open_engine(f"sqlite:///{tmp_path}" if address == "sqlite" else address)
    assert isinstance(engine, SqliteEngine | MemoryEngine)
    hour = 3_600_000_000
    start = now_us()
    clock = [start]
    engine._committer = Committer(engine._disk if isinstance(engine, SqliteEngine) else engine, clock=lambda: clock[0])
    log = MessageLog(await engine.partition("bot/a"))
    left, used, again = [await log.put_media(data, "image/png") for data in (b"left", b"used", b"again")]
    await log.append(user_message([Image(ref=used, media_type="image/png")]))
    for clock[0] in (start + 23 * hour, start + 24 * hour):
        await log.put_media(b"again", "image/png")
        for ref in (left, used, again):
            await log.media(ref)
    clock[0] += hour
    await log.append(user_message("whatever is written"))
    with pytest.raises(UnknownMedia):
        await log.media(left)
    assert ((await log.media(used)).data, (await log.media(again)).data) == (b"used", b"again")
    await engine.close()
