"""A handler: one run of the user's code, in a task of its own, which alone is cancelled.

Who stops it cancels it once. It has a grace for its `finally`, is then cancelled once more and, after another grace,
logged as stuck; but it is waited for all the same, so that no other user code of the conversation runs beside it (P5).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Literal

from ..storage import CorruptRow

if TYPE_CHECKING:
    from .watchdog import Watchdog

__all__ = ["Ended", "Handler", "StopCause"]

StopCause = Literal["stop", "timeout", "interrupt"]
"""Why a handler is stopped: somebody wants it, its time is over, or the process ends."""

Ended = Literal["done", "stopped", "error"]

logger = logging.getLogger("parlatory.actors")


class Handler:
    """Runs user code once.

    Args:
        conversation: whose code.
        what: what it runs, for the log, such as `turn 7`.
        grace_s: how long it has for its `finally`.
        watchdog: who watches whether it blocks the loop.

    Attributes:
        cause: why it was stopped, by the first who did; None where nobody did.
    """

    __slots__ = ("_grace_s", "_over", "_task", "_timer", "_watchdog", "cause", "conversation", "what")

    def __init__(self, conversation: str, what: str, grace_s: float, watchdog: Watchdog | None = None) -> None:
        self.conversation = conversation
        self.what = what
        self.cause: StopCause | None = None
        self._grace_s = grace_s
        self._watchdog = watchdog
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def run(self, coroutine: Coroutine[Any, Any, None]) -> Ended:
        """Runs user code and returns how it ended; one that was stopped before it began does not begin."""
        if self.cause is not None:
            coroutine.close()
            self._end(True)
            return "stopped"
        loop = asyncio.get_running_loop()
        task = self._task = loop.create_task(
            _contained(coroutine), name=f"parlatory {self.what} of {self.conversation!r}"
        )
        if self._watchdog is not None:
            self._watchdog.watch(task, self)
        try:
            await asyncio.wait({task})
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self._end(True)
        if task.cancelled():
            coroutine.close()  # where it was stopped in the step that started it, it has not begun
            return "stopped"
        error = task.exception()
        if error is None:
            return "done"
        what = "a row" if isinstance(error, CorruptRow) else "the handler"
        logger.error("%s of %r failed in %s", what, self.conversation, self.what, exc_info=error)
        return "error"

    def stop(self, cause: StopCause) -> None:
        """Stops it, now or before it begins; nothing where it was stopped already or is over."""
        if self.cause is not None or self._over.done() or (self._task is not None and self._task.done()):
            return
        self.cause = cause
        if self._task is not None:
            self._cancel(again=True)

    def close(self) -> None:
        """Says that it is over, where it never ran."""
        self._end(True)

    async def over(self) -> bool:
        """Returns once it is over; False if it is stuck and goes on."""
        await asyncio.wait({self._over})
        return self._over.result()

    def _cancel(self, again: bool) -> None:
        assert self._task is not None
        self._task.cancel()
        following = (self._cancel, False) if again else (self._end, False)
        self._timer = asyncio.get_running_loop().call_later(self._grace_s, *following)

    def _end(self, over: bool) -> None:
        if not over:
            logger.error("the handler of %r is stuck in %s: it swallows its cancellation", self.conversation, self.what)
        if not self._over.done():
            self._over.set_result(over)


async def _contained(coroutine: Coroutine[Any, Any, None]) -> None:
    """Runs user code; what would end the process is a failure of this handler.

    Otherwise one message could end the server, and each that takes it up after that.
    """
    try:
        await coroutine
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the handler raised {type(error).__name__}, which is not passed on") from error
