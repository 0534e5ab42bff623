"""Messages of the AI SDK to ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from parlatory.storage.codec import check_message
from parlatory.storage.convert.from_ai_sdk import from_ai_sdk
from parlatory.storage.errors import CodecError
from parlatory.storage.messages import (
    ContentOutput,
    Custom,
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

URL = "https://x.test/a.png"
CALL = {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {"q": 1}}
ASKED = ToolCall(tool_call_id="c1", tool_name="find", input={"q": 1})


def read(obj: object) -> list[Message]:
    found = from_ai_sdk(obj)
    for message in found:
        check_message(message)
    return found


def result(output: ToolOutput, **fields: Any) -> ToolResult:
    return ToolResult(tool_call_id="c1", tool_name="find", output=output, **fields)


def test_messages_for_models() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image", "image": URL}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a", "x": 1}, CALL]},
        {
            "role": "tool",
            "content": [
                {"type": "tool-result", "toolCallId": "c1", "toolName": "find", "output": {"type": "json", "value": 1}}
            ],
        },
        {"role": "assistant", "content": "b", "id": "m", "createdAt": "now"},
        {"role": "user", "content": []},
    ]
    expected = [
        system_message("s"),
        user_message([Text(text="q"), Image(url=URL)]),
        assistant_message([Text(text="a", provider_options={"ai-sdk": {"x": 1}}), ASKED]),
        tool_message([result(JsonOutput(value=1))]),
        assistant_message("b", id="m", metadata={"ai-sdk": {"createdAt": "now"}}),
        user_message([]),
    ]
    assert read(messages) == read(json.dumps(messages)) == read({"response": {"messages": messages}}) == expected


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"anthropic": {"signature": "s"}}, Reasoning(text="t", signature="s", provider="anthropic")),
        ({"anthropic": {"redactedData": "z"}}, Reasoning(text="t", data="z", provider="anthropic")),
        (
            {"openai": {"itemId": "rs_1", "reasoningEncryptedContent": "e", "x": 1}, "a": {"b": 1}},
            Reasoning(
                text="t",
                id="rs_1",
                data="e",
                provider="openai",
                provider_options={"openai": {"x": 1}, "a": {"b": 1}},
            ),
        ),
        ({"google": {"thoughtSignature": "s"}}, Reasoning(text="t", signature="s", provider="google")),
        ({"google": {}}, Reasoning(text="t", provider_options={"google": {}})),
    ],
)
def test_reasoning(options: dict[str, Any], part: Reasoning) -> None:
    thought = {"type": "reasoning", "text": "t"}
    assert read({"role": "assistant", "content": [{**thought, "providerOptions": options}]})[0].content == (part,)
    shown = {"id": "m", "role": "assistant", "parts": [{**thought, "state": "done", "providerMetadata": options}]}
    assert read(shown)[0].content == (part,)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"type": "text", "value": "x"}, result(TextOutput(value="x"))),
        ({"type": "execution-denied", "reason": "no"}, result(ExecutionDenied(reason="no"))),
        (
            {"type": "content", "value": [{"type": "text", "text": "x"}, {"type": "file-url", "url": URL}]},
            result(ContentOutput(value=(Text(text="x"), File(url=URL, media_type="application/octet-stream")))),
        ),
        (
            {"type": "content", "value": [{"type": "custom", "x": 1}]},
            result(JsonOutput(value=[{"type": "custom", "x": 1}])),
        ),
        (
            {"type": "text", "value": "x", "providerOptions": {"a": {}}},
            result(TextOutput(value="x"), provider_options={"ai-sdk": {"output": {"a": {}}}}),
        ),
    ],
)
def test_results(output: dict[str, Any], expected: ToolResult) -> None:
    part = {"type": "tool-result", "toolCallId": "c1", "toolName": "find", "output": output}
    assert read({"role": "tool", "content": [part]}) == [tool_message([expected])]


def test_what_a_log_has_no_place_for_is_kept_beside() -> None:
    asked = {"type": "tool-approval-request", "approvalId": "a", "toolCallId": "c1"}
    answered = {"type": "tool-approval-response", "approvalId": "a", "approved": True}
    part = {"type": "tool-result", "toolCallId": "c1", "toolName": "find", "output": "x"}
    found = read([{"role": "assistant", "content": [CALL, asked]}, {"role": "tool", "content": [answered, part]}])
    assert found == [
        assistant_message([ASKED, Custom(kind="ai-sdk.tool-approval-request", data=asked)]),
        assistant_message([Custom(kind="ai-sdk.tool-approval-response", data=answered)]),
        tool_message([result(TextOutput(value="x"))]),
    ]
    vendor = {"type": "custom", "kind": "vendor.thing", "x": 1}
    assert read({"role": "assistant", "content": [vendor]})[0].content == (Custom(kind="vendor.thing", data=vendor),)


def tool(state: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool-find", "toolCallId": "c1", "state": state, "input": {"q": 1}, **fields}


def test_messages_for_a_user_interface() -> None:
    asked = {
        "id": "u",
        "role": "user",
        "metadata": {"a": 1},
        "parts": [
            {"type": "text", "text": "q"},
            {"type": "file", "url": URL, "mediaType": "image/png", "filename": "n"},
        ],
    }
    said = {
        "id": "m",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            tool("output-available", output={"a": 1}),
            {"type": "step-start"},
            {"type": "text", "text": "a", "state": "done", "providerMetadata": {"openai": {"itemId": "i"}}},
            {"type": "source-url", "sourceId": "s", "url": URL},
        ],
    }
    assert read([{"id": "s", "role": "system", "parts": [{"type": "text", "text": "s"}]}, asked, said]) == [
        system_message("s", id="s"),
        user_message([Text(text="q"), Image(url=URL, media_type="image/png", filename="n")], id="u", metadata={"a": 1}),
        assistant_message([ASKED], id="m"),
        tool_message([result(JsonOutput(value={"a": 1}))]),
        assistant_message(
            [
                Text(text="a", provider_options={"openai": {"itemId": "i"}}),
                Custom(kind="ai-sdk.source-url", data={"type": "source-url", "sourceId": "s", "url": URL}),
            ]
        ),
    ]
    assert read({"role": "assistant", "parts": []}) == [assistant_message("")]


@pytest.mark.parametrize(
    ("part", "output"),
    [
        (tool("output-available", output="x"), TextOutput(value="x")),
        (tool("output-error", errorText="e"), ErrorTextOutput(value="e")),
        (tool("output-denied", approval={"id": "a", "reason": "no"}), ExecutionDenied(reason="no")),
        ({**tool("output-denied"), "type": "dynamic-tool", "toolName": "find"}, ExecutionDenied()),
    ],
)
def test_ends_of_tools(part: dict[str, Any], output: ToolOutput) -> None:
    called, answer = read({"role": "assistant", "parts": [part]})
    assert called.tool_calls == (ASKED,)
    assert answer.tool_results == (result(output),)


def test_tools_that_have_no_end() -> None:
    assert read({"role": "assistant", "parts": [tool("input-available")]}) == [assistant_message([ASKED])]
    streaming = tool("input-streaming")
    (said,) = read({"role": "assistant", "parts": [streaming]})
    assert said.content == (Custom(kind="ai-sdk.tool-find", data=streaming),)


def test_tools_that_the_provider_runs() -> None:
    metadata = {"openai": {"itemId": "i"}}
    part = tool("output-available", output="x", providerExecuted=True, callProviderMetadata=metadata)
    (said,) = read({"role": "assistant", "parts": [part]})
    call = ToolCall(
        tool_call_id="c1",
        tool_name="find",
        input={"q": 1},
        provider_executed=True,
        provider_options=metadata,
    )
    assert said.content == (call, result(TextOutput(value="x")))


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (5, "$"),
        ([{"role": "user"}], "$[0].content"),
        ([{"role": "critic", "parts": []}], "$[0].role"),
        ({"role": "assistant", "content": [{"type": "tool-call"}]}, "$.content[0]"),
        ({"role": "assistant", "content": 5}, "$.content"),
    ],
)
def test_what_is_no_message_is_refused(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_ai_sdk(obj)
    assert caught.value.path == path
