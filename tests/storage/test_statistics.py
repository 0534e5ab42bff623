from __future__ import annotations

import pytest

from parlatory.storage import Latency
from parlatory.storage.statistics import BOUNDS_S, RECENT


def test_without_any_there_is_no_quantile() -> None:
    assert Latency().quantile(0.5) is None


def test_quantiles_are_of_the_latest() -> None:
    latency = Latency()
    latency.observe(9.0)
    for number in range(RECENT):
        latency.observe(number / 1000)
    assert [latency.quantile(share) for share in (0.0, 0.5, 0.99, 1.0)] == [0.0, 0.512, 1.013, 1.023]
    assert latency.count == RECENT + 1
    assert latency.total_s == pytest.approx(9.0 + sum(range(RECENT)) / 1000)


def test_the_histogram_keeps_all() -> None:
    latency = Latency()
    for seconds in (0.0, BOUNDS_S[0], 0.0003, BOUNDS_S[-1], 60.0):
        latency.observe(seconds)
    within = dict(latency.cumulated())
    assert [within[bound] for bound in (BOUNDS_S[0], BOUNDS_S[1], BOUNDS_S[-2], BOUNDS_S[-1])] == [2, 3, 3, 4]
    assert within[float("inf")] == latency.count == 5
