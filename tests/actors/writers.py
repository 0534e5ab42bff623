"""An agent that writes drafts as its test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from parlatory.actors import Agent, Conversation, Draft
from parlatory.storage import StoredMessage

from .bots import Stage

Script = Callable[["Writer", Draft], Awaitable[None]]


class Writer(Agent):
    """Answers each message with a draft; what is in it is the class's `script`, or what the message says."""

    name = "bot"
    stage: Stage
    script: Script | None = None
    more = False

    async def on_message(self, row: StoredMessage) -> None:
        self.stage.calls.append(f"message {row.text}")
        try:
            async with self.reply(more=self.more) as draft:
                script = type(self).script
                if script is not None:
                    await script(self, draft)
                else:
                    await draft.write(f"re {row.text}")
                    self.stage.begun.set()
                    if row.text.startswith("wait"):
                        await self.stage.leave.wait()
        finally:
            self.stage.calls.append("finally")
        self.stage.calls.append("behind")

    async def on_turn_failed(self, row: StoredMessage) -> None:
        self.stage.calls.append(f"failed {row.text} {self.turn.attempt}")


def writer(stage: Stage, script: Script | None = None, **attributes: object) -> type[Agent]:
    """A writer class of its own, so that no test changes another's."""
    kept = None if script is None else staticmethod(script)
    return type("Bot", (Writer,), {"stage": stage, "script": kept, **attributes})


async def rows_of(record: Conversation) -> list[tuple[int, str, str, int | str | None, str | None]]:
    """Rows as (seq, role, text, turn, finish)."""
    rows = [row.stored(record.name) for row in await record.read(limit=1000)]
    return [(row.seq, row.role, row.text, row.turn, row.finish) for row in rows]


async def never(*_: object) -> None:
    await asyncio.Event().wait()
