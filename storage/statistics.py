"""What an engine counts: plain numbers, which cost nothing that could be measured and are read when somebody looks."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

__all__ = ["Latency", "StorageStatistics"]

BOUNDS_S = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
RECENT = 1024


class Latency:
    """Is how long something took: a histogram since the start, and the latest ones for quantiles.

    Attributes:
        count, total_s: how many there were, and their sum.
        buckets: how many were within each of `BOUNDS_S` but not within the one before; then those beyond the last.
    """

    __slots__ = ("_recent", "buckets", "count", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self._recent: deque[float] = deque(maxlen=RECENT)

    def observe(self, seconds: float) -> None:
        """Counts one."""
        self.count += 1
        self.total_s += seconds
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self._recent.append(seconds)

    def quantile(self, share: float) -> float | None:
        """Returns how long at most this share (0 to 1) of the latest ones took; None if there were none."""
        ordered = sorted(self._recent)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None

    def cumulated(self) -> list[tuple[float, int]]:
        """Returns for each bound, in seconds, how many were within it; all of them within infinity."""
        found, count = [], 0
        for bound, more in zip((*BOUNDS_S, float("inf")), self.buckets, strict=True):
            count += more
            found.append((bound, count))
        return found


class StorageStatistics(NamedTuple):
    """Is what an engine has done since it was opened, and what waits.

    Attributes:
        rows: rows committed.
        groups: transactions, which many batches may share.
        duplicates: repeats of a client id, answered with the first seq.
        queued_rows: rows that wait to be committed.
        pinned: how often another program's reader made the WAL grow over what is warned of.
        commits: how long each transaction took, from its planning to the end of its flush.
    """

    rows: int
    groups: int
    duplicates: int
    queued_rows: int
    pinned: int
    commits: Latency
