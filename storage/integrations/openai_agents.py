"""A conversation as the `Session` of the OpenAI Agents SDK (the package `openai-agents`).

    from parlatory.storage.integrations.openai_agents import OpenAIAgentsSession

    session = OpenAIAgentsSession(MessageLog(await engine.partition("bot/ann")))
    result = await Runner.run(agent, "hi", session=session)

The SDK knows a session by its methods, so nothing of it is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..convert.from_openai_responses import from_openai_responses
from ..convert.ingest import Dict, plain
from ..convert.prompt import Prompt
from ..log import MessageLog
from ..messages import Message
from .recall import Recall

__all__ = ["OpenAIAgentsSession"]

_RESULTS = ("function_call_output", "custom_tool_call_output")


class OpenAIAgentsSession:
    """Keeps the items of an agent's runs in a log, one row each.

    Rows of others are items as well: what a client sent, what an agent of ours answered. In a handler, where the
    message to answer is in the log already, run with no further input: `Runner.run(agent, [], session=...)`.

    Args:
        log: a log, such as `self.messages` of an agent, or `await runtime.get("bot", "ann").log()`, through which rows
            are told to clients.

    Attributes:
        session_id: the conversation.
        session_settings: the SDK's `SessionSettings`, of which `limit` is read; None is without limit.
    """

    def __init__(self, log: MessageLog) -> None:
        self.session_id = log.name
        self.session_settings: Any = None
        self._recall = Recall(log, "openai-responses", _items)
        self._calls: dict[str, Dict] = {}

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Returns the items, oldest first; with a limit, the newest so many."""
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        items = await self._recall.items()
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: Sequence[Any]) -> None:
        """Appends items, all or nothing.

        Raises:
            CodecError: one of them is none; the path says which.
        """
        added = [(None if _is_text(item) else item, self._messages(item)) for item in plain(list(items))]
        if added:
            await self._recall.add(added)

    async def pop_item(self) -> Any:
        """Takes the last item back and returns it; None where there is none. Its row stays in the log."""
        return await self._recall.pop()

    async def clear_session(self) -> None:
        """Begins anew: what there is is not recalled any more. The rows stay in the log."""
        await self._recall.clear()

    def _messages(self, item: Dict) -> list[Message]:
        """Returns the message that an item is; a tool's output has its name from the call that this session saw."""
        if not isinstance(item, dict) or item.get("type") not in _RESULTS:
            if isinstance(item, dict) and isinstance(id := item.get("call_id"), str):
                self._calls[id] = item
            return from_openai_responses([item])
        call = self._calls.get(str(item.get("call_id")))
        return from_openai_responses([item] if call is None else [call, item])[-1:]


def _items(prompt: Prompt) -> list[Dict]:
    return [_short(item) for item in prompt["input"]]


def _short(item: Dict) -> Dict:
    """Returns a message of text as the SDK itself writes it."""
    if item.get("type") == "message" and isinstance(item.get("content"), str):
        return {"role": item["role"], "content": item["content"]}
    return item


def _is_text(item: object) -> bool:
    """Says whether an item is what a row of text gives back."""
    match item:
        case {"role": "user" | "assistant" | "system", "content": str() as text, **rest}:
            return not rest and bool(text.strip())
    return False
