from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage import assistant_message, system_message, user_message
from parlatory.storage.messages import (
    ContentOutput,
    ErrorJsonOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Reasoning,
    Text,
    ToolOutput,
)

from ...prompts.said import asks, call, codes, gives, prompt

UPLOADED = {"kind": "uploaded-file", "file_id": "f", "provider_name": "openai"}
URL = "https://x.test/a.png"


def request(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "request", "parts": list(parts)}


def response(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "response", "parts": list(parts)}


def returned(id: str, content: Any, outcome: str = "success") -> dict[str, Any]:
    return {"part_kind": "tool-return", "tool_name": "find", "tool_call_id": id, "content": content, "outcome": outcome}


def asked(id: str, args: Any) -> dict[str, Any]:
    return {"part_kind": "tool-call", "tool_name": "find", "tool_call_id": id, "args": args}


def test_a_conversation() -> None:
    found = prompt(
        "pydantic-ai",
        system_message("obey"),
        user_message("hi"),
        assistant_message([Text(text="look"), call("c1"), call("c2", input={}, invalid="{")]),
        gives(c1="one", c2="two"),
        user_message([Text(text="and?"), Image(url=URL)]),
        assistant_message("done"),
    )
    shown = {"kind": "image-url", "url": URL, "media_type": "image/png"}
    assert found["message_history"] == [
        request({"part_kind": "system-prompt", "content": "obey"}, {"part_kind": "user-prompt", "content": "hi"}),
        response({"part_kind": "text", "content": "look"}, asked("c1", {"q": "é"}), asked("c2", "{")),
        request(returned("c1", "one"), returned("c2", "two"), {"part_kind": "user-prompt", "content": ["and?", shown]}),
        response({"part_kind": "text", "content": "done"}),
    ]
    assert found.notes == ()


def test_thoughts_say_whose_they_are() -> None:
    thoughts = [
        Reasoning(text="t", signature="s", provider="anthropic"),
        Reasoning(data="d", provider="anthropic"),
        Reasoning(text="t", id="rs_1", data="enc", provider="openai"),
        Reasoning(text="t"),
    ]
    (said,) = prompt("pydantic-ai", assistant_message(thoughts))["message_history"]
    thinking = {"part_kind": "thinking", "content": "t"}
    assert said == response(
        thinking | {"signature": "s", "provider_name": "anthropic"},
        thinking | {"content": "", "id": "redacted_thinking", "signature": "d", "provider_name": "anthropic"},
        thinking | {"id": "rs_1", "signature": "enc", "provider_name": "openai"},
        thinking,
    )


@pytest.mark.parametrize(
    ("output", "content", "outcome"),
    [
        (JsonOutput(value=[None]), [None], "success"),
        (ErrorJsonOutput(value={"a": 1}), {"a": 1}, "failed"),
        (ExecutionDenied(reason="No."), "Tool execution was denied. No.", "denied"),
        (ContentOutput(value=(Text(text="a"), Text(text="b"))), "a\nb", "success"),
        (
            ContentOutput(value=(Text(text="a"), Image(data="QQ==", media_type="image/gif"))),
            ["a", {"kind": "binary", "data": "QQ==", "media_type": "image/gif"}],
            "success",
        ),
    ],
    ids=str,
)
def test_outputs(output: ToolOutput, content: Any, outcome: str) -> None:
    assert prompt("pydantic-ai", asks("c"), gives(c=output))["message_history"][1] == request(
        returned("c", content, outcome)
    )


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (
            File(url="https://x.test/a", media_type="a/b"),
            {"kind": "document-url", "url": "https://x.test/a", "media_type": "a/b"},
        ),
        (
            File(url="https://x.test/a", media_type="audio/wav"),
            {"kind": "audio-url", "url": "https://x.test/a", "media_type": "audio/wav"},
        ),
        (Image(url="https://x.test/a"), {"kind": "image-url", "url": "https://x.test/a"}),
        (Image(data="QQ=="), "[image]"),
        (File(ref={"pydantic-ai": "f"}, media_type="a/b"), "[a/b]"),
        (File(ref={"parlatory": "sha256:x", "mistral": "f"}, media_type="a/b"), "[a/b]"),
        (File(ref={"openai": "f"}, media_type="a/b"), UPLOADED | {"media_type": "a/b"}),
        (Image(ref={"openai": "f"}), UPLOADED),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: Any) -> None:
    found = prompt("pydantic-ai", user_message([part]))
    assert found["message_history"] == [request({"part_kind": "user-prompt", "content": [shown]})]
    assert codes(found) == ["media_as_text"] * isinstance(shown, str)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (
            File(data="QQ==", media_type="image/gif"),
            {"part_kind": "file", "content": {"kind": "binary", "data": "QQ==", "media_type": "image/gif"}},
        ),
        (File(url="https://x.test/a", media_type="a/b"), {"part_kind": "text", "content": "https://x.test/a"}),
        (File(ref={"openai": "f"}, media_type="a/b"), {"part_kind": "text", "content": "[a/b]"}),
    ],
    ids=str,
)
def test_files_of_the_assistant(part: File, said: dict[str, Any]) -> None:
    found = prompt("pydantic-ai", assistant_message([part]))
    assert found["message_history"] == [response(said)]
    assert codes(found) == ["media_as_text"] * (said["part_kind"] == "text")
