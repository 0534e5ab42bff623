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

from ...prompts.said import asks, call, codes, gives, prompt

URL = "https://x.test/a.png"


def test_a_conversation() -> None:
    signed = call("c1", provider_options={"google": {"thoughtSignature": "AAEC"}})
    found = prompt(
        "google",
        system_message("obey"),
        system_message(" "),
        user_message("hi"),
        user_message([Text(text="you")]),
        assistant_message([Reasoning(text="t", signature="s", provider="google"), Text(text="let me look"), signed]),
        gives(c1="one"),
        system_message("be brief"),
        assistant_message("done"),
    )
    assert found == {
        "contents": [
            {"role": "user", "parts": [{"text": "hi"}, {"text": "you"}]},
            {
                "role": "model",
                "parts": [
                    {"text": "let me look"},
                    {"function_call": {"id": "c1", "name": "find", "args": {"q": "é"}}, "thought_signature": "AAEC"},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"function_response": {"id": "c1", "name": "find", "response": {"result": "one"}}},
                    {"text": "<system>\nbe brief\n</system>"},
                ],
            },
            {"role": "model", "parts": [{"text": "done"}]},
        ],
        "config": {"system_instruction": {"parts": [{"text": "obey"}]}},
    }
    assert codes(found) == ["message_dropped", "reasoning_dropped", "system_moved"]


def test_the_user_begins_and_nothing_but_thoughts_is_no_turn() -> None:
    found = prompt("google", assistant_message([Reasoning(text="t")]), assistant_message("a"))
    assert found["contents"] == [
        {"role": "user", "parts": [{"text": "[...]"}]},
        {"role": "model", "parts": [{"text": "a"}]},
    ]
    assert codes(found) == ["reasoning_dropped", "turn_inserted"]


def test_names_begin_with_a_letter_on_both_sides() -> None:
    found = prompt("google", user_message("a"), assistant_message([call("c", name="2fa check")]), gives(c="C"))
    parts = [turn["parts"][0] for turn in found["contents"][1:]]
    assert parts[0]["function_call"]["name"] == parts[1]["function_response"]["name"] == "_2fa_check"


@pytest.mark.parametrize(
    ("output", "response"),
    [
        ("", {"result": ""}),
        (JsonOutput(value={"a": 1}), {"a": 1}),
        (JsonOutput(value=None), {"result": None}),
        (ErrorTextOutput(value="no"), {"error": "no"}),
        (ErrorJsonOutput(value={"a": 1}), {"error": {"a": 1}}),
        (ExecutionDenied(), {"error": "Tool execution was denied."}),
        (ContentOutput(value=(Text(text="a"), Image(url=URL))), {"result": f"a\n{URL}"}),
    ],
    ids=str,
)
def test_outputs(output: ToolOutput | str, response: Any) -> None:
    found = prompt("google", user_message("a"), asks("c"), gives(c=output))
    assert found["contents"][2]["parts"][0]["function_response"]["response"] == response
    assert codes(found) == ["media_as_text"] * isinstance(output, ContentOutput)


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Image(url=URL), {"file_data": {"file_uri": URL, "mime_type": "image/png"}}),
        (Image(url="https://x.test/a"), {"file_data": {"file_uri": "https://x.test/a"}}),
        (Image(data="QQ==", media_type="image/tiff"), {"inline_data": {"mime_type": "image/tiff", "data": "QQ=="}}),
        (Image(data="QQ=="), {"text": "[image]"}),
        (
            File(ref={"google": "gs://a/b"}, media_type="audio/wav"),
            {"file_data": {"file_uri": "gs://a/b", "mime_type": "audio/wav"}},
        ),
        (File(ref={"openai": "f"}, media_type="a/b"), {"text": "[a/b]"}),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: dict[str, Any]) -> None:
    found = prompt("google", user_message([part]))
    assert found["contents"][0]["parts"] == [shown]
    assert codes(found) == ["media_as_text"] * ("text" in shown)
    if isinstance(part, File):
        said = prompt("google", user_message("a"), assistant_message([part]))
        assert said["contents"][1] == {"role": "model", "parts": [shown]}
