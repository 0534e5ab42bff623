"""A disk for the tests of the committer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from parlatory.storage.committer import Done
from parlatory.storage.group import ClientKey, First, Group, MediaKey


class FakeDisk:
    """Keeps nothing but counts, and writes when the test says so. Unlike a disk it is either all gate or none.

    Attributes:
        errors: what the next writes fail with, in order; None lets one through.
        refuses: what the next writes raise at once.
        tidy_errors: the same for `tidy`.
        tidied: how often it was tidied up.
        taken: client keys that are on disk.
        media: media that are on disk, whole.
    """

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.errors: list[Exception | None] = []
        self.refuses: list[Exception] = []
        self.tidy_errors: list[Exception] = []
        self.taken: dict[ClientKey, First] = {}
        self.finds: list[Sequence[ClientKey]] = []
        self.media: set[MediaKey] = set()
        self.asked: list[Sequence[MediaKey]] = []
        self.keys = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.writing = asyncio.Event()
        self.tidied = 0
        self.tasks: list[asyncio.Task[None]] = []

    def free_key(self) -> int:
        return self.keys + 1

    def write(self, group: Group, done: Done) -> None:
        if self.refuses:
            raise self.refuses.pop(0)
        self.writing.set()
        self.tasks.append(asyncio.create_task(self._write(group, done)))

    async def _write(self, group: Group, done: Done) -> None:
        await self.gate.wait()
        error = self.errors.pop(0) if self.errors else None
        if error is None:
            self.keys += len(group.names)
            self.groups.append(group)
        done(error)

    async def find(self, wanted: Sequence[ClientKey]) -> dict[ClientKey, First]:
        self.finds.append(wanted)
        return {key: self.taken[key] for key in wanted if key in self.taken}

    async def held(self, wanted: Sequence[MediaKey]) -> set[MediaKey]:
        self.asked.append(wanted)
        return self.media & set(wanted)

    @property
    def untidy(self) -> bool:
        return bool(self.tidy_errors)

    async def tidy(self) -> None:
        self.tidied += 1
        if self.tidy_errors:
            raise self.tidy_errors.pop(0)
