"""An agenda: what is due soon, for many, by one timer.

Thousands of drafts that are each told in a beat of their own would cost the event loop a timer and a step for every
word. Here they wait in one heap. What is due together runs in one step of the loop, for as long as a few short calls
take: the rest waits for the next step, so that what clients send meanwhile is served in between, however much is due.
Where the steps of others are long, its own become longer, or it would never come to an end. Behind calls that are long
by themselves it waits for a millisecond, because to serve what a client sends takes more than one step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

__all__ = ["Agenda"]

STEP_S = 0.00005
STEP_MAX_S = PAUSE_S = 0.001
SHARE = 0.1  # of the time that the others took since its last step
LONG_S = 0.0003  # on average, of the calls of a step
NOW, NEVER = float("-inf"), float("inf")


class Agenda:
    """Calls what is due, in the order in which it became due; never early.

    Args:
        grain_s: how far apart its timer goes off at least; what is due at once does not wait for it.
    """

    def __init__(self, grain_s: float) -> None:
        self._grain_s = grain_s
        self._entries: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._timer: asyncio.Handle | None = None
        self._timer_at = NEVER
        self._left_at: float | None = None  # the loop time at which a step left something to the next one

    def add(self, at: float, call: Callable[[], object]) -> None:
        """Adds a call that is due at a loop time. It cannot be taken back: one needless by then does nothing."""
        heappush(self._entries, (at, next(self._numbers), call))
        if at < self._timer_at:
            self._set_timer(asyncio.get_running_loop(), at, 0.0)

    def close(self) -> None:
        """Forgets everything."""
        self._entries.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, NEVER
        self._left_at = None

    def _set_timer(self, loop: asyncio.AbstractEventLoop, at: float, earliest: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if at <= loop.time():
            self._timer, self._timer_at = loop.call_soon(self._run), NOW
        else:
            self._timer_at = max(at, earliest)
            self._timer = loop.call_at(self._timer_at, self._run)

    def _run(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        end = now + STEP_S
        if self._left_at is not None:
            end = max(end, now + min((now - self._left_at) * SHARE, STEP_MAX_S))
            self._left_at = None
        entries = self._entries
        self._timer, self._timer_at = None, NOW  # what is added meanwhile is seen below
        calls = 0
        try:
            while entries and entries[0][0] <= now:
                calls += 1
                heappop(entries)[2]()
                if loop.time() > end:
                    break
        finally:
            self._timer_at = NEVER
            if entries:
                after = loop.time()
                rest = after
                if after - now > calls * LONG_S:
                    rest += PAUSE_S
                elif entries[0][0] <= now:
                    self._left_at = after
                self._set_timer(loop, max(rest, entries[0][0]), now + self._grain_s)
