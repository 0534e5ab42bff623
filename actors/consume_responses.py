"""Reads OpenAI's responses: events `response.*`, about items that begin, grow and are done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .consume_ops import Begin, Call, ModelFailed, Op, Put, Say, Seal, Think, field, plain, text_field

__all__ = ["ResponsesReader"]


class ResponsesReader:
    """Reads response events. Text and reasoning come in deltas; all else is taken from items that are done."""

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self._thinking: str | None = None  # the item that is told as reasoning
        self._voice: tuple[str, object] = ("", None)  # which of its texts: the event's type, and the part's index

    def feed(self, event: object) -> Iterator[Op]:
        """Returns what an event does.

        Raises:
            ModelFailed: the response failed.
        """
        match field(event, "type"):
            case "response.output_text.delta" | "response.refusal.delta":
                if text := text_field(event, "delta"):
                    yield Say(text)
            case "response.reasoning_summary_text.delta":
                yield from self._think(event, "summary_index")
            case "response.reasoning_text.delta":
                yield from self._think(event, "content_index")
            case "response.output_item.done":
                yield from self._item(field(event, "item"))
            case "response.completed" | "response.incomplete":
                self._end(field(event, "response"))
            case "response.failed":
                response = field(event, "response")
                self._end(response)
                raise _failure(field(response, "error"))
            case "error":
                raise _failure(event)

    def _think(self, event: object, index_name: str) -> Iterator[Op]:
        text, id, kind = text_field(event, "delta"), text_field(event, "item_id"), field(event, "type")
        voice = (kind, field(event, index_name))
        if self._thinking != id:
            self._thinking, self._voice = id, voice
            yield Begin({"provider": "openai"} | ({"id": id} if id else {}))
        elif self._voice[0] != kind:
            return  # the thought itself beside its summary: one of them is enough
        elif self._voice != voice:
            self._voice = voice
            yield Think("\n\n")
        if text:
            yield Think(text)

    def _item(self, item: object) -> Iterator[Op]:
        kind = field(item, "type")
        match kind:
            case "message" | None:
                pass
            case "reasoning":
                yield from self._reasoning(item)
            case "function_call":
                yield Call(field(item, "call_id") or field(item, "id"), field(item, "name"), field(item, "arguments"))
            case _:
                yield Put({"type": "custom", "kind": f"openai.{kind}", "data": plain(item)})

    def _reasoning(self, item: object) -> Iterator[Op]:
        fields = {"provider": "openai"}
        if id := field(item, "id"):
            fields["id"] = id
        if data := field(item, "encrypted_content"):
            fields["data"] = data
        if self._thinking is not None and self._thinking == (id or ""):
            self._thinking = None
            yield Seal(fields)
            return
        texts = field(item, "summary") or field(item, "content") or ()
        text = "\n\n".join(text_field(part, "text") for part in texts)
        if text or data:  # an id alone says nothing to anybody
            yield Put({"type": "reasoning", "text": text, **fields})

    def _end(self, response: object) -> None:
        if (usage := field(response, "usage")) is not None:
            self.usage = plain(usage)
        reason = field(field(response, "incomplete_details"), "reason")
        self.stop_reason = reason or field(response, "status") or "completed"


def _failure(error: object) -> ModelFailed:
    code = field(error, "code")
    return ModelFailed(f"the response failed: {field(error, 'message') or code or 'no reason given'}", code)
