"""Reads chat completions, of OpenAI and of the many that speak like it: chunks whose choice holds a delta."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .consume_ops import Begin, Call, Op, Say, Think, field, plain, text_field

__all__ = ["ChatReader"]


class _Pending:
    """Is a tool call whose arguments are still coming."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id = self.name = ""
        self.arguments: list[str] = []


class ChatReader:
    """Reads the first choice of chat completion chunks. Tool calls are whole when the reason to stop is there."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self._thinking = False
        self._calls: list[_Pending] = []
        self._at: dict[int, _Pending] = {}  # by the index that the provider gives

    def feed(self, event: object) -> Iterator[Op]:
        """Returns what a chunk does; the helper `chat.completions.stream` wraps it in an event."""
        chunk = field(event, "chunk") if field(event, "type") == "chunk" else event
        if (usage := field(chunk, "usage")) is not None:
            self.usage = plain(usage)
        for choice in field(chunk, "choices") or ():
            if field(choice, "index"):
                continue
            if (delta := field(choice, "delta")) is not None:
                yield from self._read(delta)
            if reason := field(choice, "finish_reason"):
                self.stop_reason = reason
                yield from self._whole_calls()

    def _read(self, delta: object) -> Iterator[Op]:
        # OpenAI shows no reasoning here. Those who do agreed on no name.
        if thought := text_field(delta, "reasoning_content") or text_field(delta, "reasoning"):
            if not self._thinking:
                self._thinking = True
                yield Begin({})
            yield Think(thought)
        for name in ("content", "refusal"):
            if text := text_field(delta, name):
                self._thinking = False
                yield Say(text)
        for piece in field(delta, "tool_calls") or ():
            self._collect(piece)

    def _collect(self, piece: object) -> None:
        index, id, function = field(piece, "index") or 0, text_field(piece, "id"), field(piece, "function")
        call = self._at.get(index)
        # Some number all their calls 0; their ids still tell them apart.
        if call is None or (id and call.id and id != call.id):
            call = self._at[index] = _Pending()
            self._calls.append(call)
        call.id = id or call.id
        call.name = call.name or text_field(function, "name")
        if arguments := text_field(function, "arguments"):
            call.arguments.append(arguments)

    def _whole_calls(self) -> Iterator[Op]:
        calls, self._calls, self._at = self._calls, [], {}
        self._thinking = self._thinking and not calls
        for call in calls:
            yield Call(call.id, call.name, "".join(call.arguments))
