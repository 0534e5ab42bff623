from __future__ import annotations

from typing import Any

import pytest

from parlatory.storage import Message, assistant_message, system_message, tool_message, user_message
from parlatory.storage.messages import (
    ContentOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    Reasoning,
    Text,
)

from ...prompts.said import asks, call, codes, gives, prompt, result

URL = "https://x.test/a.png"
SIGNED = Reasoning(text="t ", signature="s", provider="anthropic")
THINKING = {"type": "thinking", "thinking": "t ", "signature": "s"}
A = {"type": "text", "text": "a"}


def turns(*messages: Message) -> list[Any]:
    found: list[Any] = prompt("anthropic", *messages)["messages"]
    return found


def test_a_conversation() -> None:
    said: list[Any] = [Text(text="let me "), Text(text="look"), call("c1"), call("c2", input={}, invalid="{")]
    found = prompt(
        "anthropic",
        system_message("obey"),
        system_message(" "),
        user_message("hi", name="ann"),
        assistant_message(said),
        gives(c1="one"),
        tool_message([result("c2", ErrorTextOutput(value="two"))]),
        assistant_message("done"),
        user_message("thanks"),
    )
    assert found["system"] == [{"type": "text", "text": "obey"}]
    assert found["messages"] == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "let me "},
                {"type": "text", "text": "look"},
                {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "é"}},
                {"type": "tool_use", "id": "c2", "name": "find", "input": {"_raw": "{"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "two", "is_error": True},
            ],
        },
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "thanks"},
    ]
    assert codes(found) == ["message_dropped", "arguments_wrapped"]


def test_turns_alternate_and_results_stand_first() -> None:
    found = turns(
        user_message("a"),
        user_message("b"),
        asks("c"),
        user_message("wait"),
        gives(c="C"),
        user_message([Text(text="a")]),
    )
    assert [turn["role"] for turn in found] == ["user", "assistant", "user"]
    assert [block["text"] for block in found[0]["content"]] == ["a", "b"]
    assert [block["type"] for block in found[2]["content"]] == ["tool_result", "text", "text"]


def test_a_later_system_message_is_text_of_the_user() -> None:
    found = prompt("anthropic", user_message("a"), system_message("obey"))
    assert "system" not in found
    assert found["messages"][0]["content"] == [A, {"type": "text", "text": "<system>\nobey\n</system>"}]
    assert codes(found) == ["system_moved"]


def test_the_user_begins() -> None:
    found = prompt("anthropic", system_message("obey"), assistant_message("hello"), user_message("a"))
    assert [turn["content"] for turn in found["messages"]] == ["[...]", "hello", "a"]
    assert codes(found) == ["turn_inserted"]


def test_white_space_at_the_end_is_cut_off_the_last_text_alone() -> None:
    found = prompt("anthropic", user_message("a"), assistant_message([SIGNED, Text(text="Say: "), Text(text="b \n")]))
    assert found["messages"][1]["content"] == [
        THINKING,
        {"type": "text", "text": "Say: "},
        {"type": "text", "text": "b"},
    ]
    assert codes(found) == ["prefill", "text_trimmed"]
    found = prompt("anthropic", user_message("a"), assistant_message("Say: "))
    assert found["messages"][1]["content"] == "Say:"
    assert codes(prompt("anthropic", user_message("a"), assistant_message("b"), user_message("a"))) == []


def test_signed_thoughts_stand_first_and_no_turn_ends_with_one() -> None:
    redacted = Reasoning(data="d", provider="anthropic")
    others = [Reasoning(text="t", provider="anthropic"), Reasoning(text="t", signature="s", provider="google")]
    found = prompt("anthropic", user_message("a"), assistant_message([*others, Text(text="a"), SIGNED, redacted]))
    assert found["messages"][1]["content"] == [THINKING, {"type": "redacted_thinking", "data": "d"}, A]
    assert codes(found) == ["reasoning_dropped", "reasoning_dropped", "prefill"]
    found = prompt("anthropic", user_message("a"), assistant_message([SIGNED]))
    assert found["messages"] == [{"role": "user", "content": "a"}]
    assert codes(found) == ["reasoning_dropped"]
    empty = Reasoning(signature="s", provider="anthropic")
    assert turns(user_message("a"), assistant_message([empty, Text(text="a")]))[1]["content"][0]["thinking"] == ""


def test_results_are_never_empty() -> None:
    blank = ContentOutput(value=(Text(text=" "),))
    found = prompt(
        "anthropic", asks("a", "b", "c", "d"), gives(a="", b=ErrorTextOutput(value="\n"), c=blank, d=ExecutionDenied())
    )
    results = found["messages"][2]["content"]
    assert [block["content"] for block in results[:3]] == ["(no output)"] * 3
    assert [block.get("is_error", False) for block in results] == [False, True, False, True]
    assert codes(found).count("output_filled") == 3


def test_results_show_pictures() -> None:
    shown = ContentOutput(value=(Text(text="a"), Image(url=URL), Text(text="")))
    (block,) = turns(asks("a"), gives(a=shown))[2]["content"]
    assert block["content"] == [A, {"type": "image", "source": {"type": "url", "url": URL}}]


def test_tools_that_the_provider_ran_are_kept() -> None:
    said = assistant_message([call("c1", provider_executed=True), result("c1", "one"), Text(text="a")])
    found = turns(user_message("go"), said)
    assert [turn["role"] for turn in found] == ["user", "assistant", "user"]
    assert [block["type"] for block in found[1]["content"]] == ["tool_use", "text"]


@pytest.mark.parametrize("key", ["cacheControl", "cache_control"])
def test_a_part_may_be_marked_for_the_cache(key: str) -> None:
    options = {"anthropic": {key: {"type": "ephemeral"}}}
    (turn,) = turns(
        user_message([Text(text="a", provider_options=options), Text(text="a", provider_options={"x": {}})])
    )
    assert turn["content"] == [A | {"cache_control": {"type": "ephemeral"}}, A]


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Image(url=URL), {"type": "image", "source": {"type": "url", "url": URL}}),
        (
            Image(data="QQ==", media_type="image/gif"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QQ=="}},
        ),
        (Image(data="SUkqAA==", media_type="image/tiff"), "[image/tiff]"),
        (Image(ref={"anthropic": "f"}), {"type": "image", "source": {"type": "file", "file_id": "f"}}),
        (
            File(data="QQ==", media_type="application/pdf", filename="a.pdf"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="},
                "title": "a.pdf",
            },
        ),
        (
            File(url="https://x.test/a", media_type="application/pdf"),
            {"type": "document", "source": {"type": "url", "url": "https://x.test/a"}},
        ),
        (
            File(data="w6k=", media_type="text/csv"),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "é"}},
        ),
        (File(data="/w==", media_type="text/csv"), "[text/csv]"),
        (File(data="IA==", media_type="text/csv"), "[text/csv]"),
        (File(url="https://x.test/a", media_type="text/csv"), "https://x.test/a"),
        (File(data="QQ==", media_type="audio/wav"), "[audio/wav]"),
        (File(ref={"openai": "f"}, media_type="application/pdf"), "[application/pdf]"),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: Any) -> None:
    found = prompt("anthropic", user_message([part]))
    named = isinstance(shown, str)
    assert found["messages"][0]["content"] == [{"type": "text", "text": shown} if named else shown]
    assert codes(found) == ["media_as_text"] * named
