"""How fast a socket may ask: a token bucket, without a clock of its own."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """Holds `burst` tokens at most, and gets `per_s` of them a second.

    What is refused is paid for all the same: whoever waits is served again, and whoever goes on owes more and more.
    """

    __slots__ = ("_at", "_burst", "_per_s", "_tokens")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = burst
        self._at = 0.0

    def take(self, cost: float, now: float) -> float:
        """Takes tokens and returns how many are left: below 0 it is too fast.

        Args:
            cost: how many.
            now: the time in seconds, by any clock that does not go back.
        """
        tokens = self._tokens + (now - self._at) * self._per_s
        self._at = now
        self._tokens = (tokens if tokens < self._burst else self._burst) - cost
        return self._tokens
