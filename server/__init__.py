"""Bytes on a wire: frames, the protocol session, the WebSocket server, access, the Python client, the command line."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .access import AccessRequest, ConversationName, Grant, Principal
    from .app import Server, serve
    from .client import Chat, Client, connect
    from .limits import Limits

__all__ = [
    "AccessRequest",
    "Chat",
    "Client",
    "ConversationName",
    "Grant",
    "Limits",
    "Principal",
    "Server",
    "connect",
    "serve",
]

_HOME = {
    "AccessRequest": ".access",
    "Chat": ".client",
    "Client": ".client",
    "ConversationName": ".access",
    "Grant": ".access",
    "Limits": ".limits",
    "Principal": ".access",
    "Server": ".app",
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
