"""The dialects: what each form becomes, and what none of them explains is refused."""

from __future__ import annotations

import json
from types import MappingProxyType
from typing import Any

import pytest

from parlatory.storage.codec import check_message
from parlatory.storage.dialects import normalize, normalize_all, tool_input
from parlatory.storage.errors import CodecError
from parlatory.storage.messages import (
    AssistantMessage,
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
URL = "https://x.test/a.png"


def call(**fields: Any) -> ToolCall:
    return ToolCall(**{"tool_call_id": "c1", "tool_name": "find", "input": {"q": 1}, **fields})


def result(output: ToolOutput, name: str = "find") -> ToolResult:
    return ToolResult(tool_call_id="c1", tool_name=name, output=output)


def part(obj: dict[str, Any], role: str = "user") -> Any:
    message = normalize({"role": role, "content": [obj]})
    check_message(message)
    return message.content[0]


def refused(obj: object) -> tuple[str, str]:
    with pytest.raises(CodecError) as caught:
        normalize(obj)
    return caught.value.path, caught.value.reason


CANONICAL: list[Message] = [
    system_message("a"),
    user_message("a", name="ann", metadata={"tool_calls": None}, provider_options={"a": {"b": 1}}),
    user_message([Text(text="a"), Image(url="data:image/png;base64," + PNG), Custom(kind="a.b", data=None)]),
    user_message([File(data=PNG, media_type="image/png", filename="a"), Image(ref={"openai": "f"}, media_type="a/b")]),
    assistant_message(""),
    assistant_message([]),
    assistant_message([Reasoning(text="a", signature="s"), call(), call(tool_call_id="c2", input={}, invalid="{")]),
    assistant_message([call(provider_executed=True), result(JsonOutput(value=None))]),
    tool_message([result(ContentOutput(value=(Text(text="a"), Image(data=PNG)))), result(ErrorTextOutput(value="a"))]),
]


@pytest.mark.parametrize("message", CANONICAL)
def test_the_canonical_form_stays(message: Message) -> None:
    assert normalize(message) is message
    assert normalize(json.loads(check_message(message))) == message


def test_the_telnyx_form() -> None:
    assert normalize({"role": "user", "content": "a", "name": "ann"}) == user_message("a", name="ann")
    said = {"role": "assistant", "content": "a", "toolCalls": [{"id": "c1", "name": "find", "args": {"q": 1}}]}
    assert normalize(said) == assistant_message([Text(text="a"), call()])
    assert normalize({**said, "content": ""}) == assistant_message([call()])
    assert normalize({**said, "toolCalls": []}) == assistant_message("a")
    answer = {"role": "tool", "content": "x", "toolCallId": "c1"}
    assert normalize(answer) == tool_message([result(TextOutput(value="x"), "tool")])
    assert normalize({**answer, "name": "find"}) == tool_message([result(TextOutput(value="x"))])
    assert normalize({**answer, "tool_name": "find", "id": "m"}) == tool_message(
        [result(TextOutput(value="x"))], id="m"
    )
    assert normalize({**answer, "content": {"a": 1}}) == tool_message([result(JsonOutput(value={"a": 1}), "tool")])


def test_the_jangts_form() -> None:
    images = [URL, PNG, {"data": PNG, "mimeType": "image/png"}, {"url": URL}, b"abc"]
    assert normalize({"role": "user", "content": "a", "images": images}) == user_message(
        [
            Text(text="a"),
            Image(url=URL),
            Image(data=PNG),
            Image(data=PNG, media_type="image/png"),
            Image(url=URL),
            Image(data="YWJj"),
        ]
    )
    assert normalize({"role": "user", "content": "", "images": [URL]}) == user_message([Image(url=URL)])
    assert normalize({"role": "user", "content": "", "images": []}) == user_message("")


@pytest.mark.parametrize("field", ["images", "toolCalls", "toolCallId", "tool_calls"])
def test_flat_fields_are_refused_on_other_roles(field: str) -> None:
    for role in {"images": ["system", "assistant"], "toolCallId": ["user", "assistant"]}.get(field, ["user", "system"]):
        path, reason = refused({"role": role, "content": "a", field: []})
        assert (path, reason) == ("$." + {"tool_calls": "toolCalls"}.get(field, field), "is unknown here")


def test_the_openai_form() -> None:
    function = {"name": "find", "arguments": '{"q": 1}'}
    answer = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }
    assert normalize(answer) == assistant_message([call()])
    assert normalize({"role": "assistant", "content": None}) == assistant_message("")
    assert normalize({"role": "assistant", "content": "", "refusal": "no"}) == assistant_message([Text(text="no")])
    thought = {"role": "assistant", "content": "a", "reasoning_content": "t"}
    assert normalize(thought) == assistant_message([Reasoning(text="t"), Text(text="a")])
    assert normalize({"role": "developer", "content": [{"type": "text", "text": "a"}] * 2}) == system_message("aa")
    answered = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "x"}]}
    assert normalize(answered) == tool_message([result(TextOutput(value="x"), "tool")])


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, Image(url=URL, detail="low")),
        ({"type": "image_url", "image_url": URL}, Image(url=URL)),
        (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            Image(data=PNG, media_type="image/png"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "mp3"}},
            File(data="QQ==", media_type="audio/mpeg"),
        ),
        (
            {"type": "file", "file": {"file_data": "data:a/b;base64,QQ==", "filename": "f"}},
            File(data="QQ==", media_type="a/b", filename="f"),
        ),
        ({"type": "file", "file": {"file_id": "f"}}, File(ref={"openai": "f"}, media_type="application/octet-stream")),
        ({"type": "image", "image": URL, "mediaType": "image/png"}, Image(url=URL, media_type="image/png")),
        ({"type": "image", "image": PNG}, Image(data=PNG)),
        ({"type": "image", "image": b"abc", "media_type": "a/b"}, Image(data="YWJj", media_type="a/b")),
        ({"type": "image", "base64": PNG, "mime_type": "a/b"}, Image(data=PNG, media_type="a/b")),
        ({"type": "image", "data": None, "url": URL}, Image(url=URL)),
        ({"type": "file", "data": URL, "mediaType": "a/b"}, File(url=URL, media_type="a/b")),
        ({"type": "file", "data": {"type": "url", "url": URL}, "mediaType": "a/b"}, File(url=URL, media_type="a/b")),
        (
            {"type": "file", "data": {"type": "data", "data": b"abc"}, "mediaType": "a/b"},
            File(data="YWJj", media_type="a/b"),
        ),
        (
            {"type": "file", "data": {"type": "reference", "reference": {"openai": "f"}}, "mediaType": "a/b"},
            File(ref={"openai": "f"}, media_type="a/b"),
        ),
    ],
)
def test_media_of_the_dialects(obj: dict[str, Any], expected: Image | File) -> None:
    assert part(obj) == expected


def test_a_refusal_part_is_text() -> None:
    assert part({"type": "refusal", "refusal": "no"}, "assistant") == Text(text="no")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": 1}, {"input": {"a": 1}}),
        (MappingProxyType({"a": 1}), {"input": {"a": 1}}),
        ('{"a": 1}', {"input": {"a": 1}}),
        ("", {"input": {}}),
        (" \n", {"input": {}}),
        (None, {"input": {}}),
        ('{"a": ', {"input": {}, "invalid": '{"a": '}),
        ("[1]", {"input": {}, "invalid": "[1]"}),
        ("\ud83d", {"input": {}, "invalid": "\ud83d"}),
        ('{"a":' * 5000, {"input": {}, "invalid": '{"a":' * 5000}),
        (5, {"input": {}, "invalid": "5"}),
        ([1], {"input": {}, "invalid": "[1]"}),
    ],
)
def test_arguments_become_an_input(arguments: Any, expected: dict[str, Any]) -> None:
    assert tool_input(arguments) == expected


def test_calls_of_the_dialects() -> None:
    sdk = {"type": "tool-call", "toolCallId": "c1", "toolName": "find"}
    assert part({**sdk, "args": {"q": 1}}, "assistant") == call()
    assert part({**sdk, "input": '{"q": 1}', "provider_executed": True}, "assistant") == call(provider_executed=True)
    assert part({**sdk, "input": [1]}, "assistant") == call(input={}, invalid="[1]")
    for flat in (
        {"name": "find", "args": {"q": 1}, "id": "c1", "type": "tool_call"},
        {"toolName": "find", "input": {"q": 1}, "toolCallId": "c1", "type": "tool-call"},
    ):
        assert normalize({"role": "assistant", "tool_calls": [flat]}) == assistant_message([call()])
    bare = normalize({"role": "assistant", "toolCalls": [{"id": "c1", "name": "find"}]})
    assert bare == AssistantMessage(content=(call(input={}),))


def test_results_of_the_dialects() -> None:
    sdk = {"type": "tool-result", "toolCallId": "c1", "toolName": "find"}
    assert part({**sdk, "output": "x"}, "tool") == result(TextOutput(value="x"))
    assert part({**sdk, "output": {"type": "json", "value": 1}}, "tool") == result(JsonOutput(value=1))
    assert part({**sdk, "result": "x"}, "tool") == result(TextOutput(value="x"))
    assert part({**sdk, "result": None}, "tool") == result(JsonOutput(value=None))
    assert part({**sdk, "result": "x", "isError": True}, "tool") == result(ErrorTextOutput(value="x"))
    assert part({**sdk, "result": [1], "isError": True}, "tool") == result(ErrorJsonOutput(value=[1]))


def test_media_in_outputs_of_the_ai_sdk() -> None:
    value = [
        {"type": "text", "text": "a"},
        {"type": "image-data", "data": PNG, "mediaType": "image/png"},
        {"type": "image-url", "url": URL},
        {"type": "file-data", "data": "QQ==", "mediaType": "a/b"},
        {"type": "file-url", "url": URL},
        {"type": "media", "data": PNG, "mediaType": "image/png"},
        {"type": "media", "data": "QQ==", "mediaType": "a/b"},
    ]
    output = {"type": "content", "value": value}
    found = part({"type": "tool-result", "toolCallId": "c1", "toolName": "find", "output": output}, "tool")
    image, file = Image(data=PNG, media_type="image/png"), File(data="QQ==", media_type="a/b")
    far = File(url=URL, media_type="application/octet-stream")
    assert found.output.value == (Text(text="a"), image, Image(url=URL), file, far, image, file)


def test_tuples_may_stand_for_lists_of_parts() -> None:
    assert normalize({"role": "user", "content": ({"type": "text", "text": "a"},)}) == user_message([Text(text="a")])


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (5, "$"),
        ("a", "$"),
        ({}, "$"),
        ({"role": 5, "content": "a"}, "$.role"),
        ({"role": "function", "name": "a", "content": "a"}, "$.role"),
        ({"role": "user"}, "$.content"),
        ({"role": "user", "content": 5}, "$.content"),
        ({"role": "user", "content": ["a"]}, "$.content[0]"),
        ({"role": "user", "content": [{"type": []}]}, "$.content[0].type"),
        ({"role": "user", "content": [{"type": "x-new"}]}, "$.content[0].type"),
        ({"role": "user", "content": "a", "seq": 1}, "$.seq"),
        ({"role": "user", "content": "a", "metadata": {"a": b"x"}}, "$.metadata.a"),
        ({"role": "user", "content": "a\ud83d"}, "$.content"),
        ({"role": "user", "content": "a", "images": URL}, "$.images"),
        ({"role": "user", "content": "a", "images": [5]}, "$.images[0]"),
        ({"role": "user", "content": "a", "images": [{"image": 5}]}, "$.images[0].image"),
        ({"role": "user", "content": [{"type": "image", "image": URL, "data": PNG}]}, "$.content[0]"),
        ({"role": "user", "content": [{"type": "image", "image": URL, "url": URL}]}, "$.content[0]"),
        ({"role": "user", "content": [{"type": "image", "mediaType": "a/b", "media_type": "a/b"}]}, "$.content[0]"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "$.content[0].image_url"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "$.content[0].image_url.url"),
        ({"role": "user", "content": [{"type": "file", "file": {}}]}, "$.content[0].file.file_data"),
        ({"role": "user", "content": [{"type": "file", "data": "QQ=="}]}, "$.content[0]"),
        ({"role": "user", "content": [{"type": "file", "data": {"type": "text", "text": "a"}}]}, "$.content[0].data"),
        ({"role": "assistant", "content": [{"type": "image", "image": URL}]}, "$.content[0].type"),
        ({"role": "assistant", "toolCalls": {}}, "$.toolCalls"),
        ({"role": "assistant", "toolCalls": ["a"]}, "$.toolCalls[0]"),
        ({"role": "assistant", "toolCalls": [{"name": "a"}]}, "$.toolCalls[0].id"),
        ({"role": "assistant", "toolCalls": [{"id": "a", "name": "a", "args": {}, "input": {}}]}, "$.toolCalls[0]"),
        ({"role": "assistant", "toolCalls": [{"id": "a", "type": "custom"}]}, "$.toolCalls[0].type"),
        ({"role": "assistant", "toolCalls": [{"id": "a", "function": "a"}]}, "$.toolCalls[0].function"),
        ({"role": "assistant", "toolCalls": [{"id": 5, "name": "a"}]}, "$.content[0].toolCallId"),
        ({"role": "assistant", "content": "a", "annotations": [{}]}, "$.annotations"),
        ({"role": "system", "content": ["a"]}, "$.content[0]"),
        ({"role": "system", "content": [{"type": "image", "url": URL}]}, "$.content[0]"),
        ({"role": "tool", "toolCallId": "c"}, "$.content"),
        ({"role": "tool", "toolCallId": "c", "content": [{"type": "tool-result"}]}, "$.content[0]"),
        ({"role": "tool", "content": "a"}, "$.content[0].type"),
        (
            {
                "role": "tool",
                "content": [
                    {
                        "type": "tool-result",
                        "toolCallId": "c",
                        "toolName": "n",
                        "output": {"type": "content", "value": 5},
                    }
                ],
            },
            "$.content[0].output.value",
        ),
    ],
)
def test_what_no_dialect_explains_is_refused_with_its_path(obj: object, path: str) -> None:
    assert refused(obj)[0] == path


def test_the_object_is_left_as_it_was() -> None:
    obj = {"role": "assistant", "content": "a", "tool_calls": [{"id": "c1", "name": "find", "args": {}}]}
    before = json.dumps(obj)
    normalize(obj)
    assert json.dumps(obj) == before


def test_bytes_of_any_kind() -> None:
    for held in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        assert part({"type": "image", "image": held}) == Image(data="YWJj")
        assert normalize({"role": "user", "content": "", "images": [held]}) == user_message([Image(data="YWJj")])


@pytest.mark.parametrize("field", ["toolCalls", "images"])
def test_a_tool_s_answer_neither_calls_nor_shows(field: str) -> None:
    answer = {"role": "tool", "content": "x", "toolCallId": "c1"}
    assert refused({**answer, field: []}) == (f"$.{field}", "is unknown here")


def test_arrays() -> None:
    messages = [user_message("a"), assistant_message([call()])]
    assert normalize_all([{"role": "user", "content": "a"}, messages[1]]) == messages
    assert normalize_all(tuple(messages), trusted=True) == messages
    assert normalize_all([], trusted=True) == []


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        ({"role": "user", "content": "a"}, "$"),
        (None, "$"),
        ([user_message("a"), {"role": "user"}], "$[1].content"),
        ([user_message("a"), assistant_message([call(tool_name="")])], "$[1].content[0].toolName"),
    ],
)
def test_arrays_that_are_none(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        normalize_all(obj)
    assert caught.value.path == path


def test_a_trusted_array_is_looked_at_as_an_array_only() -> None:
    broken = assistant_message([call(tool_name="")])
    assert normalize_all([broken], trusted=True) == [broken]
    for obj, path in ((broken, "$"), ([broken, {"role": "user", "content": "a"}], "$[1]")):
        with pytest.raises(CodecError) as caught:
            normalize_all(obj, trusted=True)
        assert caught.value.path == path
