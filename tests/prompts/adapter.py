"""The product as the oracles ask for it: wire-form messages in, a prompt in the form of their target out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from parlatory.storage import (
    CodecError,
    Message,
    Prompt,
    StoredMessage,
    check_message,
    decode_message,
    normalize,
    parse_message,
)
from parlatory.storage.convert.prompt import Provider
from parlatory.storage.convert.prompt import render as render_rows

AT = datetime(2026, 1, 1, tzinfo=UTC)
PROVIDER: dict[str, Provider] = {
    "openai_chat": "openai",
    "openai_responses": "openai-responses",
    "anthropic": "anthropic",
    "google": "google",
    "langchain": "langchain",
    "pydantic_ai": "pydantic-ai",
    "ai_sdk": "ai-sdk",
}


def rows_of(messages: Iterable[Message]) -> list[StoredMessage]:
    return [StoredMessage(seq=seq, at=AT, by="x", message=message) for seq, message in enumerate(messages, 1)]


def render(target: str, messages: list[dict[str, Any]]) -> Any:
    return as_judged(target, render_rows(PROVIDER[target], rows_of(map(_message, messages)), conversation="bot/ann"))


def as_judged(target: str, prompt: Prompt) -> Any:
    """The part of a prompt that the oracle of a target judges."""
    if target == "anthropic":
        return {"system": prompt.get("system"), "messages": prompt["messages"]}
    if target == "google":
        system = prompt.get("config", {}).get("system_instruction")
        return {"system_instruction": system, "contents": prompt["contents"]}
    (turns,) = (value for key, value in prompt.items() if key != "allowSystemInMessages")
    return turns


def codec(raw: bytes) -> bytes:
    return check_message(parse_message(raw))


def _message(message: Mapping[str, Any]) -> Message:
    """A message as the log reads it, rules unchecked; what it cannot hold as it stands goes through the dialects."""
    try:
        return decode_message(msgspec.json.encode(message))
    except CodecError:
        return normalize(message)
