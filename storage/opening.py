"""Opening an engine by its address."""

from __future__ import annotations

from pathlib import Path

from .engine import Engine
from .memory import MemoryEngine
from .sqlite import Durability, SqliteEngine

__all__ = ["open_engine"]


async def open_engine(address: str, *, durability: Durability = "full", read_only: bool = False) -> Engine:
    """Opens the engine that an address names, and the data behind it.

    Args:
        address: `sqlite:///DIRECTORY` (a relative path; four slashes begin an absolute one), or `memory:`.
        durability: `full` flushes every commit; `normal` only now and then: a power loss may take rows that were
            told, every client then starts over. SQLite only.
        read_only: opens beside a running server, for reading; takes no lock. SQLite only.

    Raises:
        ValueError: the address is none of these.
        DataLocked: another process owns the directory.
        SchemaMismatch: the file was written by a newer version, or by another program.
        StorageError: the directory cannot be made, opened or locked.
    """
    if durability not in ("full", "normal"):
        raise ValueError(f"durability is 'full' or 'normal', not {durability!r}")
    if not isinstance(address, str):
        raise ValueError(f"an address is a string such as 'sqlite:///data', not {address!r}")
    if address == "memory:":
        return MemoryEngine()
    scheme, separator, path = address.partition(":///")
    if scheme != "sqlite" or not separator or not path:
        raise ValueError(f"cannot open {address!r}: give sqlite:///DIRECTORY or memory:")
    if "\0" in path:
        raise ValueError("the path of a data directory holds a NUL")
    return await SqliteEngine.open(Path(path), durability=durability, read_only=read_only)
