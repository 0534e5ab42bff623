"""The clock of the loop, and a hub in a room of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from parlatory.storage import Engine

from .fakes import Clock, GatedLog, steps
from .room import NAME, Room


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def room(engine: Engine) -> AsyncIterator[Room]:
    room = Room(GatedLog(await engine.partition(NAME)))
    yield room
    room.hub.close()
    await steps(2)
