"""What the tests of the actors share: a sink that records, a log whose reads wait, a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from parlatory.actors import (
    Closed,
    Conversation,
    DeltaTold,
    DraftEnded,
    DraftTold,
    Event,
    Live,
    Opened,
    PositionRequest,
    RowsTold,
    Subscription,
    TurnTold,
)
from parlatory.storage import Batch, NewRow, Partition, Row, encode_message, user_message


class Recorder:
    """A sink that keeps what it is told. Unrealistic: it takes any amount, and pauses only when the test says."""

    def __init__(self) -> None:
        self.writable = True
        self.events: list[Event] = []
        self.subscription: Subscription | None = None
        self._told = asyncio.Event()

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self._told.set()

    def pause(self) -> None:
        self.writable = False

    def resume(self) -> None:
        self.writable = True
        if self.subscription is not None:
            self.subscription.resume()

    async def open(self, record: Conversation, request: PositionRequest | None = None, by: str = "ann") -> Subscription:
        old = self.subscription
        self.subscription = await record.open(self, by, request or PositionRequest(), old)
        return self.subscription

    async def until(self, holds: Callable[[Recorder], bool]) -> Recorder:
        """Returns once something holds of what was told; the test's timeout bounds it."""
        while not holds(self):
            self._told.clear()
            await self._told.wait()
        return self

    async def until_live(self, seq: int) -> Recorder:
        """Returns once the rows up to `seq` were told and the subscription is live."""
        return await self.until(
            lambda sink: any(isinstance(event, Live) for event in sink.events) and sink.last_seq() >= seq
        )

    def last_seq(self) -> int:
        """The position the sink was brought to: by rows, or by the answer to its open."""
        for event in reversed(self.events):
            if isinstance(event, RowsTold):
                return event.rows[-1].seq
            if isinstance(event, Opened):
                return event.start
        return 0

    @property
    def seqs(self) -> list[int]:
        """The seqs of all rows, in the order told."""
        return [row.seq for event in self.events if isinstance(event, RowsTold) for row in event.rows]

    @property
    def turns(self) -> list[tuple[int | str, str]]:
        return [(event.id, event.state) for event in self.events if isinstance(event, TurnTold)]

    @property
    def finishes(self) -> list[tuple[int | None, str]]:
        """The ends of drafts: their rows and how they finished."""
        return [(event.seq, event.finish) for event in self.events if isinstance(event, DraftEnded)]

    @property
    def draft(self) -> dict[str, Any] | None:
        """The message of the last draft, as a client assembles it."""
        message: dict[str, Any] | None = None
        index = 0
        for event in self.events:
            if isinstance(event, DraftTold):
                index, message = event.index, event.message
            elif isinstance(event, DeltaTold):
                assert message is not None and index == event.start
                index, message = event.end, applied(message, event.ops)
        return message

    @property
    def closed(self) -> list[str]:
        return [event.code for event in self.events if isinstance(event, Closed)]

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


class GatedLog:
    """A hub's log whose reads wait while the gate is shut, and can be told to fail or to lie.

    Unrealistic: a real engine fails one read, this one all of them until `error` is taken away.
    """

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.error: Exception | None = None
        self.lose = False

    @property
    def name(self) -> str:
        return self.partition.name

    @property
    def epoch(self) -> str:
        return self.partition.epoch

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
        self.entered.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.lose:
            return []
        return await self.partition.read(after=after, before=before, limit=limit, max_bytes=max_bytes, newest=newest)


class Clock:
    """The loop's own time, plus what the test adds; timers that are due then run in the next step.

    Args:
        still: it does not move by itself, for what depends on how long a step takes.
    """

    def __init__(self, *, still: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        start = self._loop.time()
        self._time: Callable[[], float] = (lambda: start) if still else self._loop.time
        self.offset_s = 0.0
        self._loop.time = self.time  # type: ignore[method-assign]

    def time(self) -> float:
        return self._time() + self.offset_s

    async def advance(self, seconds: float) -> None:
        self.offset_s += seconds
        await steps(3)


async def steps(count: int) -> None:
    """Lets the loop make some steps, where nothing can be waited for because nothing must happen."""
    for _ in range(count):
        await asyncio.sleep(0)


def new_user_row(text: str, *, by: str = "ann", client_id: str | None = None) -> NewRow:
    return NewRow(body=encode_message(user_message(text)), by=by, client_id=client_id, digest=hash(text))


def batch(*texts: str, by: str = "ann") -> Batch:
    return Batch(rows=tuple(new_user_row(text, by=by) for text in texts))


async def until(holds: Callable[[], bool]) -> None:
    """Returns once something holds that nobody tells; the test's timeout bounds it.

    It pauses after some steps: a loop that is never idle leaves a thread that works for it next to none of the GIL.
    """
    step = 0
    while not holds():  # there is no event to wait for
        await asyncio.sleep(0 if step < 100 else 0.001)
        step += 1


def applied(message: dict[str, Any], ops: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A client's draft after some ops: what PROTOCOL section 3 says of them, word for word."""
    content = message["content"]
    for op in ops:
        if "add" in op and isinstance(content, str):
            content += op["add"]
            continue
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        parts = [dict(part) for part in content]
        if "set" in op:
            parts[op["set"]] = op["part"]
        elif "part" in op:
            parts.append(op["part"])
        else:
            kind, text = ("text", op["add"]) if "add" in op else ("reasoning", op["reasoning"])
            if parts and parts[-1]["type"] == kind:
                parts[-1] = {**parts[-1], "text": parts[-1]["text"] + text}
            else:
                parts.append({"type": kind, "text": text})
        content = parts
    return {**message, "content": content}
