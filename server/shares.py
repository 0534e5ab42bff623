"""Shares: how much of something each of those who ask has at a time, so that nobody has all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .access import ANYBODY, Principal
from .loopback import network_of

__all__ = ["Shares", "asker"]


class Shares:
    """Counts what each has of something.

    Args:
        each: how much one may have at a time.
    """

    def __init__(self, each: int) -> None:
        self._each = each
        self._taken: Counter[str] = Counter()

    def used_up(self, who: str) -> bool:
        """Says whether somebody has as much as one may."""
        return self._taken[who] >= self._each

    @contextmanager
    def one(self, who: str) -> Iterator[None]:
        """Takes one, and gives it back at the end."""
        self._taken[who] += 1
        try:
            yield
        finally:
            self._taken[who] -= 1
            if not self._taken[who]:
                del self._taken[who]


def asker(principal: Principal, remote: str) -> str:
    """Returns whose share a request is of: its principal's, or its network's where it says no name.

    Args:
        principal: who asks.
        remote: the address it comes from.
    """
    return network_of(remote) if principal.name == ANYBODY else principal.name
