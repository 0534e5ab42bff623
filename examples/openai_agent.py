"""A model with a tool, through the `openai` SDK: OpenAI's, or any other that speaks chat completions.

    pip install -e '.[openai]'
    OPENAI_API_KEY=... parlatory serve examples/openai_agent.py --data ./openai-data
    parlatory chat ws://127.0.0.1:8000/v1 assistant/you

`OPENAI_BASE_URL` names another server, such as http://127.0.0.1:11434/v1, and `MODEL` another model.
"""

from __future__ import annotations

import os
import random

from openai import AsyncOpenAI

from parlatory import Agent
from parlatory.actors import tool_schemas
from parlatory.storage import StoredMessage

MODEL = os.environ.get("MODEL", "gpt-5-mini")
SYSTEM = {"role": "system", "content": "You are a game master. Be brief, and never make up what a die shows."}
client = AsyncOpenAI()  # reads OPENAI_API_KEY and OPENAI_BASE_URL


def roll(sides: int, count: int = 1) -> list[int]:
    """Rolls dice and returns what they show."""
    return [random.randint(1, sides) for _ in range(min(count, 100))]


TOOLS = {"roll": roll}


class Assistant(Agent):
    """Asks the model, runs the tools that it asks for, and asks again, until it only says something."""

    async def on_message(self, row: StoredMessage) -> None:
        async for _ in self.tool_rounds(TOOLS):
            prompt = [SYSTEM, *await self.messages.to_openai()]
            async with self.reply() as draft:
                await draft.consume(
                    await client.chat.completions.create(
                        model=MODEL, messages=prompt, tools=tool_schemas(TOOLS), stream=True
                    )
                )
