"""The OpenAI Agents SDK with a conversation as its session: what it says and what it asks tools for is in the log.

    pip install -e '.[openai]' mcp griffelib && pip install --no-deps 'openai-agents>=0.24,<0.25'
    python examples/openai_agents_session.py

`--no-deps` because the SDK asks for websockets older than 17, for a transport that its sessions do not use.

The model is a stand-in that asks its tool and repeats what it remembers; give `SdkAgent` the name of a real one.
To serve it: `parlatory serve examples/openai_agents_session.py`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agents import Agent as SdkAgent
from agents import Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from parlatory import Agent, Runtime, connect, open_engine, serve
from parlatory.server import TurnState
from parlatory.storage import StoredMessage
from parlatory.storage.integrations.openai_agents import OpenAIAgentsSession


class StandIn(Model):
    """Counts with its tool what it was told, then says what it remembers."""

    async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> ModelResponse:
        said = [item["content"] for item in input if item.get("role") == "user"]
        if input[-1].get("type") != "function_call_output":
            text, id = json.dumps({"words": " ".join(said)}), f"call_{len(input)}"
            call = ResponseFunctionToolCall(call_id=id, name="count", arguments=text, type="function_call")
            return ModelResponse(output=[call], usage=Usage(), response_id=None)
        text = f"{input[-1]['output']} words so far: {', '.join(said)}"
        content = ResponseOutputText(text=text, type="output_text", annotations=[])
        message = ResponseOutputMessage(
            id=f"msg_{len(input)}", role="assistant", status="completed", type="message", content=[content]
        )
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *rest: Any, **more: Any) -> Any:
        raise NotImplementedError("this stand-in answers at once")


@function_tool
def count(words: str) -> int:
    """Counts words."""
    return len(words.split())


set_tracing_disabled(True)  # it would send what is said to OpenAI
assistant = SdkAgent(name="assistant", model=StandIn(), tools=[count])


class Assistant(Agent):
    """Lets the SDK answer; `/forget` begins anew, for the model."""

    async def on_message(self, row: StoredMessage) -> None:
        session = OpenAIAgentsSession(self.messages)
        if row.text == "/forget":
            await session.clear_session()
            await self.say("What was it?")
            return
        await Runner.run(assistant, [], session=session)  # the message to answer is in the session already


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
