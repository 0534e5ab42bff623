from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from parlatory.storage import Engine, MessageLog, open_engine


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = await open_engine("memory:")
    yield engine
    await engine.close()


@pytest.fixture
async def log(engine: Engine) -> MessageLog:
    return MessageLog(await engine.partition("bot/ann"))
