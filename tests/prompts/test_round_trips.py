"""From a log to a provider's form and back: nothing is lost that the form carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings

from parlatory import storage
from parlatory.storage import (
    File,
    Image,
    Message,
    Prompt,
    Text,
    assistant_message,
    check_message,
    system_message,
    tool_message,
    user_message,
)
from parlatory.storage.convert.prompt import Provider, render
from parlatory.storage.dialects import tool_input
from parlatory.storage.messages import ErrorTextOutput, JsonOutput, Reasoning, TextOutput

from .adapter import rows_of
from .histories import HISTORIES, PNG
from .said import call, result

READERS: dict[Provider, Callable[[object], list[Message]]] = {
    "openai": storage.from_openai,
    "openai-responses": storage.from_openai_responses,
    "anthropic": storage.from_anthropic,
    "google": storage.from_google,
    "langchain": storage.from_langchain,
    "pydantic-ai": lambda prompt: storage.from_pydantic_ai(prompt["message_history"]),  # type: ignore[index]
    "ai-sdk": storage.from_ai_sdk,
}


def prompt(provider: Provider, messages: Sequence[Message]) -> Prompt:
    return render(provider, rows_of(messages), conversation="bot/ann")


def read_back(provider: Provider, form: object) -> list[Message]:
    messages = READERS[provider](form)
    for message in messages:
        check_message(message)
    return messages


@pytest.mark.parametrize("provider", READERS)
@settings(max_examples=60)
@given(history=HISTORIES)
def test_what_came_back_gives_the_same_prompt(provider: Provider, history: list[Message]) -> None:
    form: dict[str, Any] = prompt(provider, history)
    assert folded(prompt(provider, read_back(provider, form))) == folded(form)


PDF = "http://x.test/a.pdf?b=c"


@pytest.mark.parametrize("provider", READERS)
@pytest.mark.parametrize(
    "part",
    [
        File(url=PDF, media_type="image/png"),
        File(url=PDF, media_type="application/pdf"),
        File(url="http://x.test/a.png", media_type="application/pdf"),
        Image(url=PDF, media_type="image/png"),
        Image(url=PDF),
        Image(url=PDF, media_type="image/*"),
    ],
    ids=str,
)
def test_an_address_that_ends_otherwise_stays_what_it_was_declared(provider: Provider, part: Image | File) -> None:
    form: dict[str, Any] = prompt(provider, [user_message([part])])
    assert folded(prompt(provider, read_back(provider, form))) == folded(form)


def folded(form: Any) -> Any:
    """A form without the differences that a log does not make.

    One text alone is that text, and texts of an output are their lines; arguments are what their text says; a file is
    of some type, also where none is said; an empty signature is none; and where rows became one turn, what Anthropic
    thought stands first.
    """
    if isinstance(form, list):
        return [folded(item) for item in form]
    if not isinstance(form, dict):
        return form
    fields = {key: folded(value) for key, value in form.items() if value != "application/octet-stream"}
    if fields.get("signature") == "":
        del fields["signature"]
    for key, value in fields.items():
        match key, value:
            case _, [{"type": "text" | "input_text", "text": str() as text, **rest}] if not rest:
                fields[key] = text
            case "content", [str() as text]:
                fields[key] = text
            case "output", [*parts] if all(part.keys() == {"type", "text"} for part in parts):
                fields[key] = "\n".join(part["text"] for part in parts)
            case "content", [*blocks] if any(is_thought(block) for block in blocks):
                fields[key] = sorted(blocks, key=lambda block: not is_thought(block))
            case _, {"type": "content", "value": str() as text}:
                fields[key] = {"type": "text", "value": text}
            case "args", str() as text if "invalid" not in (read := tool_input(text)):
                fields[key] = read["input"]
    return fields


def is_thought(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in ("thinking", "redacted_thinking")


CARRIED: list[Message] = [
    system_message("s"),
    user_message([Text(text="q"), Image(data=PNG, media_type="image/png")]),
    assistant_message([Text(text="a"), call("c1"), call("c2", input={"n": [1, None]})]),
    tool_message([result("c1"), result("c2", JsonOutput(value={"n": 1}))]),
    user_message("r"),
    assistant_message("b"),
]


@pytest.mark.parametrize("provider", READERS)
def test_what_every_provider_carries(provider: Provider) -> None:
    """Words, pictures, calls and results come back as they were, whatever the form between."""
    back = read_back(provider, prompt(provider, CARRIED))
    assert [message.role for message in back if message.role != "tool"] == (
        ["system", "user", "assistant", "user", "assistant"]
    )
    assert [message for message in back if message.role not in ("tool", "assistant")] == [
        message for message in CARRIED if message.role not in ("tool", "assistant")
    ]
    assert [message.text for message in back if message.role == "assistant"] == ["a", "b"]
    calls = [call for message in back for call in message.tool_calls]
    assert [(call.tool_name, call.input) for call in calls] == [("find", {"q": "é"}), ("find", {"n": [1, None]})]
    results = [result for message in back for result in message.tool_results]
    assert [result.tool_call_id for result in results] == [call.tool_call_id for call in calls]
    assert {result.tool_name for result in results} == {"find"}
    assert results[0].output == TextOutput(value="found")
    assert results[1].output in (JsonOutput(value={"n": 1}), TextOutput(value='{"n":1}'))


@pytest.mark.parametrize("provider", ["anthropic", "google", "langchain", "pydantic-ai", "ai-sdk"])
def test_errors_stay_errors(provider: Provider) -> None:
    history: list[Message] = [
        user_message("q"),
        assistant_message([call("c1")]),
        tool_message([result("c1", ErrorTextOutput(value="e"))]),
    ]
    results = [result for message in read_back(provider, prompt(provider, history)) for result in message.tool_results]
    assert [result.output for result in results] == [ErrorTextOutput(value="e")]


@pytest.mark.parametrize(
    ("provider", "thought"),
    [
        ("openai-responses", Reasoning(text="t", id="rs_1", data="enc", provider="openai")),
        ("anthropic", Reasoning(text="t", signature="sig", provider="anthropic")),
        ("anthropic", Reasoning(data="enc", provider="anthropic")),
        ("pydantic-ai", Reasoning(text="t", signature="sig", provider="anthropic")),
        ("pydantic-ai", Reasoning(text="", id="rs_1", data="enc", provider="openai")),
        ("pydantic-ai", Reasoning(data="enc", provider="anthropic")),
        ("ai-sdk", Reasoning(text="t", signature="sig", provider="anthropic")),
        ("ai-sdk", Reasoning(text="t", id="rs_1", data="enc", provider="openai")),
        ("ai-sdk", Reasoning(text="t", signature="sig", provider="google")),
    ],
)
def test_thoughts_go_back_to_whom_they_belong(provider: Provider, thought: Reasoning) -> None:
    history: list[Message] = [user_message("q"), assistant_message([thought, Text(text="a")])]
    assert read_back(provider, prompt(provider, history)) == history


def test_google_s_signatures_stay_on_their_parts() -> None:
    signed = {"google": {"thoughtSignature": "AAEC"}}
    said = assistant_message([call("c1", provider_options=signed)])
    history: list[Message] = [user_message("q"), said, tool_message([result("c1")])]
    assert read_back("google", prompt("google", history)) == history
