from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ..actors.fakes import Clock
from .dialects import DIALECTS, Dialect
from .server import Provider
from .server import provider as serve


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with serve() as provider:
        yield provider


@pytest.fixture(params=DIALECTS, ids=lambda kind: kind.__name__)
async def dialect(request: pytest.FixtureRequest, provider: Provider) -> AsyncIterator[Dialect]:
    dialect = request.param(provider.url)
    yield dialect
    await dialect.close()


@pytest.fixture
def engine_kind() -> str:
    return "memory"


@pytest.fixture
async def clock() -> Clock:
    return Clock()
