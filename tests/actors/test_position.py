from __future__ import annotations

import pytest

from parlatory.actors import PositionRequest
from parlatory.actors.position import Start, decide_start

AT = "2026-11-30T08:00:00.000001Z"
OTHER = "2026-11-30T08:00:00.000002Z"


@pytest.mark.parametrize(
    ("request_", "start"),
    [
        # no position: the first kept row, or the last ones
        (PositionRequest(), Start(3)),
        (PositionRequest(tail=2), Start(8)),
        (PositionRequest(tail=0), Start(10)),
        (PositionRequest(tail=100), Start(3)),
        # a position that can be served exactly
        (PositionRequest("e", 5), Start(5)),
        (PositionRequest("e", 3), Start(3)),
        (PositionRequest("e", 10), Start(10)),
        (PositionRequest("e", 5, tail=1), Start(5)),
        (PositionRequest("e", 5, AT), Start(5)),
        # one that cannot: refused with a reason, then what `tail` asks, or the first kept row
        (PositionRequest("f", 5), Start(3, "epoch")),
        (PositionRequest("f", 5, tail=4), Start(6, "epoch")),
        (PositionRequest("f", 50), Start(3, "epoch")),
        (PositionRequest("e", 11), Start(3, "ahead")),
        (PositionRequest("e", 11, tail=0), Start(10, "ahead")),
        (PositionRequest("e", 2), Start(3, "trimmed")),
        (PositionRequest("e", 0), Start(3, "trimmed")),
        (PositionRequest("e", 5, OTHER), Start(3, "epoch")),
        (PositionRequest("e", 5, OTHER, tail=1), Start(9, "epoch")),
        # a trimmed row has no instant to compare
        (PositionRequest("e", 3, OTHER), Start(3)),
    ],
)
def test_where_a_subscription_starts(request_: PositionRequest, start: Start) -> None:
    assert decide_start(request_, epoch="e", floor=3, head=10, instant=AT) == start


def test_the_instant_is_ignored_at_the_beginning() -> None:
    assert decide_start(PositionRequest("e", 0, AT), epoch="e", floor=0, head=10, instant=None) == Start(0)


def test_a_row_that_the_log_does_not_hold_is_of_another_log() -> None:
    request = PositionRequest("e", 5, AT)
    assert decide_start(request, epoch="e", floor=0, head=10, instant=None) == Start(0, "epoch")
