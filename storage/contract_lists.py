"""What every engine keeps of its lists; part of the contract."""

from __future__ import annotations

from .contract_base import NAMES, EngineTests, batch, raised, row, texts
from .engine import Batch, NewRow

__all__ = ["ListContract"]


class ListContract(EngineTests):
    """Is what every engine keeps of its lists."""

    async def test_lists(self) -> None:
        """T16: conversations come by name, by agent if asked, in pages."""
        async with self.opened() as engine:
            names = ["a/1", "bot/2", "bot/1", "bot-x/1", "bot/\U0010ffff", "bot0/1", "c/1", "bot/a/b"]
            for name in names:
                outcome = await (await engine.partition(name)).commit(batch("1", "2"))
            assert [found.name for found in await engine.list()] == sorted(names)
            bots = [name for name in sorted(names) if name.startswith("bot/")]
            assert [found.name for found in await engine.list(agent="bot")] == bots
            assert [found.name for found in await engine.list(agent="bot", after=bots[0])] == bots[1:]
            assert [found.name for found in await engine.list(agent="bot", after="a/1", limit=2)] == bots[:2]
            assert [found.name for found in await engine.list(after="bot/1", limit=2)] == ["bot/2", "bot/a/b"]
            assert list(await engine.list(agent="nobody")) == []
            (last,) = [found for found in await engine.list() if found.name == names[-1]]
            assert (last.head, last.at) == (2, outcome.rows[-1].at)

    async def test_lists_by_activity(self) -> None:
        """Who had a row committed last comes first; pages go on behind a cursor, whatever is committed meanwhile."""
        async with self.opened() as engine:
            names = ["bot/1", "a/1", "bot/2", "bot-x/1", "bot/3"]
            for name in names:
                await (await engine.partition(name)).commit(batch("1"))
            await (await engine.partition("bot/keys")).commit(Batch(puts={"k": b"1"}))
            outcome = await (await engine.partition("a/1")).commit(batch("2", "3"))
            order = ["a/1", "bot/3", "bot-x/1", "bot/2", "bot/1"]
            found = await engine.list(order="activity")
            assert [one.name for one in found] == order
            assert (found[0].head, found[0].at) == (3, outcome.rows[-1].at)
            page = await engine.list(order="activity", limit=2)
            await (await engine.partition("bot/3")).commit(batch("4"))
            rest = await engine.list(order="activity", after=page[-1].cursor)
            assert [one.name for one in (*page, *rest)] == order
            assert [one.name for one in await engine.list(order="activity", agent="bot")] == ["bot/3", "bot/2", "bot/1"]
            assert list(await engine.list(order="activity", after=rest[-1].cursor)) == []
            assert list(await engine.list(order="activity", limit=0)) == []

    async def test_lists_what_an_author_takes_part_in(self) -> None:
        """One row of an author is enough, whoever spoke last."""
        async with self.opened() as engine:
            for author, name in (("ann", "bot/1"), ("bob", "bot/2"), ("ann", "bot/3"), ("bob", "bot/1")):
                await (await engine.partition(name)).commit(Batch(rows=[row(by=author)]))
            for author, names in {"ann": ["bot/1", "bot/3"], "bob": ["bot/1", "bot/2"], "an": [], "": []}.items():
                assert [one.name for one in await engine.list(order="activity", by=author)] == names
            assert [one.name for one in await engine.list(order="activity", by="ann", search="3")] == ["bot/3"]

    async def test_lists_what_a_text_finds(self) -> None:
        """The text may stand anywhere in the name, means itself, and ASCII letters are alike in both cases."""
        async with self.opened() as engine:
            for name in NAMES:
                await (await engine.partition(name)).commit(batch("1"))
            for text in ("A", "/a", "%", "_", "|", "'", "\u00c9", "\u00e9", "BOT/", "b2", "zz", "\U0001f600"):
                wanted = [name for name in reversed(NAMES) if text.encode().lower() in name.encode().lower()]
                assert [one.name for one in await engine.list(order="activity", search=text)] == wanted

    async def test_a_list_by_activity_shows_first_and_last(self) -> None:
        """The last row, and the first one of a user; neither if it is long."""
        async with self.opened() as engine:
            partition = await engine.partition("bot/a")
            said = NewRow(body=b'{"role":"assistant","content":"hi"}', by="agent", finish="stopped", turn=1)
            await partition.commit(Batch(rows=[said]))
            (one,) = await engine.list(order="activity")
            assert one.first is None
            assert one.last is not None
            assert (one.last.seq, one.last.at, one.last.by, one.last.turn, one.last.finish, one.last.body) == (
                1, partition.at, "agent", 1, "stopped", said.body
            )  # fmt: skip
            await partition.commit(batch("x" * (64 << 10)))
            (one,) = await engine.list(order="activity")
            assert (one.head, one.first, one.last) == (2, None, None)
            await partition.commit(Batch(rows=[row("why?", by="ann", client_id="c")]))
            await partition.commit(batch("4"))
            (one,) = await engine.list(order="activity")
            assert one.first is not None and one.last is not None
            assert (one.first.seq, one.first.by, one.first.client_id) == (3, "ann", "c")
            assert texts([one.first, one.last]) == ["why?", "4"]

    async def test_lists_refuse_what_they_do_not_take(self) -> None:
        """A filter that would be ignored, an order that is none, and a cursor that is none."""
        async with self.opened() as engine:
            await raised(ValueError, engine.list(by="ann"))
            await raised(ValueError, engine.list(search="a"))
            await raised(ValueError, engine.list(order="last"))  # type: ignore[arg-type]
            for cursor in ("x", "-1", "1.5", "9" * 30, "\u0661"):
                await raised(ValueError, engine.list(order="activity", after=cursor))
