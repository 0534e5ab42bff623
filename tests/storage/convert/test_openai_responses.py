from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parlatory.storage import assistant_message, system_message, user_message
from parlatory.storage.messages import ContentOutput, ErrorTextOutput, File, Image, Reasoning, Text, UnknownPart

from ...prompts.said import asks, call, codes, gives, prompt

URL = "https://x.test/a.png"


def thought(id: str | None = "rs_1", data: str | None = "enc", provider: str = "openai") -> Reasoning:
    return Reasoning(text="plan", id=id, data=data, provider=provider)


def message(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


def test_a_conversation() -> None:
    said = assistant_message([thought(), Text(text="let me "), Text(text="look"), call("c1"), Text(text="wait")])
    found = prompt(
        "openai-responses",
        system_message("obey"),
        user_message("hi", name="ann"),
        said,
        gives(c1=ErrorTextOutput(value="one")),
        assistant_message("done"),
        system_role="developer",
    )
    summary = [{"type": "summary_text", "text": "plan"}]
    assert found == {
        "input": [
            message("developer", "obey"),
            message("user", "hi"),
            {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "enc"},
            message("assistant", "let me look"),
            {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"q":"é"}'},
            message("assistant", "wait"),
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            message("assistant", "done"),
        ]
    }
    assert found.notes == ()


@pytest.mark.parametrize(
    "parts",
    [
        [thought(id=None), Text(text="a")],
        [thought(id="x"), Text(text="a")],
        [thought(data=None), Text(text="a")],
        [thought(provider="anthropic"), Text(text="a")],
        [Text(text="a"), thought()],
    ],
    ids=str,
)
def test_reasoning_that_cannot_be_sent_back(parts: list[Any]) -> None:
    found = prompt("openai-responses", assistant_message(parts))
    assert found["input"] == [message("assistant", "a")]
    assert codes(found) == ["reasoning_dropped"]


@pytest.mark.parametrize("between", [thought(id=None), thought(provider="anthropic")], ids=str)
def test_reasoning_that_is_dropped_keeps_no_texts_apart(between: Reasoning) -> None:
    found = prompt("openai-responses", assistant_message([Text(text="a"), between, Text(text="b")]))
    assert found["input"] == [message("assistant", "ab")]


def test_reasoning_is_sent_once_and_alone_never() -> None:
    found = prompt(
        "openai-responses", assistant_message([thought(), call("a")]), gives(a="A"), assistant_message([thought()])
    )
    assert [item["type"] for item in found["input"]] == ["reasoning", "function_call", "function_call_output"]
    assert codes(found) == ["reasoning_dropped"]
    untold = Reasoning(id="rs_2", data="enc", provider="openai")
    assert prompt("openai-responses", assistant_message([untold, Text(text="a")]))["input"][0]["summary"] == []


def test_results_show_pictures() -> None:
    unknown = UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new"}'))
    shown = ContentOutput(value=(Text(text="see"), Text(text=""), Image(url=URL), unknown))
    found = prompt(
        "openai-responses",
        asks("a", "b", "c"),
        gives(a=shown, b=ContentOutput(value=(unknown,)), c=ContentOutput(value=())),
    )
    assert [item["output"] for item in found["input"][3:]] == [
        [{"type": "input_text", "text": "see"}, {"type": "input_image", "detail": "auto", "image_url": URL}],
        "",
        "",
    ]
    assert codes(found) == ["part_dropped", "part_dropped"]


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        (Image(url=URL, detail="low"), {"type": "input_image", "detail": "low", "image_url": URL}),
        (Image(ref={"openai": "f"}), {"type": "input_image", "detail": "auto", "file_id": "f"}),
        (
            Image(data="QQ==", media_type="image/gif"),
            {"type": "input_image", "detail": "auto", "image_url": "data:image/gif;base64,QQ=="},
        ),
        (Image(data="SUkqAA==", media_type="image/tiff"), "[image/tiff]"),
        (
            File(data="QQ==", media_type="application/pdf", filename="a.pdf"),
            {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,QQ=="},
        ),
        (File(url="https://x.test/a", media_type="a/b"), {"type": "input_file", "file_url": "https://x.test/a"}),
        (File(ref={"openai": "f"}, media_type="a/b"), {"type": "input_file", "file_id": "f"}),
        (File(ref={"google": "f"}, media_type="a/b"), "[a/b]"),
    ],
    ids=str,
)
def test_media(part: Image | File, shown: Any) -> None:
    found = prompt("openai-responses", user_message([part, Text(text="x")]))
    named = isinstance(shown, str)
    shown = {"type": "input_text", "text": shown} if named else shown
    assert found["input"] == [message("user", [shown, {"type": "input_text", "text": "x"}])]
    assert codes(found) == ["media_as_text"] * named
