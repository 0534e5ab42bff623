"""The write path of a socket, over websockets' connection: never waits, is bounded, and knows what makes progress.

What websockets does not give (measured with a peer that does not read): its keepalive never fires, `close` hangs, and a
write after an await needs a look at the state. Hence frames are written whole, in the step that checks the state; writing
is paused by the transport's own callbacks; who makes no progress is aborted by the reaper (`reaper.py`); and closing has
a deadline after which the transport is aborted.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.protocol import State

from .told import framed

__all__ = ["Socket"]

WRITE_LIMIT_BYTES = 64 << 10


class Socket(ServerConnection):
    """Is a WebSocket of the server.

    Attributes:
        writable: the transport takes more; False from the moment its buffer is over 64 KiB until it is low again.
        heard_at: loop time at which the peer last sent anything.
        pinged_at: loop time of a ping that has had no answer of any kind since, or None.
    """

    answers_bytes_max = WRITE_LIMIT_BYTES

    def __init__(self, *args: Any, **options: Any) -> None:
        options.update(ping_interval=None, write_limit=WRITE_LIMIT_BYTES)
        super().__init__(*args, **options)
        self.writable = True
        self.heard_at = self.loop.time()
        self.pinged_at: float | None = None
        # Frames of this step of the loop, which go out in one write at its end.
        self._corked: list[bytes] = []
        # Bytes of answers written while the transport is paused: a client that does not read is not read either.
        self._unread = 0
        self._reading = asyncio.Event()
        self._reading.set()
        self._handed = 0
        self._progress: tuple[int, float] = (0, 0.0)

    # -- writing

    def write(self, wire: bytes) -> None:
        """Writes a frame of the wire at once, or behind what is corked."""
        if self._corked:
            self._corked.append(wire)
        elif self.protocol.state is State.OPEN:
            self._handed += len(wire)
            self.transport.write(wire)

    def answer(self, payload: bytes) -> None:
        """Writes an answer at the end of this step of the loop, together with what else is told to this socket."""
        wire = framed(payload)
        if not self._corked:
            self.loop.call_soon(self.uncork)
        self._corked.append(wire)
        if not self.writable:
            self._unread += len(wire)
            if self._unread > self.answers_bytes_max:
                self._reading.clear()

    def uncork(self) -> None:
        """Writes what is corked."""
        if self._corked:
            wire, self._corked = b"".join(self._corked), []
            if self.protocol.state is State.OPEN:
                self._handed += len(wire)
                self.transport.write(wire)

    @property
    def may_be_read(self) -> bool:
        """Says that the client may be read now; see `may_read`."""
        return self._reading.is_set()

    async def may_read(self) -> None:
        """Returns once the client may be read: not while too many answers wait for it to read."""
        if not self._reading.is_set():
            await self._reading.wait()

    def on_writable(self) -> None:
        """Is called when the transport takes more again; for subclasses."""

    def pause_writing(self) -> None:
        """Notes that the transport takes no more."""
        super().pause_writing()
        self.writable = False

    def resume_writing(self) -> None:
        """Notes that the transport takes more again."""
        super().resume_writing()
        self.writable = True
        self._unread = 0
        if not self._reading.is_set():
            self._reading.set()
            if not self.recv_messages.paused:
                self.transport.resume_reading()
        self.on_writable()

    # -- reading

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the peer; what websockets answers by itself (pongs) counts as answers that wait."""
        self.heard_at = self.loop.time()
        self.pinged_at = None
        if self.writable:
            super().data_received(data)
            return
        before = self.transport.get_write_buffer_size()
        super().data_received(data)
        self._unread += max(0, self.transport.get_write_buffer_size() - before)
        if self._unread > self.answers_bytes_max and not self.transport.is_closing():
            self._reading.clear()
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes the end of the connection."""
        self._corked.clear()
        self.writable = False
        self._reading.set()
        super().connection_lost(exc)

    # -- progress and the end

    def waiting_bytes(self) -> int:
        """Returns how many bytes the peer has not taken: in the transport's buffer and, on Linux, in the kernel's.

        Linux wakes a writer only at about a third of the send buffer, so that the transport's buffer alone may stand still
        for long while a slow peer reads.
        """
        waiting = self.transport.get_write_buffer_size()
        sock = self.transport.get_extra_info("socket")
        if waiting and sock is not None and sock.fileno() >= 0:
            try:
                packed = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
            except OSError:
                return waiting
            waiting += int(struct.unpack("i", packed)[0])
        return waiting

    def stalled_for(self, now: float) -> float:
        """Returns for how many seconds data has waited without any progress; 0 if none waits or some went."""
        waiting = self.waiting_bytes() if self.transport.get_write_buffer_size() else 0
        taken = self._handed - waiting
        last, since = self._progress
        if not waiting or taken > last or not since:
            self._progress = (taken, now)
            return 0.0
        return now - since

    async def shut(self, code: int, timeout_s: float, reason: str = "") -> None:
        """Closes with a code, within a deadline; aborts what has not closed by then."""
        self.uncork()
        closing = self.loop.create_task(self.close(code, reason), name=f"parlatory close {self.id}")
        try:
            await asyncio.wait({closing}, timeout=timeout_s)
        finally:
            if not closing.done():
                self.transport.abort()
                closing.cancel()
            elif not closing.cancelled():
                closing.exception()
