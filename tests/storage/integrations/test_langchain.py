"""The chat message history of LangChain, with the real package."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.runnables.history import RunnableWithMessageHistory

from parlatory.storage import CodecError, MessageLog, ReentrancyError, assistant_message, user_message
from parlatory.storage.integrations.langchain import LangChainHistory

MESSAGES: list[BaseMessage] = [
    SystemMessage("s"),
    HumanMessage("q"),
    HumanMessage("q", name="ann", id="h1"),
    HumanMessage([{"type": "text", "text": "a"}, {"type": "image", "url": "https://x.test/a"}]),
    AIMessage(
        "",
        id="a1",
        tool_calls=[{"id": "t1", "name": "find", "args": {"q": 1}}],
        invalid_tool_calls=[{"id": "t2", "name": "find", "args": "{", "error": "e", "type": "invalid_tool_call"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        response_metadata={"model_provider": "anthropic"},
    ),
    ToolMessage("x", tool_call_id="t1", status="error", artifact={"a": 1}),
    ChatMessage(content="c", role="assistant"),
    AIMessageChunk(content="d"),
    AIMessage("e"),
    HumanMessage(" "),
]


@pytest.fixture
async def history(log: MessageLog) -> LangChainHistory:
    return LangChainHistory(log)


async def test_messages_come_back_as_they_were(history: LangChainHistory, log: MessageLog) -> None:
    assert isinstance(history, BaseChatMessageHistory)
    await history.aadd_messages([])
    await history.aadd_messages(MESSAGES)
    assert await history.aget_messages() == MESSAGES
    assert await LangChainHistory(log).aget_messages() == MESSAGES
    rows = await log.all()
    assert [row.role for row in rows] == (
        ["system", "user", "user", "user", "assistant", "tool", "assistant", "assistant", "assistant", "user"]
    )
    assert rows[5].message.tool_results[0].tool_name == "find"
    assert rows[1].message.metadata is None  # what a row says by itself is not kept twice


async def test_it_is_cleared(history: LangChainHistory, log: MessageLog) -> None:
    await history.aadd_messages(MESSAGES)
    await history.aclear()
    assert await history.aget_messages() == []
    await history.aadd_messages([HumanMessage("b")])
    assert await history.aget_messages() == [HumanMessage("b")]
    assert len(await log.all()) == len(MESSAGES) + 2


async def test_what_others_said_is_in_it(history: LangChainHistory, log: MessageLog) -> None:
    await log.append([user_message("a", name="ann"), assistant_message("b", id="m")])
    assert await history.aget_messages() == [HumanMessage("a", name="ann"), AIMessage("b", id="m")]


async def test_all_or_nothing(history: LangChainHistory, log: MessageLog) -> None:
    with pytest.raises(CodecError):
        await history.aadd_messages([HumanMessage("a"), RemoveMessage("m")])
    assert await log.count() == 0


async def test_other_threads_wait_for_the_loop(history: LangChainHistory, log: MessageLog) -> None:
    def work() -> list[list[BaseMessage]]:
        history.add_user_message("a")
        history.add_ai_message("b")
        there = history.messages
        history.clear()
        return [there, history.messages]

    assert await asyncio.to_thread(work) == [[HumanMessage("a"), AIMessage("b")], []]
    assert await log.count() == 3


async def test_on_an_event_loop_it_is_awaited(history: LangChainHistory) -> None:
    for call in (lambda: history.messages, lambda: history.add_messages([HumanMessage("a")]), history.clear):
        with pytest.raises(ReentrancyError, match="awaited"):
            call()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_a_chain_remembers(history: LangChainHistory, log: MessageLog) -> None:
    model = GenericFakeChatModel(
        messages=iter([AIMessage("a", id="a1"), AIMessage("b", id="a2"), AIMessage("c", id="a3")])
    )
    chain = RunnableWithMessageHistory(model, lambda session_id: history)
    config: Any = {"configurable": {"session_id": "ann"}}
    assert (await chain.ainvoke([HumanMessage("q")], config)).content == "a"
    assert (await chain.ainvoke([HumanMessage("r")], config)).content == "b"
    assert [(row.role, row.text) for row in await log.all()] == (
        [("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")]
    )
    assert (await asyncio.to_thread(chain.invoke, [HumanMessage("s")], config)).content == "c"
    assert [message.content for message in await history.aget_messages()] == ["q", "a", "r", "b", "s", "c"]


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("langchain", "langchain_core", "langchain"), ("pydantic_ai", "pydantic_ai", "pydantic-ai")],
)
def test_without_the_package_it_says_what_to_install(module: str, package: str, extra: str) -> None:
    script = f"import sys; sys.modules[{package!r}] = None; import parlatory.storage.integrations.{module}"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60)
    assert f"pip install 'parlatory[{extra}]'" in done.stderr
