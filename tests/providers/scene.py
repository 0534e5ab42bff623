"""An agent that answers with what a provider streams, and somebody who watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from parlatory.actors import Agent, Draft
from parlatory.storage import Engine, MessageLog, StoredMessage, ToolCall, encode_message

from ..actors.fakes import Recorder
from ..actors.play import NAME, Play

Ask = Callable[[str], Awaitable[Any]]


class Scene:
    """One conversation whose agent consumes one stream per message.

    Attributes:
        calls: what `consume` returned last.
        error: what it raised last.
        draft: the draft of the last answer.
    """

    calls: list[ToolCall]
    error: BaseException | None
    draft: Draft

    def __init__(self, play: Play, sink: Recorder) -> None:
        self.play = play
        self.sink = sink
        self.error = None
        self.calls = []

    @classmethod
    async def begin(cls, engine: Engine, ask: Ask, stall_s: float = 60) -> Scene:
        made: list[Scene] = []

        class Bot(Agent):
            async def on_message(self, row: StoredMessage) -> None:
                await made[0].answer(self.reply(), ask, row.text, stall_s)

        play, sink = await Play.begin(engine, agent=Bot), Recorder()
        await sink.open(play.record)
        made.append(cls(play, sink))
        return made[0]

    async def answer(self, reply: Draft, ask: Ask, text: str, stall_s: float) -> None:
        async with reply as self.draft:
            try:
                self.calls = await self.draft.consume(await ask(text), stall_s=stall_s)
            except (Exception, asyncio.CancelledError) as error:
                self.error = error
                raise

    async def send(self, text: str = "hi") -> None:
        """Sends a message, and returns once it is answered."""
        await self.play.send(text)
        await self.play.record.lane.join()

    async def row(self) -> StoredMessage:
        """The row that the draft became."""
        assert self.draft.seq is not None
        (row,) = await self.play.record.read(after=self.draft.seq - 1, limit=1)
        return row.stored(NAME)

    async def log(self) -> MessageLog:
        return await self.play.runtime.get("bot", "ann").log()

    async def content(self) -> Any:
        """What the row says, in JSON terms."""
        return json.loads(encode_message((await self.row()).message))["content"]

    def told(self) -> Any:
        """What a client that watched has made of the draft: its content."""
        draft = self.sink.draft
        return None if draft is None else draft["content"]
