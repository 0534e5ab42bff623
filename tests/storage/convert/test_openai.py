from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage import assistant_message, system_message, tool_message, user_message
from parlatory.storage.messages import (
    ContentOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Reasoning,
    Text,
)

from ...prompts.said import asks, call, codes, gives, prompt, result

URL = "https://x.test/a.png"


def test_a_conversation() -> None:
    said: list[Any] = [Text(text="let me "), Text(text="look"), call("c1"), call("c2", input={}, invalid="{")]
    messages = prompt(
        "openai",
        system_message("obey"),
        user_message("hi", name="ann", id="m1", metadata={"secret": 1}),
        assistant_message(said),
        gives(c1="one"),
        tool_message([result("c2", ErrorTextOutput(value="two"))]),
        assistant_message("done"),
    )["messages"]
    find = {"name": "find", "arguments": '{"q":"é"}'}
    broken = {"name": "find", "arguments": '{"_raw":"{"}'}
    assert messages == [
        {"role": "system", "content": "obey"},
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "let me look",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": find},
                {"id": "c2", "type": "function", "function": broken},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "assistant", "content": "done"},
    ]


def test_the_role_of_system_messages_is_chosen() -> None:
    found = prompt("openai", system_message("a"), user_message("b"), system_message("c"), system_role="developer")
    assert [message["role"] for message in found["messages"]] == ["developer", "user", "developer"]


def test_ids_and_names_within_its_rules() -> None:
    long = "x" * 41
    found = prompt(
        "openai", assistant_message([call(long, name="get weather")]), gives(**{long: "a"}), name_of("A <b>")
    )
    (asked, answered, said) = found["messages"]
    (made,) = asked["tool_calls"]
    assert made["id"] == answered["tool_call_id"] and len(made["id"]) <= 40
    assert made["function"]["name"] == "get_weather"
    assert said["name"] == "A_b"
    assert codes(found) == ["call_id_renamed", "tool_name_changed", "name_changed"]


def name_of(name: str) -> Any:
    return user_message("hi", name=name)


def test_pictures_in_results_follow_the_whole_group() -> None:
    shown = ContentOutput(value=(Text(text="a"), Image(url=URL), Text(text="b")))
    found = prompt("openai", asks("c1", "c2"), gives(c1=shown, c2="two"), user_message("and?"))
    assert [message["role"] for message in found["messages"]] == ["assistant", "tool", "tool", "user", "user"]
    assert found["messages"][1]["content"] == f"a\n{URL}\nb"
    assert found["messages"][3]["content"] == [{"type": "image_url", "image_url": {"url": URL}}]
    assert codes(found) == ["media_moved"]


def test_outputs_are_text() -> None:
    outputs = {"a": JsonOutput(value={"é": None}), "b": ExecutionDenied(reason="No."), "c": ""}
    texts = [message["content"] for message in prompt("openai", asks("a", "b", "c"), gives(**outputs))["messages"][1:]]
    assert texts == ['{"é":null}', "Tool execution was denied. No.", ""]


def test_tools_that_the_provider_ran_are_kept() -> None:
    said = assistant_message([call("c1", provider_executed=True), result("c1", "one"), Text(text="a")])
    asked, answered = prompt("openai", said)["messages"]
    assert (asked["content"], len(asked["tool_calls"])) == ("a", 1)
    assert answered == {"role": "tool", "tool_call_id": "c1", "content": "one"}


def test_reasoning_is_left_out() -> None:
    thought = Reasoning(text="t", id="rs_1", data="enc", provider="openai")
    found = prompt("openai", assistant_message([thought, Text(text="a")]), assistant_message([thought]))
    assert found["messages"] == [{"role": "assistant", "content": "a"}]
    assert codes(found) == ["reasoning_dropped", "reasoning_dropped", "message_dropped"]


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Image(url=URL, detail="low"), {"type": "image_url", "image_url": {"url": URL, "detail": "low"}}),
        (Image(url=URL, detail="best"), {"type": "image_url", "image_url": {"url": URL}}),
        (
            Image(data="QQ==", media_type="image/gif"),
            {"type": "image_url", "image_url": {"url": "data:image/gif;base64,QQ=="}},
        ),
        (Image(data="SUkqAA==", media_type="image/tiff"), "[image/tiff]"),
        (Image(ref={"openai": "file-1"}), "[image]"),
        (
            File(data="QQ==", media_type="application/pdf"),
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,QQ==", "filename": "file"}},
        ),
        (File(url=URL, media_type="application/pdf"), URL),
        (
            File(data="QQ==", media_type="audio/mpeg"),
            {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "mp3"}},
        ),
        (File(ref={"openai": "f"}, media_type="application/pdf"), {"type": "file", "file": {"file_id": "f"}}),
        (File(ref={"anthropic": "f"}, media_type="application/pdf", filename="a.pdf"), "[a.pdf]"),
        (File(ref={"parlatory": "sha256:x"}, media_type="a/b"), "[a/b]"),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: Any) -> None:
    found = prompt("openai", user_message([part]))
    named = isinstance(shown, str)
    assert found["messages"][0]["content"] == [{"type": "text", "text": shown} if named else shown]
    assert codes(found) == ["media_as_text"] * named
