"""Who may act, and in which order: agents, their turns, the hub that tells rows, the runtime."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .agent import Agent
    from .approvals import approval, is_approval
    from .consume_ops import ModelFailed
    from .conversation import Conversation
    from .draft import Draft
    from .errors import Draining, MailboxFull, TurnBusy, UnknownAgent
    from .events import (
        Closed,
        DeltaTold,
        DraftEnded,
        DraftTold,
        Event,
        Live,
        Opened,
        Presence,
        RowsTold,
        Signal,
        TurnTold,
    )
    from .hub import Sink, Subscription
    from .picture import ConversationPicture, Counters, RuntimeStatistics
    from .position import PositionRequest
    from .ref import Ref
    from .runtime import Runtime
    from .tool_schema import tool, tool_schemas
    from .turn import OnBusy, Turn

__all__ = [
    "Agent",
    "Closed",
    "Conversation",
    "ConversationPicture",
    "Counters",
    "DeltaTold",
    "Draft",
    "DraftEnded",
    "DraftTold",
    "Draining",
    "Event",
    "Live",
    "MailboxFull",
    "ModelFailed",
    "OnBusy",
    "Opened",
    "PositionRequest",
    "Presence",
    "Ref",
    "RowsTold",
    "Runtime",
    "RuntimeStatistics",
    "Signal",
    "Sink",
    "Subscription",
    "Turn",
    "TurnBusy",
    "TurnTold",
    "UnknownAgent",
    "approval",
    "is_approval",
    "tool",
    "tool_schemas",
]

_HOME = {
    "Agent": ".agent",
    "Closed": ".events",
    "Conversation": ".conversation",
    "ConversationPicture": ".picture",
    "Counters": ".picture",
    "DeltaTold": ".events",
    "Draft": ".draft",
    "DraftEnded": ".events",
    "DraftTold": ".events",
    "Draining": ".errors",
    "Event": ".events",
    "Live": ".events",
    "MailboxFull": ".errors",
    "ModelFailed": ".consume_ops",
    "OnBusy": ".turn",
    "Opened": ".events",
    "PositionRequest": ".position",
    "Presence": ".events",
    "Ref": ".ref",
    "RowsTold": ".events",
    "Runtime": ".runtime",
    "RuntimeStatistics": ".picture",
    "Signal": ".events",
    "Sink": ".hub",
    "Subscription": ".hub",
    "Turn": ".turn",
    "TurnBusy": ".errors",
    "TurnTold": ".events",
    "UnknownAgent": ".errors",
    "approval": ".approvals",
    "is_approval": ".approvals",
    "tool": ".tool_schema",
    "tool_schemas": ".tool_schema",
}

if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
