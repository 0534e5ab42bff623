"""What can be seen of a runtime from outside: counts that are kept, and pictures that are made when somebody looks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from .events import TurnState
from .hub import Sink
from .mailbox import MailboxStatistics

if TYPE_CHECKING:
    from .conversation import Conversation

__all__ = ["ConversationPicture", "Counters", "DraftPicture", "RuntimeStatistics", "SubscriberPicture", "take_stock"]


class Counters:
    """Counts what happens in a runtime.

    Attributes:
        turns: turns that ended, by how: `done`, `waiting`, `stopped` or `error`.
        evictions: agent instances that were let go.
        released: records of conversations that were let go.
    """

    __slots__ = ("evictions", "released", "turns")

    def __init__(self) -> None:
        self.turns: dict[str, int] = {"done": 0, "waiting": 0, "stopped": 0, "error": 0}
        self.evictions = 0
        self.released = 0

    def told(self, state: TurnState) -> None:
        """Counts the state of a turn, if it is an end."""
        if state in self.turns:
            self.turns[state] += 1


class RuntimeStatistics(NamedTuple):
    """Is how much there is of everything.

    Attributes:
        conversations: conversations with a record.
        running, queued: turns that run, and messages that wait for one.
        drafts: drafts that are being written.
        in_flight: batches that are being committed.
        subscriptions, lagging: subscriptions, and those of them that are not live.
    """

    conversations: int
    running: int
    queued: int
    drafts: int
    in_flight: int
    subscriptions: int
    lagging: int


class SubscriberPicture(NamedTuple):
    """Is one subscription: whose, up to which row it was told, and whether it is told at once."""

    sink: Sink
    principal: str
    position: int
    live: bool


class DraftPicture(NamedTuple):
    """Is a draft as far as it is written, its message in JSON terms."""

    id: str
    turn: int
    message: dict[str, Any]


class ConversationPicture(NamedTuple):
    """Is what goes on in a conversation.

    Attributes:
        resident: an instance of its agent is there.
        state, turn, attempt: what a turn is doing; which, and at which attempt, while one runs.
        queued: messages that wait for their turn, of those that came since the record is there.
        mailbox: what waits for the turn lane.
        in_flight: batches that are being committed.
        draft: what is being written.
        subscribers: who is told.
    """

    resident: bool
    state: TurnState
    turn: int | None
    attempt: int | None
    queued: int
    mailbox: MailboxStatistics
    in_flight: int
    draft: DraftPicture | None
    subscribers: tuple[SubscriberPicture, ...]


def take_stock(conversations: Iterable[Conversation]) -> RuntimeStatistics:
    """Returns how much there is in some conversations; it looks at each of them."""
    count = running = queued = drafts = in_flight = subscriptions = lagging = 0
    for conversation in conversations:
        lane, hub = conversation.lane, conversation.hub
        count += 1
        running += lane.state[1] is not None
        queued += lane.queued
        drafts += lane.draft is not None
        in_flight += conversation.in_flight
        subscriptions += hub.count
        lagging += hub.lagging
    return RuntimeStatistics(count, running, queued, drafts, in_flight, subscriptions, lagging)
