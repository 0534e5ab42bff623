"""Bytes and back: the append check, strict and tolerant reads, digests, and the paths of what is refused."""

from __future__ import annotations

import datetime
import enum
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from parlatory.storage.codec import (
    DEPTH_MAX,
    check_message,
    decode_message,
    encode_json,
    encode_message,
    message_digest,
    parse_message,
)
from parlatory.storage.errors import CodecError, TooLarge
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
    UnknownPart,
    UserMessage,
    assistant_message,
    system_message,
    tool_message,
    user_message,
)

texts = st.text(max_size=20)
names = st.text(min_size=1, max_size=10)
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=3)
options = st.none() | objects
sources = st.one_of(
    st.fixed_dictionaries({"data": st.sampled_from(["", "QQ==", "QUJD"])}),
    st.fixed_dictionaries({"url": st.sampled_from(["https://x.test/a", "data:text/plain,x"])}),
    st.fixed_dictionaries({"ref": st.dictionaries(names, names, min_size=1, max_size=2)}),
)
text_parts = st.builds(Text, text=texts, provider_options=options)
images = sources.flatmap(lambda source: st.builds(Image, media_type=st.none() | names, **lifted(source)))
files = sources.flatmap(lambda source: st.builds(File, media_type=names, filename=st.none() | texts, **lifted(source)))
customs = st.builds(Custom, kind=names, data=values)
thoughts = st.builds(Reasoning, text=texts, id=st.none() | names, signature=st.none() | names, data=st.none() | names)
calls = st.builds(ToolCall, tool_call_id=names, tool_name=names, input=objects, invalid=st.none() | texts)
outputs = st.one_of(
    st.builds(TextOutput, value=texts),
    st.builds(JsonOutput, value=values),
    st.builds(ErrorTextOutput, value=texts),
    st.builds(ErrorJsonOutput, value=values),
    st.builds(ExecutionDenied, reason=st.none() | texts),
    st.builds(ContentOutput, value=st.lists(text_parts | images | files, max_size=2).map(tuple)),
)
results = st.builds(ToolResult, tool_call_id=names, tool_name=names, output=outputs)
user_content = texts | st.lists(text_parts | images | files | customs, max_size=3)
assistant_content = texts | st.lists(
    text_parts | thoughts | files | calls | customs,
    max_size=3,
    unique_by=lambda part: part.tool_call_id if isinstance(part, ToolCall) else id(part),
)
common = {"id": st.none() | texts, "name": st.none() | st.just("ann"), "metadata": options, "provider_options": options}
messages = st.one_of(
    st.builds(system_message, texts, **common),
    st.builds(user_message, user_content, **common),
    st.builds(assistant_message, assistant_content, **common),
    st.builds(tool_message, st.lists(results, min_size=1, max_size=3), **common),
)


def lifted(source: dict[str, Any]) -> dict[str, Any]:
    return {key: st.just(value) for key, value in source.items()}


def turned(value: Any) -> Any:
    """Returns a JSON value with the keys of all objects in reverse order."""
    if isinstance(value, dict):
        return {key: turned(value[key]) for key in reversed(value)}
    return [turned(item) for item in value] if isinstance(value, list) else value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def result(output: ToolOutput) -> ToolResult:
    return ToolResult(tool_call_id="c1", tool_name="find", output=output)


def call(**fields: Any) -> ToolCall:
    return ToolCall(tool_call_id="c1", tool_name="find", input=fields)


def refused(message: Message) -> tuple[str, str]:
    with pytest.raises(CodecError) as caught:
        check_message(message)
    return caught.value.path, caught.value.reason


def unread(data: bytes) -> tuple[str, str]:
    with pytest.raises(CodecError) as caught:
        parse_message(data)
    return caught.value.path, caught.value.reason


@given(messages)
def test_what_is_stored_reads_back_equal(message: Message) -> None:
    body = check_message(message)
    assert decode_message(body) == parse_message(body) == parse_message(Raw(body)) == message
    assert encode_message(decode_message(body)) == body


@given(messages)
def test_the_digest_does_not_depend_on_the_order_of_keys(message: Message) -> None:
    body = encode_message(message)
    other = parse_message(json.dumps(turned(json.loads(body))).encode())
    assert message_digest(other) == message_digest(message)
    assert -(2**63) <= message_digest(message) < 2**63


def test_the_digest_tells_messages_apart() -> None:
    said: list[Message] = [
        user_message("a"),
        user_message("b"),
        assistant_message("a"),
        user_message("a", metadata={"a": 1}),
    ]
    assert len({message_digest(message) for message in said}) == 4


# ---- the append check ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        user_message("a\0b", metadata={"k\0": "a\0b"}),
        assistant_message([call(a="a\0b")]),
    ],
)
def test_t50_nul_comes_back_equal(message: Message) -> None:
    assert decode_message(check_message(message)) == message == parse_message(encode_message(message))


LONE = "x\ud83d"


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (user_message(LONE), "$.content"),
        (user_message("a", name=LONE), "$.name"),
        (user_message("a", metadata={"a": [1, {"b c": LONE}]}), '$.metadata.a[1]["b c"]'),
        (user_message("a", metadata={LONE: 1}), '$.metadata["x\\ud83d"]'),
        (user_message([Text(text="a"), Text(text=LONE)]), "$.content[1].text"),
        (assistant_message([call(q=LONE)]), "$.content[0].input.q"),
        (tool_message([result(JsonOutput(value=[LONE]))]), "$.content[0].output.value[0]"),
        (tool_message([result(ContentOutput(value=(Text(text=LONE),)))]), "$.content[0].output.value[0].text"),
    ],
)
def test_t51_a_lone_surrogate_is_refused_with_its_path(message: Message, path: str) -> None:
    assert refused(message) == (path, "holds a lone surrogate")


class Color(enum.StrEnum):
    RED = "red"


class Name(str):
    pass


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        b"bytes",
        datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC),
        Decimal("1.5"),
        (1, 2),
        (),
        {1, 2},
        object(),
        Name("x"),
        Text(text="a"),
        UnknownPart("x", Raw(b'{"type":"x"}')),
        10**5000,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_does_not_bring_back_is_refused_with_its_path(value: Any) -> None:
    assert refused(user_message("a", metadata={"ok": [1.5], "bad": [0, value]}))[0] == "$.metadata.bad[1]"
    assert refused(tool_message([result(JsonOutput(value=value))]))[0] == "$.content[0].output.value"
    assert refused(assistant_message([Custom(kind="a.b", data={"x": value})]))[0] == "$.content[0].data.x"
    with pytest.raises(CodecError) as caught:
        encode_json([value])
    assert caught.value.path == "$[0]"


@pytest.mark.parametrize("value", [100.0, 1e22, -0.0, 2**53 + 1, 2**64, -(2**70), True, Color.RED, "", [], {}])
def test_what_json_brings_back_is_kept(value: Any) -> None:
    message = user_message("a", metadata={"a": value})
    assert decode_message(check_message(message)).metadata == {"a": value}
    assert json.loads(encode_json({"a": value})) == {"a": value}


def test_keys_that_are_not_text_are_refused() -> None:
    assert refused(user_message("a", metadata={"a": {1: 2}})) == (
        "$.metadata.a",
        "has a key of type int; keys must be text",
    )


@pytest.mark.parametrize(
    ("message", "path"),
    [
        (UserMessage(content=b"x"), "$.content"),  # type: ignore[arg-type]
        (user_message([Text(text=5)]), "$.content[0].text"),  # type: ignore[arg-type]
        (user_message([Text(text=b"x")]), "$.content[0].text"),  # type: ignore[arg-type]
        (user_message("a", metadata=[1]), "$.metadata"),  # type: ignore[arg-type]
        (user_message("a", name=5), "$.name"),  # type: ignore[arg-type]
        (user_message("a", id=5), "$.id"),  # type: ignore[arg-type]
        (user_message([Image(data=5)]), "$.content[0].data"),  # type: ignore[arg-type]
        (user_message([Image(url=5)]), "$.content[0].url"),  # type: ignore[arg-type]
        (user_message([Image(ref={"a": 5})]), "$.content[0].ref"),  # type: ignore[dict-item]
        (assistant_message([ToolCall(tool_call_id="c", tool_name="n", input=[])]), "$.content[0].input"),  # type: ignore[arg-type]
        (tool_message([result(5)]), "$.content[0].output"),  # type: ignore[arg-type]
        (tool_message([result({"type": "text", "value": "a"})]), "$"),  # type: ignore[arg-type]
    ],
)
def test_wrong_types_are_refused_with_their_path(message: Message, path: str) -> None:
    assert refused(message)[0] == path


def test_the_rules_are_part_of_the_check() -> None:
    assert refused(tool_message([]))[0] == "$.content"


def test_a_message_over_the_limit_is_too_large() -> None:
    message = user_message("é" * 10)
    size = len(encode_message(message))
    assert check_message(message, max_bytes=size)
    with pytest.raises(TooLarge) as caught:
        check_message(message, max_bytes=size - 1)
    assert (caught.value.size, caught.value.limit, caught.value.code) == (size, size - 1, "too_large")
    with pytest.raises(TooLarge):
        check_message(user_message("x" * (1 << 20)))


def test_depth_has_a_limit() -> None:
    deepest = user_message("a", metadata={"v": nested(DEPTH_MAX - 2)})
    assert parse_message(check_message(deepest)) == deepest
    deeper = user_message("a", metadata={"v": nested(DEPTH_MAX - 1)})
    place = ("$.metadata.v" + "[0]" * (DEPTH_MAX - 2), f"nests deeper than {DEPTH_MAX} levels")
    assert refused(deeper) == place
    assert unread(encode_message(deeper)) == place
    with pytest.raises(CodecError):
        encode_json(nested(DEPTH_MAX + 1))


def test_brackets_in_text_are_no_depth() -> None:
    message = user_message('[{\\"' * 500 + '"', metadata={"a": [{}] * 300})
    assert parse_message(check_message(message)) == message


def test_a_cycle_is_refused() -> None:
    cycle: dict[str, Any] = {}
    cycle["a"] = cycle
    path, reason = refused(user_message("a", metadata=cycle))
    assert path.startswith("$.metadata.a.a")
    assert "nests deeper" in reason


# ---- strict reads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["seq", "at", "by", "turn", "toolCallId", "client_id"])
def test_unknown_fields_of_a_message_are_refused(field: str) -> None:
    data = json.dumps({"role": "user", "content": "a", field: 1}).encode()
    assert unread(data) == (f"$.{field}", "is unknown here")
    assert decode_message(data) == user_message("a")


@pytest.mark.parametrize(
    ("message", "path"),
    [
        ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "$.content[0].x"),
        ({"role": "user", "content": [{"type": "text", "text": "a", "x y": 1}]}, '$.content[0]["x y"]'),
        ({"role": "user", "content": [{"type": "x-new"}]}, "$.content[0].type"),
        ({"role": "user", "content": [{"type": "tool-call"}]}, "$.content[0].type"),
        ({"role": "user", "content": ["a"]}, "$.content[0]"),
        ({"role": "user", "content": None}, "$.content"),
        ({"role": "user"}, "$"),
        ({"role": "wizard", "content": "a"}, "$.role"),
        ({"role": 5, "content": "a"}, "$.role"),
        ({"content": "a"}, "$"),
        ({"role": "user", "content": "a", "metadata": [1]}, "$.metadata"),
        ({"role": "user", "content": [{"type": "image", "ref": {"a": 1}}]}, "$.content[0].ref"),
        (
            {
                "role": "tool",
                "content": [
                    {
                        "type": "tool-result",
                        "toolCallId": "c",
                        "toolName": "n",
                        "output": {"type": "json", "value": 1, "x": 1},
                    }
                ],
            },
            "$.content[0].output.x",
        ),
        (
            {
                "role": "tool",
                "content": [{"type": "tool-result", "toolCallId": "c", "toolName": "n", "output": {"type": "json"}}],
            },
            "$.content[0].output",
        ),
        ([], "$"),
        ("a", "$"),
        (None, "$"),
    ],
)
def test_what_is_no_message_is_refused_with_its_path(message: Any, path: str) -> None:
    assert unread(json.dumps(message).encode())[0] == path


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b'"content":"x\\ud83d"', "$.content"),
        (b'"content":"x","metadata":{"a":["\\udc00"]}', "$.metadata.a[0]"),
        (b'"content":"x","metadata":{"\\ud83d":1}', '$.metadata["\\ud83d"]'),
        (b'"content":"x","metadata":{"a":NaN}', "$.metadata.a"),
        (b'"content":"x","metadata":{"a":{"b":1e400}}', "$.metadata.a.b"),
        (b'"content":"\xff"', "$"),
        (b'"content":"x"', None),
        (b'"content":"x",', "$"),
        (b'"content":"x","metadata":{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "$"),
    ],
)
def test_t51_what_json_text_cannot_hold_is_refused_with_its_path(text: bytes, path: str | None) -> None:
    data = b'{"role":"user",' + text + b"}"
    if path is None:
        assert parse_message(data) == user_message("x")
    else:
        assert unread(data)[0] == path


def test_the_place_is_not_sought_in_much_of_a_stranger() -> None:
    assert unread(b'{"role":"user","content":"%s\\ud83d"}' % (b"x" * 70_000))[0] == "$"
    assert unread(b'{"role":"user","content":5,"metadata":{"a":"%s"}}' % (b"x" * 70_000))[0] == "$.content"


def test_reasons_stay_short() -> None:
    data = json.dumps({"role": "x" * 9999, "content": "a"}).encode()
    assert len(unread(data)[1]) <= 200
    data = json.dumps({"role": "user", "content": "a", "x" * 9999: 1}).encode()
    assert len(unread(data)[0]) <= 100


# ---- tolerant reads -----------------------------------------------------------------------------------------------

NEW = b'{"type":"x-new","deep":{"a": [1.50, "\\u00e9"]}}'
KNOWN = b'{"type":"text","text":"a"}'
OUTPUT = b'{"role":"tool","content":[{"type":"tool-result","toolCallId":"c1","toolName":"find","output":%s}]}'


@pytest.mark.parametrize("role", [b"user", b"assistant", b"tool"])
def test_t63_an_unknown_part_is_kept_verbatim(role: bytes) -> None:
    data = b'{"role":"%s","id":"m","content":[%s]}' % (role, NEW)
    message = decode_message(data)
    assert message.content == (UnknownPart("x-new", Raw(NEW)),)
    assert encode_message(message) == data == check_message(message)
    with pytest.raises(CodecError):
        parse_message(data)


def test_t63_the_parts_beside_it_are_read() -> None:
    data = b'{"role":"user","content":[%s,%s,%s]}' % (KNOWN, NEW, KNOWN)
    message = decode_message(data)
    assert message.content == (Text(text="a"), UnknownPart("x-new", Raw(NEW)), Text(text="a"))
    assert message.text == "aa"
    assert encode_message(message) == data


def test_t63_an_unknown_part_of_an_output_is_kept() -> None:
    data = OUTPUT % (b'{"type":"content","value":[%s,%s]}' % (KNOWN, NEW))
    message = decode_message(data)
    assert message == tool_message([result(ContentOutput(value=(Text(text="a"), UnknownPart("x-new", Raw(NEW)))))])
    assert encode_message(message) == data == check_message(message)


def test_t63_a_result_with_an_unknown_output_is_unknown() -> None:
    data = OUTPUT % NEW
    message = decode_message(data)
    assert [part.type for part in message.content if isinstance(part, UnknownPart)] == ["tool-result"]
    assert encode_message(message) == data == check_message(message)


def test_the_digest_of_an_unknown_part_does_not_depend_on_the_order_of_its_keys() -> None:
    one = decode_message(b'{"role":"user","content":[{"type":"x-new","a":1,"b":2}]}')
    two = decode_message(b'{"content":[{"b":2, "a":1, "type":"x-new"}],"role":"user"}')
    assert message_digest(one) == message_digest(two)


def test_unknown_fields_are_ignored() -> None:
    data = b'{"role":"user","new":1,"content":[{"type":"text","text":"a","new":1}]}'
    assert decode_message(data) == user_message([Text(text="a")])


@pytest.mark.parametrize(
    ("data", "path"),
    [
        (b'{"role":"user","content":[%s,{"type":"text","text":5}]}' % NEW, "$.content[1].text"),
        (b'{"role":"user","content":[%s,{"type":"reasoning","text":"a"}]}' % NEW, "$.content[1].type"),
        (b'{"role":"user","content":[%s,5]}' % NEW, "$.content[1]"),
        (b'{"role":"user","content":[%s,{"text":"a"}]}' % NEW, "$.content[1]"),
        (b'{"role":"user","content":[{"type":"x-new","a":"\xff"}]}', "$.content[0].type"),
        (b'{"role":"user","content":[%s],"metadata":5}' % NEW, "$.content[0].type"),
        (b'{"role":"wizard","content":[]}', "$.role"),
        (b'{"role":"user","content":5}', "$.content"),
        (b'{"role":"user"}', "$"),
        (b'{"role":"user","content":"\\ud83d"}', "$"),
        (b"nonsense", "$"),
        (OUTPUT % b'{"type":"text","value":5}', "$.content[0].output.value"),
        (OUTPUT % b'{"type":"content"}', "$.content[0].output"),
        (OUTPUT % b'{"type":"content","value":[%s,{"type":"text"}]}' % NEW, "$.content[0].output.value[1]"),
        (OUTPUT % b"5", "$.content[0].output"),
        (b'{"role":"tool","content":[{"type":"tool-result","toolName":"n"}]}', "$.content[0]"),
    ],
)
def test_what_is_known_and_broken_is_refused(data: bytes, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        decode_message(data)
    assert caught.value.path == path


@pytest.mark.parametrize(
    "raw", [b'{"type":"y"}', b"nonsense", b'{"type":"text","text":"a"}', b'{"type":"x","a":"\xff"}']
)
def test_an_unknown_part_that_is_not_what_it_says_is_refused(raw: bytes) -> None:
    refused(user_message([UnknownPart("x", Raw(raw))]))


def test_the_fault_is_found_beside_an_unknown_part() -> None:
    message = user_message([UnknownPart("x", Raw(b'{"type":"x"}'))], metadata={"a": float("nan")})
    assert refused(message)[0] == "$.metadata.a"
