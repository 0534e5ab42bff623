from __future__ import annotations

from typing import Any

import pytest

from parlatory.actors.consume_anthropic import AnthropicReader
from parlatory.actors.consume_ops import Begin, Call, ModelFailed, Op, Put, Say, Seal, Think

STOP = {"type": "content_block_stop", "index": 0}


def start(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": 0, "content_block": {"type": kind, **fields}}


def delta(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": f"{kind}_delta", **fields}}


def read(*events: object) -> tuple[AnthropicReader, list[Op]]:
    reader = AnthropicReader()
    return reader, [op for event in events for op in reader.feed(event)]


def test_text() -> None:
    events = [start("text", text="a"), delta("text", text="b"), delta("text", text=""), delta("citations"), STOP]
    own = {"type": "text", "text": "b", "snapshot": "ab"}  # what `messages.stream` adds
    assert read(*events, own)[1] == [Say("a"), Say("b")]


def test_an_empty_block_leaves_nothing() -> None:
    assert read(start("text", text=""), STOP, start("thinking", thinking="", signature=""), STOP)[1] == []


def test_signed_thinking() -> None:
    signed = delta("signature", signature="s")
    _, ops = read(start("thinking", thinking=""), delta("thinking", thinking="a"), signed, STOP)
    assert ops == [Begin({"provider": "anthropic"}), Think("a"), Seal({"signature": "s"})]
    assert read(start("thinking"), signed, STOP)[1] == [Begin({"provider": "anthropic"}), Seal({"signature": "s"})]
    assert read(start("thinking", thinking="a", signature="s"))[1] == ops


def test_redacted_thinking() -> None:
    part = {"type": "reasoning", "text": "", "data": "d", "provider": "anthropic"}
    assert read(start("redacted_thinking", data="d"), STOP)[1] == [Put(part)]


def test_calls_are_told_when_they_are_whole() -> None:
    call = start("tool_use", id="c1", name="f", input={})
    pieces = [delta("input_json", partial_json=piece) for piece in ("", '{"a"', ": 1}")]
    assert read(call, *pieces)[1] == []
    assert read(call, *pieces, STOP)[1] == [Call("c1", "f", '{"a": 1}')]
    assert read(call, STOP)[1] == [Call("c1", "f", {})]
    assert read(start("tool_use", id="c1", name="f", input={"a": 1}), STOP)[1] == [Call("c1", "f", {"a": 1})]


@pytest.mark.parametrize(("written", "input"), [("", {}), ('{"q": "x"}', {"q": "x"}), ("{", "{")])
def test_what_the_provider_ran_itself_is_kept(written: str, input: object) -> None:
    block = start("server_tool_use", id="s1", name="web_search", input={})
    (op,) = read(block, delta("input_json", partial_json=written), STOP)[1]
    data = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": input}
    assert op == Put({"type": "custom", "kind": "anthropic.server_tool_use", "data": data})


def test_usage_is_the_last_that_was_said_of_each() -> None:
    reader, _ = read(
        {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}},
        {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, "usage": {"output_tokens": 5, "x": None}},
        {"type": "message_delta", "delta": {}},
    )
    assert reader.usage == {"input_tokens": 3, "output_tokens": 5}
    assert reader.stop_reason is None
    list(reader.feed({"type": "message_stop"}))
    assert reader.stop_reason == "max_tokens"
    assert read({"type": "message_stop"})[0].stop_reason == "end_turn"


def test_what_it_does_not_know() -> None:
    unknown = {"type": "content_block_start", "index": 0}
    assert read({"type": "ping"}, {}, STOP, delta("text", text="of no block"), unknown, delta("new"), STOP)[1] == []


def test_an_error() -> None:
    with pytest.raises(ModelFailed, match="the message failed: Overloaded") as raised:
        read({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    assert raised.value.reason == "overloaded_error"
