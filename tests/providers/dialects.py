"""How the providers stream, and how their real SDKs are asked for it.

The events hold the fields that the SDKs and we read, and few others. What they look like is taken from the SDKs' types.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, Protocol

from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

Fields = dict[str, Any]


def event(data: Fields, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()


class Dialect(Protocol):
    """Writes a stream piece by piece; each method gives the events."""

    def begin(self) -> list[bytes]: ...
    def say(self, *pieces: str) -> list[bytes]: ...
    def think(self, *pieces: str) -> list[bytes]: ...
    def call(self, id: str, name: str, *pieces: str) -> list[bytes]: ...
    def end(self, reason: str) -> list[bytes]: ...
    async def ask(self, text: str) -> Any: ...
    async def close(self) -> None: ...


class Chat:
    """Chat completions of OpenAI; the reasoning as DeepSeek, vLLM and others send it."""

    def __init__(self, url: str) -> None:
        self.client = AsyncOpenAI(base_url=f"{url}/v1", api_key="k")
        self._calls = itertools.count()

    def chunk(self, delta: Fields, finish: str | None = None, **fields: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        about = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return event({**about, "choices": [choice], **fields})

    def begin(self) -> list[bytes]:
        return [self.chunk({"role": "assistant", "content": ""})]

    def say(self, *pieces: str) -> list[bytes]:
        return [self.chunk({"content": piece}) for piece in pieces]

    def think(self, *pieces: str) -> list[bytes]:
        return [self.chunk({"reasoning_content": piece}) for piece in pieces]

    def call(self, id: str, name: str, *pieces: str) -> list[bytes]:
        index = next(self._calls)
        head = {"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
        rest = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
        return [self.chunk({"tool_calls": [call]}) for call in (head, *rest)]

    def end(self, reason: str) -> list[bytes]:
        usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        return [self.chunk({}, reason), self.chunk({}, choices=[], usage=usage), b"data: [DONE]\n\n"]

    async def ask(self, text: str) -> Any:
        return await self.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": text}], stream=True
        )

    async def close(self) -> None:
        await self.client.close()


class Responses:
    """Responses of OpenAI."""

    def __init__(self, url: str) -> None:
        self.client = AsyncOpenAI(base_url=f"{url}/v1", api_key="k")
        self._number = itertools.count()
        self._items = itertools.count()

    def event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(self._number), **fields}, kind)

    def response(self, status: str, **fields: Any) -> Fields:
        about = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []}
        return {**about, "status": status, "parallel_tool_calls": True, "tool_choice": "auto", **fields}

    def begin(self) -> list[bytes]:
        return [self.event(f"response.{kind}", response=self.response("in_progress")) for kind in ("created", "queued")]

    def item(self, item: Fields, *deltas: tuple[str, Fields]) -> list[bytes]:
        place = {"output_index": next(self._items)}
        return [
            self.event("response.output_item.added", item=item | {"status": "in_progress"}, **place),
            *(self.event(f"response.{kind}", item_id=item["id"], **place, **fields) for kind, fields in deltas),
            self.event("response.output_item.done", item=item | {"status": "completed"}, **place),
        ]

    def say(self, *pieces: str) -> list[bytes]:
        fields = {"content_index": 0, "logprobs": []}
        content = [{"type": "output_text", "text": "".join(pieces), "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
        return self.item(item, *(("output_text.delta", {"delta": piece, **fields}) for piece in pieces))

    def think(self, *pieces: str) -> list[bytes]:
        summary = [{"type": "summary_text", "text": "".join(pieces)}]
        item = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "c2VjcmV0"}
        deltas = [("reasoning_summary_text.delta", {"delta": piece, "summary_index": 0}) for piece in pieces]
        return self.item(item, *deltas)

    def call(self, id: str, name: str, *pieces: str) -> list[bytes]:
        arguments = "".join(pieces)
        item = {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments}
        deltas = [("function_call_arguments.delta", {"delta": piece}) for piece in pieces]
        return self.item(item, *deltas, ("function_call_arguments.done", {"arguments": arguments, "name": name}))

    def end(self, reason: str) -> list[bytes]:
        usage = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
        return [self.event("response.completed", response=self.response("completed", usage=usage))]

    async def ask(self, text: str) -> Any:
        return await self.client.responses.create(model="m", input=text, stream=True)

    async def close(self) -> None:
        await self.client.close()


class Messages:
    """Messages of Anthropic, as `create(stream=True)` gives them."""

    def __init__(self, url: str) -> None:
        self.client = AsyncAnthropic(base_url=url, api_key="k")
        self._blocks = itertools.count()

    def event(self, kind: str, **fields: Any) -> bytes:
        return event({"type": kind, **fields}, kind)

    def begin(self) -> list[bytes]:
        usage = {"input_tokens": 3, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "m", "usage": usage}
        start = self.event("message_start", message={**message, "stop_reason": None, "stop_sequence": None})
        return [start, self.event("ping")]

    def block(self, block: Fields, *deltas: Fields) -> list[bytes]:
        index = next(self._blocks)
        return [
            self.event("content_block_start", index=index, content_block=block),
            *(self.event("content_block_delta", index=index, delta=delta) for delta in deltas),
            self.event("content_block_stop", index=index),
        ]

    def say(self, *pieces: str) -> list[bytes]:
        return self.block({"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))

    def think(self, *pieces: str) -> list[bytes]:
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        signed = {"type": "signature_delta", "signature": "c2VjcmV0"}
        return self.block({"type": "thinking", "thinking": "", "signature": ""}, *deltas, signed)

    def call(self, id: str, name: str, *pieces: str) -> list[bytes]:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
        return self.block({"type": "tool_use", "id": id, "name": name, "input": {}}, *deltas)

    def end(self, reason: str) -> list[bytes]:
        delta = {"stop_reason": "tool_use" if reason == "tool_calls" else "end_turn", "stop_sequence": None}
        return [self.event("message_delta", delta=delta, usage={"output_tokens": 5}), self.event("message_stop")]

    async def ask(self, text: str) -> Any:
        return await self.client.messages.create(
            model="m", max_tokens=100, messages=[{"role": "user", "content": text}], stream=True
        )

    async def close(self) -> None:
        await self.client.close()


class MessageStream(Messages):
    """Messages of Anthropic, as `messages.stream` gives them."""

    async def ask(self, text: str) -> Any:
        return self.client.messages.stream(model="m", max_tokens=100, messages=[{"role": "user", "content": text}])


DIALECTS: tuple[type[Any], ...] = (Chat, Responses, Messages, MessageStream)
