"""Agents whose process is killed or blocked by the tests; served by `parlatory serve`."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from parlatory import Agent
from parlatory.storage import StoredMessage

FOREVER_S = 3600.0
BLOCK_S = 5.0


class Relay(Agent):
    """Rows in, rows out."""


class Twice(Agent):
    """Says one thing and then, but not in its first attempt, another; it looks at what it has said before."""

    async def on_message(self, row: StoredMessage) -> None:
        said = [row.text for row in self.turn.rows]
        if "one" not in said:
            await self.say("one")
        if self.turn.attempt == 1:
            await asyncio.sleep(FOREVER_S)
        await self.say("two")


class Work(Agent):
    """Books something with a tool, then writes a hundred deltas; where its text is `book` the tool does not end."""

    async def on_message(self, row: StoredMessage) -> None:
        if not self.turn.rows:
            async with self.reply() as draft:
                await draft.tool_call("c1", "book", {"forever": row.text == "book"})
        await self.run_tools(await self.open_calls(), {"book": self.book})
        await self.messages.to_openai()
        async with self.reply() as draft:
            for number in range(100):
                await draft.write(f"w{number} ")
                await asyncio.sleep(0.02)

    async def book(self, forever: bool) -> str:
        """Leaves a line in a file for each of its runs."""
        with Path(os.environ["BOOKED"]).open("a") as file:
            file.write(f"{self.name}\n")
        await asyncio.sleep(FOREVER_S if forever else 0)
        return "booked"


class Block(Agent):
    """Blocks the whole process."""

    async def on_message(self, row: StoredMessage) -> None:
        logging.getLogger("tests").warning("blocks from now on")
        time.sleep(BLOCK_S)  # noqa: ASYNC251
        await self.say("awake")


class Slow(Agent):
    """Takes as many milliseconds as the text says, writing all the while."""

    async def on_message(self, row: StoredMessage) -> None:
        async with self.reply() as draft:
            for number in range(int(row.text) // 20):
                await draft.write(f"w{number} ")
                await asyncio.sleep(0.02)
