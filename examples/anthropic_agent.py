"""A model with a tool, through the `anthropic` SDK.

    pip install -e '.[anthropic]'
    ANTHROPIC_API_KEY=... parlatory serve examples/anthropic_agent.py --data ./anthropic-data
    parlatory chat ws://127.0.0.1:8000/v1 assistant/you

`ANTHROPIC_BASE_URL` names another server, and `MODEL` another model.
"""

from __future__ import annotations

import os
import random

from anthropic import AsyncAnthropic

from parlatory import Agent
from parlatory.actors import tool_schemas
from parlatory.storage import StoredMessage

MODEL = os.environ.get("MODEL", "claude-sonnet-4-5")
SYSTEM = "You are a game master. Be brief, and never make up what a die shows."
client = AsyncAnthropic()  # reads ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL


def roll(sides: int, count: int = 1) -> list[int]:
    """Rolls dice and returns what they show."""
    return [random.randint(1, sides) for _ in range(min(count, 100))]


TOOLS = {"roll": roll}


class Assistant(Agent):
    """Asks the model, runs the tools that it asks for, and asks again, until it only says something."""

    async def on_message(self, row: StoredMessage) -> None:
        async for _ in self.tool_rounds(TOOLS):
            prompt = await self.messages.to_anthropic()
            tools = tool_schemas(TOOLS, "anthropic")
            async with self.reply() as draft:
                # Not `messages.stream`: it fails where the model writes broken arguments.
                await draft.consume(
                    await client.messages.create(
                        model=MODEL, max_tokens=4096, system=SYSTEM, messages=prompt, tools=tools, stream=True
                    )
                )
