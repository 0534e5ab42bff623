"""Agents for the tests, and engines that can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from parlatory.actors import Agent
from parlatory.storage import Batch, Committed, Engine, Partition, StoredMessage, Told


class Stage:
    """What the agents of one test share: what was called, and the events that they wait for."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.leave = asyncio.Event()
        self.begun = asyncio.Event()
        self.active = 0
        self.most_active = 0

    def texts(self) -> list[str]:
        return [call.removeprefix("message ") for call in self.calls if call.startswith("message ")]


def actor(stage: Stage, name: str = "bot") -> type[Agent]:
    """An agent class that notes its calls on a stage and obeys what it is told:

    `wait` waits for the stage; `stubborn` swallows its cancellations until the stage lets it; `fail` raises; what ends
    with `quiet` is not answered; anything else is, with `re ` and the text.
    """

    class Bot(Agent):
        async def on_start(self) -> None:
            stage.calls.append("start")

        async def on_message(self, row: StoredMessage) -> None:
            stage.active += 1
            stage.most_active = max(stage.active, stage.most_active)
            try:
                await self.play(row)
            finally:
                stage.active -= 1

        async def play(self, row: StoredMessage) -> None:
            stage.calls.append(f"message {row.text}")
            stage.begun.set()
            if row.text.startswith("wait"):
                await stage.leave.wait()
            while row.text == "stubborn" and not stage.leave.is_set():
                try:
                    await stage.leave.wait()
                except asyncio.CancelledError:
                    stage.calls.append("swallowed")
            if row.text == "fail":
                raise RuntimeError("told to fail")
            if not row.text.endswith("quiet"):
                await self.say(f"re {row.text}")

        async def on_stop(self) -> None:
            stage.calls.append("stop")

    Bot.wire_name = name
    return Bot


class Faults:
    """Refuses what an engine is asked, as long as the test says. Unrealistic: it refuses before anything is tried."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.submits: Callable[[Partition, Batch], Exception | None] = lambda partition, batch: None
        self.reads: Exception | None = None
        self.opens: Exception | None = None
        self.dues: Exception | None = None
        self.refused = 0
        self.submitted: list[Batch] = []
        submit, commit, read, keys = engine.submit, engine.commit, engine.read, engine.keys
        due, open_ = engine.due, engine._open

        def faulty_submit(partition: Partition, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
            error = self.submits(partition, batch)
            if error is not None:
                self.refused += 1
                raise error
            self.submitted.append(batch)
            return submit(partition, batch, told)

        async def faulty_read(*args: object, **options: object) -> Sequence[object]:
            self.refuse(self.reads)
            return await read(*args, **options)  # type: ignore[arg-type]

        async def faulty_keys(*args: object, **options: object) -> object:
            self.refuse(self.reads)
            return await keys(*args, **options)  # type: ignore[arg-type]

        async def faulty_due(**options: object) -> Sequence[object]:
            self.refuse(self.dues)
            return await due(**options)  # type: ignore[arg-type]

        async def faulty_open(name: str) -> object:
            self.refuse(self.opens)
            return await open_(name)

        async def counted_commit(partition: Partition, batch: Batch, told: Told | None = None) -> Committed:
            self.submitted.append(batch)
            return await commit(partition, batch, told)

        for method in (faulty_submit, faulty_read, faulty_keys, faulty_due):
            setattr(engine, method.__name__.removeprefix("faulty_"), method)
        engine.commit = counted_commit  # type: ignore[method-assign]
        engine._open = faulty_open  # type: ignore[assignment]

    def refuse(self, error: Exception | None) -> None:
        if error is not None:
            self.refused += 1
            raise error


class Held:
    """Holds up what is submitted to an engine, and submits it in order in the end. Unrealistic: it holds all."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.batches: list[Batch] = []
        self._waiting: list[Callable[[], None]] = []
        self._submit = engine.submit

    def __enter__(self) -> Held:
        self.engine.submit = self.submit  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.submit = self._submit  # type: ignore[method-assign]
        for go_on in self._waiting:
            go_on()

    def submit(self, partition: Partition, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
        future: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()

        def settle(done: asyncio.Future[Committed]) -> None:
            error = done.exception()
            if future.cancelled():
                return
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        self.batches.append(batch)
        self._waiting.append(lambda: self._submit(partition, batch, told).add_done_callback(settle))
        return future
