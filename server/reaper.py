"""The reaper: one timer for all sockets, which aborts those that make no progress and pings those that are silent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from websockets.frames import Frame, Opcode
from websockets.protocol import State

from .limits import Limits
from .socket import Socket

__all__ = ["Reaper"]

INTERVAL_MAX_S = 1.0
SOCKETS_PER_STEP = 16
# A peer's kernel says what its reader took when a whole buffer is free, not before: of one of 128 KiB that was read at
# 8 KiB a second nothing was seen for 15 s. So who stands still in our eyes has half as long again to be seen.
UNSEEN = 1.5
PING = Frame(Opcode.PING, b"").serialize(mask=False)

logger = logging.getLogger("parlatory.server")


class Reaper:
    """Looks at all sockets, once a second at least.

    It aborts a socket

    - whose data waits for `stall_s`, and half as long again, without any progress that is seen here; progress of any
      size resets that clock;
    - whose peer has said nothing for `silence_s`, was pinged then, and is silent for as long again;
    - whose peer takes more than `frame_timeout_s` for one frame;
    - that takes more than `close_s` to close.

    What a peer says is not known while the server does not read it, so it is not held against it.

    Attributes:
        stalled, silent, dribbling, lingering: how many were aborted, by reason, in the order above.
        lag_s: how late its timer was last: what else ran in the event loop just then.
    """

    def __init__(self, sockets: Callable[[], Iterable[Socket]], limits: Limits) -> None:
        self.stalled = 0
        self.silent = 0
        self.dribbling = 0
        self.lingering = 0
        self.lag_s = 0.0
        self._sockets = sockets
        self._limits = limits
        self._interval_s = min(
            INTERVAL_MAX_S, *(s / 4 for s in (limits.stall_s, limits.silence_s, limits.frame_timeout_s, limits.close_s))
        )
        # What is left of this round, which is spread over the interval: what clients send is served in between.
        self._round: Iterator[Socket] = iter(())
        self._pause_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._due = 0.0

    def start(self) -> None:
        """Starts looking."""
        self._wait(asyncio.get_running_loop().time())

    def _wait(self, begun: float) -> None:
        """Waits for the round behind the one that began, or was due, at a loop time."""
        loop = asyncio.get_running_loop()
        self._due = max(begun + self._interval_s, loop.time())
        self._timer = loop.call_at(self._due, self._begin)

    def stop(self) -> None:
        """Stops looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self) -> None:
        self.lag_s = max(0.0, asyncio.get_running_loop().time() - self._due)
        sockets = list(self._sockets())
        self._round = iter(sockets)
        self._pause_s = self._interval_s * SOCKETS_PER_STEP / max(len(sockets), 1)
        self._step()

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        looked_at = 0
        for socket in islice(self._round, SOCKETS_PER_STEP):
            self._look(socket, now)
            looked_at += 1
        if looked_at == SOCKETS_PER_STEP:
            self._timer = loop.call_later(self._pause_s, self._step)
        else:
            self._wait(self._due)

    def _look(self, socket: Socket, now: float) -> None:
        limits, state = self._limits, socket.protocol.state
        if state is State.CLOSING or state is State.CLOSED:  # closed for the protocol, while data waits for the peer
            if socket.closing_since is None:
                socket.closing_since = now
            elif now - socket.closing_since >= limits.close_s:
                self.lingering += 1
                self._abort(socket, f"it has not closed for {limits.close_s:g} s")
        elif state is not State.OPEN and not socket.streaming:
            return  # the handshake has a deadline of its own
        elif socket.stalled_for(now) >= UNSEEN * limits.stall_s:
            self.stalled += 1
            self._abort(socket, f"no progress for {UNSEEN * limits.stall_s:g} s")
        elif socket.streaming or not (socket.writable and socket.transport.is_reading()):
            return
        elif socket.half_since is not None and now - socket.half_since >= limits.frame_timeout_s:
            self.dribbling += 1
            self._abort(socket, f"a frame takes more than {limits.frame_timeout_s:g} s")
        elif now - socket.heard_at >= limits.silence_s:
            if socket.pinged_at is None:
                socket.pinged_at = now
                socket.write(PING)
            elif now - socket.pinged_at >= limits.silence_s:
                self.silent += 1
                self._abort(socket, f"silent for {2 * limits.silence_s:g} s")

    def _abort(self, socket: Socket, reason: str) -> None:
        logger.warning("connection %s aborted: %s", socket.id, reason)
        socket.transport.abort()
