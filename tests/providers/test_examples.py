"""The examples with the real SDKs, tool loop included, against a server of ours."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest

from parlatory.actors import Runtime
from parlatory.storage import Engine, StoredMessage, user_message

from .dialects import Chat, Dialect, Messages
from .server import Provider, Step

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(params=["openai", "anthropic"])
def sdk(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def example(sdk: str, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ModuleType]:
    monkeypatch.setenv(f"{sdk.upper()}_API_KEY", "key")
    monkeypatch.setenv(f"{sdk.upper()}_BASE_URL", provider.url + ("/v1" if sdk == "openai" else ""))
    monkeypatch.setenv("MODEL", "some-model")
    spec = importlib.util.spec_from_file_location(f"{sdk}_agent_under_test", EXAMPLES / f"{sdk}_agent.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    yield module
    await module.client.close()


@pytest.fixture
async def dialect(sdk: str, provider: Provider) -> AsyncIterator[Dialect]:
    dialect: Dialect = (Chat if sdk == "openai" else Messages)(provider.url)
    yield dialect
    await dialect.close()


async def converse(engine: Engine, example: ModuleType, *texts: str) -> list[StoredMessage]:
    """What the log holds once each text was answered."""
    runtime = Runtime(engine, [example.Assistant], stop_grace_s=0.01)
    record = await runtime.conversation("assistant/ann")
    for text in texts:
        await runtime.get("assistant", "ann").append(user_message(text), by="ann")
        await record.lane.join()
    rows = await record.read()
    await runtime.close()
    return [row.stored("assistant/ann") for row in rows]


async def test_a_tool_is_called(provider: Provider, dialect: Dialect, engine: Engine, example: ModuleType) -> None:
    provider.answer(
        [*dialect.begin(), *dialect.call("c1", "roll", '{"sides": 1, "count": 2}'), *dialect.end("tool_calls")],
        [*dialect.begin(), *dialect.say("Two ", "ones."), *dialect.end("stop")],
    )
    rows = await converse(engine, example, "roll two")
    assert [(row.role, row.text) for row in rows] == [
        ("user", "roll two"),
        ("assistant", ""),
        ("tool", ""),
        ("assistant", "Two ones."),
    ]
    (result,) = rows[2].message.tool_results
    assert (result.tool_call_id, getattr(result.output, "value", None)) == ("c1", [1, 1])
    first, second = (request.body for request in provider.requests)
    assert first["model"] == second["model"] == "some-model"
    assert "roll" in str(first["tools"])
    assert "[1,1]" in str(second["messages"])
    assert "c1" in str(second["messages"])


async def test_broken_arguments_are_told_to_the_model(
    provider: Provider, dialect: Dialect, engine: Engine, example: ModuleType
) -> None:
    provider.answer(
        [*dialect.begin(), *dialect.call("c1", "roll", "{sides}"), *dialect.end("tool_calls")],
        [*dialect.begin(), *dialect.say("Sorry."), *dialect.end("stop")],
    )
    rows = await converse(engine, example, "roll")
    assert [row.role for row in rows] == ["user", "assistant", "tool", "assistant"]
    (result,) = rows[2].message.tool_results
    assert result.output.type.startswith("error")


async def test_an_answer_that_was_cut_does_not_spoil_the_next(
    provider: Provider, dialect: Dialect, engine: Engine, example: ModuleType
) -> None:
    provider.answer(
        [*dialect.begin(), *dialect.say("Half an ans"), Step.CUT],
        [*dialect.begin(), *dialect.say("Hello."), *dialect.end("stop")],
    )
    rows = await converse(engine, example, "hi", "hello?")
    assert [(row.text, row.finish) for row in rows] == [
        ("hi", None),
        ("Half an ans", "error"),
        ("hello?", None),
        ("Hello.", None),
    ]
    assert "Half an ans" in str(provider.requests[1].body["messages"])
