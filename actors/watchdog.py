"""The watchdog: a thread that notices when user code blocks the event loop, and says whose and where.

While user code runs it asks the loop for a sign of life, a few times a second. While none runs it sleeps and costs
nothing. It only looks and logs: what blocks goes on.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .handler import Handler

__all__ = ["Watchdog"]

# How long after its loop a thread ends that has nothing to watch.
REST_S = 10.0

logger = logging.getLogger("parlatory.actors")


class Watchdog:
    """Watches one event loop. `stop` ends its thread; so does the end of the loop.

    Args:
        block_s: for how long the loop may be blocked; it is logged before that time is over, once per block.
    """

    def __init__(self, block_s: float) -> None:
        if block_s <= 0:
            raise ValueError("watchdog_s is positive, or None")
        self._wait_s = block_s * 0.7
        self._pause_s = block_s * 0.2
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[asyncio.Task[None], Handler] = {}
        self._work = threading.Event()
        self._alive = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop_thread = threading.get_ident()
        self._ended = asyncio.Event()

    def watch(self, task: asyncio.Task[None], handler: Handler) -> None:
        """Watches as long as a task runs."""
        self._handlers[task] = handler
        task.add_done_callback(self._done)
        if len(self._handlers) == 1:
            self._work.set()
        self.start()

    def start(self) -> None:
        """Starts the thread; idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="parlatory watchdog", daemon=True)
            self._thread.start()

    def _done(self, task: asyncio.Task[None]) -> None:
        del self._handlers[task]
        if not self._handlers and not self._stopping.is_set():
            self._work.clear()

    async def stop(self) -> None:
        """Ends the thread; idempotent."""
        self._stopping.set()
        self._work.set()
        if self._thread is not None:
            await self._ended.wait()

    # -- in the thread

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                if not self._work.wait(REST_S) and not self._loop.is_closed():
                    continue
                self._alive.clear()
                asked = monotonic()
                self._loop.call_soon_threadsafe(self._alive.set)
                if not self._alive.wait(self._wait_s):
                    self._report()
                    while not self._alive.wait(1.0) and self._loop.is_running():
                        pass
                    logger.error("the event loop goes on; it was blocked for %.1f s", monotonic() - asked)
                self._stopping.wait(self._pause_s)
            self._loop.call_soon_threadsafe(self._ended.set)
        except RuntimeError:  # the loop is closed
            return

    def _report(self) -> None:
        frame = sys._current_frames().get(self._loop_thread)
        stack = "" if frame is None else "".join(traceback.format_stack(frame))
        logger.error("the event loop is blocked by %s; use self.run_sync for what blocks\n%s", self._who(), stack)

    def _who(self) -> str:
        task: asyncio.Task[Any] | None = asyncio.current_task(self._loop)
        handler = None if task is None else self._handlers.get(task)
        if handler is not None:
            return f"{handler.what} of {handler.conversation!r}"
        if task is not None:
            return f"task {task.get_name()!r}"
        return "a callback"
