"""Anthropic's messages to ours, with the real SDK's objects."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage

from parlatory.storage.codec import check_message
from parlatory.storage.convert.from_anthropic import from_anthropic
from parlatory.storage.errors import CodecError
from parlatory.storage.messages import (
    ContentOutput,
    Custom,
    ErrorJsonOutput,
    ErrorTextOutput,
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
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

PNG = "iVBORw0KGgo="
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "", "signature": "sig"},
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "redacted_thinking", "data": "zz"},
    {"type": "text", "text": ""},
    {"type": "text", "text": "a"},
    SEARCH,
    {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": None}, "toolset_name": "web"},
]
SAID: list[Any] = [
    Reasoning(signature="sig", provider="anthropic"),
    Reasoning(data="zz", provider="anthropic"),
    Text(text="a"),
    Custom(kind="anthropic.server_tool_use", data=SEARCH),
    ToolCall(
        tool_call_id="t1",
        tool_name="find",
        input={"q": None},
        provider_options={"anthropic": {"toolset_name": "web"}},
    ),
]


def answer() -> AnthropicMessage:
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use"}
    usage = {"stop_sequence": None, "usage": {"input_tokens": 1, "output_tokens": 1}}
    return AnthropicMessage.model_validate({**about, **usage, "content": BLOCKS})


def read(obj: object) -> list[Message]:
    found = from_anthropic(obj)
    for message in found:
        check_message(message)
    return found


def test_an_answer_of_the_sdk() -> None:
    said = answer()
    expected = [assistant_message(SAID, id="msg_1")]
    assert read(said) == read(said.model_dump_json()) == read(said.model_dump(exclude_unset=True)) == expected
    assert read(said.content) == read({"role": "assistant", "content": said.content}) == [assistant_message(SAID)]


def test_a_request() -> None:
    system = [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": ""}]
    results: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "x"}], "is_error": True},
        {"type": "text", "text": "and"},
    ]
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": answer().content},
        {"role": "user", "content": results},
        {"role": "system", "content": "later"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": []},
    ]
    assert read({"system": system, "messages": turns}) == [
        system_message("s", provider_options={"anthropic": {"cache_control": {"type": "ephemeral"}}}),
        user_message("q"),
        assistant_message(SAID),
        tool_message([ToolResult(tool_call_id="t1", tool_name="find", output=ErrorTextOutput(value="x"))]),
        user_message("and"),
        system_message("later"),
        assistant_message("b"),
        user_message(""),
    ]
    assert read({"system": "s", "messages": []}) == [system_message("s")]


@pytest.mark.parametrize(
    ("content", "failed", "output"),
    [
        (None, False, TextOutput(value="")),
        ("x", False, TextOutput(value="x")),
        ([], True, ErrorTextOutput(value="")),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], True, ErrorTextOutput(value="a\nb")),
        (
            [{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "url", "url": "https://x.test/a"}}],
            False,
            ContentOutput(value=(Text(text="a"), Image(url="https://x.test/a"))),
        ),
        ([{"type": "search_result", "x": 1}], False, JsonOutput(value=[{"type": "search_result", "x": 1}])),
        ([{"type": "search_result", "x": 1}], True, ErrorJsonOutput(value=[{"type": "search_result", "x": 1}])),
    ],
)
def test_results(content: object, failed: bool, output: ToolOutput) -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": failed}
    (message,) = read({"role": "user", "content": [block]})
    assert message == tool_message([ToolResult(tool_call_id="t1", tool_name="tool", output=output)])


@pytest.mark.parametrize(
    ("block", "part"),
    [
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
            Image(data=PNG, media_type="image/png"),
        ),
        (
            {"type": "document", "source": {"type": "url", "url": "https://x.test/a"}, "title": "n"},
            File(url="https://x.test/a", media_type="application/pdf", filename="n"),
        ),
        (
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}, "context": "c"},
            File(data="YQ==", media_type="text/plain", provider_options={"anthropic": {"context": "c"}}),
        ),
        (
            {"type": "document", "source": {"type": "file", "file_id": "f"}},
            File(ref={"anthropic": "f"}, media_type="application/octet-stream"),
        ),
        (
            {"type": "document", "source": {"type": "content", "content": "a"}},
            Custom(kind="anthropic.document", data={"type": "document", "source": {"type": "content", "content": "a"}}),
        ),
    ],
)
def test_parts(block: dict[str, Any], part: object) -> None:
    assert read({"role": "user", "content": [block]}) == [user_message((part,))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (5, "$"),
        ([{"role": "critic", "content": "a"}], "$[0].role"),
        ([{"role": "user", "content": 5}], "$[0].content"),
        ({"system": [{"type": "image"}], "messages": []}, "$.system[0]"),
    ],
)
def test_what_is_no_message_is_refused(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_anthropic(obj)
    assert caught.value.path == path
