"""kill -9 of a real server under load (P1, P2, P4): what was acknowledged or told is there, under the same seq."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from .witness import Server, Witness

ROUNDS = int(os.environ.get("PARLATORY_CRASH_ROUNDS", "20"))
SEED = int(os.environ.get("PARLATORY_CRASH_SEED", "1"))
CONVERSATIONS = 50
SOCKETS = 10
ACKS = 1_000


@pytest.mark.timeout(60 + 20 * ROUNDS)
async def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """T21, T47: the repeat of a send after the kill gets its first seq."""
    rng = random.Random(SEED)
    server, witness = Server(tmp_path / "data"), Witness(CONVERSATIONS, rng)
    try:
        for round_ in range(ROUNDS):
            await server.start()
            await witness.verify(server.url)
            assert not witness.faults, f"seed {SEED}, round {round_}: {witness.faults[:5]}"
            await witness.load(server.url, SOCKETS, ACKS + rng.randrange(400))
            await asyncio.to_thread(server.kill)
            await witness.settle()
        await server.start()
        await witness.verify(server.url)
        assert not witness.faults, f"seed {SEED}, at the end: {witness.faults[:5]}"
        assert witness.acked >= ROUNDS * ACKS
        assert await asyncio.to_thread(server.stop) == 0
    finally:
        await asyncio.to_thread(server.kill)
