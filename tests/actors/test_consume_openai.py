from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from parlatory.actors.consume_openai import ChatReader
from parlatory.actors.consume_ops import Begin, Call, Op, Say, Think


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def calls(*pieces: dict[str, Any]) -> dict[str, Any]:
    return chunk({"tool_calls": list(pieces)})


def read(*events: object) -> tuple[ChatReader, list[Op]]:
    reader = ChatReader()
    return reader, [op for event in events for op in reader.feed(event)]


def test_text_and_refusals_are_text() -> None:
    reader, ops = read(chunk({"content": "a"}), chunk({"content": ""}), chunk({"refusal": "no"}), chunk(None, "stop"))
    assert ops == [Say("a"), Say("no")]
    assert reader.stop_reason == "stop"


def test_objects_are_read_like_dicts() -> None:
    choice = SimpleNamespace(index=0, delta=SimpleNamespace(content="a"), finish_reason="length")
    reader, ops = read(SimpleNamespace(choices=[choice], usage=SimpleNamespace(total_tokens=3)))
    assert ops == [Say("a")]
    assert (reader.stop_reason, reader.usage) == ("length", {"total_tokens": 3})


def test_the_first_choice_counts() -> None:
    assert read(chunk({"content": "b"}, "stop", index=1), {"choices": []}, {}, {"choices": None})[1] == []


def test_reasoning_of_two_spellings() -> None:
    _, ops = read(
        chunk({"reasoning_content": "a"}),
        chunk({"reasoning": "b"}),
        chunk({"content": "c"}),
        chunk({"reasoning": "d"}),
        chunk({"reasoning": {"of": "another kind"}}),
    )
    assert ops == [Begin({}), Think("a"), Think("b"), Say("c"), Begin({}), Think("d")]


def test_a_call_is_told_when_it_is_whole() -> None:
    events = [
        calls({"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a'}}),
        calls({"index": 1, "id": "c2", "function": {"name": "g", "arguments": ""}}),
        calls({"index": 0, "id": "", "function": {"name": "f", "arguments": '": 1}'}}),
    ]
    assert read(*events)[1] == []
    assert read(*events, chunk({}, "tool_calls"))[1] == [Call("c1", "f", '{"a": 1}'), Call("c2", "g", "")]


def test_calls_that_are_all_numbered_0() -> None:
    _, ops = read(
        calls({"id": "c1", "function": {"name": "f", "arguments": "{}"}}, {"id": "c2", "function": {"name": "g"}}),
        calls({"index": 0, "id": "c2", "function": {"arguments": "{}"}}, {"index": 0, "function": None}),
        chunk({}, "stop"),
        chunk({}, "stop"),
    )
    assert ops == [Call("c1", "f", "{}"), Call("c2", "g", "{}")]


def test_reasoning_behind_calls_is_another_one() -> None:
    call = calls({"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}})
    _, ops = read(chunk({"reasoning": "a"}), call, chunk({}, "tool_calls"), chunk({"reasoning": "b"}))
    assert ops == [Begin({}), Think("a"), Call("c1", "f", ""), Begin({}), Think("b")]


def test_the_helper_s_events() -> None:
    _, ops = read({"type": "chunk", "chunk": chunk({"content": "a"})}, {"type": "content.delta", "delta": "a"})
    assert ops == [Say("a")]
