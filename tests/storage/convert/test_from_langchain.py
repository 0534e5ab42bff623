"""LangChain's messages to ours, with the real package's objects."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
)

from parlatory.storage.codec import check_message
from parlatory.storage.convert.from_langchain import from_langchain
from parlatory.storage.errors import CodecError
from parlatory.storage.messages import (
    ContentOutput,
    Custom,
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
    user_message,
)

URL = "https://x.test/a"
ANTHROPIC = AIMessage(
    content=[
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "zz"},
        {"type": "text", "text": "a"},
        {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": 1}},
    ],
    tool_calls=[{"id": "t1", "name": "find", "args": {"q": 1}}],
    invalid_tool_calls=[{"id": "t2", "name": "find", "args": "{", "error": "e", "type": "invalid_tool_call"}],
    response_metadata={"model_provider": "anthropic"},
    id="m1",
)
CALLS = (
    ToolCall(tool_call_id="t1", tool_name="find", input={"q": 1}),
    ToolCall(tool_call_id="t2", tool_name="find", input={}, invalid="{"),
)


def read(obj: object) -> list[Message]:
    found = from_langchain(obj)
    for message in found:
        check_message(message)
    return found


def test_messages_of_the_package() -> None:
    assert read(SystemMessage("s", id="i")) == [system_message("s", id="i")]
    assert read(HumanMessage("q", name="ann")) == [user_message("q", name="ann")]
    assert read([AIMessage("a")]) == [assistant_message("a")]
    assert read(ChatMessage(content="a", role="assistant")) == [assistant_message("a")]
    assert read({"messages": [HumanMessage("")]}) == [user_message("")]
    assert read(AIMessageChunk(content="a") + AIMessageChunk(content="b")) == [assistant_message("ab")]
    assert read(SystemMessage([{"type": "text", "text": "a"}, "b"])) == [system_message("ab")]


def test_an_answer_of_anthropic() -> None:
    (said,) = read(ANTHROPIC)
    assert said.id == "m1"
    assert said.content[0] == Reasoning(text="t", signature="s", provider="anthropic")
    assert said.text == "a"
    assert said.tool_calls == CALLS
    for dumped in (message_to_dict(ANTHROPIC), ANTHROPIC.model_dump()):
        (read_back,) = read(dumped)
        assert read_back.content == (
            Reasoning(text="t", signature="s", provider="anthropic"),
            Reasoning(data="zz", provider="anthropic"),
            Text(text="a"),
            *CALLS,
        )


def test_an_answer_of_openai() -> None:
    content: list[str | dict[Any, Any]] = [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "t"}],
            "encrypted_content": "e",
        },
        {"type": "text", "text": "a", "annotations": []},
    ]
    answer = AIMessage(content, response_metadata={"model_provider": "openai"})
    (said,) = read([answer.model_dump()])
    assert said.content[0] == Reasoning(text="t", id="rs_1", data="e", provider="openai")
    extra = {"reasoning_content": "t", "refusal": "no", "parsed": {"a": 1}, "tool_calls": [{}]}
    (said,) = read(AIMessage("", additional_kwargs=extra))
    assert said.content == (Reasoning(text="t"), Text(text="no"))
    assert said.metadata == {"langchain": {"additional_kwargs": {"parsed": {"a": 1}}}}


def test_openai_dicts() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    assert read([{"role": "user", "content": "q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]) == [
        user_message("q"),
        assistant_message([ToolCall(tool_call_id="c1", tool_name="find", input={"q": 1})]),
    ]


@pytest.mark.parametrize(
    ("message", "output"),
    [
        (ToolMessage("x", tool_call_id="t1"), TextOutput(value="x")),
        (ToolMessage("x", tool_call_id="t1", status="error"), ErrorTextOutput(value="x")),
        (ToolMessage([{"type": "text", "text": "x"}], tool_call_id="t1"), TextOutput(value="x")),
        (ToolMessage([{"type": "image", "url": URL}], tool_call_id="t1"), ContentOutput(value=(Image(url=URL),))),
        (
            ToolMessage([{"type": "json", "json": 1}], tool_call_id="t1"),
            JsonOutput(value=[{"type": "json", "json": 1}]),
        ),
    ],
)
def test_results(message: BaseMessage, output: ToolOutput) -> None:
    said, answer = read([ANTHROPIC, message.model_dump()])
    (result,) = answer.tool_results
    assert (result.tool_call_id, result.tool_name, result.output) == ("t1", "find", output)


def test_what_only_the_application_knows_is_metadata() -> None:
    (answer,) = read(ToolMessage("x", tool_call_id="t1", name="find", artifact={"a": 1}, id="m"))
    assert answer.metadata == {"langchain": {"artifact": {"a": 1}}}
    assert (answer.id, answer.name, answer.tool_results[0].tool_name) == ("m", None, "find")
    assert read(FunctionMessage(content="x", name="find"))[0].tool_results[0].tool_name == "find"


@pytest.mark.parametrize(
    ("block", "part"),
    [
        ({"type": "image", "url": URL}, Image(url=URL)),
        ({"type": "image", "base64": "QQ==", "mime_type": "image/png"}, Image(data="QQ==", media_type="image/png")),
        ({"type": "image", "file_id": "f"}, Image(ref={"langchain": "f"})),
        ({"type": "image_url", "image_url": {"url": URL, "detail": "low"}}, Image(url=URL, detail="low")),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QQ=="}},
            Image(data="QQ==", media_type="image/png"),
        ),
        ({"type": "audio", "base64": "QQ==", "mime_type": "audio/wav"}, File(data="QQ==", media_type="audio/wav")),
        (
            {"type": "file", "base64": "QQ==", "mime_type": "a/b", "extras": {"filename": "n", "x": 1}},
            File(data="QQ==", media_type="a/b", filename="n", provider_options={"langchain": {"extras": {"x": 1}}}),
        ),
        (
            {"type": "text-plain", "text": "a", "mime_type": "text/plain", "title": "n"},
            File(data="YQ==", media_type="text/plain", filename="n"),
        ),
        (
            {"type": "text", "text": "a", "annotations": [1]},
            Text(text="a", provider_options={"langchain": {"annotations": [1]}}),
        ),
        ({"type": "image"}, Custom(kind="langchain.image", data={"type": "image"})),
        (
            {"type": "non_standard", "value": {"x": 1}},
            Custom(kind="langchain.non_standard", data={"type": "non_standard", "value": {"x": 1}}),
        ),
    ],
)
def test_blocks(block: dict[str, Any], part: object) -> None:
    assert read({"type": "human", "content": [block]}) == [user_message((part,))]  # type: ignore[arg-type]


def test_ids_that_the_package_makes_up_are_not_kept() -> None:
    message = HumanMessage([{"type": "image_url", "image_url": {"url": URL}}])
    assert read(message) == read(message) == [user_message([Image(url=URL)])]


def test_calls_that_stand_in_the_content_only() -> None:
    block = {"type": "tool_use", "id": "t1", "name": "find", "input": {"q": 1}}
    assert read({"type": "ai", "content": [block]})[0].tool_calls == CALLS[:1]


@pytest.mark.parametrize(("obj", "path"), [(5, "$"), (RemoveMessage("m"), "$.type"), ([{"content": "a"}], "$[0].type")])
def test_what_says_nothing_is_refused(obj: object, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        from_langchain(obj)
    assert caught.value.path == path
