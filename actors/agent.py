"""The agent base class: the user's code for one kind of conversation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..storage import AGENT_NAME, Message, MessageLog, StoredMessage, assistant_message
from .draft import Draft
from .turn import OnBusy, Turn
from .turn_log import TurnLog

if TYPE_CHECKING:
    from .conversation import TurnStorage

__all__ = ["Agent", "wire_name_of"]

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def kebab_case(name: str) -> str:
    """Returns a class name in lower case, its words apart by `-`: `HTTPBot` is `http-bot`."""
    return "-".join(_WORD.split(name.replace("_", "-").strip("-"))).lower()


def wire_name_of(agent: type[Agent] | str) -> str:
    """Returns the name under which clients address an agent: the kebab case of its class, or its own `name =`."""
    return agent if isinstance(agent, str) else agent.wire_name


class Agent:
    """Is the base of all agents. Each conversation that has work gets an instance of its own; when idle it is dropped.

    Subclass it and override what you need:

    - `on_start()` when the instance is made, before its first message,
    - `on_message(row)` for each message of a client, one at a time, in order,
    - `on_stop()` before the instance is dropped.

    They never overlap within a conversation, and clients are served all the while. What an instance keeps in attributes
    is gone when it is dropped; what is in `messages` stays for ever.

    Attributes:
        wire_name: the first half of a conversation's name on the wire. It is the kebab case of the class name unless
            the class body says `name = "..."`.
        name: the second half, such as `ann` in `bot/ann`.
        messages: the log of this conversation. What is appended in a turn carries the turn, and its prompts are in
            turn order.
        on_busy: what happens to a message that comes while a turn runs: `queue`, `latest`, `reject` or `preempt`.
    """

    wire_name: ClassVar[str] = "agent"
    on_busy: ClassVar[OnBusy] = "queue"
    name: str
    messages: MessageLog

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = cls.__dict__.get("name")
        wire_name = name if isinstance(name, str) else kebab_case(cls.__name__)
        if not AGENT_NAME.fullmatch(wire_name):
            raise ValueError(
                f"agent {cls.__name__}: {wire_name!r} is no agent name; set name = '...' of a-z, 0-9 and -, "
                "beginning with a letter, at most 32 characters"
            )
        cls.wire_name = wire_name

    def __init__(self, name: str, storage: TurnStorage) -> None:
        self.name = name
        self.messages = TurnLog(storage)
        self._storage = storage

    @property
    def turn(self) -> Turn:
        """Is the running turn.

        Raises:
            RuntimeError: none runs, as in `on_start` and `on_stop`.
        """
        turn = self._storage.lane.turn
        if turn is None:
            raise RuntimeError("no turn runs: self.turn is there in on_message")
        return turn

    def reply(self, *, more: bool = False) -> Draft:
        """Returns the draft of an answer: `async with self.reply() as draft: await draft.write("...")`.

        Args:
            more: says that more of the answer follows in this turn, so that its message is not handled yet.
        """
        return Draft(self._storage.lane, self.turn.id, more=more)

    async def on_start(self) -> None:
        """Is called when the instance is made, before anything else of it."""

    async def on_message(self, row: StoredMessage) -> None:
        """Is called for each message of a client, once it is committed and told; one at a time, in the order of `seq`.

        A message whose turn did not end because the process died is delivered again.
        """

    async def on_turn_failed(self, row: StoredMessage) -> None:
        """Is called for a message that is given up: every attempt at its turn ended with its process."""

    async def on_stop(self) -> None:
        """Is called before the instance is dropped: after idling, or when the runtime stops."""

    async def say(self, content: str | Sequence[Any], **fields: Any) -> int:
        """Appends an assistant message and returns its seq, once it is durable and told.

        Args:
            content: text, or parts of an assistant message.
            **fields: further fields of the message, such as `metadata`.
        """
        message: Message | Mapping[str, Any] = assistant_message(content, **fields)
        return await self.messages.append(message)
