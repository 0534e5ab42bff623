from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from parlatory.storage import instant_of, instant_text, to_datetime
from parlatory.storage.instants import now_us


@pytest.fixture
def tzset() -> Iterator[None]:
    yield
    time.tzset()


def test_text_is_rfc_3339_with_six_digits() -> None:
    assert instant_text(0) == "1970-01-01T00:00:00.000000Z"
    assert instant_text(1_796_025_600_123_456) == "2026-11-30T08:00:00.123456Z"
    assert instant_text(1_796_025_600_000_001) == "2026-11-30T08:00:00.000001Z"
    assert instant_text(-1) == "1969-12-31T23:59:59.999999Z"


@pytest.mark.parametrize(
    "instant", [0, 1, -1, 1_796_025_600_123_456, 253_402_300_799_999_999, 999_999, 4_102_444_800_000_001]
)
def test_datetimes_are_exact(instant: int) -> None:
    moment = to_datetime(instant)
    assert moment.tzinfo is UTC
    assert instant_of(moment) == instant
    assert moment.isoformat(timespec="microseconds").replace("+00:00", "Z") == instant_text(instant)


def test_any_zone_is_the_same_instant() -> None:
    moment = datetime(2026, 11, 30, 8, 0, 0, 123456, tzinfo=UTC)
    assert instant_of(moment.astimezone(timezone(timedelta(hours=9)))) == instant_of(moment) == 1_796_025_600_123_456
    with pytest.raises(TypeError):
        instant_of(datetime(2026, 11, 30))


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_t18_local_time_means_nothing(zone: str, tzset: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a change of daylight saving time instants go on, whatever the machine's zone is."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    before = datetime(2026, 11, 1, 1, 59, 59, tzinfo=ZoneInfo("America/New_York"), fold=0)
    behind = before.astimezone(UTC) + timedelta(seconds=1)  # 01:00:00 once more, by the clock on the wall
    monkeypatch.setattr(time, "time_ns", lambda: int(before.timestamp()) * 10**9 + 5999)
    first = now_us()
    monkeypatch.setattr(time, "time_ns", lambda: int(behind.timestamp()) * 10**9)
    second = now_us()
    assert (first, second) == (instant_of(before) + 5, instant_of(behind))
    assert [instant_text(each) for each in (first, second)] == [
        "2026-11-01T05:59:59.000005Z",
        "2026-11-01T06:00:00.000000Z",
    ]
    assert to_datetime(first).isoformat() == "2026-11-01T05:59:59.000005+00:00"
