from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage import assistant_message, system_message, user_message
from parlatory.storage.messages import ContentOutput, ErrorTextOutput, File, Image, Reasoning, Text

from ...prompts.said import asks, call, codes, gives, prompt, result

URL = "https://x.test/a.png"


def test_a_conversation() -> None:
    said: list[Any] = [Text(text="let me "), Text(text="look"), call("c1"), call("c2", input={}, invalid="{")]
    found = prompt(
        "langchain",
        system_message("obey"),
        user_message("hi", name="ann lee", id="m1"),
        assistant_message(said),
        gives(c1="one", c2=ErrorTextOutput(value="two")),
        assistant_message("done"),
    )
    assert found["messages"] == [
        {"role": "system", "content": "obey"},
        {"role": "user", "content": "hi", "name": "ann_lee", "id": "m1"},
        {
            "role": "assistant",
            "content": "let me look",
            "tool_calls": [
                {"type": "tool_call", "id": "c1", "name": "find", "args": {"q": "é"}},
                {"type": "tool_call", "id": "c2", "name": "find", "args": {"_raw": "{"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "find", "status": "success", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "name": "find", "status": "error", "content": "two"},
        {"role": "assistant", "content": "done"},
    ]
    assert codes(found) == ["name_changed", "arguments_wrapped"]


def test_pictures_in_results_follow_as_a_user_message() -> None:
    found = prompt("langchain", asks("c1"), gives(c1=ContentOutput(value=(Text(text="a"), Image(url=URL)))))
    assert found["messages"][1]["content"] == f"a\n{URL}"
    assert found["messages"][2] == {
        "role": "user",
        "content": [{"type": "image", "url": URL, "mime_type": "image/png"}],
    }
    assert codes(found) == ["media_moved"]


def test_reasoning_is_left_out() -> None:
    thought = Reasoning(text="t", signature="s", provider="anthropic")
    found = prompt("langchain", assistant_message([thought, Text(text="a")]), assistant_message([thought]))
    assert found["messages"] == [{"role": "assistant", "content": "a"}]
    assert codes(found) == ["reasoning_dropped", "reasoning_dropped", "message_dropped"]


def test_tools_that_the_provider_ran_are_kept() -> None:
    said = assistant_message([call("c1", provider_executed=True), result("c1", "one"), Text(text="a")])
    assert [message["role"] for message in prompt("langchain", said)["messages"]] == ["assistant", "tool"]


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Image(url="https://x.test/a"), {"type": "image", "url": "https://x.test/a"}),
        (Image(data="QQ==", media_type="image/gif"), {"type": "image", "base64": "QQ==", "mime_type": "image/gif"}),
        (File(data="QQ==", media_type="a/b"), {"type": "file", "base64": "QQ==", "mime_type": "a/b"}),
        (File(data="QQ==", media_type="audio/wav"), {"type": "audio", "base64": "QQ==", "mime_type": "audio/wav"}),
        (File(ref={"langchain": "f"}, media_type="a/b"), {"type": "file", "file_id": "f", "mime_type": "a/b"}),
        (File(ref={"parlatory": "sha256:x"}, media_type="a/b"), {"type": "text", "text": "[a/b]"}),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: dict[str, Any]) -> None:
    found = prompt("langchain", user_message([part, Text(text="x")]))
    assert found["messages"] == [{"role": "user", "content": [shown, {"type": "text", "text": "x"}]}]
    assert codes(found) == ["media_as_text"] * ("text" in shown)
