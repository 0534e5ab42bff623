from __future__ import annotations

from parlatory.storage import Engine, EngineContract, open_engine


class TestMemory(EngineContract):
    async def open(self) -> Engine:
        return await open_engine("memory:")
