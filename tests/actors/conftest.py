"""Engines of both kinds, fresh for each test and closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from parlatory.storage import Engine, open_engine

from .fakes import Clock


@pytest.fixture(params=["memory", "sqlite"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    opened = await open_engine("memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'data'}")
    yield opened
    await opened.close()


@pytest.fixture
async def clock() -> Clock:
    return Clock()
