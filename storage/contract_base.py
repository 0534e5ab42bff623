"""What the tests of the contract share: rows to write, and an engine to write them to."""

from __future__ import annotations

import unittest
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar
from zlib import crc32

from .engine import Batch, Engine, NewRow
from .rows import Row

__all__ = ["NAMES", "EngineTests", "batch", "raised", "row", "seqs", "texts"]

Error = TypeVar("Error", bound=BaseException)

NAMES = [
    "bot/a", "bot/A", "bot/\u0430", "bot/a ", "bot/a/b", "bot/a/", "bot//a", "bot/..", "bot/../bot/a", "bot/.",
    "bot/%61", "bot/a%", "bot/a_", "bot/\u00e9", "bot/\u2028", "bot/\U0010ffff", "bot/" + "\U0001f600" * 128,
    "bot/'; DROP TABLE message; --", "bot-2/a", "bot2/a",
]  # fmt: skip

HEAD, TAIL = b'{"role":"user","content":"', b'"}'


def row(text: str = "hi", *, by: str = "user", client_id: str | None = None) -> NewRow:
    """Makes a row."""
    body = HEAD + text.encode() + TAIL
    return NewRow(body=body, by=by, client_id=client_id, digest=None if client_id is None else crc32(body))


def batch(*texts: str) -> Batch:
    """Makes a batch of rows."""
    return Batch(rows=[row(text) for text in texts])


def texts(rows: Iterable[Row]) -> list[str]:
    """Returns what rows made by `row` say."""
    return [row.body.removeprefix(HEAD).removesuffix(TAIL).decode() for row in rows]


def seqs(rows: Iterable[Row]) -> list[int]:
    """Returns the seqs of rows."""
    return [row.seq for row in rows]


async def raised(kind: type[Error], awaitable: Awaitable[object]) -> Error:
    """Returns the error that an awaitable ends with; fails if it ends otherwise."""
    try:
        await awaitable
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


class EngineTests:
    """Opens an engine for each test."""

    async def open(self) -> Engine:
        """Opens an engine that holds nothing yet."""
        raise NotImplementedError

    async def reopen(self, engine: Engine) -> Engine:
        """Closes an engine and opens its data again; as it stands, for engines whose data ends with them."""
        raise unittest.SkipTest("this engine keeps nothing once it is closed")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        """Opens an engine for one test."""
        engine = await self.open()
        try:
            yield engine
        finally:
            await engine.close()
