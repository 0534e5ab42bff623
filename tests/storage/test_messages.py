"""The structs: shape in JSON, views, the functions that make messages."""

from __future__ import annotations

import msgspec
import pytest

from parlatory.storage.messages import (
    AssistantMessage,
    AssistantPart,
    ContentOutput,
    Custom,
    ErrorTextOutput,
    ExecutionDenied,
    Image,
    JsonOutput,
    Message,
    Reasoning,
    Text,
    TextOutput,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolResult,
    UnknownPart,
    UserMessage,
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

CALL = ToolCall(tool_call_id="c1", tool_name="find", input={"q": "x"})
UNKNOWN = UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new"}'))


def result(output: ToolOutput, id: str = "c1") -> ToolResult:
    return ToolResult(tool_call_id=id, tool_name="find", output=output)


def test_json_is_camel_case_tagged_and_without_absent_fields() -> None:
    call = ToolCall(tool_call_id="c1", tool_name="find", input={}, provider_executed=True)
    message = assistant_message([Text(text="a"), call], provider_options={"x": 1})
    assert msgspec.json.decode(msgspec.json.encode(message)) == {
        "role": "assistant",
        "providerOptions": {"x": 1},
        "content": [
            {"type": "text", "text": "a"},
            {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {}, "providerExecuted": True},
        ],
    }


def test_a_json_output_writes_null() -> None:
    assert msgspec.json.encode(JsonOutput(value=None)) == b'{"type":"json","value":null}'


def test_fields_are_keywords_and_frozen() -> None:
    with pytest.raises(TypeError):
        Text("a")  # type: ignore[call-arg, arg-type]
    with pytest.raises(AttributeError):
        Text(text="a").text = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (system_message("a"), "system"),
        (user_message("a"), "user"),
        (assistant_message("a"), "assistant"),
        (tool_message([result(TextOutput(value="a"))]), "tool"),
    ],
)
def test_every_message_has_role_and_views(message: Message, role: str) -> None:
    assert (message.role, message.text, message.tool_calls) == (role, "a", ())
    assert len(message.tool_results) == (role == "tool")


def test_text_joins_the_text_parts_only() -> None:
    parts: list[AssistantPart] = [Text(text="a"), Reasoning(text="thought"), CALL, Text(text="b"), UNKNOWN]
    assert assistant_message(parts).text == "ab"
    assert user_message([Text(text="a"), Image(url="https://x.test"), Text(text="b")]).text == "ab"


def test_text_of_tool_results_is_their_text_outputs() -> None:
    outputs: list[ToolOutput] = [
        TextOutput(value="a"),
        ErrorTextOutput(value="b"),
        JsonOutput(value="no"),
        ContentOutput(value=(Text(text="c"), Image(url="https://x.test"))),
        ExecutionDenied(reason="no"),
    ]
    assert tool_message(result(output, f"c{i}") for i, output in enumerate(outputs)).text == "abc"


def test_calls_and_results_are_listed_in_order() -> None:
    other = ToolCall(tool_call_id="c2", tool_name="find", input={})
    answer = result(TextOutput(value="a"))
    said = assistant_message([CALL, Text(text="a"), other, answer])
    assert (said.tool_calls, said.tool_results) == ((CALL, other), (answer,))
    assert ToolMessage(content=(answer, UNKNOWN)).tool_results == (answer,)


def test_lists_become_tuples() -> None:
    assert user_message([Text(text="a")]) == UserMessage(content=(Text(text="a"),))
    assert assistant_message([Text(text="a")], name="bot") == AssistantMessage(content=(Text(text="a"),), name="bot")
    assert isinstance(tool_message([result(TextOutput(value="a"))]).content, tuple)


def test_parts_name_their_type_and_hash() -> None:
    assert [CALL.type, Custom(kind="a.b", data=None).type, JsonOutput(value=1).type] == ["tool-call", "custom", "json"]
    assert hash(user_message([Text(text="a")])) == hash(user_message([Text(text="a")]))


def test_unknown_parts_compare_by_their_text() -> None:
    same = UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new"}'))
    assert same == UNKNOWN
    assert hash(same) == hash(UNKNOWN)
    assert UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new","a":1}')) != UNKNOWN
    assert UNKNOWN != Text(text="x")
    assert repr(UNKNOWN) == """UnknownPart('x-new', b'{"type":"x-new"}')"""
