from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parlatory.server import Limits


def test_defaults_are_those_of_the_protocol() -> None:
    limits = Limits()
    assert (limits.frame_bytes, limits.message_bytes, limits.first_frame_bytes) == (4 << 20, 1 << 20, 4096)
    assert (limits.inflight, limits.conversations, limits.page_rows, limits.bad_frames) == (32, 32, 200, 16)
    assert (limits.hello_timeout_s, limits.beat_ms, limits.stall_s, limits.recheck_s) == (5, 10_000, 20, 60)


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("name", msgspec.structs.asdict(Limits()))
def test_every_limit_is_above_0(name: str, value: float) -> None:
    wrong: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"the limit {name} is .*; give a number above 0"):
        Limits(**wrong)
