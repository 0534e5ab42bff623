"""A disk that remembers: an apsw VFS that records every write and flush, and what a power loss leaves of the files.

Unrealistic: file creation, deletion and truncation are taken as durable at once, where a real file system needs a
flush of the directory. Realistic, and the point: a write that was not flushed may be there, may be missing, and may be
torn at a sector, whatever happened to its neighbours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

__all__ = ["JournalVFS", "Op", "survivors"]

SECTOR = 512


@dataclass
class Op:
    """Is one thing done to a file: `write` at an offset, `truncate` to a size, `sync`, or `delete`."""

    file: str
    kind: str
    offset: int = 0
    data: bytes = b""


@dataclass
class JournalVFS(apsw.VFS):
    """Passes everything on to the real file system and writes it down in `ops`."""

    name: str
    ops: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return JournalFile(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        self.ops.append(Op(Path(name).name, "delete"))
        super().xDelete(name, sync)


class JournalFile(apsw.VFSFile):
    """Is an open file of a `JournalVFS`."""

    def __init__(self, vfs: JournalVFS, name: Any, flags: list[int]) -> None:
        self.vfs = vfs
        filename = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self.file = Path(filename).name
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.vfs.ops.append(Op(self.file, "write", offset, bytes(data)))
        super().xWrite(data, offset)

    def xTruncate(self, size: int) -> None:
        self.vfs.ops.append(Op(self.file, "truncate", size))
        super().xTruncate(size)

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self.vfs.ops.append(Op(self.file, "sync"))


def survivors(ops: list[Op], rng: random.Random) -> dict[str, bytes]:
    """Returns what the files hold after the power went at the end of `ops`.

    What was flushed is there. Of what was not, each write survives whole, in part, or not at all.
    """
    flushed = {op.file: index for index, op in enumerate(ops) if op.kind == "sync"}
    files: dict[str, bytearray] = {}
    for index, op in enumerate(ops):
        content = files.setdefault(op.file, bytearray())
        if op.kind == "delete":
            files.pop(op.file, None)
        elif op.kind == "truncate":
            del content[op.offset :]
            content.extend(bytes(max(0, op.offset - len(content))))
        elif op.kind == "write":
            data = op.data
            if index > flushed.get(op.file, -1):
                fate = rng.random()
                if fate < 0.4:
                    continue
                if fate < 0.6:
                    data = data[: rng.randrange(0, len(data) // SECTOR + 1) * SECTOR]
            content.extend(bytes(max(0, op.offset + len(data) - len(content))))
            content[op.offset : op.offset + len(data)] = data
    return {name: bytes(content) for name, content in files.items()}
