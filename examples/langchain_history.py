"""LangChain with a conversation as its chat message history.

    pip install -e '.[langchain]'
    python examples/langchain_history.py

The model is a stand-in that repeats what it remembers; put a real chat model in its place.
To serve it: `parlatory serve examples/langchain_history.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from parlatory import Agent, Runtime, connect, open_engine, serve
from parlatory.server import TurnState
from parlatory.storage import StoredMessage
from parlatory.storage.integrations.langchain import LangChainHistory


class StandIn(BaseChatModel):
    """Says what it remembers."""

    @property
    def _llm_type(self) -> str:
        return "stand-in"

    def _generate(self, messages: list[BaseMessage], *rest: Any, **more: Any) -> ChatResult:
        said = [str(message.content) for message in messages if isinstance(message, HumanMessage)]
        answer = AIMessage(f"You said so far: {', '.join(said)}")
        return ChatResult(generations=[ChatGeneration(message=answer)])


model = StandIn()


class Assistant(Agent):
    """Lets LangChain answer; `/forget` begins anew, for the model."""

    async def on_message(self, row: StoredMessage) -> None:
        history = LangChainHistory(self.messages)
        if row.text == "/forget":
            await history.aclear()
            await self.say("What was it?")
            return
        answer = await model.ainvoke(await history.aget_messages())  # the message to answer is among them
        await history.aadd_messages([answer])


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
