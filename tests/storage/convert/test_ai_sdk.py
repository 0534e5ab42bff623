from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage import assistant_message, system_message, user_message
from parlatory.storage.messages import (
    ContentOutput,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Reasoning,
    Text,
    ToolOutput,
)

from ...prompts.said import asks, call, codes, gives, prompt, result

URL = "https://x.test/a.png"


def asked(id: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool-call", "toolCallId": id, "toolName": "find", "input": {"q": "é"}, **more}


def answered(id: str, output: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool-result", "toolCallId": id, "toolName": "find", "output": output}


def test_a_conversation() -> None:
    options = {"anthropic": {"cacheControl": {"type": "ephemeral"}}, "other": "no object"}
    found = prompt(
        "ai-sdk",
        system_message("obey", provider_options=options),
        user_message([Text(text="hi", provider_options={"other": 1})]),
        assistant_message([Text(text="look"), call("c1"), call("c2", input={}, invalid="{")]),
        gives(c1="one", c2="two"),
    )
    assert found == {
        "messages": [
            {"role": "system", "content": "obey", "providerOptions": {"anthropic": options["anthropic"]}},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "look"}, asked("c1"), asked("c2", input={"_raw": "{"})],
            },
            {
                "role": "tool",
                "content": [
                    answered("c1", {"type": "text", "value": "one"}),
                    answered("c2", {"type": "text", "value": "two"}),
                ],
            },
        ],
        "allowSystemInMessages": True,
    }
    assert "allowSystemInMessages" not in prompt("ai-sdk", user_message("hi"))


def test_results_of_tools_that_the_provider_ran_stand_behind_their_call() -> None:
    said = assistant_message([call("c1", provider_executed=True), Text(text="a"), result("c1", "one"), call("c2")])
    first, second = prompt("ai-sdk", said, gives(c2="two"))["messages"]
    assert first["content"] == [
        asked("c1", providerExecuted=True),
        answered("c1", {"type": "text", "value": "one"}),
        {"type": "text", "text": "a"},
        asked("c2"),
    ]
    assert second["content"] == [answered("c2", {"type": "text", "value": "two"})]


@pytest.mark.parametrize(
    ("part", "options"),
    [
        (Reasoning(text="t"), None),
        (Reasoning(text="t", signature="s", provider="anthropic"), {"anthropic": {"signature": "s"}}),
        (Reasoning(text="t", data="d", provider="anthropic"), {"anthropic": {"redactedData": "d"}}),
        (Reasoning(text="t", provider="anthropic"), None),
        (Reasoning(text="t", id="rs_1", provider="openai"), {"openai": {"itemId": "rs_1"}}),
        (
            Reasoning(
                text="t", id="rs_1", data="enc", provider="openai", provider_options={"openai": {"x": 1}, "y": {}}
            ),
            {"openai": {"itemId": "rs_1", "reasoningEncryptedContent": "enc", "x": 1}, "y": {}},
        ),
        (Reasoning(text="t", signature="AAEC", provider="google"), {"google": {"thoughtSignature": "AAEC"}}),
    ],
    ids=str,
)
def test_thoughts(part: Reasoning, options: dict[str, Any] | None) -> None:
    (said,) = prompt("ai-sdk", assistant_message([part]))["messages"]
    more = {} if options is None else {"providerOptions": options}
    assert said["content"] == [{"type": "reasoning", "text": "t", **more}]


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (JsonOutput(value=None), {"type": "json", "value": None}),
        (ErrorJsonOutput(value=[1]), {"type": "error-json", "value": [1]}),
        (ErrorTextOutput(value=""), {"type": "error-text", "value": ""}),
        (ExecutionDenied(), {"type": "execution-denied"}),
        (ExecutionDenied(reason="No."), {"type": "execution-denied", "reason": "No."}),
        (
            ContentOutput(
                value=(
                    Text(text="a"),
                    Image(url="https://x.test/a"),
                    Image(data="QQ==", media_type="image/gif", filename="a.gif"),
                    File(ref={"openai": "f"}, media_type="a/b"),
                    File(ref={"parlatory": "sha256:x"}, media_type="a/b"),
                )
            ),
            {
                "type": "content",
                "value": [
                    {"type": "text", "text": "a"},
                    {"type": "file-url", "url": "https://x.test/a", "mediaType": "image/*"},
                    {"type": "file-data", "data": "QQ==", "mediaType": "image/gif", "filename": "a.gif"},
                    {"type": "file-reference", "providerReference": {"openai": "f"}},
                    {"type": "text", "text": "[a/b]"},
                ],
            },
        ),
    ],
    ids=str,
)
def test_outputs(output: ToolOutput, shown: dict[str, Any]) -> None:
    _, answer = prompt("ai-sdk", asks("c"), gives(c=output))["messages"]
    assert answer["content"] == [answered("c", shown)]


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Image(url=URL), {"type": "file", "data": URL, "mediaType": "image/png"}),
        (Image(data="QQ=="), {"type": "file", "data": "QQ==", "mediaType": "image/*"}),
        (
            File(data="QQ==", media_type="application/pdf", filename="a.pdf"),
            {"type": "file", "data": "QQ==", "mediaType": "application/pdf", "filename": "a.pdf"},
        ),
        (
            File(data="QQ==", media_type="odd"),
            {"type": "file", "data": "QQ==", "mediaType": "application/octet-stream"},
        ),
        (
            Image(ref={"openai": "f", "parlatory": "sha256:x"}),
            {"type": "file", "data": {"type": "reference", "reference": {"openai": "f"}}, "mediaType": "image/*"},
        ),
        (Image(ref={"parlatory": "sha256:x"}), {"type": "text", "text": "[image]"}),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: dict[str, Any]) -> None:
    found = prompt("ai-sdk", user_message([part]))
    assert found["messages"] == [{"role": "user", "content": [shown]}]
    assert codes(found) == ["media_as_text"] * ("text" in shown)
