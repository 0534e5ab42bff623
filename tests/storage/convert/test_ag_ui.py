from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage import assistant_message, system_message, user_message
from parlatory.storage.messages import ContentOutput, ErrorTextOutput, File, Image, Reasoning, Text

from ...prompts.said import call, codes, gives, prompt

URL = "https://x.test/a"


def test_a_conversation() -> None:
    said: list[Any] = [
        Reasoning(text="t", data="enc"),
        Reasoning(text="u"),
        Text(text="let me "),
        Text(text="look"),
        call("c 1"),
        call("c2"),
    ]
    found = prompt(
        "ag-ui",
        system_message("obey"),
        user_message("hi", name="Ann Lee", id="m1"),
        assistant_message(said, name="bot"),
        gives(**{"c 1": "one", "c2": ErrorTextOutput(value="two")}),
        assistant_message("done"),
        conversation="bot/ann",
    )
    function = {"name": "find", "arguments": '{"q":"é"}'}
    assert found["messages"] == [
        {"id": "bot/ann:1", "role": "system", "content": "obey"},
        {"id": "m1", "role": "user", "content": "hi", "name": "Ann Lee"},
        {"id": "bot/ann:3:thought:0", "role": "reasoning", "content": "t", "encryptedValue": "enc"},
        {"id": "bot/ann:3:thought:1", "role": "reasoning", "content": "u"},
        {
            "id": "bot/ann:3",
            "role": "assistant",
            "name": "bot",
            "content": "let me look",
            "toolCalls": [
                {"id": "c 1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
        },
        {"id": "bot/ann:3:c 1", "role": "tool", "toolCallId": "c 1", "content": "one"},
        {"id": "bot/ann:3:c2", "role": "tool", "toolCallId": "c2", "content": "two", "error": "two"},
        {"id": "bot/ann:5", "role": "assistant", "content": "done"},
    ]
    assert found.notes == ()


def test_what_has_no_text_has_no_content() -> None:
    asked, _ = prompt("ag-ui", assistant_message([call("c")]), gives(c="C"))["messages"]
    assert "content" not in asked
    (thought,) = prompt("ag-ui", assistant_message([Reasoning(text="t", signature="s")]))["messages"]
    assert thought == {"id": ":1:thought:0", "role": "reasoning", "content": "t", "encryptedValue": "s"}


def test_results_show_pictures() -> None:
    shown = ContentOutput(value=(Text(text="a"), Image(url=URL)))
    result = prompt("ag-ui", assistant_message([call("c")]), gives(c=shown))["messages"][1]
    assert result["content"] == [
        {"type": "text", "text": f"a\n{URL}"},
        {"type": "image", "source": {"type": "url", "value": URL}},
    ]


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (
            Image(data="QQ==", media_type="image/gif"),
            {"type": "image", "source": {"type": "data", "value": "QQ==", "mimeType": "image/gif"}},
        ),
        (
            File(url=URL, media_type="video/mp4"),
            {"type": "video", "source": {"type": "url", "value": URL, "mimeType": "video/mp4"}},
        ),
        (
            File(data="QQ==", media_type="a/b"),
            {"type": "document", "source": {"type": "data", "value": "QQ==", "mimeType": "a/b"}},
        ),
        (Image(data="QQ=="), {"type": "text", "text": "[image]"}),
        (
            File(ref={"ag-ui": "f"}, media_type="a/b"),
            {"type": "document", "source": {"type": "file", "value": "f", "mimeType": "a/b"}},
        ),
        (
            Image(ref={"parlatory": "sha256:x", "openai": "f"}),
            {"type": "image", "source": {"type": "file", "value": "f", "provider": "openai"}},
        ),
        (File(ref={"parlatory": "sha256:x"}, media_type="a/b"), {"type": "text", "text": "[a/b]"}),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: dict[str, Any]) -> None:
    found = prompt("ag-ui", user_message([part, Text(text="x")]))
    assert found["messages"][0]["content"] == [shown, {"type": "text", "text": "x"}]
    assert codes(found) == ["media_as_text"] * ("text" in shown)
