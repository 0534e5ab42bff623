"""What the tests of the Python client and of the commands that use it share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from .test_client_peer import Peer, peer


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full jitter of nothing: the client comes back without a delay."""
    monkeypatch.setattr(random, "random", lambda: 0.0)


@pytest.fixture
async def server() -> AsyncIterator[Peer]:
    """A scripted peer."""
    async with peer() as made, asyncio.timeout(20):
        yield made
