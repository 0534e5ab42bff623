"""What a server counts: plain numbers, read when somebody looks."""

from __future__ import annotations

from collections import Counter

__all__ = ["Counters"]


class Counters:
    """Counts what happens to the sockets of a server, since it was made.

    Attributes:
        accepted: connections taken, whatever they asked for.
        dropped: those dropped because too many had not been let in yet.
        refused: handshakes refused, by HTTP status.
        closed: sockets that the server decided to close, by code.
        acks, duplicates: acknowledged sends, and those of them that were repeats.
        errors: refused frames, by error code.
    """

    __slots__ = ("accepted", "acks", "closed", "dropped", "duplicates", "errors", "refused")

    def __init__(self) -> None:
        self.accepted = 0
        self.dropped = 0
        self.refused: Counter[int] = Counter()
        self.closed: Counter[int] = Counter()
        self.acks = 0
        self.duplicates = 0
        self.errors: Counter[str] = Counter()
