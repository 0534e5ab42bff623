"""An actor-per-conversation runtime: each conversation is one durable async actor with its own append-only log.

Names are loaded when they are first used, so that importing the client loads neither the storage engines nor the
runtime.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .actors import Agent, Runtime
    from .server import Client, connect, serve
    from .storage import MessageLog, assistant_message, open_engine, system_message, tool_message, user_message

    __version__: str

__all__ = [
    "Agent",
    "Client",
    "MessageLog",
    "Runtime",
    "__version__",
    "assistant_message",
    "connect",
    "open_engine",
    "serve",
    "system_message",
    "tool_message",
    "user_message",
]

_HOME = {
    "Agent": ".actors",
    "Client": ".server",
    "MessageLog": ".storage",
    "Runtime": ".actors",
    "assistant_message": ".storage",
    "connect": ".server",
    "open_engine": ".storage",
    "serve": ".server",
    "system_message": ".storage",
    "tool_message": ".storage",
    "user_message": ".storage",
}

if not TYPE_CHECKING:  # a type checker that saw it would accept any name

    def __getattr__(name):
        if name == "__version__":
            value = import_module("importlib.metadata").version(__name__)
        elif name in _HOME:
            value = getattr(import_module(_HOME[name], __name__), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
