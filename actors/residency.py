"""Residency: how many agent instances there are at once; the idle one used longest ago makes room."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

__all__ = ["Residency", "Resident"]


class Resident(Protocol):
    """Is whose instance counts."""

    @property
    def quiet(self) -> bool:
        """Says that it could go now."""

    def dismiss(self) -> None:
        """Makes it go; `Residency.leave` follows."""


class Residency:
    """Admits at most `limit` residents; who comes when all are busy waits, in order."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("max_resident is at least 1")
        self.limit = limit
        self._residents: dict[Resident, None] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __len__(self) -> int:
        return len(self._residents)

    @property
    def crowded(self) -> bool:
        """Says that somebody waits to be admitted."""
        return bool(self._waiting)

    async def enter(self, resident: Resident) -> None:
        """Admits a resident, once there is room."""
        while len(self._residents) >= self.limit:
            self.make_room()
            room = asyncio.get_running_loop().create_future()
            self._waiting.append(room)
            try:
                await room
            except asyncio.CancelledError:
                self._wake()
                raise
        self._residents[resident] = None

    def touch(self, resident: Resident) -> None:
        """Notes that a resident was used."""
        del self._residents[resident]
        self._residents[resident] = None

    def leave(self, resident: Resident) -> None:
        """Takes a resident out and wakes who waits."""
        if resident in self._residents:
            del self._residents[resident]
            self._wake()

    def make_room(self) -> None:
        """Dismisses the quiet resident that was used longest ago, if there is one."""
        victim = next((one for one in self._residents if one.quiet), None)
        if victim is not None:
            victim.dismiss()

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
