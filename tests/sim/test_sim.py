"""The whole node on simulated loops, disks and networks (issue 3, proof 1). `PARLATORY_SIM_SEEDS` says how many
worlds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from .run import failures, run_seed

COUNT = int(os.environ.get("PARLATORY_SIM_SEEDS", "300"))
CHUNK = max(25, COUNT // 100)
KEPT = [
    int(line.split()[0])
    for line in (Path(__file__).parent / "seeds.txt").read_text().splitlines()
    if line[:1].isdigit()
]


def check(seeds: Sequence[int]) -> None:
    for outcome in failures(seeds):
        pytest.fail(
            f"seed {outcome.seed}: {outcome.problems[0]}\n\nIts history: python -m tests.sim.run {outcome.seed}",
            pytrace=False,
        )


@pytest.mark.parametrize("seed", KEPT)
def test_seeds_that_once_failed(seed: int) -> None:
    check([seed])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(0, COUNT, CHUNK))
def test_worlds(first: int) -> None:
    check(range(first, min(first + CHUNK, COUNT)))


def test_a_seed_repeats_a_run() -> None:
    """Also what looks like chance is drawn from the seed: two runs have the same history, to the last event."""
    once, again = run_seed(9), run_seed(9)
    assert once.rows > 0
    assert (once.history.digest(), once.steps) == (again.history.digest(), again.steps)
