"""The reaper: one timer for all sockets, which aborts those that make no progress and pings those that are silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from websockets.frames import Frame, Opcode
from websockets.protocol import State

from .limits import Limits
from .socket import Socket

__all__ = ["Reaper"]

INTERVAL_S = 1.0
PING = Frame(Opcode.PING, b"").serialize(mask=False)

logger = logging.getLogger("parlatory.server")


class Reaper:
    """Looks at all sockets once a second.

    A socket whose data waits for `stall_s` without any progress is aborted; progress of any size resets that clock. A peer
    that has said nothing for `silence_s` is pinged, and aborted if it is silent for as long again; one that the server does
    not read at the moment is not.

    Attributes:
        stalled, silent: how many were aborted for which reason.
    """

    def __init__(self, sockets: Callable[[], Iterable[Socket]], limits: Limits) -> None:
        self.stalled = 0
        self.silent = 0
        self._sockets = sockets
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts looking."""
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self._run)

    def stop(self) -> None:
        """Stops looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        now = asyncio.get_running_loop().time()
        for socket in list(self._sockets()):
            if socket.protocol.state is State.CONNECTING:
                continue
            if socket.stalled_for(now) >= self._limits.stall_s:
                self.stalled += 1
                logger.warning("connection %s aborted: no progress for %g s", socket.id, self._limits.stall_s)
                socket.transport.abort()
            elif now - socket.heard_at >= self._limits.silence_s and socket.writable:
                self._silent(socket, now)
        self.start()

    def _silent(self, socket: Socket, now: float) -> None:
        if socket.pinged_at is None:
            socket.pinged_at = now
            socket.write(PING)
        elif now - socket.pinged_at >= self._limits.silence_s:
            self.silent += 1
            logger.warning("connection %s aborted: silent for %g s", socket.id, 2 * self._limits.silence_s)
            socket.transport.abort()
