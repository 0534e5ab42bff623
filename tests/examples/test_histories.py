"""The examples that keep the history of another library: each runs as it stands."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

COUNTED = ["1 words so far: hello", "5 words so far: hello, my cat is ill", "2 words so far: hello again"]
REPEATED = ["You said so far: hello", "You said so far: hello, my cat is ill", "You said so far: hello again"]


@pytest.fixture(
    params=[
        ("openai_agents_session", COUNTED),
        ("langchain_history", REPEATED),
        ("pydantic_ai_history", COUNTED),
    ],
    ids=lambda param: param[0],
)
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, list[str]]:
    name, answers = request.param
    spec = importlib.util.spec_from_file_location(f"{name}_under_test", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module, answers


async def test_it_remembers_and_forgets(
    example: tuple[ModuleType, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    module, (first, second, third) = example
    await module.main()
    assert capsys.readouterr().out.splitlines() == [
        "user: hello",
        f"assistant: {first}",
        "user: my cat is ill",
        f"assistant: {second}",
        "user: /forget",
        "assistant: What was it?",
        "user: hello again",
        f"assistant: {third}",
    ]


async def test_a_turn_that_fails_ends_it(
    example: tuple[ModuleType, list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, _ = example

    async def fails(self: object, row: object) -> None:
        raise RuntimeError("no model")

    monkeypatch.setattr(module.Assistant, "on_message", fails)
    async with asyncio.timeout(10):
        with pytest.raises(SystemExit, match="the agent failed to answer 'hello': the log says why"):
            await module.main()
    assert capsys.readouterr().out == "user: hello\n"
