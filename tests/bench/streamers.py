"""The agents that the benchmarks of turns load: `stream` writes drafts at a given pace, `relay` passes rows on."""

from __future__ import annotations

import asyncio
import random

from parlatory import Agent
from parlatory.storage import StoredMessage


class Relay(Agent):
    """Rows in, rows out."""


class Stream(Agent):
    """Answers `COUNT PER_S` with so many deltas at that pace; each begins with the instant at which it is written.

    It begins at any moment of its beat, as models do. The benchmark asks all of them at once, and a hundred answers
    that begin in one step of the loop would be written in one for ever.
    """

    async def on_message(self, row: StoredMessage) -> None:
        count, per_s = map(int, row.text.split())
        loop = asyncio.get_running_loop()
        start = loop.time() + random.random() / per_s
        async with self.reply() as draft:
            for index in range(count):
                await asyncio.sleep(start + index / per_s - loop.time())
                await draft.write(f"{loop.time():.6f}|a few words ")
