"""How long a client waits before it comes back."""

from __future__ import annotations

import pytest

from parlatory.server.client_retry import FINAL, Backoff, explain


def almost_one() -> float:
    return 0.999999


def test_full_jitter_doubles_from_half_a_second_to_thirty() -> None:
    backoff = Backoff(almost_one)
    assert [round(backoff.delay_s(), 3) for _ in range(9)] == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert Backoff(lambda: 0.0).delay_s() == 0
    for _ in range(2000):
        assert backoff.delay_s() <= 30


def test_begins_anew() -> None:
    backoff = Backoff(almost_one)
    backoff.delay_s()
    backoff.delay_s()
    backoff.reset()
    assert round(backoff.delay_s(), 3) == 0.5


def test_what_the_server_asks_for_takes_precedence() -> None:
    assert Backoff(lambda: 0.5).delay_s(1012, (1000, 3000)) == 2.0
    assert Backoff(lambda: 0.5).delay_s(1012, (3000, 1000)) == 3.0
    assert Backoff(lambda: 0.5).delay_s(1012, (0, 10**15)) == 150.0
    assert Backoff(lambda: 0.5).delay_s(1012, (-5, -5)) == 0.0


def test_an_overloaded_server_is_spared() -> None:
    assert round(Backoff(almost_one).delay_s(1013), 3) == 2
    assert round(Backoff(almost_one).delay_s(4429), 3) == 8


@pytest.mark.parametrize("code", [*FINAL, 4401, 1006, None])
def test_codes_are_explained(code: int | None) -> None:
    assert explain(code) and "none" not in explain(code)


def test_what_a_client_never_retries() -> None:
    assert {4400, 4403} == FINAL
