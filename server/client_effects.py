"""What the session of a client tells its shell to do, and the value of a page."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from ..storage import StoredMessage
from .client_frames import Presence, Signal, TurnState
from .client_subscription import Status, Subscription

__all__ = [
    "Done",
    "Drop",
    "Effect",
    "Ended",
    "Failed",
    "History",
    "Noted",
    "Present",
    "Ready",
    "Signalled",
    "StatusChanged",
    "TurnTold",
]


class History(msgspec.Struct, frozen=True):
    """Is a page of older rows, oldest first; `more` says whether a kept row precedes them, `epoch` names their log."""

    rows: tuple[StoredMessage, ...]
    more: bool
    epoch: str


class Done(msgspec.Struct, frozen=True):
    """A request succeeded: a seq for a send, a `History` for a page, for the rest whether the server took it."""

    request: int
    value: Any


class Failed(msgspec.Struct, frozen=True):
    """A request failed for good."""

    request: int
    error: Exception


class Ready(msgspec.Struct, frozen=True):
    """There is something to take."""

    subscription: Subscription


class StatusChanged(msgspec.Struct, frozen=True):
    """The subscription stands otherwise than before."""

    subscription: Subscription
    status: Status


class Ended(msgspec.Struct, frozen=True):
    """The subscription is over; `subscription.error` says why."""

    subscription: Subscription


class Signalled(msgspec.Struct, frozen=True):
    """Another subscriber signalled."""

    subscription: Subscription
    frame: Signal


class Present(msgspec.Struct, frozen=True):
    """Others came or went."""

    subscription: Subscription
    frame: Presence


class TurnTold(msgspec.Struct, frozen=True):
    """A turn changed its state."""

    subscription: Subscription
    turn: TurnState


class Noted(msgspec.Struct, frozen=True):
    """Something for the log of the program."""

    text: str


class Drop(msgspec.Struct, frozen=True):
    """The socket is of no use: its server does not keep to the protocol."""

    text: str


Effect: TypeAlias = Done | Failed | Ready | StatusChanged | Ended | Signalled | Present | TurnTold | Noted | Drop
