"""What every engine keeps, as tests that ship: the fault model of `storage.engine`, but for disks that fail.

An engine of your own runs them with pytest and pytest-asyncio (`asyncio_mode = "auto"`)::

    class TestMyEngine(EngineContract):
        async def open(self) -> Engine:
            return await MyEngine.open(fresh_place())

        async def reopen(self, engine: Engine) -> Engine:
            await engine.close()
            return await MyEngine.open(place_of(engine))

The tests close what they open, and need nothing but an empty engine each. For failures that show their values, call
`pytest.register_assert_rewrite("parlatory.storage.contract", "parlatory.storage.contract_lists")` before the import.
"""

from __future__ import annotations

import asyncio

from .contract_base import NAMES, batch, raised, row, seqs, texts
from .contract_lists import ListContract
from .contract_media import MediaContract
from .engine import Batch, Committed, Engine, NewRow, Partition
from .errors import ClientIdConflict, Conflict, InvalidName, StorageClosed
from .rows import Row

__all__ = ["EngineContract"]

class EngineContract(ListContract, MediaContract):
    """Is what every engine keeps. A subclass named `Test...` gives `open` and `reopen`; see the module."""

    # -- partitions

    async def test_opening_writes_nothing(self) -> None:
        """Unknown names are empty conversations, and stay unknown."""
        async with self.opened() as engine:
            for name in NAMES:
                partition = await engine.partition(name)
                assert (partition.name, partition.head, partition.floor) == (name, 0, 0)
                assert 1 <= len(partition.epoch) <= 64
                assert await partition.read() == []
                assert await partition.keys() == {}
            assert list(await engine.list()) == []
            assert engine.failed is None

    async def test_names_are_told_apart(self) -> None:
        """Names that differ in a byte are different conversations."""
        async with self.opened() as engine:
            for name in NAMES:
                await (await engine.partition(name)).commit(batch(name.encode().hex()))
            for name in NAMES:
                partition = await engine.partition(name)
                assert texts(await partition.read()) == [name.encode().hex()]
            assert [found.name for found in await engine.list()] == sorted(NAMES)

    async def test_bad_names_are_refused(self) -> None:
        """A name that is none never reaches storage."""
        async with self.opened() as engine:
            for name in ("", "bot", "bot/", "/a", "Bot/a", "bot/a\0b", "bot/e\u0301", "bot/\ud83d", "bot/" + "x" * 513):
                await raised(InvalidName, engine.partition(name))

    async def test_there_is_one_partition_object(self) -> None:
        """All who open a conversation share one object, also those who open it at once."""
        async with self.opened() as engine:
            first, second = await asyncio.gather(engine.partition("bot/a"), engine.partition("bot/a"))
            assert first is second
            assert await engine.partition("bot/a") is first
            assert await engine.partition("bot/b") is not first

    async def test_a_partition_is_found_again(self) -> None:
        """A partition that nobody held any more stands where it stood."""
        async with self.opened() as engine:
            epoch = (await engine.partition("bot/a")).epoch
            at = (await (await engine.partition("bot/a")).commit(batch("1", "2"))).rows[-1].at
            again = await engine.partition("bot/a")
            assert (again.head, again.at, again.epoch) == (2, at, epoch)
            assert (await again.commit(batch("3"))).seq == 3

    # -- committing

    async def test_seqs_are_dense(self) -> None:
        """Rows count 1, 2, 3; their instants never go back; the partition knows its last row."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            outcomes = [await partition.commit(batch(*"x" * count)) for count in (1, 3, 1)]
            assert [outcome.seq for outcome in outcomes] == [1, 4, 5]
            rows = [row for outcome in outcomes for row in outcome.rows]
            assert seqs(rows) == [1, 2, 3, 4, 5]
            assert [row.at for row in rows] == sorted(row.at for row in rows)
            assert (partition.head, partition.at) == (5, rows[-1].at)
            found = await partition.read()
            assert [(row.seq, row.at, row.body) for row in found] == [(row.seq, row.at, row.body) for row in rows]

    async def test_a_hundred_tasks_at_once(self) -> None:
        """T02: concurrent appends to one conversation lose nothing, and every ack is that of its row."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            outcomes = await asyncio.gather(*(partition.commit(batch(str(index))) for index in range(100)))
            assert sorted(outcome.seq for outcome in outcomes) == list(range(1, 101))
            found = {row.seq: row.body for row in await partition.read()}
            assert all(found[outcome.seq] == outcome.rows[0].body for outcome in outcomes)
            assert texts(await partition.read()) == [str(index) for index in range(100)]

    async def test_conversations_share_groups(self) -> None:
        """Batches of many conversations, submitted at once, all arrive where they belong."""
        async with self.opened() as engine:
            partitions = [await engine.partition(f"bot/{index}") for index in range(40)]
            batches = [(partition, f"{partition.name}#{turn}") for turn in range(5) for partition in partitions]
            await asyncio.gather(*[partition.submit(batch(text)) for partition, text in batches])
            for partition in partitions:
                assert texts(await partition.read()) == [f"{partition.name}#{turn}" for turn in range(5)]

    async def test_rows_come_back_as_they_were(self) -> None:
        """T50: every column of a row is kept, and every byte of its body."""
        text = "a\0b \u0085 \u2028 \ufeff \U0001f600 ' \\\" \\u0000 \x7f"
        rows = [
            NewRow(body=text.encode(), by="user:\u00e9", client_id="c-1", digest=-(1 << 63), turn=7, finish="stopped"),
            NewRow(body=b"{}", by="agent", client_id="c-2", digest=(1 << 63) - 1, turn="call:1"),
            NewRow(body=("x" * 100_000).encode(), by="agent", turn=(1 << 53) - 1),
        ]
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            for new in rows:
                await partition.commit(Batch(rows=[new]))
            for found, new in zip(await partition.read(), rows, strict=True):
                assert (found.body, found.by, found.client_id) == (new.body, new.by, new.client_id)
                assert (found.turn, found.finish) == (new.turn, new.finish)

    async def test_a_batch_is_all_or_nothing(self) -> None:
        """Rows, keys, timers and the work mark of a batch become true together, or none does."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            whole = Batch(rows=[row("1")], puts={"k": b"1"}, timers={"t": 5}, work=True)
            assert (await partition.commit(whole)).seq == 1
            refused = Batch(
                rows=[row("2"), row("3")],
                puts={"k": b"2", "l": b"3"},
                deletes=["k"],
                timers={"t": 9, "u": 9},
                work=False,
                expected_seq=7,
            )
            error = await raised(Conflict, partition.commit(refused))
            assert (error.expected, error.head) == (7, 1)
            assert texts(await partition.read()) == ["1"]
            assert await partition.keys() == {"k": b"1"}
            assert [(due.timer, due.at) for due in await engine.due(now=100) if due.timer] == [("t", 5)]
            assert [due.timer for due in await engine.due(now=0)] == [None]

    async def test_a_batch_needs_no_rows(self) -> None:
        """Keys alone commit too, and are told; the head stays."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            told: list[Committed] = []
            outcome = await partition.commit(Batch(puts={"k": b"1"}), told.append)
            assert (outcome.seq, outcome.rows, told) == (0, (), [outcome])
            assert partition.head == 0
            assert [(found.name, found.head, found.at) for found in await engine.list()] == [("bot/a", 0, 0)]
            assert (await partition.commit(batch("1"))).seq == 1

    async def test_expected_seq(self) -> None:
        """Of those who expect the same head at once, the first wins and the others learn the head."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            futures = [partition.submit(Batch(rows=[row(text)], expected_seq=0)) for text in "abc"]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [Committed, Conflict, Conflict]
            assert texts(await partition.read()) == ["a"]
            assert (await partition.commit(Batch(rows=[row("d")], expected_seq=1))).seq == 2

    async def test_the_guilty_one_alone_fails(self) -> None:
        """A refused batch takes no seq, and nothing from those in front of it or behind it."""
        async with self.opened() as engine:
            partition, other = await engine.partition("bot/a"), await engine.partition("bot/b")
            await partition.commit(Batch(rows=[row("first", client_id="c")]))
            futures = [
                partition.submit(batch("1")),
                partition.submit(Batch(rows=[row("another", client_id="c")])),
                other.submit(batch("other")),
                partition.submit(Batch(rows=[row("2")], expected_seq=99)),
                partition.submit(batch("3", "4")),
            ]
            outcomes = await asyncio.gather(*futures, return_exceptions=True)
            kinds = [Committed, ClientIdConflict, Committed, Conflict, Committed]
            assert [type(outcome) for outcome in outcomes] == kinds
            found = await partition.read()
            assert (seqs(found), texts(found)) == ([1, 2, 3, 4], ["first", "1", "3", "4"])
            assert texts(await other.read()) == ["other"]

    async def test_misuse_is_refused(self) -> None:
        """A batch that breaks the rules of the port is a ValueError, and nothing is written."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            two = Batch(rows=[row("1", client_id="c"), row("2")])
            keys = ["", "a\nb", "\ud83d", "x" * 2049]
            wrong = [two, *(Batch(puts={key: b"1"}) for key in keys), *(Batch(deletes=[key]) for key in keys)]
            for each in (*wrong, *(Batch(timers={key: 1}) for key in keys)):
                await raised(ValueError, partition.commit(each))
            assert list(await engine.list()) == []

    # -- client ids

    async def test_repeats_get_the_first_seq(self) -> None:
        """T47: a repeat is answered with the first seq for ever, is no row and is not told."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            told: list[Committed] = []
            send = Batch(rows=[row("hi", client_id="c")])
            first = await partition.commit(send, told.append)
            assert (first.seq, first.duplicate) == (1, False)
            await partition.commit(batch("more"))
            assert await partition.commit(send, told.append) == Committed(1, (), True)
            late = Batch(rows=send.rows, expected_seq=0)
            assert await partition.commit(late, told.append) == Committed(1, (), True)
            assert (told, partition.head) == ([first], 2)

    async def test_repeats_at_once(self) -> None:
        """T47: of the same send twice at once one is a row; both get its seq."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            send = Batch(rows=[row("hi", client_id="c")])
            outcomes = await asyncio.gather(*(partition.submit(each) for each in (send, batch("x"), send, send)))
            assert [(outcome.seq, outcome.duplicate) for outcome in outcomes] == [
                (1, False), (2, False), (1, True), (1, True),
            ]  # fmt: skip
            assert texts(await partition.read()) == ["hi", "x"]

    async def test_a_client_id_is_one_message(self) -> None:
        """T48: another message under a used client id is refused, and names the row it belongs to."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            futures = [partition.submit(Batch(rows=[row(text, client_id="c")])) for text in ("hi", "other")]
            first, refused = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(first, Committed)
            assert isinstance(refused, ClientIdConflict)
            assert (refused.client_id, refused.seq) == ("c", first.seq)
            again = await raised(ClientIdConflict, partition.commit(Batch(rows=[row("third", client_id="c")])))
            assert (again.seq, partition.head) == (1, 1)

    async def test_client_ids_belong_to_author_and_conversation(self) -> None:
        """The same client id of another author, or in another conversation, is another one."""
        async with self.opened() as engine:
            partition, other = await engine.partition("bot/a"), await engine.partition("bot/b")
            assert (await partition.commit(Batch(rows=[row("1", client_id="c")]))).seq == 1
            assert (await partition.commit(Batch(rows=[row("22", client_id="c", by="user:ann")]))).seq == 2
            assert (await other.commit(Batch(rows=[row("333", client_id="c")]))).seq == 1
            assert (await partition.commit(Batch(rows=[row("1", client_id="C")]))).seq == 3

    # -- telling

    async def test_told_in_order_and_first(self) -> None:
        """Every commit is told in seq order, when the head has moved, before its future has a result."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            told: list[tuple[int, bool]] = []
            futures: list[asyncio.Future[Committed]] = []

            def tell(committed: Committed) -> None:
                assert partition.head == committed.seq
                told.append((committed.seq, futures[len(told)].done()))

            futures += [partition.submit(batch(*"ab"), tell) for _ in range(20)]
            await asyncio.gather(*futures)
            assert told == [(seq, False) for seq in range(2, 42, 2)]

    async def test_what_is_told_can_be_read(self) -> None:
        """T23: whoever reads because of what he was told finds it."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            reads: list[asyncio.Task[list[Row]]] = []

            def tell(committed: Committed) -> None:
                reads.append(asyncio.create_task(partition.read(after=committed.seq - 1)))

            await asyncio.gather(*(partition.commit(batch(str(index)), tell) for index in range(10)))
            for index, rows in enumerate(await asyncio.gather(*reads)):
                assert rows[0].seq == index + 1

    async def test_what_is_put_off_until_all_is_told_is_done_once_behind_it(self) -> None:
        """`after_telling` calls behind the telling in which it is asked; `begin` is a hint and changes no outcome."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            said: list[str] = []

            def tell(committed: Committed) -> None:
                said.append(f"told {committed.seq}")
                partition.after_telling(lambda: said.append(f"after {committed.seq}"))

            engine.begin()
            futures = [partition.submit(batch("x"), tell) for _ in range(3)]
            engine.begin()
            assert said == []
            await asyncio.gather(*futures)
            done = asyncio.Event()
            partition.after_telling(done.set)
            assert not done.is_set()
            await done.wait()
            assert len(said) == 6
            assert [seq for seq in said if seq.startswith("told")] == ["told 1", "told 2", "told 3"]
            for seq in "123":
                assert said.index(f"told {seq}") < said.index(f"after {seq}")

    async def test_refusals_are_not_told(self) -> None:
        """Nobody is told of a batch that was refused."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            told: list[Committed] = []
            await raised(Conflict, partition.commit(Batch(rows=[row()], expected_seq=1), told.append))
            assert told == []

    async def test_a_teller_that_raises(self) -> None:
        """Its error goes to the appender; the batch stays, and those behind it are told."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")

            def fail(committed: Committed) -> None:
                raise KeyError(committed.seq)

            told: list[Committed] = []
            futures = [partition.submit(batch("1"), fail), partition.submit(batch("2"), told.append)]
            error, second = await asyncio.gather(*futures, return_exceptions=True)
            assert isinstance(error, KeyError)
            assert told == [second]
            assert texts(await partition.read()) == ["1", "2"]

    async def test_a_cancelled_appender(self) -> None:
        """What it appended is told exactly if it is in the log, and nobody else is disturbed."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            told: list[int] = []

            def tell(committed: Committed) -> None:
                told.extend(row.seq for row in committed.rows)

            for waits in range(8):
                task = asyncio.create_task(partition.commit(batch("gone"), tell))
                for _ in range(waits):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait({task})
                await partition.commit(batch("kept"), tell)
            found = await partition.read()
            assert told == seqs(found) == list(range(1, partition.head + 1))
            assert texts(found).count("kept") == 8

    # -- reading

    async def filled(self, engine: Engine, count: int = 10) -> Partition:
        """Returns a partition of `count` rows with the texts "1", "2", ..."""
        partition = await engine.partition("bot/read")
        await partition.commit(batch(*map(str, range(1, count + 1))))
        return partition

    async def test_ranges(self) -> None:
        """Both ends of a range are outside of it, and may lie beyond the log."""
        async with self.opened() as engine:
            partition = await self.filled(engine)
            everything = list(range(1, 11))
            for after in (-5, -1, 0, 1, 9, 10, 11, 1 << 53):
                for before in (None, -1, 0, 1, 2, 5, 10, 11, 12, 1 << 53):
                    wanted = [seq for seq in everything if seq > after and (before is None or seq < before)]
                    assert seqs(await partition.read(after=after, before=before)) == wanted
                    assert seqs(await partition.read(after=after, before=before, newest=True)) == wanted
                    assert seqs(await partition.read(after=after, before=before, limit=3)) == wanted[:3]
                    newest = await partition.read(after=after, before=before, limit=3, newest=True)
                    assert seqs(newest) == wanted[-3:]
            assert await partition.read(limit=0) == await partition.read(limit=-1) == []

    async def test_pages_are_bounded_in_bytes(self) -> None:
        """A page holds at most `max_bytes` of bodies, and one row if there is one."""
        async with self.opened() as engine:
            partition = await self.filled(engine, 9)
            size = len(row("1").body)
            for count in range(1, 10):
                assert seqs(await partition.read(max_bytes=count * size)) == list(range(1, count + 1))
                assert seqs(await partition.read(max_bytes=(count + 1) * size - 1)) == list(range(1, count + 1))
                newest = await partition.read(max_bytes=count * size, newest=True)
                assert seqs(newest) == list(range(10 - count, 10))
            assert seqs(await partition.read(after=3, max_bytes=0)) == [4]
            assert seqs(await partition.read(before=3, max_bytes=0, newest=True)) == [2]

    async def test_order_is_seq(self) -> None:
        """T16: rows of conversations that grew in turns come by seq."""
        async with self.opened() as engine:
            partitions = [await engine.partition(f"bot/{index}") for index in range(5)]
            for index in range(40):
                await partitions[index * 7 % 5].commit(batch(str(index)))
            for place, partition in enumerate(partitions):
                wanted = [str(index) for index in range(40) if index * 7 % 5 == place]
                found = await partition.read()
                assert (seqs(found), texts(found)) == ([1, 2, 3, 4, 5, 6, 7, 8], wanted)

    async def test_statistics(self) -> None:
        """Rows, transactions and repeats are counted; what waits is known."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            send = Batch(rows=[row(client_id="c")])
            futures = [partition.submit(each) for each in (batch("1", "2"), send)]
            assert engine.statistics.queued_rows == 3
            await asyncio.gather(*futures)
            await partition.commit(send)
            counted = engine.statistics
            assert (counted.rows, counted.duplicates, counted.queued_rows, counted.pinned) == (3, 1, 0, 0)
            assert 1 <= counted.groups <= counted.commits.count

    # -- keys, timers, work

    async def test_keys(self) -> None:
        """Keys are found by prefix, in order; the last put wins, and deletes come after puts."""
        async with self.opened() as engine:
            partition, other = await engine.partition("bot/a"), await engine.partition("bot/b")
            keys = ["a", "a/1", "a/\U0010ffff\U0010ffff", "a0", "b", "%", "_", "\u00e9", "A"]
            await asyncio.gather(*(partition.commit(Batch(puts={key: b'"' + key.encode() + b'"'})) for key in keys))
            await other.commit(Batch(puts={"a/2": b"2"}))
            assert list(await partition.keys()) == sorted(keys)
            assert await partition.keys("a/") == {key: f'"{key}"'.encode() for key in sorted(keys) if key[:2] == "a/"}
            assert list(await partition.keys("_")) == ["_"]
            assert await partition.keys("zz") == {}
            steps = [Batch(puts={"b": b"1"}), Batch(puts={"b": b"2", "n": b"3"}, deletes=["a", "n"])]
            await asyncio.gather(*(partition.submit(step) for step in (*steps, Batch(puts={"a": b'"\\u0000\\"\x7f"'}))))
            found = await partition.keys()
            assert (found["b"], found["a"], "n" in found) == (b"2", b'"\\u0000\\"\x7f"', False)
            assert await other.keys() == {"a/2": b"2"}

    async def test_what_is_lazy(self) -> None:
        """It becomes true, and in its place among what was submitted to the partition."""
        async with self.opened() as engine:
            partition, other = await engine.partition("bot/a"), await engine.partition("bot/b")
            values = [Batch(puts={"k": b"%d" % nth, f"k{nth}": b"1"}, lazy=nth % 2 == 0) for nth in range(4)]
            futures = [partition.submit(each) for each in values]
            lone = other.submit(Batch(puts={"k": b"1"}, lazy=True))
            await asyncio.gather(*futures)
            assert await partition.keys() == {"k": b"3", "k0": b"1", "k1": b"1", "k2": b"1", "k3": b"1"}
            await lone
            assert await other.keys() == {"k": b"1"}
            left = other.submit(Batch(puts={"k": b"2"}, lazy=True))
            await other.commit(Batch(deletes=["k"]))
            assert left.done() and await other.keys() == {}
            last = other.submit(Batch(puts={"k": b"3"}, lazy=True))
        assert last.done() and last.exception() is None, "the end of the engine waits for it"

    async def test_timers(self) -> None:
        """A timer is due from its instant on until it is moved or cancelled."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            await partition.commit(Batch(timers={"t": 10, "u": 20}))
            assert list(await engine.due(now=9)) == []
            assert [(due.name, due.timer, due.at) for due in await engine.due(now=10)] == [("bot/a", "t", 10)]
            changes = [Batch(timers={"t": 30, "u": None}), Batch(timers={"u": 25, "v": None})]
            await asyncio.gather(*[partition.submit(change) for change in changes])
            assert [(due.timer, due.at) for due in await engine.due(now=99)] == [("t", 30), ("u", 25)]

    async def test_work(self) -> None:
        """A conversation has unfinished work since it was first marked, until the mark goes."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            await partition.commit(Batch(rows=[row("1")], work=True))
            (first,) = await engine.due(now=0)
            assert (first.name, first.timer, first.at) == ("bot/a", None, partition.at)
            await partition.commit(Batch(rows=[row("2")], work=True))
            await partition.commit(Batch(rows=[row("3")]))
            assert list(await engine.due(now=0)) == [first]
            await asyncio.gather(partition.submit(Batch(work=True)), partition.submit(Batch(work=False)))
            assert list(await engine.due(now=0)) == []

    async def test_what_is_due_comes_in_pages(self) -> None:
        """A page of what is due never ends inside a conversation; its cursor leads to the next."""
        async with self.opened() as engine:
            names = [f"bot/{index}" for index in range(7)]
            for name in names:
                partition = await engine.partition(name)
                await partition.commit(Batch(timers={"t": 1, "u": 2, "late": 100}, work=True))
            found: list[tuple[str, str | None]] = []
            after = 0
            while page := await engine.due(now=10, after=after, limit=3):
                assert len({due.name for due in page}) <= 3
                found += [(due.name, due.timer) for due in page]
                after = page[-1].cursor
            assert found == [(name, timer) for name in names for timer in (None, "t", "u")]

    # -- closing

    async def test_closing_commits_what_waits(self) -> None:
        """Close waits for the batches that were submitted, refuses later ones, and may be repeated."""
        engine = await self.open()
        partition = await engine.partition("bot/a")
        futures = [partition.submit(batch(str(index))) for index in range(50)]
        await asyncio.gather(engine.close(), engine.close())
        assert [future.result().seq for future in futures] == list(range(1, 51))
        await engine.close()
        await raised(StorageClosed, partition.commit(batch("late")))
        await raised(StorageClosed, partition.read())
        await raised(StorageClosed, engine.partition("bot/new"))
        await raised(StorageClosed, engine.due(now=0))
        await raised(StorageClosed, engine.list())

    async def test_everything_is_there_again(self) -> None:
        """After a restart rows, keys, timers, work, client ids and the epoch are as they were."""
        engine = await self.open()
        partition, empty = await engine.partition("bot/a"), await engine.partition("bot/empty")
        send = Batch(rows=[row("hi", client_id="c")], puts={"k": b"1"}, timers={"t": 5}, work=True)
        await partition.commit(send)
        await partition.commit(batch("2", "3"))
        before = (await partition.read(), await engine.due(now=9), await engine.list(), await partition.keys())
        epochs = (partition.epoch, empty.epoch)
        try:
            engine = await self.reopen(engine)
            again, empty = await engine.partition("bot/a"), await engine.partition("bot/empty")
            assert again is not partition
            assert (again.epoch, empty.epoch) == epochs
            assert (again.head, again.at, again.floor) == (3, partition.at, 0)
            after = (await again.read(), await engine.due(now=9), await engine.list(), await again.keys())
            assert [row.json() for row in after[0]] == [row.json() for row in before[0]]
            assert [list(each) for each in after[1:]] == [list(each) for each in before[1:]]
            assert await again.commit(send) == Committed(1, (), True)
            await raised(ClientIdConflict, again.commit(Batch(rows=[row("other", client_id="c")])))
            assert (await again.commit(batch("4"))).seq == 4
        finally:
            await engine.close()
