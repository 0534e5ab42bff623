"""Every interleaving of commits, drafts, reads, attaches, pauses, re-opens and closes keeps what the hub promises (P3).

A schedule is drawn from a seed: what happens next, and how often each read gives way to others. There is no clock and
no thread, so a seed that fails fails again: put it into SEEDS_THAT_FAILED and it is tried for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from parlatory.actors import Closed, DeltaTold, DraftEnded, DraftTold, Event, Live, RowsTold, TurnTold
from parlatory.actors import hub as hub_module
from parlatory.actors.draft_message import DraftMessage
from parlatory.actors.hub import Hub, Subscription
from parlatory.storage import Committed, Engine, Partition, Row, open_engine

from .fakes import applied, batch

SEEDS = 1000
SEEDS_THAT_FAILED: list[int] = []
NAME = "bot/ann"


class YieldingLog:
    """A hub's log whose reads give way a random number of times before and after they see the log.

    Unrealistic: it never fails.
    """

    def __init__(self, partition: Partition, chance: random.Random) -> None:
        self.partition = partition
        self.chance = chance
        self.name = partition.name
        self.epoch = partition.epoch

    @property
    def head(self) -> int:
        return self.partition.head

    def after_telling(self, call: Callable[[], object]) -> None:
        self.partition.after_telling(call)

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> list[Row]:
        for _ in range(self.chance.choice((0, 0, 1, 3))):
            await asyncio.sleep(0)
        limit = min(limit, self.chance.randint(1, 4))
        rows = await self.partition.read(after=after, before=before, limit=limit, max_bytes=max_bytes, newest=newest)
        for _ in range(self.chance.choice((0, 0, 1, 3))):
            await asyncio.sleep(0)
        return rows


class DiceDraft:
    """A draft that is written and flushed when the dice say so. Unrealistic: it has no timers and no turn."""

    def __init__(self, hub: Hub, number: int) -> None:
        self.id = f"d{number}"
        self.hub = hub
        self.message = DraftMessage()
        self.texts = {0: ""}
        self.told = 0
        self.seq: int | None = None
        self.ending = False

    def write(self, text: str) -> None:
        self.message.add(text)
        self.texts[self.message.index] = self.message.message()["content"]

    def flush(self) -> None:
        delta = self.message.flush()
        if delta is not None:
            self.told = delta.end
            self.hub.tell_delta(DeltaTold(NAME, self.id, delta.start, delta.end, delta.ops))

    def snapshot(self) -> DraftTold:
        return DraftTold(NAME, self.id, 1, self.told, self.message.message())


class CheckedSink:
    """A sink that judges each event when it is told. Unrealistic: it pauses when the dice say so."""

    def __init__(self, chance: random.Random, partition: Partition, drafts: dict[str, DiceDraft]) -> None:
        self.drafts = drafts
        self.draft: str | None = None
        self.index = 0
        self.message: dict[str, Any] = {}
        self.chance = chance
        self.partition = partition
        self.writable = True
        self.subscription: Subscription | None = None
        self.position: int | None = None
        self.live = False
        self.turn = 0
        self.wrong: list[str] = []

    def answer(self, start: int) -> None:
        """Is what the connection writes in front of everything else."""
        self.position = start
        self.live = False
        self.draft = None  # a client drops it

    def tell(self, event: Event) -> None:
        if self.subscription is None and not isinstance(event, Closed):
            self.wrong.append(f"{event} outside of a subscription")
        if isinstance(event, RowsTold):
            for row in event.rows:
                if self.position is None or row.seq != self.position + 1:
                    self.wrong.append(f"row {row.seq} behind {self.position}")
                self.position = row.seq
            if self.position is not None and self.position > self.partition.head:
                self.wrong.append(f"row {self.position} before its commit")
        elif isinstance(event, Live):
            if event.seq != self.position or self.position != self.partition.head:
                self.wrong.append(f"live {event.seq} at {self.position}, head {self.partition.head}")
            self.live = True
        elif isinstance(event, TurnTold):
            # The turn of a row is told behind the row, and turns are told in order.
            if not self.live or self.position is None or event.id not in range(self.turn, self.position + 1):
                self.wrong.append(f"turn {event.id} at {self.position}, after turn {self.turn}")
            self.turn = int(event.id)
        elif isinstance(event, DraftTold | DeltaTold | DraftEnded):
            self.tell_draft(event)
        if self.chance.random() < 0.1:
            self.writable = False

    def tell_draft(self, event: DraftTold | DeltaTold | DraftEnded) -> None:
        draft = self.drafts[event.id]
        if isinstance(event, DraftTold):
            if self.draft not in (None, event.id):
                self.wrong.append(f"draft {event.id} before the end of {self.draft}")
            self.draft, self.index, self.message = event.id, event.index, event.message
        elif self.draft != event.id:
            self.wrong.append(f"{event} of an unknown draft")
            return
        elif isinstance(event, DeltaTold):
            if not self.live or self.index != event.start:
                self.wrong.append(f"{event} at {self.index}, live: {self.live}")
            self.index, self.message = event.end, applied(self.message, event.ops)
        else:
            self.draft = None
            if event.seq is None or self.position is None or self.position < event.seq:
                self.wrong.append(f"{event} before its row, at {self.position}")
        if self.message["content"] != draft.texts[self.index]:
            self.wrong.append(f"{event}: text {self.message['content']!r} at {self.index}")

    def resume(self) -> None:
        self.writable = True
        if self.subscription is not None:
            self.subscription.resume()


class Schedule:
    """One conversation, some sinks, and dice."""

    def __init__(self, seed: int, partition: Partition, hub_type: type[Hub] = Hub) -> None:
        self.chance = random.Random(seed)
        self.partition = partition
        self.hub = hub_type(YieldingLog(partition, self.chance))
        self.drafts: dict[str, DiceDraft] = {}
        self.draft: DiceDraft | None = None
        self.sinks = [CheckedSink(self.chance, partition, self.drafts) for _ in range(self.chance.randint(1, 5))]
        self.commits: list[asyncio.Future[object]] = []
        self.committed = 0

    def commit(self) -> None:
        turn = self.chance.random() < 0.5

        def told(committed: Committed) -> None:
            self.hub.committed(committed.rows)
            if turn:
                self.hub.tell_turn(TurnTold(NAME, committed.seq, "running"))

        count = self.chance.randint(1, 3)
        self.committed += count
        self.commits.append(asyncio.ensure_future(self.partition.commit(batch(*["text"] * count), told)))

    def write(self) -> None:
        """Begins a draft, writes to it, flushes it or ends it."""
        draft = self.draft
        if draft is None:
            draft = self.draft = DiceDraft(self.hub, len(self.drafts))
            self.drafts[draft.id] = draft
            self.hub.open_draft(draft)
        elif not draft.ending:
            self.chance.choice(
                (lambda: draft.write("x\ud83d"), lambda: draft.write("\ude00y"), draft.flush, self.end)
            )()

    def end(self) -> None:
        draft = self.draft
        assert draft is not None
        draft.ending = True
        draft.message.finish()
        draft.texts[draft.message.index] = draft.message.message()["content"]
        draft.flush()

        def told(committed: Committed) -> None:
            self.hub.committed(committed.rows)
            draft.seq = committed.seq
            self.draft = None
            self.hub.close_draft(DraftEnded(NAME, draft.id, committed.seq, "done"))

        self.committed += 1
        self.commits.append(asyncio.ensure_future(self.partition.commit(batch("draft"), told)))

    def open(self, sink: CheckedSink) -> None:
        if sink.subscription is not None:
            sink.subscription.unsubscribe()
        start = self.chance.randint(0, self.partition.head)
        if sink.subscription is not None and sink.position is not None and self.chance.random() < 0.5:
            start = sink.position
        sink.answer(start)
        sink.turn = 0
        sink.subscription = self.hub.subscribe(sink, "ann", start)

    def close(self, sink: CheckedSink) -> None:
        if sink.subscription is not None:
            sink.subscription.unsubscribe()
        sink.subscription = None

    async def run(self) -> list[str]:
        for _ in range(60):
            sink = self.chance.choice(self.sinks)
            action = self.chance.choices(
                ("commit", "draft", "open", "close", "pause", "resume", "tail", "wait"), (6, 8, 3, 1, 2, 3, 1, 6)
            )[0]
            if action == "commit":
                self.commit()
            elif action == "draft":
                self.write()
            elif action == "open":
                self.open(sink)
            elif action == "close":
                self.close(sink)
            elif action == "pause":
                sink.writable = False
            elif action == "resume":
                sink.resume()
            elif action == "tail":
                self.hub.forget_tail()
            else:
                for _ in range(self.chance.randint(1, 4)):
                    await asyncio.sleep(0)
        if self.draft is not None and not self.draft.ending:
            self.end()
        await asyncio.gather(*self.commits)
        for _ in range(2000):
            for sink in self.sinks:
                if not sink.writable:
                    sink.resume()
            await asyncio.sleep(0)
            if self.hub._pump is None and not self.hub._scheduled and all(sink.writable for sink in self.sinks):
                break
        return self.judged()

    def judged(self) -> list[str]:
        wrong = [what for sink in self.sinks for what in sink.wrong]
        if self.partition.head != self.committed:
            wrong.append(f"{self.committed} rows committed, head {self.partition.head}")
        wrong += [
            f"a sink was left at {sink.position} of {self.partition.head}, live: {sink.live}"
            for sink in self.sinks
            if sink.subscription is not None and (sink.position != self.partition.head or not sink.live)
        ]
        wrong += [f"a sink was left with {sink.draft}" for sink in self.sinks if sink.subscription and sink.draft]
        self.hub.close()
        return wrong


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so small that each schedule meets them."""
    monkeypatch.setattr(hub_module, "TAIL_ROWS_MAX", 4)
    monkeypatch.setattr(hub_module, "FAN_OUT_MAX", 2)
    monkeypatch.setattr(hub_module, "PUMPS_PER_STEP", 2)
    monkeypatch.setattr(hub_module, "PRESENCE_INTERVAL_S", 0)


async def wrong_seeds(hub_type: type[Hub], seeds: range | list[int], stop: bool = False) -> dict[int, list[str]]:
    engine: Engine = await open_engine("memory:")
    found: dict[int, list[str]] = {}
    for seed in seeds:
        wrong = await Schedule(seed, await engine.partition(f"bot/{seed}"), hub_type).run()
        if wrong:
            found[seed] = wrong
            if stop:
                break
    await engine.close()
    return found


async def test_no_interleaving_breaks_the_order() -> None:
    assert await wrong_seeds(Hub, [*SEEDS_THAT_FAILED, *range(SEEDS)]) == {}


# -- the checker must see the usual mistakes


class ListensLate(Hub):
    """Becomes live a step after it was found at the head."""

    def _go_live(self, subscription: Subscription) -> None:
        asyncio.get_running_loop().call_soon(super()._go_live, subscription)


class WritesPastTheReplay(Hub):
    """Tells commits to everybody, whatever they have seen."""

    def subscribe(self, sink: object, principal: str, position: int) -> Subscription:
        subscription = super().subscribe(sink, principal, position)  # type: ignore[arg-type]
        self._live[subscription] = None
        return subscription

    def _tell_fresh(self) -> None:
        for subscription in self._live:
            subscription.position = self._fresh[0].seq - 1 if self._fresh else subscription.position
        super()._tell_fresh()


class TellsTurnsAtOnce(Hub):
    """Does not hold a turn back until its row is told."""

    def tell_turn(self, event: TurnTold) -> None:
        for subscription in self._live:
            subscription.sink.tell(event)


class ForgetsTheSlow(Hub):
    """Drops what a sink cannot take."""

    def _lag(self, subscriptions: object) -> None:
        for subscription in self._live:
            subscription.position = self._log.head


class TellsDeltasToAll(Hub):
    """Tells what is written to who is not live yet."""

    def tell_delta(self, event: DeltaTold) -> None:
        for subscription in self._subscriptions:
            subscription.sink.tell(event)


class EndsDraftsAtOnce(Hub):
    """Tells the end of a draft before the row that it became."""

    def close_draft(self, event: DraftEnded) -> None:
        self._draft = None
        for subscription in self._subscriptions:
            if subscription._draft == event.id:
                subscription._draft = None
                subscription.sink.tell(event)


class ForgetsEnds(Hub):
    """Does not tell the end of a draft to who lagged when it ended."""

    def _keep_end(self, event: DraftEnded) -> None:
        pass


class SnapshotsUnflushed(Hub):
    """Shows a draft with more in it than its index says."""

    def _go_live(self, subscription: Subscription) -> None:
        draft = self._draft
        if isinstance(draft, DiceDraft):
            draft.flush = lambda: None  # type: ignore[method-assign]
        super()._go_live(subscription)
        if isinstance(draft, DiceDraft):
            del draft.flush


MUTANTS = [ListensLate, WritesPastTheReplay, TellsTurnsAtOnce, ForgetsTheSlow]
MUTANTS += [TellsDeltasToAll, EndsDraftsAtOnce, ForgetsEnds, SnapshotsUnflushed]


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_the_checker_catches(mutant: type[Hub]) -> None:
    assert await wrong_seeds(mutant, range(50), stop=True)
