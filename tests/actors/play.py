"""One bot on a stage, in a runtime of its own."""

from __future__ import annotations

import asyncio

from parlatory.actors import Agent, Conversation, Runtime
from parlatory.actors.turn_marks import HANDLED
from parlatory.storage import Engine

from .bots import Stage, actor
from .fakes import new_user_row

NAME = "bot/ann"


class Play:
    """A runtime with one bot, and one conversation of it."""

    def __init__(self, runtime: Runtime, stage: Stage, record: Conversation) -> None:
        self.runtime = runtime
        self.stage = stage
        self.record = record
        self.engine = runtime.engine

    @classmethod
    async def begin(cls, engine: Engine, stage: Stage | None = None, agent: type[Agent] | None = None) -> Play:
        stage = stage or getattr(agent, "stage", None) or Stage()
        runtime = Runtime(engine, [agent or actor(stage)], stop_grace_s=0.01)
        return cls(runtime, stage, await runtime.conversation(NAME))

    async def send(self, *texts: str) -> None:
        await asyncio.gather(*(asyncio.shield(self.record.post(new_user_row(text))) for text in texts))

    async def texts(self) -> list[str]:
        rows = await self.record.read(limit=1000)
        return [row.stored(NAME).text for row in rows]

    async def handled(self) -> int:
        return int((await self.record.keys(HANDLED)).get(HANDLED, b"0"))

    async def marked(self) -> bool:
        return [due.name for due in await self.engine.due(now=0)] == [NAME]
