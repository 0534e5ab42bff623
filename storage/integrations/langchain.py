"""A conversation as the `BaseChatMessageHistory` of LangChain.

history = LangChainHistory(MessageLog(await engine.partition("bot/ann")))
chain = RunnableWithMessageHistory(model, lambda session_id: history)
await chain.ainvoke("hi", {"configurable": {"session_id": "ann"}})
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import (
        AIMessage,
        BaseMessage,
        HumanMessage,
        SystemMessage,
        convert_to_messages,
        message_to_dict,
        messages_from_dict,
    )
except ImportError as error:
    raise ImportError("LangChainHistory needs langchain-core: pip install 'parlatory[langchain]'") from error

from ..convert.from_langchain import from_langchain
from ..convert.ingest import Dict, plain
from ..convert.prompt import Prompt
from ..errors import ReentrancyError
from ..log import MessageLog
from .recall import Recall

__all__ = ["LangChainHistory"]

_T = TypeVar("_T")


class LangChainHistory(BaseChatMessageHistory):
    """Keeps LangChain's messages in a log, one row each; rows of others are messages as well.

    Made on the event loop of its log. The methods without `a` are for code in other threads, as LangChain runs it, and
    wait there for that loop; on an event loop they raise `ReentrancyError`, because they would stop it.

    Args:
        log: a log, such as `self.messages` of an agent, or `await runtime.get("bot", "ann").log()`, through which rows
            are told to clients.
    """

    def __init__(self, log: MessageLog) -> None:
        # Not the base's: it does nothing but warn that the class may go in LangChain 2.
        self._loop = asyncio.get_running_loop()
        self._recall = Recall(log, "langchain", _items)

    async def aget_messages(self) -> list[BaseMessage]:
        """Returns the messages, oldest first."""
        items = await self._recall.items()
        return [_message(item) for item in items]

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Appends messages, all or nothing.

        Raises:
            CodecError: one of them says nothing, such as a `RemoveMessage`, or cannot be stored; the path says which.
        """
        kept = [None if _is_text(message) else plain(message_to_dict(message)) for message in messages]
        if kept:
            await self._recall.add([(item, [read]) for item, read in zip(kept, from_langchain(messages), strict=True)])

    async def aclear(self) -> None:
        """Begins anew: what there is is not recalled any more. The rows stay in the log."""
        await self._recall.clear()

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """Are the messages, oldest first."""
        return self._waited(self.aget_messages())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Appends messages, all or nothing; as `aadd_messages`."""
        self._waited(self.aadd_messages(messages))

    def clear(self) -> None:
        """Begins anew; as `aclear`."""
        self._waited(self.aclear())

    def _waited(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        work.close()
        raise ReentrancyError("on an event loop a LangChainHistory is awaited: ainvoke, aget_messages, aclear")


def _items(prompt: Prompt) -> list[Dict]:
    messages: list[Dict] = prompt["messages"]
    return messages


def _message(item: Dict) -> BaseMessage:
    return (messages_from_dict if "data" in item else convert_to_messages)([item])[0]


def _is_text(message: BaseMessage) -> bool:
    """Says whether a message is what a row of text gives back."""
    kind, text = type(message), message.content
    if kind not in (HumanMessage, AIMessage, SystemMessage) or not isinstance(text, str) or not text.strip():
        return False
    return message == kind(content=text)
