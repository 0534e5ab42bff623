"""What a turn that appends one row costs more than a bare append, on the SQLite engine, within one process.

The time of a turn is that from the step that tells its message to the step that tells the row it appended; that of a
bare append, from its call to the step that tells it. Both wait for one commit; what is between them is the turn lane.
"""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from time import perf_counter
from typing import Any

from parlatory import Agent, Runtime, open_engine
from parlatory.actors import Event, PositionRequest, RowsTold, TurnTold
from parlatory.storage import StoredMessage, user_message

ROUNDS = 3_000
WARM_UP = 200


class Say(Agent):
    """Appends one row."""

    async def on_message(self, row: StoredMessage) -> None:
        await self.say("x" * 100)


class Write(Agent):
    """Writes one draft."""

    async def on_message(self, row: StoredMessage) -> None:
        async with self.reply() as draft:
            await draft.write("x" * 100)


class Relay(Agent):
    """Appends nothing."""


class Ear:
    """Is a subscriber that notes when the last row of the first appender and of the agent was told."""

    writable = True

    def __init__(self) -> None:
        self.told: dict[bool, float] = {}
        self.over = asyncio.Event()

    def tell(self, event: Event) -> None:
        if isinstance(event, RowsTold):
            for row in event.rows:
                self.told[row.turn is not None] = perf_counter()
        elif isinstance(event, TurnTold) and event.state == "done":
            self.over.set()


async def measure(folder: Path) -> dict[str, Any]:
    """Returns medians in microseconds."""
    engine = await open_engine(f"sqlite:///{folder}")
    async with Runtime(engine, [Say, Write, Relay]) as runtime:
        figures: dict[str, Any] = {"bare append us": await _bare(runtime)}
        for agent in (Say, Write):
            figures |= await _turns(runtime, agent, figures["bare append us"])
    return figures


async def _bare(runtime: Runtime) -> float:
    ref = runtime.get(Relay, "bench")
    record = await runtime.conversation("relay/bench")
    ear = Ear()
    await record.open(ear, "bench", PositionRequest(), None)
    took = []
    for _ in range(ROUNDS):
        before = perf_counter()
        await ref.append(user_message("x" * 100))
        await asyncio.sleep(0)  # it is told at the end of the step
        took.append(ear.told[False] - before)
    return statistics.median(took[WARM_UP:]) * 1e6


async def _turns(runtime: Runtime, agent: type[Agent], bare: float) -> dict[str, Any]:
    name = agent.wire_name
    ref = runtime.get(agent, "bench")
    record = await runtime.conversation(f"{name}/bench")
    ear = Ear()
    await record.open(ear, "bench", PositionRequest(), None)
    took, whole = [], []
    for _ in range(ROUNDS):
        ear.over.clear()
        before = perf_counter()
        await ref.append(user_message("x" * 100))
        await ear.over.wait()
        whole.append(perf_counter() - before)
        took.append(ear.told[True] - ear.told[False])
    turn, whole_us = (statistics.median(times[WARM_UP:]) * 1e6 for times in (took, whole))
    return {
        f"{name}: message told to row told us": turn,
        f"{name}: more than a bare append us": turn - bare,
        f"{name}: send to turn done us": whole_us,
    }
