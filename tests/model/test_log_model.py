"""The message log against a list in memory, with crashes and reopenings (P2, P4, P11)."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from parlatory.storage import (
    ClientIdConflict,
    CodecError,
    Conflict,
    Engine,
    MessageLog,
    open_engine,
    user_message,
)

NAMES = st.sampled_from(["relay/a", "relay/b", "echo/a"])
AUTHORS = st.sampled_from(["user:a", "user:b"])
CLIENT_IDS = st.sampled_from(["c1", "c2", "c3", "c4", "c5"])
TEXTS = st.text(max_size=20).filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text))


class Entry(NamedTuple):
    """Is a row of the model."""

    text: str
    by: str
    client_id: str | None


class LogModel(RuleBasedStateMachine):
    """Does to a log and to a list whatever hypothesis thinks of; they must stay equal."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="log-model-"))
        self.generation = 0
        self.model: dict[str, list[Entry]] = {"relay/a": [], "relay/b": [], "echo/a": []}
        self.engine: Engine = self.run(self.opened())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    @property
    def directory(self) -> Path:
        return self.root / str(self.generation)

    async def opened(self) -> Engine:
        return await open_engine(f"sqlite:///{self.directory}")

    async def log(self, name: str) -> MessageLog:
        return MessageLog(await self.engine.partition(name))

    def teardown(self) -> None:
        self.run(self.engine.close())
        self.loop.close()
        shutil.rmtree(self.root)

    # -- writing

    @rule(name=NAMES, text=TEXTS, by=AUTHORS)
    def append(self, name: str, text: str, by: str) -> None:
        async def act() -> int:
            return await (await self.log(name)).append(user_message(text), by=by)

        self.model[name].append(Entry(text, by, None))
        assert self.run(act()) == len(self.model[name])

    @rule(name=NAMES, text=TEXTS, by=AUTHORS, client_id=CLIENT_IDS)
    def append_with_a_client_id(self, name: str, text: str, by: str, client_id: str) -> None:
        async def act() -> int:
            return await (await self.log(name)).append(user_message(text), by=by, client_id=client_id)

        rows = self.model[name]
        known = [seq for seq, row in enumerate(rows, 1) if (row.by, row.client_id) == (by, client_id)]
        if not known:
            rows.append(Entry(text, by, client_id))
            assert self.run(act()) == len(rows)
        elif rows[known[0] - 1].text == text:
            assert self.run(act()) == known[0]
        else:
            with pytest.raises(ClientIdConflict) as refusal:
                self.run(act())
            assert refusal.value.seq == known[0]

    @rule(name=NAMES, texts=st.lists(TEXTS, max_size=4))
    def append_many(self, name: str, texts: list[str]) -> None:
        async def act() -> int:
            return await (await self.log(name)).append_many([user_message(text) for text in texts])

        self.model[name] += [Entry(text, "user", None) for text in texts]
        assert self.run(act()) == len(self.model[name])

    @rule(name=NAMES, text=TEXTS, off=st.integers(-2, 2))
    def append_expecting(self, name: str, text: str, off: int) -> None:
        head = len(self.model[name])

        async def act() -> int:
            return await (await self.log(name)).append(user_message(text), expected_seq=head + off)

        if off:
            with pytest.raises(Conflict) as refusal:
                self.run(act())
            assert refusal.value.head == head
        else:
            self.model[name].append(Entry(text, "user", None))
            assert self.run(act()) == head + 1

    @rule(name=NAMES, texts=st.lists(TEXTS, min_size=1, max_size=3), bad=st.integers(0, 3))
    def append_many_with_a_bad_one(self, name: str, texts: list[str], bad: int) -> None:
        messages: list[Any] = [user_message(text) for text in texts]
        messages.insert(bad, {"role": "user", "content": "x\ud83d"})

        async def act() -> int:
            return await (await self.log(name)).append_many(messages)

        with pytest.raises(CodecError):
            self.run(act())

    @rule(names=st.lists(NAMES, min_size=1, max_size=6), text=TEXTS)
    def append_at_once(self, names: list[str], text: str) -> None:
        """Appends of several conversations in one group keep the order in which they were made."""

        async def act() -> list[int]:
            logs = [await self.log(name) for name in names]
            return await asyncio.gather(*(log.append(user_message(text)) for log in logs))

        expected = []
        for name in names:
            self.model[name].append(Entry(text, "user", None))
            expected.append(len(self.model[name]))
        assert self.run(act()) == expected

    # -- the end of processes

    @rule()
    def reopen(self) -> None:
        self.run(self.engine.close())
        self.engine = self.run(self.opened())

    @rule(name=NAMES, text=TEXTS, steps=st.integers(0, 6))
    def crash(self, name: str, text: str, steps: int) -> None:
        """The process dies while an append is under way: it is there whole, or not at all."""

        async def act() -> bool:
            log = await self.log(name)
            appending = asyncio.ensure_future(log.append(user_message(text)))
            for _ in range(steps):
                await asyncio.sleep(0)
            acknowledged = appending.done()
            old, self.generation = self.directory, self.generation + 1
            self.directory.mkdir()
            # The database before its log: what is flushed meanwhile is in the log, which is copied later.
            for path in sorted(old.glob("parlatory.sqlite*")):
                if not path.name.endswith("-shm"):
                    shutil.copyfile(path, self.directory / path.name)
            await appending
            await self.engine.close()
            self.engine = await self.opened()
            return acknowledged

        acknowledged = self.run(act())
        rows = self.model[name]
        count = self.run(self.count(name))
        assert count in ((len(rows) + 1,) if acknowledged else (len(rows), len(rows) + 1))
        if count > len(rows):
            rows.append(Entry(text, "user", None))

    # -- reading

    async def count(self, name: str) -> int:
        return await (await self.log(name)).count()

    @rule(name=NAMES, n=st.integers(0, 7))
    def last(self, name: str, n: int) -> None:
        async def act() -> Any:
            log = await self.log(name)
            return await log.last(), await log.last(n)

        rows = self.model[name]
        newest, some = self.run(act())
        assert (newest.text if newest else None) == (rows[-1].text if rows else None)
        assert [row.text for row in some] == [row.text for row in (rows[-n:] if n else [])]

    @rule(name=NAMES, after=st.integers(0, 8), before=st.none() | st.integers(0, 9), limit=st.integers(0, 4))
    def read(self, name: str, after: int, before: int | None, limit: int) -> None:
        async def act() -> Any:
            log = await self.log(name)
            return await log.read(after, before, limit), await log.get(after)

        rows, one = self.run(act())
        seqs = [seq for seq in range(1, len(self.model[name]) + 1) if seq > after and (before is None or seq < before)]
        chosen = seqs[len(seqs) - limit :] if before is not None and after == 0 and limit < len(seqs) else seqs[:limit]
        assert [row.seq for row in rows] == chosen
        assert [row.text for row in rows] == [self.model[name][seq - 1].text for seq in chosen]
        assert (one is not None) == (1 <= after <= len(self.model[name]))

    @precondition(lambda self: any(self.model.values()))
    @invariant()
    def the_logs_are_the_lists(self) -> None:
        async def act() -> dict[str, list[Entry]]:
            return {
                name: [Entry(row.text, row.by, row.client_id) for row in await (await self.log(name)).all()]
                for name in self.model
            }

        assert self.run(act()) == self.model


TestLogModel = LogModel.TestCase
TestLogModel.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
