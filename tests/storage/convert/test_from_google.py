"""Google's contents to messages, with the real SDK's objects."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import types

from parlatory.storage.codec import check_message
from parlatory.storage.convert.from_google import from_google
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
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

SIGNATURE = b"\xff\xfe\xfd"
BASE64 = "//79"
SIGNED = {"google": {"thoughtSignature": BASE64}}
CODE = types.Part(executable_code=types.ExecutableCode(code="1", language=types.Language.PYTHON))
PARTS = [
    types.Part(text="t", thought=True, thought_signature=SIGNATURE),
    types.Part(text="a", thought_signature=SIGNATURE),
    types.Part(text=""),
    types.Part(text="", thought_signature=SIGNATURE),
    types.Part(function_call=types.FunctionCall(name="find", args={"someKey": 1}), thought_signature=SIGNATURE),
    types.Part(function_call=types.FunctionCall(name="find")),
    types.Part(function_call=types.FunctionCall(name="run", id="x1", args={})),
    CODE,
]
SAID: list[Any] = [
    Reasoning(text="t", signature=BASE64, provider="google"),
    Text(text="a", provider_options=SIGNED),
    Text(text="", provider_options=SIGNED),
    ToolCall(tool_call_id="call_0", tool_name="find", input={"someKey": 1}, provider_options=SIGNED),
    ToolCall(tool_call_id="call_1", tool_name="find", input={}),
    ToolCall(tool_call_id="x1", tool_name="run", input={}),
    Custom(kind="google.executable_code", data={"executable_code": {"code": "1", "language": "PYTHON"}}),
]


def response() -> types.GenerateContentResponse:
    content = types.Content(role="model", parts=PARTS)
    candidates = [types.Candidate(content=content), types.Candidate(content=types.Content(parts=[CODE]))]
    return types.GenerateContentResponse(response_id="r1", candidates=candidates)


def read(obj: object) -> list[Message]:
    found = from_google(obj)
    for message in found:
        check_message(message)
    return found


def test_an_answer_of_the_sdk() -> None:
    answer = response()
    expected = [assistant_message(SAID, id="r1")]
    assert read(answer) == expected
    # The SDK writes its JSON with the URL-safe alphabet, and either spelling of the keys.
    assert read(answer.model_dump_json(exclude_none=True)) == read(answer.to_json_dict()) == expected
    (camel,) = read(answer.model_dump_json(exclude_none=True, by_alias=True))
    assert camel.content[:-1] == expected[0].content[:-1]
    assert read(PARTS) == [assistant_message(SAID)]


def test_an_answer_without_candidates() -> None:
    feedback = types.GenerateContentResponsePromptFeedback(block_reason=types.BlockedReason.SAFETY)
    assert read(types.GenerateContentResponse(prompt_feedback=feedback)) == []
    assert read(types.GenerateContentResponse(candidates=[types.Candidate(content=types.Content(role="model"))])) == []


def test_a_request() -> None:
    contents = [
        types.Content(
            role="user", parts=[types.Part(text="q"), types.Part.from_bytes(data=b"a", mime_type="image/png")]
        ),
        types.Content(role="model", parts=PARTS),
        types.Content(
            role="user",
            parts=[
                types.Part.from_function_response(name="find", response={"result": [1]}),
                types.Part.from_function_response(name="find", response={"error": "no"}),
                types.Part.from_uri(file_uri="gs://b/x.pdf", mime_type="application/pdf"),
            ],
        ),
        types.Content(role="user", parts=[]),
    ]
    found = read({"system_instruction": {"parts": [{"text": "s"}, {"text": ""}]}, "contents": contents})
    assert [message.role for message in found] == ["system", "user", "assistant", "tool", "user", "user"]
    assert found[0] == system_message("s")
    assert found[1] == user_message([Text(text="q"), Image(data="YQ==", media_type="image/png")])
    results = found[3].tool_results
    assert [(result.tool_call_id, result.tool_name) for result in results] == [("call_0", "find"), ("call_1", "find")]
    assert [result.output for result in results] == [JsonOutput(value=[1]), ErrorTextOutput(value="no")]
    assert found[4] == user_message([File(ref={"google": "gs://b/x.pdf"}, media_type="application/pdf")])
    assert found[5] == user_message("")
    config = types.GenerateContentConfig(system_instruction="s")
    assert read({"config": config, "contents": "q"}) == [system_message("s"), user_message("q")]


@pytest.mark.parametrize(
    ("response", "output"),
    [
        ({"response": {"result": "x"}}, TextOutput(value="x")),
        ({"response": {"result": None}}, JsonOutput(value=None)),
        ({"response": {"result": 1, "more": 2}}, JsonOutput(value={"result": 1, "more": 2})),
        ({"response": {"error": [1]}}, ErrorJsonOutput(value=[1])),
        ({}, JsonOutput(value=None)),
        (
            {
                "response": {"result": "x"},
                "parts": [{"inlineData": {"data": "YQ==", "mimeType": "image/png", "displayName": "n"}}],
            },
            ContentOutput(value=(Text(text="x"), Image(data="YQ==", media_type="image/png", filename="n"))),
        ),
        (
            {"parts": [{"fileData": {"fileUri": "https://x.test/a", "mimeType": "a/b"}}]},
            ContentOutput(value=(File(url="https://x.test/a", media_type="a/b"),)),
        ),
        (
            {"response": {"a": 1}, "parts": [{"fileData": {"fileUri": "https://x.test/a"}}]},
            JsonOutput(value={"response": {"a": 1}, "parts": [{"fileData": {"fileUri": "https://x.test/a"}}]}),
        ),
    ],
)
def test_results(response: dict[str, Any], output: ToolOutput) -> None:
    part = {"functionResponse": {"name": "find", "id": "c1", **response}}
    (message,) = read({"role": "function", "parts": [part]})
    assert message.tool_results[0].output == output
    assert message == tool_message(message.tool_results)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            {"text": "a", "partMetadata": {"x": 1}},
            Text(text="a", provider_options={"google": {"part_metadata": {"x": 1}}}),
        ),
        ({"inline_data": {}}, Custom(kind="google.inline_data", data={"inline_data": {}})),
        ({"tool_call": {"x": 1}}, Custom(kind="google.tool_call", data={"tool_call": {"x": 1}})),
        ({}, Custom(kind="google.part", data={})),
    ],
)
def test_parts(part: dict[str, Any], expected: object) -> None:
    assert read({"parts": [part]}) == [user_message((expected,))]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("obj", "path"), [(5, "$"), ({"role": "critic", "parts": []}, "$.role"), ({"parts": [5]}, "$.parts[0]")]
)
def test_what_is_no_content_is_refused(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_google(obj)
    assert caught.value.path == path
