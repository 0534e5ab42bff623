"""Bytes on a wire: frames, the protocol session, the WebSocket server, access, the Python client, the command line."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .access import AccessRequest, ConversationName, Grant, Principal
    from .app import Server, serve
    from .client import Chat, ChatEvent, Client, Events, connect
    from .client_drafts import Draft
    from .client_effects import History
    from .client_errors import (
        CancelTimeout,
        ClientClosed,
        ClientError,
        ClientMisuse,
        ConnectionRefused,
        ConversationRefused,
        MediaFailed,
        Refused,
        SendRefused,
        SendTimeout,
    )
    from .client_frames import Presence, Signal, TurnState
    from .client_subscription import Position, Status
    from .limits import Limits

__all__ = [
    "AccessRequest",
    "CancelTimeout",
    "Chat",
    "ChatEvent",
    "Client",
    "ClientClosed",
    "ClientError",
    "ClientMisuse",
    "ConnectionRefused",
    "ConversationName",
    "ConversationRefused",
    "Draft",
    "Events",
    "Grant",
    "History",
    "Limits",
    "MediaFailed",
    "Position",
    "Presence",
    "Principal",
    "Refused",
    "SendRefused",
    "SendTimeout",
    "Server",
    "Signal",
    "Status",
    "TurnState",
    "connect",
    "serve",
]

_HOME = {
    "AccessRequest": ".access",
    "CancelTimeout": ".client_errors",
    "Chat": ".client",
    "ChatEvent": ".client",
    "Client": ".client",
    "ClientClosed": ".client_errors",
    "ClientError": ".client_errors",
    "ClientMisuse": ".client_errors",
    "ConnectionRefused": ".client_errors",
    "ConversationName": ".access",
    "ConversationRefused": ".client_errors",
    "Draft": ".client_drafts",
    "Events": ".client",
    "Grant": ".access",
    "History": ".client_effects",
    "Limits": ".limits",
    "MediaFailed": ".client_errors",
    "Position": ".client_subscription",
    "Presence": ".client_frames",
    "Principal": ".access",
    "Refused": ".client_errors",
    "SendRefused": ".client_errors",
    "SendTimeout": ".client_errors",
    "Server": ".app",
    "Signal": ".client_frames",
    "Status": ".client_subscription",
    "TurnState": ".client_frames",
    "connect": ".client",
    "serve": ".app",
}

if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name], __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
