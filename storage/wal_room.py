"""Room in the WAL: its file is made longer before SQLite gets there, because growing costs a flush more than writing.

A flush of a file that became longer writes the file system's own journal too; over bytes that are already there it does
not. Measured on ext4 with 4 to 20 KiB per flush: 260 us against 145 us, about half of what a commit takes. SQLite
itself keeps the file's length after a checkpoint, so only the first 16 MiB of each run are concerned.

Zeros behind the last frame are what a WAL may hold: a frame of page 0 is none, and reading ends there.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

__all__ = ["WalRoom"]

MARGIN_BYTES = 128 << 10
STEP_MIN_BYTES = 256 << 10
STEP_MAX_BYTES = 2 << 20

logger = logging.getLogger("parlatory.storage")


class WalRoom:
    """Makes a WAL file longer, step by step, up to a length.

    Args:
        path: the WAL.
        up_to_bytes: the length from which on it is left alone.
    """

    def __init__(self, path: Path, up_to_bytes: int) -> None:
        self._path = path
        self._up_to = up_to_bytes
        # How long it is, and how much of that had been used before anybody counted; not known before the first time.
        self._length = 0
        self._before: int | None = None

    def wanted(self, written_bytes: int) -> bool:
        """Says whether `make` has something to do, where at most so many bytes were written since the start."""
        if self._before is None:
            return True
        return self._length < self._up_to and self._before + written_bytes + MARGIN_BYTES > self._length

    def make(self, written_bytes: int) -> None:
        """Makes the file longer; blocks. Nobody may write to it meanwhile. A full disk leaves it as it is."""
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                self._length = os.fstat(file).st_size
                if self._before is None:
                    self._before = max(0, self._length - written_bytes)
                self._length = _lengthened(file, self._length, self._up_to)
            finally:
                os.close(file)
        except OSError as error:
            logger.info("no room is made in %s, commits take longer: %s", self._path, error)
            self._before, self._length = 0, self._up_to


def _lengthened(file: int, length: int, up_to: int) -> int:
    """Writes zeros behind the end of a file and returns its new length; all of a step or nothing."""
    target = min(length + min(max(length, STEP_MIN_BYTES), STEP_MAX_BYTES), up_to)
    end = length
    try:
        while end < target:
            end += os.pwrite(file, bytes(target - end), end)
    except OSError:
        os.ftruncate(file, length)
        raise
    return end
