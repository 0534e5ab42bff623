"""Faults that come again and again: the first of a kind is logged whole, the others are counted, a line a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["Faults"]

KINDS_MAX = 64
EVERY_S = 60.0

logger = logging.getLogger("parlatory.server")


class Faults:
    """Logs faults by their kind: what failed, the type of the error, and where it was raised.

    At most `KINDS_MAX` kinds are remembered; above that the oldest is forgotten, and would be logged whole again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By kind: when it was logged last, and how often it came since.
        self._kinds: dict[tuple[str, type, str, int], tuple[float, int]] = {}

    def log(self, what: str, error: Exception, whole: str = "") -> None:
        """Logs a fault, or counts it.

        Args:
            what: failed; the same words for the same kind.
            error: why.
            whole: says it with what is this one's own, in front of the traceback; `what` if it is not given.
        """
        kind = what, type(error), *_place(error)
        now = self._clock()
        if kind not in self._kinds:
            if len(self._kinds) >= KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
            self._kinds[kind] = now, 0
            logger.error("%s", whole or what, exc_info=error)
            return
        since, count = self._kinds[kind]
        if now - since < EVERY_S:
            self._kinds[kind] = since, count + 1
            return
        self._kinds[kind] = now, 0
        logger.error(
            "%s again, %d times within %d s, with the %s of before", what, count + 1, now - since, type(error).__name__
        )


def _place(error: Exception) -> tuple[str, int]:
    """Returns the file and the line that raised."""
    traceback = error.__traceback__
    if traceback is None:
        return "", 0
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
