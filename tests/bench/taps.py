"""Thousands of clients that cost their machine next to nothing: what comes is kept with its instant, and read later.

A load that understands what it hears takes as much of two processors as the server that it measures.
"""

from __future__ import annotations

import select
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .wire import frame, greet

__all__ = ["Tap", "Taps"]

READ_BYTES = 1 << 18
LOOK_S = 0.02
PONG_S = 10.0
PONG = b"\x8a\x80\0\0\0\0"
TEXT = 0x81


class Tap:
    """Is one client: the bytes that came, and when."""

    def __init__(self, port: int) -> None:
        self.sock = greet(port)
        self.chunks: list[bytes] = []
        self.at = array("d")

    def send(self, **fields: Any) -> None:
        self.sock.sendall(frame(**fields))

    def texts(self) -> Iterator[tuple[float, bytes]]:
        """Yields each text that came whole, and when it was."""
        left = b""
        for now, chunk in zip(self.at, self.chunks, strict=True):
            data = left + chunk
            place, end = 0, len(data)
            while end - place >= 2:
                size, start = data[place + 1], place + 2
                if size >= 126:
                    width = 2 if size == 126 else 8
                    start += width
                    size = int.from_bytes(data[start - width : start], "big")
                if end < start + size:
                    break
                if data[place] == TEXT:
                    yield now, data[start : start + size]
                place = start + size
            left = data[place:]


class Taps:
    """Are many of them.

    Args:
        taps: the clients; they are read from now on, whenever `read` is called.
    """

    def __init__(self, taps: Iterable[Tap]) -> None:
        self.taps = list(taps)
        self._poll = select.epoll()
        self._by_file = {tap.sock.fileno(): tap for tap in self.taps}
        for tap in self.taps:
            tap.sock.setblocking(False)
            self._poll.register(tap.sock, select.EPOLLIN)
        # Each says that it is there once in `PONG_S`, and no two at once.
        self._pong_at = time.monotonic()
        self._next_pong = 0

    def read(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """Reads for so many seconds, or until something is so; says whether it is."""
        clock, poll, taps = time.monotonic, self._poll.poll, self._by_file
        now = clock()
        end, look_at = now + seconds, now
        while now < end:
            for file, _ in poll(LOOK_S):
                tap = taps[file]
                tap.chunks.append(tap.sock.recv(READ_BYTES))
                tap.at.append(clock())
            now = clock()
            if now >= look_at:
                look_at = now + LOOK_S
                if until is not None and until():
                    return True
                self._pong(now)
        return until is not None and until()

    def _pong(self, now: float) -> None:
        while self._pong_at <= now:
            self.taps[self._next_pong].sock.send(PONG)
            self._next_pong = (self._next_pong + 1) % len(self.taps)
            self._pong_at += PONG_S / len(self.taps)

    def close(self) -> None:
        self._poll.close()
        for tap in self.taps:
            tap.sock.close()
