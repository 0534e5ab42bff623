from __future__ import annotations

import pytest

from parlatory.storage import Engine, MessageLog


@pytest.fixture
def engine_kind() -> str:
    return "memory"


@pytest.fixture
async def log(engine: Engine) -> MessageLog:
    return MessageLog(await engine.partition("bot/ann"))
