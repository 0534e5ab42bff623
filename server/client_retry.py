"""When to come back after a connection ended, and when not (PROTOCOL section 3, close codes)."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["FINAL", "STABLE_S", "Backoff", "explain"]

FIRST_S = 0.5
LONGEST_S = 30.0
HINT_LONGEST_S = 300.0
STABLE_S = 30.0
"""A connection that lasted as long begins anew with the shortest delay."""

FINAL = frozenset({4400, 4403})
"""The close codes after which a client never comes back."""

# Who overloads a server shall not be back within the first half second.
_FAILURES_MIN = {1013: 2, 4429: 4}

_TEXTS = {
    4400: "the server ended the connection over bad frames: a fault of this client, please report it",
    4401: "the server wants a valid token",
    4403: "the server does not allow this client",
}


def explain(close_code: int | None) -> str:
    """Returns what a close code means, for people."""
    if not close_code:
        return "the connection was lost"
    return _TEXTS.get(close_code) or f"the connection ended (close code {close_code})"


class Backoff:
    """Counts failures and says how long to wait: full jitter below a bound that doubles from 0.5 s to 30 s.

    `random` returns a float in [0, 1).
    """

    def __init__(self, random: Callable[[], float]) -> None:
        self._random = random
        self._failures = 0

    def reset(self) -> None:
        """Begins anew: a row was received, or a connection was stable."""
        self._failures = 0

    def delay_s(self, close_code: int | None = None, retry_ms: tuple[int, int] | None = None) -> float:
        """Returns how long to wait after one more failure; what the server asks for in its `bye` takes precedence."""
        failures = max(self._failures, _FAILURES_MIN.get(close_code or 0, 0))
        self._failures = min(failures + 1, 16)
        if retry_ms is not None:
            low, high = (min(max(ms / 1000, 0.0), HINT_LONGEST_S) for ms in retry_ms)
            return low + self._random() * max(high - low, 0.0)
        return self._random() * min(LONGEST_S, FIRST_S * 2.0**failures)
