"""The way from a thread into its loop, which every commit takes, and which costs less than `call_soon_threadsafe`.

That makes a handle with a context of its own, sends on a pair of sockets and reads from it until nothing is left. Here
a call costs a byte in a pipe, written by the thread and read by the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Waker"]


class Waker:
    """Calls in a loop what threads ask for: in their order, each call in a step of its own.

    Args:
        loop: the loop, which is running. One that watches no descriptors is woken in its own way.

    Attributes:
        loop: the same.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._pipe: tuple[int, ...] = ()
        self._watched = False
        # Where there is no descriptor left either, the loop is woken in its own way.
        with contextlib.suppress(NotImplementedError, OSError):
            self._pipe = os.pipe()
            os.set_blocking(self._pipe[0], False)
            # What it calls is no part of whatever opens the connection.
            contextvars.Context().run(loop.add_reader, self._pipe[0], self._take)
            self._watched = True

    def __del__(self) -> None:
        # Only now can nobody write any more: a descriptor that is closed is soon somebody else's.
        for end in self._pipe:
            os.close(end)

    def call(self, function: Callable[..., object], *values: Any) -> None:
        """Calls a function in the loop; from any thread."""
        if self._watched:
            self._calls.append((function, values))
            os.write(self._pipe[1], b"\0")
        else:
            self.loop.call_soon_threadsafe(function, *values)

    @property
    def here(self) -> bool:
        """Says whether its loop is the one that runs here."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False

    def drain(self) -> None:
        """Calls at once what was asked for before, if its loop runs here; else that has its own time."""
        while self._calls and self.here:
            try:
                self._take()
            except Exception as error:  # as the loop does with what it calls
                self.loop.call_exception_handler({"message": "a call of a thread failed", "exception": error})

    def detach(self) -> None:
        """Leaves the loop, in which nothing is called any more; from any thread."""
        if self.here:
            self._leave()
        else:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has let go
                self.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._watched:
            self.loop.remove_reader(self._pipe[0])

    def _take(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the call is there before its byte; such a byte calls nothing later
            os.read(self._pipe[0], 1)
        if self._calls:
            function, values = self._calls.popleft()
            function(*values)
