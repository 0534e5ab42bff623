from __future__ import annotations

from typing import Any

import pytest

from parlatory.actors.consume_ops import Begin, Call, ModelFailed, Op, Put, Say, Seal, Think
from parlatory.actors.consume_responses import ResponsesReader


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def done(**item: Any) -> dict[str, Any]:
    return event("output_item.done", item=item)


def thought(delta: str, index: int = 0, item: str = "rs1") -> dict[str, Any]:
    return event("reasoning_summary_text.delta", delta=delta, summary_index=index, item_id=item)


def read(*events: object) -> tuple[ResponsesReader, list[Op]]:
    reader = ResponsesReader()
    return reader, [op for event in events for op in reader.feed(event)]


def test_text_and_refusals_are_text() -> None:
    text, refusal = (event(f"{kind}.delta", delta=kind) for kind in ("output_text", "refusal"))
    empty, whole = event("output_text.delta", delta=""), done(type="message", content=[{"text": "output_text"}])
    assert read(text, empty, refusal, whole)[1] == [Say("output_text"), Say("refusal")]


def test_calls_are_taken_when_they_are_done() -> None:
    _, ops = read(
        event("output_item.added", item={"type": "function_call", "call_id": "c1", "name": "f", "arguments": ""}),
        event("function_call_arguments.delta", delta="{}"),
        done(type="function_call", id="fc1", call_id="c1", name="f", arguments="{}"),
        done(type="function_call", id="fc2", name="g", arguments=""),
    )
    assert ops == [Call("c1", "f", "{}"), Call("fc2", "g", "")]


def test_reasoning_is_sealed_when_it_is_done() -> None:
    _, ops = read(
        thought("a"),
        thought("b"),
        thought("c", 1),
        event("reasoning_text.delta", delta="the thought itself", content_index=0, item_id="rs1"),
        done(type="reasoning", id="rs1", encrypted_content="xyz"),
        thought("d", item="rs2"),
        thought("", item="rs2"),
        done(type="reasoning", id="rs2"),
    )
    assert ops == [
        Begin({"provider": "openai", "id": "rs1"}),
        Think("a"),
        Think("b"),
        Think("\n\n"),
        Think("c"),
        Seal({"provider": "openai", "id": "rs1", "data": "xyz"}),
        Begin({"provider": "openai", "id": "rs2"}),
        Think("d"),
        Seal({"provider": "openai", "id": "rs2"}),
    ]


def test_reasoning_without_an_item_id() -> None:
    _, ops = read(event("reasoning_text.delta", delta="a", content_index=0), done(type="reasoning"))
    assert ops == [Begin({"provider": "openai"}), Think("a"), Seal({"provider": "openai"})]


def test_reasoning_that_was_not_streamed() -> None:
    part: dict[str, Any] = {"type": "reasoning", "text": "", "provider": "openai", "id": "rs1"}
    _, ops = read(
        done(type="reasoning", id="rs1", summary=[]),
        done(type="reasoning", id="rs1", encrypted_content="xyz"),
        done(type="reasoning", id="rs1", summary=[{"text": "a"}, {"text": "b"}]),
        done(type="reasoning", id="rs1", content=[{"text": "a"}, {}]),
    )
    assert ops == [Put({**part, "data": "xyz"}), Put({**part, "text": "a\n\nb"}), Put({**part, "text": "a\n\n"})]


def test_other_items_are_kept() -> None:
    item = {"type": "web_search_call", "id": "ws1", "status": "completed"}
    assert read(done(**item), event("web_search_call.completed"), {"type": "new"})[1] == [
        Put({"type": "custom", "kind": "openai.web_search_call", "data": item})
    ]


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        ({"status": "completed"}, "completed"),
        ({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "max_output_tokens"),
        ({}, "completed"),
    ],
)
def test_the_end(response: dict[str, Any], reason: str) -> None:
    reader, ops = read(event("incomplete", response={**response, "usage": {"total_tokens": 3}}))
    assert (ops, reader.stop_reason, reader.usage) == ([], reason, {"total_tokens": 3})
    assert read(event("completed", response=response))[0].usage is None


def test_failures() -> None:
    error = {"code": "server_error", "message": "sorry"}
    with pytest.raises(ModelFailed, match="the response failed: sorry") as raised:
        read(event("failed", response={"status": "failed", "error": error}))
    assert raised.value.reason == "server_error"
    with pytest.raises(ModelFailed, match="the response failed: sorry"):
        read({"type": "error", **error})
    with pytest.raises(ModelFailed, match="no reason given"):
        read({"type": "error"})
