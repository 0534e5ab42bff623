"""Instants: microseconds since 1970 in UTC as an integer; RFC 3339 with six digits on the wire."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache

__all__ = ["instant_of", "instant_text", "now_us", "to_datetime"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def now_us() -> int:
    """Returns the wall clock in microseconds since 1970 in UTC."""
    return time.time_ns() // 1000


def to_datetime(instant: int) -> datetime:
    """Returns an instant as an aware datetime in UTC, to the microsecond."""
    return EPOCH + timedelta(microseconds=instant)


def instant_of(moment: datetime) -> int:
    """Returns an aware datetime as an instant."""
    return (moment - EPOCH) // MICROSECOND


@lru_cache(maxsize=64)
def _second_text(second: int) -> str:
    return (EPOCH + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")


def instant_text(instant: int) -> str:
    """Returns an instant as the protocol writes it: `2026-11-30T08:00:00.123456Z`."""
    second, microsecond = divmod(instant, 1_000_000)
    return f"{_second_text(second)}.{microsecond:06d}Z"
