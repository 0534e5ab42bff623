"""OpenAI chat completions to messages, with the real SDK's objects."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from parlatory.storage.codec import check_message
from parlatory.storage.convert.from_openai import from_openai
from parlatory.storage.errors import CodecError
from parlatory.storage.messages import (
    ContentOutput,
    Custom,
    File,
    Image,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    TextOutput,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

URL = "https://x.test/a"
CITED = {"type": "url_citation", "url_citation": {"url": URL, "title": "t", "start_index": 0, "end_index": 1}}
PNG = "iVBORw0KGgo="


def completion(**message: Any) -> ChatCompletion:
    said = {"role": "assistant", "content": None, "refusal": None, **message}
    choices = [{"index": index, "finish_reason": "stop", "logprobs": None, "message": said} for index in range(2)]
    about = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
    return ChatCompletion.model_validate({**about, "choices": choices})


def read(obj: object) -> list[Message]:
    found = from_openai(obj)
    for message in found:
        check_message(message)
    return found


def call(id: str = "c1", name: str = "find", **fields: Any) -> ToolCall:
    return ToolCall(**{"tool_call_id": id, "tool_name": name, "input": {}, **fields})


def audio(format: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": "QQ==", "format": format}}


def test_an_answer_of_the_sdk() -> None:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": null}'}},
        {"id": "c2", "type": "function", "function": {"name": "find", "arguments": ""}},
        {"id": "c3", "type": "function", "function": {"name": "find", "arguments": "{"}},
        {"id": "c4", "type": "custom", "custom": {"name": "run", "input": '{"a": 1}'}},
    ]
    answer = completion(content="a", reasoning_content="t", refusal="no", annotations=[CITED], tool_calls=calls)
    expected = assistant_message(
        [
            Reasoning(text="t"),
            Text(text="a"),
            Text(text="no"),
            call(input={"q": None}),
            call("c2"),
            call("c3", invalid="{"),
            call("c4", "run", invalid='{"a": 1}', provider_options={"openai": {"type": "custom"}}),
        ],
        id="chatcmpl-1",
        provider_options={"openai": {"annotations": [CITED]}},
    )
    assert read(answer) == read(answer.model_dump_json()) == read(answer.model_dump()) == [expected]
    without_id = assistant_message(expected.content, provider_options=expected.provider_options)
    assert read(answer.choices[0].message) == read([answer.choices[0].message]) == [without_id]


def test_what_a_model_says_alone_is_text() -> None:
    assert read(completion(content="a")) == [assistant_message("a", id="chatcmpl-1")]
    assert read(completion()) == [assistant_message("", id="chatcmpl-1")]
    assert read(completion(content="", reasoning="t")) == [assistant_message([Reasoning(text="t")], id="chatcmpl-1")]
    assert read({"choices": []}) == []


def test_a_request() -> None:
    said = {"role": "assistant", "tool_calls": [{"id": "c1", "function": {"name": "find", "arguments": "{}"}}]}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "q", "name": "ann", "cache": 1},
        said,
        {"role": "tool", "tool_call_id": "c1", "content": "x"},
        {
            "role": "tool",
            "tool_call_id": "c9",
            "content": [{"type": "text", "text": "y"}, {"type": "text", "text": "z"}],
        },
        {"role": "user", "content": ""},
    ]
    assert read({"messages": messages}) == [
        system_message("ab"),
        user_message("q", name="ann", provider_options={"openai": {"cache": 1}}),
        assistant_message([call()]),
        tool_message([ToolResult(tool_call_id="c1", tool_name="find", output=TextOutput(value="x"))]),
        tool_message(
            [
                ToolResult(
                    tool_call_id="c9",
                    tool_name="tool",
                    output=ContentOutput(value=(Text(text="y"), Text(text="z"))),
                )
            ]
        ),
        user_message(""),
    ]


def test_the_functions_of_old() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}}
    messages = read([said, {"role": "function", "name": "find", "content": "x"}])
    assert messages[0].tool_calls == (call("call_0"),)
    assert messages[1].tool_results[0].tool_call_id == "call_0"


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, Image(url=URL, detail="low")),
        ({"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"}, Image(data=PNG, media_type="image/png")),
        (
            {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "mp3"}},
            File(data="QQ==", media_type="audio/mpeg"),
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "flac"}},
            File(data="QQ==", media_type="audio/flac"),
        ),
        ({"type": "file", "file": {"file_id": "f"}}, File(ref={"openai": "f"}, media_type="application/octet-stream")),
        (
            {"type": "file", "file": {"file_data": "data:a/b;base64,QQ==", "filename": "n"}, "x": 1},
            File(data="QQ==", media_type="a/b", filename="n", provider_options={"openai": {"x": 1}}),
        ),
        ({"type": "text", "text": "a", "x": 1}, Text(text="a", provider_options={"openai": {"x": 1}})),
        ({"type": "video", "v": 1}, Custom(kind="openai.video", data={"type": "video", "v": 1})),
        ({"type": "file", "file": {}}, Custom(kind="openai.file", data={"type": "file", "file": {}})),
    ],
)
def test_parts(block: dict[str, Any], part: object) -> None:
    assert read({"role": "user", "content": [block]}) == [user_message((part,))]  # type: ignore[arg-type]


def test_what_it_does_not_know_is_kept() -> None:
    audio = {"id": "a1", "data": "QQ==", "expires_at": 1, "transcript": "t"}
    strange = {"id": "c1", "type": "shell", "shell": {"line": "ls"}}
    (said,) = read({"role": "assistant", "audio": audio, "tool_calls": [strange]})
    assert said.content == (Custom(kind="openai.audio", data=audio), Custom(kind="openai.shell", data=strange))


def test_a_picture_that_a_model_said_is_a_file() -> None:
    picture = {"type": "image_url", "image_url": {"url": URL}}
    (said,) = read({"role": "assistant", "content": [picture]})
    assert said.content == (File(url=URL, media_type="application/octet-stream"),)


@pytest.mark.parametrize(
    ("obj", "path"),
    [
        (5, "$"),
        ("[", "$"),
        (object(), "$"),
        ([5], "$[0]"),
        ([{"role": "user", "content": "a"}, {"role": "critic", "content": "a"}], "$[1].role"),
        ({"role": "user", "content": 5}, "$.content"),
    ],
)
def test_what_is_no_message_is_refused(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_openai(obj)
    assert caught.value.path == path


def test_types_of_messages() -> None:
    messages = read(
        [{"role": "system", "content": "a"}, {"role": "user", "content": "a"}, {"role": "tool", "content": "a"}]
    )
    assert [type(message) for message in messages] == [SystemMessage, UserMessage, ToolMessage]
