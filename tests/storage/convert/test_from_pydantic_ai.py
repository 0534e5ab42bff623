"""PydanticAI's messages to ours, with the real package's objects."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models.test import TestModel

from parlatory.storage.codec import check_message
from parlatory.storage.convert.from_pydantic_ai import from_pydantic_ai
from parlatory.storage.errors import CodecError
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
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

DATA = b"\xff\xfe\xfd"
URL = "https://x.test/a.png"


def read(obj: object) -> list[Message]:
    found = from_pydantic_ai(obj)
    for message in found:
        check_message(message)
    return found


def test_a_history_of_the_package() -> None:
    history: list[ModelMessage] = [
        ModelRequest(parts=[SystemPromptPart("s"), UserPromptPart("q")], instructions="be", metadata={"a": 1}),
        ModelResponse(
            parts=[
                ThinkingPart("t", signature="s", provider_name="anthropic"),
                ThinkingPart("", id="redacted_thinking", signature="zz", provider_name="anthropic"),
                ThinkingPart("", id="rs_1", signature="enc", provider_name="openai"),
                TextPart("a"),
                ToolCallPart("find", '{"q": 1}', "c1"),
                ToolCallPart("find", "{", "c2"),
                ToolCallPart("find", None, "c3"),
            ]
        ),
        ModelRequest(
            parts=[ToolReturnPart("find", "x", "c1"), ToolReturnPart("find", "y", "c2"), UserPromptPart("and")]
        ),
        ModelResponse(parts=[]),
    ]
    expected = [
        system_message("s", metadata={"a": 1, "instructions": "be"}),
        user_message("q"),
        assistant_message(
            [
                Reasoning(text="t", signature="s", provider="anthropic"),
                Reasoning(data="zz", provider="anthropic"),
                Reasoning(id="rs_1", data="enc", provider="openai"),
                Text(text="a"),
                ToolCall(tool_call_id="c1", tool_name="find", input={"q": 1}),
                ToolCall(tool_call_id="c2", tool_name="find", input={}, invalid="{"),
                ToolCall(tool_call_id="c3", tool_name="find", input={}),
            ]
        ),
        tool_message(
            [
                ToolResult(tool_call_id="c1", tool_name="find", output=TextOutput(value="x")),
                ToolResult(tool_call_id="c2", tool_name="find", output=TextOutput(value="y")),
            ]
        ),
        user_message("and"),
        assistant_message(""),
    ]
    assert read(history) == read(ModelMessagesTypeAdapter.dump_json(history)) == expected
    assert read(ModelMessagesTypeAdapter.dump_python(history)) == expected


async def test_the_result_of_a_run() -> None:
    result = await Agent(TestModel(custom_output_text="a")).run("q", message_history=[])
    assert read(result) == [user_message("q"), assistant_message("a")]


@pytest.mark.parametrize(
    ("item", "part"),
    [
        (TextContent("a", metadata={"x": 1}), Text(text="a", provider_options={"pydantic-ai": {"metadata": {"x": 1}}})),
        (ImageUrl(URL), Image(url=URL)),
        (AudioUrl(URL, media_type="audio/wav"), File(url=URL, media_type="audio/wav")),
        (
            DocumentUrl(URL, force_download=True),
            File(
                url=URL,
                media_type="application/octet-stream",
                provider_options={"pydantic-ai": {"force_download": True}},
            ),
        ),
        (BinaryContent(DATA, media_type="image/png"), Image(data="//79", media_type="image/png")),
        (BinaryContent(DATA, media_type="application/pdf"), File(data="//79", media_type="application/pdf")),
        (UploadedFile("f", provider_name="openai", media_type="a/b"), File(ref={"openai": "f"}, media_type="a/b")),
        (CachePoint(), Custom(kind="pydantic-ai.cache-point", data={"kind": "cache-point", "ttl": "5m"})),
    ],
)
def test_items_of_a_prompt(item: Any, part: object) -> None:
    assert read(ModelRequest(parts=[UserPromptPart(["q", item])])) == [user_message((Text(text="q"), part))]  # type: ignore[arg-type]


def test_bytes_are_the_same_in_json() -> None:
    message = ModelRequest(parts=[UserPromptPart([BinaryContent(DATA, media_type="application/pdf")])])
    assert read(ModelMessagesTypeAdapter.dump_json([message])) == read(message)


@pytest.mark.parametrize(
    ("content", "outcome", "output"),
    [
        ({"a": 1}, "success", JsonOutput(value={"a": 1})),
        (None, "success", JsonOutput(value=None)),
        (
            ["a", BinaryContent(DATA, media_type="image/png")],
            "success",
            ContentOutput(value=(Text(text="a"), Image(data="//79", media_type="image/png"))),
        ),
        (
            [1, {"kind": "binary"}],
            "success",
            JsonOutput(value=[1, {"kind": "binary"}]),
        ),
        ("x", "failed", ErrorTextOutput(value="x")),
        ([1], "interrupted", ErrorJsonOutput(value=[1])),
        ("no", "denied", ExecutionDenied(reason="no")),
        ([1], "denied", ExecutionDenied()),
    ],
)
def test_results(content: Any, outcome: Any, output: ToolOutput) -> None:
    part = ToolReturnPart("find", content, "c1", outcome=outcome, metadata={"m": 1})
    (message,) = read(ModelRequest(parts=[part]))
    options = {"pydantic-ai": {"metadata": {"m": 1}}}
    assert message == tool_message(
        [ToolResult(tool_call_id="c1", tool_name="find", output=output, provider_options=options)]
    )


def test_retries_in_stored_histories() -> None:
    errors = [{"type": "missing", "loc": ["q"], "msg": "Field required", "input": {}}]
    parts = [
        {"part_kind": "retry-prompt", "tool_name": "find", "tool_call_id": "c1", "content": "bad"},
        {"part_kind": "retry-prompt", "tool_name": "find", "tool_call_id": "c2", "content": errors},
        {"part_kind": "retry-prompt", "content": "plain text is not allowed"},
        {"part_kind": "retry-feedback", "content": errors},
    ]
    results, told, feedback = read({"kind": "request", "parts": parts})
    outputs = [result.output for result in results.tool_results]
    assert outputs == [ErrorTextOutput(value="bad"), ErrorJsonOutput(value=errors)]
    assert told == user_message("plain text is not allowed")
    assert feedback.content == (Custom(kind="pydantic-ai.retry-feedback", data=parts[3]),)


def test_what_the_provider_ran() -> None:
    call, answer = NativeToolCallPart("web_search", {"q": 1}, "n1"), NativeToolReturnPart("web_search", [1], "n1")
    (said,) = read(ModelResponse(parts=[call, answer]))
    assert said.content == (
        ToolCall(tool_call_id="n1", tool_name="web_search", input={"q": 1}, provider_executed=True),
        ToolResult(tool_call_id="n1", tool_name="web_search", output=JsonOutput(value=[1])),
    )
    (said,) = read(ModelResponse(parts=[answer]))
    assert [getattr(part, "kind", None) for part in said.content] == ["pydantic-ai.builtin-tool-return"]


def test_files_and_what_it_does_not_know() -> None:
    file = FilePart(BinaryContent(DATA, media_type="image/png"))
    (said,) = read(ModelResponse(parts=[file]))
    assert said.content == (File(data="//79", media_type="image/png"),)
    strange = {"part_kind": "dream", "content": "a"}
    (said,) = read({"kind": "response", "parts": [strange]})
    assert said.content == (Custom(kind="pydantic-ai.dream", data=strange),)


@pytest.mark.parametrize(("obj", "path"), [(5, "$"), ([{"kind": "thought"}], "$[0].kind")])
def test_what_is_no_message_is_refused(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_pydantic_ai(obj)
    assert caught.value.path == path
