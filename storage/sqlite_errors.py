"""What an error of SQLite means; see the fault model of the port (`engine.py`)."""

from __future__ import annotations

import sqlite3

from .committer import Refused
from .errors import StorageBusy, StorageError, StorageFailed, StorageFull

__all__ = ["name_of", "translated"]


def name_of(error: sqlite3.Error) -> str:
    """Returns SQLite's name of an error; those of the `sqlite3` module itself have none."""
    return getattr(error, "sqlite_errorname", "")


def translated(error: sqlite3.Error) -> Exception:
    """Returns what an error of SQLite means for the caller; see the fault model of the port."""
    name = name_of(error)
    if name in ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC"):
        return StorageFailed(f"a flush to disk failed: {error}")
    if name == "SQLITE_FULL" or (name.startswith("SQLITE_IOERR") and "READ" not in name):
        return StorageFull(f"the disk is full or refuses writes: {error}")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StorageBusy(f"another program holds the file: {error}")
    if name.startswith(("SQLITE_TOOBIG", "SQLITE_MISMATCH", "SQLITE_CONSTRAINT")):
        return Refused(str(error))
    return StorageError(f"{name or type(error).__name__}: {error}")
