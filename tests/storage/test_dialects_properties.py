"""Any message that a dialect can say comes back from it equal."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parlatory.storage import CodecError, Message, check_message, decode_message, encode_message, normalize
from parlatory.storage.messages import (
    Image,
    JsonOutput,
    Text,
    TextOutput,
    ToolCall,
    ToolMessage,
    ToolResult,
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
SAID = TEXT.filter(bool)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
INPUT = st.dictionaries(TEXT, JSON, max_size=3)
CALLS = st.lists(
    st.builds(ToolCall, tool_call_id=SAID, tool_name=SAID, input=INPUT, invalid=st.none()),
    max_size=3,
    unique_by=lambda call: call.tool_call_id,
)
NAMES = st.none() | st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=9)
DATA = st.binary(min_size=1, max_size=9)
IMAGES = st.lists(
    st.builds(Image, data=DATA.map(lambda data: base64.b64encode(data).decode()), media_type=st.just("image/png")),
    max_size=2,
)


@st.composite
def said(draw: st.DrawFn) -> Message:
    """An assistant's message: text, calls, or both."""
    text, calls = draw(TEXT), draw(CALLS)
    return assistant_message([*([Text(text=text)] if text else []), *calls] if calls else text)


ANSWERS = st.builds(
    lambda id, name, value: tool_message([ToolResult(tool_call_id=id, tool_name=name, output=TextOutput(value=value))]),
    SAID,
    SAID,
    TEXT,
)
MESSAGES = st.one_of(
    TEXT.map(system_message), st.builds(lambda text, name: user_message(text, name=name), TEXT, NAMES), said(), ANSWERS
)


def named(fields: dict[str, Any], message: Message) -> dict[str, Any]:
    return fields if message.name is None else {**fields, "name": message.name}


@given(MESSAGES)
def test_the_telnyx_form(message: Message) -> None:
    flat: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        calls = message.tool_calls
        flat["toolCalls"] = [{"id": call.tool_call_id, "name": call.tool_name, "args": call.input} for call in calls]
    if isinstance(message, ToolMessage):
        (result,) = message.tool_results
        flat |= {"toolCallId": result.tool_call_id, "name": result.tool_name}
    assert normalize(json.loads(json.dumps(named(flat, message)))) == message


@given(TEXT, IMAGES)
def test_the_jangts_form(text: str, images: list[Image]) -> None:
    flat = {"role": "user", "content": text, "images": [{"data": i.data, "mediaType": i.media_type} for i in images]}
    parts: list[Any] = [*([Text(text=text)] if text else []), *images]
    assert normalize(flat) == user_message(parts if images else text)


@given(MESSAGES, st.data())
def test_the_openai_form(message: Message, data: st.DataObject) -> None:
    flat: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        flat["tool_calls"] = [
            {
                "id": call.tool_call_id,
                "type": "function",
                "function": {"name": call.tool_name, "arguments": json.dumps(call.input)},
            }
            for call in message.tool_calls
        ]
        flat["content"] = message.text or data.draw(st.sampled_from(["", None]))
    if isinstance(message, ToolMessage):
        (result,) = message.tool_results
        flat |= {"tool_call_id": result.tool_call_id, "name": result.tool_name}
    assert normalize(named(flat, message)) == message


@given(MESSAGES | st.builds(lambda text, images: user_message([Text(text=text), *images]), TEXT, IMAGES), JSON)
def test_the_form_of_stately_and_the_ai_sdk(message: Message, value: Any) -> None:
    if isinstance(message, ToolMessage):
        (result,) = message.tool_results
        message = tool_message([result, ToolResult(tool_call_id="j", tool_name="j", output=JsonOutput(value=value))])
    fields = json.loads(encode_message(message))
    for part in fields["content"] if isinstance(fields["content"], list) else []:
        if part["type"] == "image":
            part["image"] = part.pop("data")
    assert normalize(fields) == message


FIELDS = ["content", "name", "toolCalls", "toolCallId", "tool_calls", "images", "metadata", "id", "refusal"]
SHAPES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer", "critic"])},
    optional=dict.fromkeys(
        FIELDS, JSON | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
    ),
)


@given(SHAPES)
def test_what_it_returns_can_be_stored_or_is_refused(obj: dict[str, Any]) -> None:
    before = json.dumps(obj)
    try:
        message = normalize(obj)
        assert decode_message(check_message(message)) == message
        assert normalize(message) is message
    except CodecError as error:
        assert error.path.startswith("$")
    assert json.dumps(obj) == before
