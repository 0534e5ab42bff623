"""Writes the stream of a model into a draft: what `Draft.consume` does.

The streams of the `openai` and `anthropic` SDKs are known by the shapes of their events; neither is imported.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ..storage import CodecError, TooLarge, ToolCall, new_row
from .consume_anthropic import EVENTS, AnthropicReader
from .consume_openai import ChatReader
from .consume_ops import Begin, Call, ModelFailed, Op, Put, Reader, Say, Seal, Think, field
from .consume_responses import ResponsesReader

if TYPE_CHECKING:
    from .draft import Draft

__all__ = ["STALL_S", "consume", "reader_of"]

STALL_S = 300.0  # models that think without a word for minutes are no stall

logger = logging.getLogger("parlatory.actors")


class TextReader:
    """Reads pieces of text. They have no end but that of their stream."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.stop_reason: str | None = "end"

    def feed(self, event: object) -> Iterator[Op]:
        """Returns what a piece does."""
        if isinstance(event, str) and event:
            yield Say(event)


def reader_of(event: object) -> Reader | None:
    """Returns a reader for the dialect of an event; None if the event does not show it."""
    if isinstance(event, str):
        return TextReader()
    kind = field(event, "type")
    if kind == "chunk" or isinstance(field(event, "choices"), list | tuple):
        return ChatReader()
    if not isinstance(kind, str):
        return None
    if kind in EVENTS or (kind == "error" and field(event, "error") is not None):
        return AnthropicReader()
    return ResponsesReader() if kind.startswith("response.") or kind == "error" else None


async def consume(draft: Draft, stream: object, stall_s: float | None) -> list[ToolCall]:
    """Writes a stream into a draft and returns the tool calls; see `Draft.consume`."""
    if not hasattr(stream, "__aenter__") and not hasattr(stream, "__aiter__"):
        kind = type(stream).__name__
        raise TypeError(f"consume takes an async stream of an SDK or an async iterator of str, not a {kind}")
    loop = asyncio.get_running_loop()
    pen = _Pen(draft)
    try:
        async with asyncio.timeout(stall_s) as limit, _opened(stream) as events:
            async for event in events:
                await pen.read(event)
                limit.reschedule(None if stall_s is None else loop.time() + stall_s)
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeoutError(f"nothing came from the model for {stall_s} s") from None
    finally:
        if pen.reader is not None:
            draft.usage, draft.stop_reason = pen.reader.usage, pen.reader.stop_reason
    pen.end()
    return pen.calls


class _Pen:
    """Does to a draft what a reader says."""

    def __init__(self, draft: Draft) -> None:
        self.reader: Reader | None = None
        self.calls: list[ToolCall] = []
        self._draft = draft
        self._place = 0
        self._unknown: object = None

    async def read(self, event: object) -> None:
        if self.reader is None:
            self.reader = reader_of(event)
            if self.reader is None:
                self._unknown = event
                return
        for op in self.reader.feed(event):
            await self._do(op)

    def end(self) -> None:
        """Looks whether the stream came to its end: a cut that the transport hides ends it like any other."""
        if self.reader is None:
            if self._unknown is not None:
                raise TypeError(f"consume does not know streams of {type(self._unknown).__name__}")
        elif self.reader.stop_reason is None:
            raise ModelFailed("the stream of the model was cut: it ended without saying why", "cut")

    async def _do(self, op: Op) -> None:
        draft = self._draft
        match op:
            case Say(text):
                await draft.write(text)
            case Think(text):
                await draft.reasoning(text)
            case Begin(fields):
                self._place = await draft.attach({"type": "reasoning", "text": "", **fields})
            case Seal(fields):
                await draft.amend(self._place, fields)
            case Put(part):
                try:
                    await draft.attach(part)
                except TooLarge:
                    raise
                except CodecError as error:
                    logger.warning("a part of a model's answer is left out: %s", error)
            case Call():
                call = _tool_call(op, draft.tool_call_ids)
                self.calls.append(call)
                await draft.attach(cast(dict[str, Any], msgspec.to_builtins(call)))


def _tool_call(op: Call, taken: set[str]) -> ToolCall:
    """Returns a call that can be stored, whatever the model wrote: one bad call must not cost the whole answer."""
    name = op.name or "unknown"
    first = id = op.id or f"call_{len(taken)}"
    count = 1
    while id in taken:
        count += 1
        id = f"{first}_{count}"
    try:
        flat = {"id": id, "name": name, "args": op.arguments}
        message, _ = new_row({"role": "assistant", "content": "", "toolCalls": [flat]})
    except CodecError:
        raw = op.arguments if isinstance(op.arguments, str) else json.dumps(op.arguments)
        invalid = raw.encode(errors="replace").decode()
        part = {"type": "tool-call", "toolCallId": id, "toolName": name, "input": {}, "invalid": invalid}
        message, _ = new_row({"role": "assistant", "content": [part]})
    return message.tool_calls[0]


@asynccontextmanager
async def _opened(stream: Any) -> AsyncIterator[AsyncIterator[Any]]:
    """Opens what has to be opened, and closes the stream whatever happens."""
    if hasattr(stream, "__aenter__"):
        async with stream as events, _closing(aiter(events)) as iterator:
            yield iterator
    else:
        async with _closing(stream), _closing(aiter(stream)) as iterator:
            yield iterator


@asynccontextmanager
async def _closing(iterator: Any) -> AsyncIterator[Any]:
    try:
        yield iterator
    finally:
        if (close := getattr(iterator, "aclose", None)) is not None:
            await close()
