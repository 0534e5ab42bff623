"""The lock of a data directory: one process owns it (P10).

`LOCK` is held with flock, which the kernel lets go when the process dies, however it dies; a file that lies there is no
owner. Its text (pid, host, start time) is for people. A forked child closes the descriptor, or it would keep the lock
alive behind its parent.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path

from .errors import DataLocked, StorageError

__all__ = ["DirectoryLock"]

OWNER_MAX_BYTES = 512
OWNER_WAIT_S = 0.5

_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


class DirectoryLock:
    """Owns a data directory from `acquire` to `release`. Both block: call them off the event loop."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._fd: int | None = None
        self._released = False
        # Whoever waited for `acquire` in a thread may be cancelled, and release before it has come to its end.
        self._guard = threading.Lock()

    def acquire(self) -> None:
        """Takes the lock.

        Raises:
            DataLocked: another process, or another engine of this one, holds it.
            StorageError: this system or file system has no such locks.
        """
        try:
            import fcntl
        except ImportError:
            raise StorageError("a data directory needs POSIX file locks, which this system lacks") from None
        path = self.directory / "LOCK"
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error
        deadline = time.monotonic() + OWNER_WAIT_S
        try:
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    owner = os.pread(fd, OWNER_MAX_BYTES, 0).decode(errors="replace").strip()
                    # No text: the owner has taken it just now, or lets it go just now.
                    if owner or time.monotonic() > deadline:
                        raise DataLocked(str(self.directory), owner) from None
                    time.sleep(0.005)
            os.ftruncate(fd, 0)
            owner = f"pid {os.getpid()} on {socket.gethostname()}, since {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
            os.pwrite(fd, owner.encode(), 0)
        except OSError as error:
            os.close(fd)
            raise StorageError(f"cannot lock {path}: {error.strerror}") from error
        except DataLocked:
            os.close(fd)
            raise
        with self._guard:
            self._fd = fd
            _held.add(self)
            released = self._released
        if released:
            self.release()

    def release(self) -> None:
        """Lets the directory go, for good; idempotent."""
        with self._guard:
            self._released = True
            if self._fd is not None:
                os.ftruncate(self._fd, 0)  # nobody owns it: the next who is refused shall not read of us
                self._close()

    def _close(self) -> None:
        assert self._fd is not None
        os.close(self._fd)
        self._fd = None
        _held.discard(self)


def _close_in_child() -> None:
    for lock in list(_held):
        lock._close()


os.register_at_fork(after_in_child=_close_in_child)
