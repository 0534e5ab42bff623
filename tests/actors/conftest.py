"""The clock of the loop."""

from __future__ import annotations

import pytest

from .fakes import Clock


@pytest.fixture
async def clock() -> Clock:
    return Clock()
