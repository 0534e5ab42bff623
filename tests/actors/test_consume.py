from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any

import pytest

from parlatory.actors import Agent, Draft
from parlatory.actors.consume import reader_of
from parlatory.actors.consume_ops import ModelFailed
from parlatory.storage import Engine, StoredMessage, encode_message

from .fakes import Clock, steps
from .play import NAME, Play

Tell = Callable[[Draft], Awaitable[object]]


class Bot(Agent):
    """Answers with what the test does to the draft."""

    tell: Tell
    error: BaseException | None = None
    draft: Draft

    async def on_message(self, row: StoredMessage) -> None:
        async with self.reply() as draft:
            Bot.draft, Bot.error = draft, None
            try:
                await Bot.tell(draft)
            except (Exception, asyncio.CancelledError) as error:
                Bot.error = error
                raise


async def answer(engine: Engine, tell: Tell) -> tuple[Any, str | None]:
    """The content and the finish of the row that a draft became."""
    Bot.tell = staticmethod(tell)
    play = await Play.begin(engine, agent=Bot)
    await play.send("hi")
    await play.record.lane.join()
    rows = [row.stored(NAME) for row in await play.record.read(after=1)]
    await play.runtime.close()
    if not rows:
        return None, None
    return json.loads(encode_message(rows[-1].message))["content"], rows[-1].finish


class Stream:
    """A stream with what the SDKs' streams have: it opens, iterates and closes."""

    def __init__(self, *events: object) -> None:
        self.events = events
        self.entered = self.left = 0

    async def __aenter__(self) -> Stream:
        self.entered += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.left += 1

    async def __aiter__(self) -> AsyncIterator[object]:
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, asyncio.Event):
                await event.wait()
            else:
                yield event


def chat(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": {"total_tokens": 3}}


def call(id: str, name: str, arguments: str, index: int = 0) -> dict[str, Any]:
    return chat({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]})


@pytest.mark.parametrize(
    ("event", "name"),
    [
        ("a", "TextReader"),
        ({"object": "chat.completion.chunk", "choices": []}, "ChatReader"),
        ({"type": "chunk", "chunk": {}}, "ChatReader"),
        ({"type": "response.created"}, "ResponsesReader"),
        ({"type": "error", "message": "x"}, "ResponsesReader"),
        ({"type": "error", "error": {}}, "AnthropicReader"),
        ({"type": "message_start"}, "AnthropicReader"),
        ({"type": "new"}, "NoneType"),
        (b"a", "NoneType"),
    ],
)
def test_a_dialect_is_known_by_its_events(event: object, name: str) -> None:
    assert type(reader_of(event)).__name__ == name


async def test_any_iterator_of_text(engine: Engine) -> None:
    async def pieces() -> AsyncIterator[str]:
        for piece in ("Hel", "", "lo"):
            yield piece

    async def tell(draft: Draft) -> None:
        assert await draft.consume(pieces()) == []

    assert await answer(engine, tell) == ("Hello", None)
    assert Bot.error is None


async def test_text_that_is_mixed_with_something_else(engine: Engine) -> None:
    assert await answer(engine, lambda draft: draft.consume(Stream("a", 1, "b"))) == ("ab", None)


async def test_a_stream_is_opened_and_closed(engine: Engine) -> None:
    stream = Stream({"type": "new"}, chat({"content": "a"}), chat({}, "stop"))
    assert await answer(engine, lambda draft: draft.consume(stream)) == ("a", None)
    assert (stream.entered, stream.left) == (1, 1)
    assert (Bot.draft.stop_reason, Bot.draft.usage) == ("stop", {"total_tokens": 3})


async def test_a_stream_that_fails_is_closed(engine: Engine) -> None:
    stream = Stream(chat({"content": "a"}), ConnectionError("gone"))
    assert await answer(engine, lambda draft: draft.consume(stream)) == ("a", "error")
    assert isinstance(Bot.error, ConnectionError)
    assert stream.left == 1
    assert Bot.draft.usage == {"total_tokens": 3}


async def test_a_stream_s_own_timeout_is_its_own(engine: Engine) -> None:
    await answer(engine, lambda draft: draft.consume(Stream("a", TimeoutError("mine"))))
    assert str(Bot.error) == "mine"


async def test_a_stream_that_is_cut(engine: Engine) -> None:
    stream = Stream(chat({"content": "a"}), call("c1", "f", "{}"))
    assert await answer(engine, lambda draft: draft.consume(stream)) == ("a", "error")
    assert isinstance(Bot.error, ModelFailed)
    assert Bot.error.reason == "cut"


async def test_a_stall(engine: Engine, clock: Clock) -> None:
    stream = Stream("a", asyncio.Event())
    Bot.error = None
    answering = asyncio.create_task(answer(engine, lambda draft: draft.consume(stream, stall_s=7)))
    while not stream.entered:  # noqa: ASYNC110 - nobody tells of it
        await asyncio.sleep(0)
    await steps(5)
    await clock.advance(8)
    assert await answering == ("a", "error")
    assert str(Bot.error) == "nothing came from the model for 7 s"
    assert stream.left == 1


async def test_without_a_limit_nothing_stalls(engine: Engine) -> None:
    assert await answer(engine, lambda draft: draft.consume(Stream("a"), stall_s=None)) == ("a", None)


async def test_an_empty_stream_leaves_no_row(engine: Engine) -> None:
    assert await answer(engine, lambda draft: draft.consume(Stream())) == (None, None)
    assert Bot.error is None


@pytest.mark.parametrize("stream", [None, ["a"], 5])
async def test_what_is_no_stream(engine: Engine, stream: object) -> None:
    await answer(engine, lambda draft: draft.consume(stream))
    assert isinstance(Bot.error, TypeError)
    assert "async iterator of str" in str(Bot.error)


async def test_a_stream_of_something_else(engine: Engine) -> None:
    stream = Stream(b"a")
    await answer(engine, lambda draft: draft.consume(stream))
    assert str(Bot.error) == "consume does not know streams of bytes"
    assert stream.left == 1


DEEP = '{"a":' * 300 + "1" + "}" * 300


@pytest.mark.parametrize(
    ("arguments", "input", "invalid"),
    [
        ('{"a": 1}', {"a": 1}, None),
        ("", {}, None),
        ("{", {}, "{"),
        ("[1]", {}, "[1]"),
        ("\ud83d", {}, "?"),
        ('{"a": "\ud83d"}', {}, '{"a": "?"}'),
        (DEEP, {}, DEEP),
    ],
)
async def test_arguments(engine: Engine, arguments: str, input: object, invalid: str | None) -> None:
    """Whatever the model writes, the answer is stored."""
    stream = Stream(call("c1", "f", arguments), chat({}, "tool_calls"))

    async def tell(draft: Draft) -> None:
        (made,) = await draft.consume(stream)
        assert (made.input, made.invalid) == (input, invalid)

    part = {"type": "tool-call", "toolCallId": "c1", "toolName": "f", "input": input}
    assert await answer(engine, tell) == ([part | ({"invalid": invalid} if invalid else {})], None)
    assert Bot.error is None


async def test_arguments_that_are_an_object_already(engine: Engine) -> None:
    deep = json.loads(DEEP)
    start = {"type": "content_block_start", "index": 0}
    block = {"type": "tool_use", "id": "c1", "name": "f", "input": deep}
    stop = {"type": "content_block_stop", "index": 0}
    stream = Stream({**start, "content_block": block}, stop, {"type": "message_stop"})
    content, _ = await answer(engine, lambda draft: draft.consume(stream))
    assert json.loads(content[0]["invalid"]) == deep


async def test_calls_without_an_id_or_with_one_of_another(engine: Engine) -> None:
    first = [call("", "", "", 0), call("a", "f", "", 1), call("a", "g", "", 2), call("a", "h", "", 3)]

    async def tell(draft: Draft) -> None:
        await draft.consume(Stream(*first, chat({}, "tool_calls")))
        await draft.consume(Stream(call("a", "i", ""), chat({}, "tool_calls")))

    content, _ = await answer(engine, tell)
    assert [(part["toolCallId"], part["toolName"]) for part in content] == [
        ("call_0", "unknown"),
        ("a", "f"),
        ("a_2", "g"),
        ("a_3", "h"),
        ("a_4", "i"),
    ]


async def test_a_part_that_cannot_be_stored_is_left_out(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    item = {"type": "new_call", "data": json.loads(DEEP)}
    text = {"type": "response.output_text.delta", "delta": "a"}
    stream = Stream(
        {"type": "response.output_item.done", "item": item}, text, {"type": "response.completed", "response": {}}
    )
    assert await answer(engine, lambda draft: draft.consume(stream)) == ("a", None)
    assert "a part of a model's answer is left out" in caplog.text


async def test_an_answer_that_is_too_long(engine: Engine) -> None:
    item = {"type": "image_generation_call", "result": "x" * 1_100_000}
    stream = Stream({"type": "response.output_item.done", "item": item})
    await answer(engine, lambda draft: draft.consume(stream))
    assert type(Bot.error).__name__ == "TooLarge"
    assert stream.left == 1


async def test_reasoning_keeps_what_it_is_signed_with(engine: Engine) -> None:
    block, at = {"type": "thinking", "thinking": "a", "signature": "s"}, {"index": 0}
    more = {"type": "content_block_delta", **at, "delta": {"type": "thinking_delta", "thinking": "b"}}
    start, stop = {"type": "content_block_start", **at, "content_block": block}, {"type": "content_block_stop", **at}
    stream = Stream(start, more, stop, start, stop, {"type": "message_stop"})
    part = {"type": "reasoning", "signature": "s", "provider": "anthropic"}
    assert await answer(engine, lambda draft: draft.consume(stream)) == (
        [part | {"text": "ab"}, part | {"text": "a"}],
        None,
    )
