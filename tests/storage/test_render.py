"""The full history as OpenAI, Anthropic and LangChain take it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parlatory.storage.messages import (
    ContentOutput,
    Custom,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Message,
    Reasoning,
    Text,
    TextOutput,
    ToolCall,
    ToolOutput,
    ToolResult,
    UnknownPart,
    assistant_message,
    system_message,
    tool_message,
    user_message,
)
from parlatory.storage.render import to_anthropic, to_langchain, to_openai

URL = "https://x.test/a.png"
HIDDEN = (Custom(kind="a.b", data=1), UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new"}')))
TEXT = {"type": "text", "text": "a"}


def call(id: str, **fields: Any) -> ToolCall:
    return ToolCall(**{"tool_call_id": id, "tool_name": "find", "input": {"q": "é"}, **fields})


def result(id: str, output: ToolOutput) -> ToolResult:
    return ToolResult(tool_call_id=id, tool_name="find", output=output)


HISTORY: list[Message] = [
    system_message("obey"),
    user_message("hi", name="ann", id="m1", metadata={"secret": 1}),
    assistant_message([Text(text="let me "), Text(text="look"), call("c1"), call("c2", input={}, invalid="{")]),
    tool_message([result("c1", TextOutput(value="one"))]),
    tool_message([result("c2", ErrorTextOutput(value="two"))]),
    assistant_message("done"),
]


def test_openai() -> None:
    function = {"name": "find", "arguments": '{"q":"é"}'}
    broken = {"name": "find", "arguments": '{"_raw":"{"}'}
    calls = [
        {"id": "c1", "type": "function", "function": function},
        {"id": "c2", "type": "function", "function": broken},
    ]
    assert to_openai(HISTORY) == [
        {"role": "system", "content": "obey"},
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "let me look",
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "assistant", "content": "done"},
    ]


def test_anthropic() -> None:
    assert to_anthropic(HISTORY) == [
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
    ]


def test_langchain() -> None:
    assert to_langchain(HISTORY) == [
        {"role": "system", "content": "obey"},
        {"role": "user", "content": "hi", "name": "ann", "id": "m1"},
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


def test_tools_that_the_provider_ran_are_kept() -> None:
    said = assistant_message(
        [call("c1", provider_executed=True), result("c1", TextOutput(value="one")), Text(text="a")]
    )
    openai, anthropic, langchain = to_openai([said]), to_anthropic([said]), to_langchain([said])
    assert [turn["role"] for turn in openai] == [turn["role"] for turn in langchain] == ["assistant", "tool"]
    assert openai[0]["content"] == langchain[0]["content"] == "a"
    assert [turn["role"] for turn in anthropic] == ["assistant", "user"]
    assert [block["type"] for block in anthropic[0]["content"]] == ["tool_use", "text"]


def test_hidden_parts_are_left_out() -> None:
    messages: list[Message] = [user_message([Text(text="a"), *HIDDEN]), assistant_message([Text(text="a"), *HIDDEN])]
    for rendered in (to_openai(messages), to_anthropic(messages), to_langchain(messages)):
        assert rendered[0]["content"] == [TEXT]
        assert rendered[1]["content"] in ("a", [TEXT])
    assert to_anthropic([user_message(HIDDEN), assistant_message([])]) == []
    assert to_openai([assistant_message([])]) == [{"role": "assistant", "content": ""}]


def test_t63_unknown_parts_of_a_tool_message_are_left_out() -> None:
    message = tool_message([HIDDEN[1]])
    assert to_openai([message]) == to_anthropic([message]) == to_langchain([message]) == []


def test_reasoning_goes_back_to_anthropic_only() -> None:
    thoughts = [
        Reasoning(text="t", signature="s", provider="anthropic"),
        Reasoning(data="d", provider="anthropic"),
        Reasoning(text="t", provider="anthropic"),
        Reasoning(text="t", signature="s", provider="google"),
    ]
    message = assistant_message([*thoughts, Text(text="a")])
    assert to_anthropic([message])[0]["content"] == [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "d"},
        TEXT,
    ]
    assert to_openai([message])[0]["content"] == to_langchain([message])[0]["content"] == "a"


def test_blank_text_is_no_block_of_anthropic() -> None:
    assert to_anthropic([user_message([Text(text=" \n"), Text(text="a")])]) == [{"role": "user", "content": [TEXT]}]
    assert to_anthropic([user_message("")]) == []


@pytest.mark.parametrize(
    ("part", "openai", "anthropic", "langchain"),
    [
        (
            Image(url=URL, detail="low"),
            {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
            {"type": "image", "source": {"type": "url", "url": URL}},
            {"type": "image", "url": URL},
        ),
        (
            Image(data="QQ==", media_type="image/gif"),
            {"type": "image_url", "image_url": {"url": "data:image/gif;base64,QQ=="}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QQ=="}},
            {"type": "image", "base64": "QQ==", "mime_type": "image/gif"},
        ),
        (
            Image(url="data:image/gif;base64,QQ=="),
            {"type": "image_url", "image_url": {"url": "data:image/gif;base64,QQ=="}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": "QQ=="}},
            {"type": "image", "base64": "QQ==", "mime_type": "image/gif"},
        ),
        (
            File(data="QQ==", media_type="application/pdf"),
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,QQ==", "filename": "file"}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "QQ=="}},
            {"type": "file", "base64": "QQ==", "mime_type": "application/pdf"},
        ),
        (
            File(url=URL, media_type="application/pdf"),
            {"type": "text", "text": URL},
            {"type": "document", "source": {"type": "url", "url": URL}},
            {"type": "file", "url": URL, "mime_type": "application/pdf"},
        ),
        (
            File(ref={"openai": "f"}, media_type="application/pdf", filename="a.pdf"),
            {"type": "file", "file": {"file_id": "f"}},
            {"type": "text", "text": "[a.pdf]"},
            {"type": "text", "text": "[a.pdf]"},
        ),
        (
            File(ref={"parlatory": "sha256:x"}, media_type="a/b"),
            {"type": "text", "text": "[a/b]"},
            {"type": "text", "text": "[a/b]"},
            {"type": "text", "text": "[a/b]"},
        ),
        (
            Image(ref={"parlatory": "sha256:x"}),
            {"type": "text", "text": "[image]"},
            {"type": "text", "text": "[image]"},
            {"type": "text", "text": "[image]"},
        ),
    ],
)
def test_media(part: Image | File, openai: Any, anthropic: Any, langchain: Any) -> None:
    messages = [user_message([part])]
    assert to_openai(messages) == [{"role": "user", "content": [openai]}]
    assert to_anthropic(messages) == [{"role": "user", "content": [anthropic]}]
    assert to_langchain(messages) == [{"role": "user", "content": [langchain]}]


def test_a_file_of_the_assistant_is_named() -> None:
    message = assistant_message([Text(text="see "), File(data="QQ==", media_type="a/b", filename="f.txt")])
    for render in (to_openai, to_anthropic, to_langchain):
        assert render([message]) == [{"role": "assistant", "content": "see [f.txt]"}]


@pytest.mark.parametrize(
    ("output", "text", "failed"),
    [
        (TextOutput(value=""), "", False),
        (JsonOutput(value=None), "null", False),
        (JsonOutput(value={"a": "é"}), '{"a":"é"}', False),
        (ErrorJsonOutput(value=[1]), "[1]", True),
        (ErrorTextOutput(value=""), "", True),
        (ExecutionDenied(), "Tool execution was denied.", True),
        (ExecutionDenied(reason="No."), "Tool execution was denied. No.", True),
    ],
)
def test_outputs(output: ToolOutput, text: str, failed: bool) -> None:
    messages = [tool_message([result("c1", output)])]
    assert to_openai(messages)[0]["content"] == text
    (block,) = to_anthropic(messages)[0]["content"]
    assert (block["content"], block.get("is_error", False)) == (text or "(no output)", failed)
    (turn,) = to_langchain(messages)
    assert (turn["content"], turn["status"]) == (text, "error" if failed else "success")


def test_output_of_parts() -> None:
    output = ContentOutput(value=(Text(text="a"), Image(url=URL), HIDDEN[1], Text(text="b")))
    messages = [tool_message([result("c1", output)])]
    assert to_openai(messages)[0]["content"] == to_langchain(messages)[0]["content"] == "a\n[image]\nb"
    (block,) = to_anthropic(messages)[0]["content"]
    assert [inner["type"] for inner in block["content"]] == ["text", "image", "text"]
