"""The errors of the actors, below `ParlatoryError` of the storage."""

from __future__ import annotations

from ..storage import ParlatoryError

__all__ = ["Draining", "MailboxFull", "TurnBusy", "UnknownAgent"]


class UnknownAgent(ParlatoryError, LookupError):
    """Says that the runtime has no agent of this name; `agents` are those it has."""

    code = "forbidden"

    def __init__(self, agent: str, agents: tuple[str, ...]) -> None:
        super().__init__(f"no agent {agent!r} in this runtime; it has {', '.join(agents) or 'none'}")
        self.agent = agent
        self.agents = agents


class MailboxFull(ParlatoryError):
    """Says that a conversation has more work waiting than its mailbox takes. Nothing was taken; try again."""

    code = "busy"
    temporary = True

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(f"{limit} items wait for {name!r}")
        self.name = name
        self.limit = limit


class TurnBusy(ParlatoryError):
    """Says that a turn of a conversation runs or waits, and its agent takes no message meanwhile. Try again later."""

    code = "busy"
    temporary = True

    def __init__(self, name: str) -> None:
        super().__init__(f"a turn of {name!r} runs, and its agent takes one message at a time")
        self.name = name


class Draining(ParlatoryError):
    """Says that the runtime is stopping and takes nothing new. Come back to its successor."""

    code = "draining"
    temporary = True

    def __init__(self) -> None:
        super().__init__("the runtime is stopping")
