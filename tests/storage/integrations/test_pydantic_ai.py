"""The message history of PydanticAI, with the real package."""

from __future__ import annotations

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from parlatory.storage import MessageLog, assistant_message, user_message
from parlatory.storage.integrations.pydantic_ai import PydanticAIHistory


@pytest.fixture
def history(log: MessageLog) -> PydanticAIHistory:
    return PydanticAIHistory(log)


def find(q: str) -> dict[str, str]:
    """Finds."""
    return {"found": q}


async def test_runs_remember(history: PydanticAIHistory, log: MessageLog) -> None:
    agent = Agent(TestModel(custom_output_text="a"), system_prompt="s", instructions="i", tools=[find])
    first = await agent.run("q", message_history=await history.messages())
    await history.add(first.new_messages())
    assert await history.messages() == first.all_messages()
    second = await agent.run("r", message_history=await history.messages())
    await history.add(second.new_messages())
    assert await history.messages() == await PydanticAIHistory(log).messages() == second.all_messages()
    rows = await log.all()
    assert [row.role for row in rows[:5]] == ["system", "user", "assistant", "tool", "assistant"]
    assert [row.text for row in rows if row.role == "user"] == ["q", "r"]


async def test_messages_come_back_as_they_were(history: PydanticAIHistory) -> None:
    messages: list[ModelMessage] = [
        ModelRequest(
            parts=[UserPromptPart(["q", BinaryContent(b"\xff\xfe", media_type="image/png")])], metadata={"a": 1}
        ),
        ModelResponse(parts=[ToolCallPart("find", "{", "c1")], model_name="m", provider_details={"a": 1}),
        ModelRequest(parts=[ToolReturnPart("find", {"a": None}, "c1", outcome="failed"), UserPromptPart("b")]),
        ModelResponse(parts=[]),
    ]
    await history.add([])
    await history.add(messages)
    as_json = ModelMessagesTypeAdapter.dump_json(messages)  # in which the package itself keeps them
    assert await history.messages() == ModelMessagesTypeAdapter.validate_json(as_json)


async def test_it_is_cleared(history: PydanticAIHistory, log: MessageLog) -> None:
    await history.add([ModelRequest(parts=[UserPromptPart("q")])])
    await history.clear()
    assert await history.messages() == []
    assert [row.text for row in await log.all()] == ["q", ""]


async def test_it_answers_what_is_in_the_log(history: PydanticAIHistory, log: MessageLog) -> None:
    await log.append([user_message("a"), assistant_message("b"), user_message("c")])
    result = await Agent(TestModel(custom_output_text="d")).run(message_history=await history.messages())
    asked, answered, prompt, said = result.all_messages()
    assert [part.content for part in asked.parts if isinstance(part, UserPromptPart)] == ["a"]
    assert isinstance(answered, ModelResponse)
    assert answered.parts == [TextPart("b")]
    assert isinstance(prompt, ModelRequest)
    await history.add(result.new_messages())
    assert [(row.role, row.text) for row in await log.all()][2:] == [("user", "c"), ("assistant", "d")]
    assert (await history.messages())[-1] == said
