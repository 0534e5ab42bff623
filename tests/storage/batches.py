"""Partitions and batches for the tests of what is decided over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from parlatory.storage import Batch, Blob, Engine, NewRow, Partition
from parlatory.storage.engine import LastRow
from parlatory.storage.group import Group


def partition(name: str = "bot/a", *, key: int | None = None, head: int = 0, at: int = 0) -> Partition:
    nobody = cast(Engine, None)  # a committer never asks for the engine
    return Partition(nobody, name, "e.1", LastRow(key=key, seq=head, at=at))


def row(text: str = "x", *, client_id: str | None = None, digest: int | None = None) -> NewRow:
    return NewRow(body=text.encode(), by="user", client_id=client_id, digest=digest)


def rows(*texts: str) -> Batch:
    return Batch(rows=[row(text) for text in texts])


def seqs(group: Group) -> list[tuple[int, int]]:
    return [(key, row.seq) for key, row, _ in group.rows]


def blob(hash: str = "h", data: bytes = b"png") -> Blob:
    return Blob(hash=hash, media_type="image/png", size=len(data), start=0, data=data)


def with_media(*blobs: Blob, refs: Sequence[str] = (), **fields: Any) -> Batch:
    return Batch(rows=[NewRow(body=b"x", by="user", media=blobs, refs={hash: "$.a" for hash in refs}, **fields)])
