"""OpenAI responses to messages, with the real SDK's objects."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response

from parlatory.storage.codec import check_message
from parlatory.storage.convert.from_openai_responses import from_openai_responses
from parlatory.storage.errors import CodecError
from parlatory.storage.messages import (
    ContentOutput,
    Custom,
    File,
    Image,
    Message,
    Reasoning,
    Text,
    TextOutput,
    ToolCall,
    ToolResult,
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

URL = "https://x.test/a"
PNG = "iVBORw0KGgo="
CITATION = {"type": "url_citation", "url": "https://x.test", "title": "t", "start_index": 0, "end_index": 1}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "q"}}
OUTPUT: list[dict[str, Any]] = [
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "t"}, {"type": "summary_text", "text": "u"}],
        "encrypted_content": "enc",
    },
    SEARCH,
    {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "a", "annotations": [CITATION], "logprobs": []},
            {"type": "refusal", "refusal": "no"},
        ],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'},
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "c2", "name": "run", "input": "{}"},
]
SAID: list[Any] = [
    Reasoning(text="t\n\nu", id="rs_1", data="enc", provider="openai"),
    Custom(kind="openai.web_search_call", data=SEARCH),
    Text(text="a", provider_options={"openai": {"annotations": [CITATION]}}),
    Text(text="no"),
    ToolCall(tool_call_id="c1", tool_name="find", input={"q": 1}),
    ToolCall(
        tool_call_id="c2",
        tool_name="run",
        input={},
        invalid="{}",
        provider_options={"openai": {"type": "custom"}},
    ),
]


def response() -> Response:
    about = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "instructions": "be"}
    choice = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return Response.model_validate({**about, **choice, "output": OUTPUT})


def read(obj: object) -> list[Message]:
    found = from_openai_responses(obj)
    for message in found:
        check_message(message)
    return found


def test_an_answer_of_the_sdk() -> None:
    answer = response()
    expected = [assistant_message(SAID, id="resp_1")]
    assert (
        read(answer)
        == read(answer.model_dump_json(exclude_unset=True))
        == read(answer.model_dump(exclude_unset=True))
        == expected
    )
    assert read(answer.output) == read(OUTPUT) == [assistant_message(SAID)]


def test_a_request() -> None:
    picture = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"}
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "user", "content": [{"type": "input_text", "text": "look"}, picture]},
        *OUTPUT,
        {"type": "function_call_output", "call_id": "c1", "output": "x", "status": "completed"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [picture]},
        {"type": "message", "role": "developer", "content": "s"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": ""},
    ]
    image = Image(data=PNG, media_type="image/png")
    assert read({"instructions": "be", "input": items}) == [
        system_message("be"),
        user_message("q"),
        user_message([Text(text="look"), image]),
        assistant_message(SAID),
        tool_message(
            [
                ToolResult(tool_call_id="c1", tool_name="find", output=TextOutput(value="x")),
                ToolResult(tool_call_id="c2", tool_name="run", output=ContentOutput(value=(image,))),
            ]
        ),
        system_message("s"),
        assistant_message("b"),
        user_message(""),
    ]
    assert read({"input": "q"}) == [user_message("q")]
    assert read({"input": [], "instructions": [{"role": "system", "content": "s"}]}) == [system_message("s")]


def test_two_messages_in_a_row_are_two() -> None:
    said = {"type": "message", "role": "assistant", "content": "a"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    found = read({"id": "resp_1", "output": [said, SEARCH, said, thought, said]})
    assert found == [
        assistant_message([Text(text="a"), Custom(kind="openai.web_search_call", data=SEARCH)], id="resp_1"),
        assistant_message([Text(text="a"), Reasoning(id="rs_1", provider="openai"), Text(text="a")]),
    ]


def test_reasoning() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]}
    assert read(thought) == [assistant_message([Reasoning(text="t", id="rs_1", provider="openai")])]
    both = {**thought, "summary": [{"type": "summary_text", "text": "s"}]}
    kept = {"openai": {"content": thought["content"]}}
    assert read(both) == [assistant_message([Reasoning(text="s", id="rs_1", provider="openai", provider_options=kept)])]
    alone = {"type": "reasoning", "id": "rs_1", "summary": []}
    assert read(alone) == [assistant_message([Reasoning(id="rs_1", provider="openai")])]


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "input_image", "file_id": "f", "detail": "low"}, Image(ref={"openai": "f"}, detail="low")),
        ({"type": "input_file", "file_url": URL}, File(url=URL, media_type="application/octet-stream")),
        (
            {"type": "input_file", "file_data": "data:a/b;base64,QQ==", "filename": "n"},
            File(data="QQ==", media_type="a/b", filename="n"),
        ),
        ({"type": "input_image"}, Custom(kind="openai.input_image", data={"type": "input_image"})),
        ({"type": "input_text"}, Custom(kind="openai.input_text", data={"type": "input_text"})),
        ({"type": "input_audio", "x": 1}, Custom(kind="openai.input_audio", data={"type": "input_audio", "x": 1})),
    ],
)
def test_parts(block: dict[str, Any], part: object) -> None:
    assert read({"role": "user", "content": [block]}) == [user_message((part,))]  # type: ignore[arg-type]


def test_calls_without_what_they_need() -> None:
    items = [{"type": "function_call", "name": "find", "arguments": "{}"}] * 2
    (said,) = read(items)
    assert [call.tool_call_id for call in said.tool_calls] == ["call_0", "call_1"]
    (said,) = read([{"type": "function_call", "call_id": "c"}] * 2)
    assert [(call.tool_call_id, call.tool_name) for call in said.tool_calls] == [("c", "unknown"), ("c_1", "unknown")]


@pytest.mark.parametrize(
    ("obj", "path"), [(5, "$"), ([{"role": "critic", "content": "a"}], "$[0].role"), ({"input": [5]}, "$[0]")]
)
def test_what_is_no_item_is_refused(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_openai_responses(obj)
    assert caught.value.path == path
