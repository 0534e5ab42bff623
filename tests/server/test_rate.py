from __future__ import annotations

from parlatory.server.rate import TokenBucket


def test_it_is_full_at_first_and_never_fuller() -> None:
    bucket = TokenBucket(per_s=2, burst=5)
    assert bucket.take(1, 1000.0) == 4
    assert bucket.take(0, 1000.25) == 4.5
    assert bucket.take(0, 9999.0) == 5


def test_what_is_owed_is_paid_with_time() -> None:
    bucket = TokenBucket(per_s=2, burst=1)
    assert [bucket.take(1, 5.0) for _ in range(4)] == [0, -1, -2, -3]
    assert bucket.take(0, 6.0) == -1
    assert bucket.take(1, 7.0) == 0
