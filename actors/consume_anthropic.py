"""Reads Anthropic's messages: blocks by index, each with a start, deltas and a stop.

`messages.stream` gives the raw events and, beside each, its own reading of it (`text`, `thinking`, `input_json`); only
the raw ones count here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .consume_ops import Begin, Call, ModelFailed, Op, Put, Say, Seal, Think, field, plain, text_field

__all__ = ["EVENTS", "AnthropicReader"]

EVENTS = frozenset(
    ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")
    + ("message_stop", "ping")
)


class _Block:
    """Is a block between its start and its stop."""

    __slots__ = ("begun", "json", "start")

    def __init__(self, start: object) -> None:
        self.start = start
        self.begun = False
        self.json: list[str] = []


class AnthropicReader:
    """Reads message events. An empty block leaves nothing, unless it is signed thinking."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self._stop_reason: str | None = None
        self._blocks: dict[int, _Block] = {}

    def feed(self, event: object) -> Iterator[Op]:
        """Returns what an event does.

        Raises:
            ModelFailed: the event is an error.
        """
        match field(event, "type"):
            case "content_block_delta":
                if block := self._blocks.get(field(event, "index")):
                    yield from self._grow(block, field(event, "delta"))
            case "content_block_start":
                block = self._blocks[field(event, "index")] = _Block(field(event, "content_block"))
                yield from self._start(block)
            case "content_block_stop":
                if block := self._blocks.pop(field(event, "index"), None):
                    yield from self._stop(block)
            case "message_start":
                self._count(field(field(event, "message"), "usage"))
            case "message_delta":
                self._stop_reason = field(field(event, "delta"), "stop_reason") or self._stop_reason
                self._count(field(event, "usage"))
            case "message_stop":
                self.stop_reason = self._stop_reason or "end_turn"
            case "error":
                error = field(event, "error")
                reason = field(error, "type")
                raise ModelFailed(f"the message failed: {field(error, 'message') or reason}", reason)

    def _start(self, block: _Block) -> Iterator[Op]:
        match field(block.start, "type"):
            case "text":
                if text := text_field(block.start, "text"):
                    yield Say(text)
            case "thinking":
                yield from self._think(block, text_field(block.start, "thinking"))
                yield from self._sign(block, text_field(block.start, "signature"))
            case "redacted_thinking":
                data = field(block.start, "data")
                yield Put({"type": "reasoning", "text": "", "data": data, "provider": "anthropic"})

    def _grow(self, block: _Block, delta: object) -> Iterator[Op]:
        match field(delta, "type"):
            case "text_delta":
                if text := text_field(delta, "text"):
                    yield Say(text)
            case "thinking_delta":
                yield from self._think(block, text_field(delta, "thinking"))
            case "signature_delta":
                yield from self._sign(block, text_field(delta, "signature"))
            case "input_json_delta":
                block.json.append(text_field(delta, "partial_json"))

    def _think(self, block: _Block, text: str) -> Iterator[Op]:
        if text:
            yield from self._begin(block)
            yield Think(text)

    def _sign(self, block: _Block, signature: str) -> Iterator[Op]:
        if signature:
            yield from self._begin(block)
            yield Seal({"signature": signature})

    def _begin(self, block: _Block) -> Iterator[Op]:
        if not block.begun:
            block.begun = True
            yield Begin({"provider": "anthropic"})

    def _stop(self, block: _Block) -> Iterator[Op]:
        kind, written = field(block.start, "type"), "".join(block.json)
        match kind:
            case "text" | "thinking" | "redacted_thinking" | None:
                pass
            case "tool_use":
                yield Call(field(block.start, "id"), field(block.start, "name"), written or field(block.start, "input"))
            case _:  # what the provider ran itself
                data = plain(block.start)
                yield Put({"type": "custom", "kind": f"anthropic.{kind}", "data": data | _input(written)})

    def _count(self, usage: object) -> None:
        """Takes counts over: each is a total, and one that is not sent again still holds."""
        if usage is not None:
            counted = {name: count for name, count in plain(usage).items() if count is not None}
            self.usage = {**(self.usage or {}), **counted}


def _input(written: str) -> dict[str, Any]:
    if not written:
        return {}
    try:
        return {"input": msgspec.json.decode(written)}
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return {"input": written}
