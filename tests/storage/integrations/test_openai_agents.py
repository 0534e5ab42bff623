"""The session of the OpenAI Agents SDK: its contract, and runs of the real package."""

from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage import CodecError, Engine, MessageLog, assistant_message, user_message
from parlatory.storage.integrations.openai_agents import OpenAIAgentsSession

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}},
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q":  1}', "id": "fc_1"},
    {"type": "function_call_output", "call_id": "c1", "output": "x"},
    {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "ls"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "a"}]},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "a", "annotations": []}],
    },
    {"role": "user", "content": [{"type": "input_text", "text": "b"}]},
    {"role": "developer", "content": "d"},
    {"role": "user", "content": " "},
    {"role": "assistant", "content": "e"},
    {"type": "item_reference", "id": "msg_2"},
]


@pytest.fixture
def session(log: MessageLog) -> OpenAIAgentsSession:
    return OpenAIAgentsSession(log)


async def test_items_come_back_as_they_were(session: OpenAIAgentsSession, log: MessageLog) -> None:
    await session.add_items(ITEMS)
    assert await session.get_items() == ITEMS
    assert await OpenAIAgentsSession(log).get_items() == ITEMS
    rows = await log.all()
    assert [row.role for row in rows] == (
        ["user", "assistant", "assistant", "assistant", "tool", "assistant", "tool", "assistant"]
        + ["user", "system", "user", "assistant", "assistant"]
    )
    assert [row.text for row in rows if row.role == "user"] == ["q", "b", " "]
    assert [row.message.tool_results[0].tool_name for row in rows if row.role == "tool"] == ["find", "run"]


async def test_limits(session: OpenAIAgentsSession) -> None:
    await session.add_items(ITEMS)
    assert await session.get_items(limit=2) == ITEMS[-2:]
    assert await session.get_items(99) == ITEMS
    assert await session.get_items(0) == []


async def test_pop_and_clear(session: OpenAIAgentsSession) -> None:
    assert session.session_id == "bot/ann"
    assert await session.pop_item() is None
    await session.add_items([])
    await session.add_items(ITEMS)
    for item in reversed(ITEMS):
        assert await session.pop_item() == item
    await session.add_items(ITEMS[:1])
    await session.clear_session()
    assert await session.get_items() == []
    await session.add_items(ITEMS[1:])
    assert await session.get_items() == ITEMS[1:]


async def test_all_or_nothing(session: OpenAIAgentsSession, log: MessageLog) -> None:
    for bad in ({"role": "critic", "content": "a"}, 5):
        with pytest.raises(CodecError):
            await session.add_items([ITEMS[0], bad])
    assert await log.count() == 0


async def test_what_others_said_is_in_it(session: OpenAIAgentsSession, log: MessageLog) -> None:
    await log.append([user_message("a", name="ann"), assistant_message("b")])
    await session.add_items([{"type": "function_call_output", "call_id": "c9", "output": "x"}])
    items = await session.get_items()
    assert items[:2] == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert items[2]["call_id"] == "c9"


# ---- with the package ---------------------------------------------------------------------------------------------


@pytest.fixture
def agents() -> Any:
    """Is the package, whose pin of websockets keeps it out of the dev extra."""
    import agents

    agents.set_tracing_disabled(True)
    return agents


def said(text: str, id: str = "msg_1") -> Any:
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    content = ResponseOutputText(text=text, type="output_text", annotations=[])
    return ResponseOutputMessage(id=id, role="assistant", status="completed", type="message", content=[content])


def called(arguments: str) -> Any:
    from openai.types.responses import ResponseFunctionToolCall

    return ResponseFunctionToolCall(call_id="c1", name="find", arguments=arguments, type="function_call", id="fc_1")


def model(agents: Any, seen: list[Any], *outputs: list[Any]) -> Any:
    """A model that gives these outputs, and notes what it is asked."""
    left = list(outputs)

    class Model(agents.Model):  # type: ignore[misc, name-defined, unused-ignore]
        async def get_response(self, system_instructions: Any, input: Any, *rest: Any, **more: Any) -> Any:
            seen.append(input)
            return agents.ModelResponse(output=left.pop(0), usage=agents.Usage(), response_id=None)

        def stream_response(self, *rest: Any, **more: Any) -> Any:
            raise NotImplementedError

    return Model()


async def test_it_is_a_session(agents: Any, session: OpenAIAgentsSession) -> None:
    assert isinstance(session, agents.Session)


async def test_runs_remember(agents: Any, session: OpenAIAgentsSession, log: MessageLog) -> None:
    def find(q: str) -> str:
        """Finds."""
        return f"found {q}"

    seen: list[Any] = []
    script = model(agents, seen, [called('{"q": "x"}')], [said("a", "msg_1")], [said("b", "msg_2")])
    agent = agents.Agent(name="bot", model=script, tools=[agents.function_tool(find)])
    first = await agents.Runner.run(agent, "q", session=session)
    second = await agents.Runner.run(agent, "r", session=session)
    assert (first.final_output, second.final_output) == ("a", "b")
    assert [item.get("type", item.get("role")) for item in seen[-1]] == (
        ["user", "function_call", "function_call_output", "message", "user"]
    )
    assert await session.get_items() == second.to_input_list()
    assert [row.text for row in await log.all()] == ["q", "", "found x", "a", "r", "b"]


async def test_it_holds_what_the_sdk_s_own_holds(agents: Any, session: OpenAIAgentsSession) -> None:
    """Both kinds of session give the model the same, turn by turn, and take back the same."""
    own = agents.SQLiteSession("s")
    asked: dict[str, list[Any]] = {}
    limited = agents.RunConfig(session_settings=agents.SessionSettings(limit=1))
    for name, kept in (("ours", session), ("theirs", own)):
        seen = asked[name] = []
        script = model(agents, seen, [said("a", "msg_1")], [said("b", "msg_2")], [said("c", "msg_3")])
        agent = agents.Agent(name="bot", model=script)
        await agents.Runner.run(agent, "q", session=kept)
        await agents.Runner.run(agent, "r", session=kept)
        await kept.pop_item()
        await kept.pop_item()
        await agents.Runner.run(agent, "s", session=kept, run_config=limited)
    assert asked["ours"] == asked["theirs"]
    assert await session.get_items() == await own.get_items()
    session.session_settings = agents.SessionSettings(limit=2)
    assert await session.get_items() == await own.get_items(2)
    own.close()


async def test_it_answers_what_is_in_the_log(agents: Any, session: OpenAIAgentsSession, engine: Engine) -> None:
    log = MessageLog(await engine.partition("bot/ann"))
    await log.append(user_message("hi"))
    seen: list[Any] = []
    agent = agents.Agent(name="bot", model=model(agents, seen, [said("a")]))
    await agents.Runner.run(agent, [], session=session)
    assert seen == [[{"role": "user", "content": "hi"}]]
    assert [(row.role, row.text) for row in await log.all()] == [("user", "hi"), ("assistant", "a")]
