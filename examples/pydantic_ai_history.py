"""PydanticAI with a conversation as its message history: what it says and what it asks tools for is in the log.

    pip install -e '.[pydantic-ai]'
    python examples/pydantic_ai_history.py

The model is a stand-in that asks its tool and repeats what it remembers; give `PydanticAgent` the name of a real one.
To serve it: `parlatory serve examples/pydantic_ai_history.py`.
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from parlatory import Agent, Runtime, connect, open_engine, serve
from parlatory.server import TurnState
from parlatory.storage import StoredMessage
from parlatory.storage.integrations.pydantic_ai import PydanticAIHistory


def stand_in(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Counts with its tool what it was told, then says what it remembers."""
    parts = [part for message in messages for part in message.parts]
    said = [str(part.content) for part in parts if isinstance(part, UserPromptPart)]
    if not isinstance(parts[-1], ToolReturnPart):
        return ModelResponse(parts=[ToolCallPart("count", {"words": " ".join(said)}, f"call_{len(parts)}")])
    return ModelResponse(parts=[TextPart(f"{parts[-1].content} words so far: {', '.join(said)}")])


def count(words: str) -> int:
    """Counts words."""
    return len(words.split())


assistant = PydanticAgent(FunctionModel(stand_in), tools=[count])


class Assistant(Agent):
    """Lets PydanticAI answer; `/forget` begins anew, for the model."""

    async def on_message(self, row: StoredMessage) -> None:
        history = PydanticAIHistory(self.messages)
        if row.text == "/forget":
            await history.clear()
            await self.say("What was it?")
            return
        result = await assistant.run(message_history=await history.messages())  # the message to answer is its last
        await history.add(result.new_messages())


async def main() -> None:
    engine = await open_engine("memory:")
    async with Runtime(engine, [Assistant]) as runtime, serve(runtime, port=0) as server:
        async with connect(server.url, "assistant/you") as chat:
            for text in ("hello", "my cat is ill", "/forget", "hello again"):
                await chat.send(text)
                async for event in chat.events():
                    if isinstance(event, TurnState) and event.state == "error":
                        raise SystemExit(f"the agent failed to answer {text!r}: the log says why")
                    if isinstance(event, StoredMessage) and event.text and event.role != "tool":
                        print(f"{event.role}: {event.text}")
                        if event.role == "assistant":
                            break


if __name__ == "__main__":
    asyncio.run(main())
