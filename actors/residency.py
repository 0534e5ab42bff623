"""Residency: how many agent instances there are at once; the idle one used longest ago makes room."""

from __future__ import annotations

import asyncio
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
    """Admits at most `limit` residents; who comes when all are busy waits, in order, until one is between two turns."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("max_resident is at least 1")
        self.limit = limit
        # The one used longest ago is the first.
        self._residents: dict[Resident, None] = {}
        self._leaving: set[Resident] = set()
        self._waiting: dict[Resident, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        return len(self._residents)

    async def enter(self, resident: Resident) -> None:
        """Admits a resident, once there is room."""
        if len(self._residents) < self.limit:
            self._residents[resident] = None
            return
        admitted = self._waiting[resident] = asyncio.get_running_loop().create_future()
        if self._sought:
            victim = next((one for one in self._residents if one.quiet and one not in self._leaving), None)
            if victim is not None:
                self._leaving.add(victim)
                victim.dismiss()
        try:
            await admitted
        except asyncio.CancelledError:
            if self._waiting.pop(resident, None) is None:
                self.leave(resident)  # it was admitted in the same step
            raise

    def touch(self, resident: Resident) -> None:
        """Notes that a resident was used."""
        del self._residents[resident]
        self._residents[resident] = None

    def yields(self, resident: Resident) -> bool:
        """Says whether a resident between two turns has to go, for one that waits; `leave` follows then."""
        if not self._sought or resident not in self._residents or resident in self._leaving:
            return False
        self._leaving.add(resident)
        return True

    def leave(self, resident: Resident) -> None:
        """Takes a resident out, and gives its place to who has waited longest."""
        self._residents.pop(resident, None)
        self._leaving.discard(resident)
        while self._waiting and len(self._residents) < self.limit:
            following = next(iter(self._waiting))
            admitted = self._waiting.pop(following)
            if not admitted.cancelled():
                self._residents[following] = None
                admitted.set_result(None)

    @property
    def _sought(self) -> bool:
        """Says that more wait for a place than have been told to leave theirs."""
        return len(self._waiting) > len(self._leaving)
