"""A conversation as the `message_history` of PydanticAI.

history = PydanticAIHistory(MessageLog(await engine.partition("bot/ann")))
result = await agent.run("hi", message_history=await history.messages())
await history.add(result.new_messages())
"""

from __future__ import annotations

from collections.abc import Sequence

try:
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
except ImportError as error:
    raise ImportError("PydanticAIHistory needs pydantic-ai-slim: pip install 'parlatory[pydantic-ai]'") from error

from ..convert.from_pydantic_ai import from_pydantic_ai
from ..convert.ingest import Dict
from ..convert.prompt import Prompt
from ..log import MessageLog
from .recall import Recall

__all__ = ["PydanticAIHistory"]


class PydanticAIHistory:
    """Keeps PydanticAI's requests and responses in a log; rows of others are requests and responses as well.

    In a handler, where the message to answer is in the log already, run without a prompt:
    `agent.run(message_history=await history.messages())`.

    Args:
        log: a log, such as `self.messages` of an agent, or `await runtime.get("bot", "ann").log()`, through which rows
            are told to clients.
    """

    def __init__(self, log: MessageLog) -> None:
        self._recall = Recall(log, "pydantic-ai", _items)

    async def messages(self) -> list[ModelMessage]:
        """Returns the history, oldest first, as `message_history` takes it."""
        return ModelMessagesTypeAdapter.validate_python(await self._recall.items())

    async def add(self, messages: Sequence[ModelMessage]) -> None:
        """Appends messages, such as `result.new_messages()`, all or nothing.

        Raises:
            CodecError: one of them cannot be stored; the path says which.
        """
        items: list[Dict] = ModelMessagesTypeAdapter.dump_python(list(messages), mode="json")
        if items:
            await self._recall.add([(item, from_pydantic_ai([item])) for item in items])

    async def clear(self) -> None:
        """Begins anew: what there is is not recalled any more. The rows stay in the log."""
        await self._recall.clear()


def _items(prompt: Prompt) -> list[Dict]:
    history: list[Dict] = prompt["message_history"]
    return history
