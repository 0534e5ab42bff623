"""Where a subscription starts: the decision over a requested position (P3). Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["PositionRequest", "Start", "decide_start"]

ResetReason = Literal["epoch", "ahead", "trimmed"]


class PositionRequest(NamedTuple):
    """Asks to start behind row `after` of `epoch`, whose instant is `at`; or at the last `tail` rows; or at the top."""

    epoch: str | None = None
    after: int = 0
    at: str | None = None
    tail: int | None = None


class Start(NamedTuple):
    """Is the row behind which to start and, where the request was refused, why."""

    seq: int
    reason: ResetReason | None = None


def decide_start(request: PositionRequest, *, epoch: str, floor: int, head: int, instant: str | None) -> Start:
    """Decides where a subscription starts.

    Args:
        request: what the client asks for.
        epoch: the epoch of the log.
        floor: rows up to it are trimmed.
        head: the last row.
        instant: the instant of row `request.after`, where the request names one and the log holds that row.

    Returns:
        The start. A position that cannot be served exactly is refused with a reason, never bent in silence; the start
        is then what `tail` asks, or the first kept row.
    """
    reason: ResetReason | None = None
    if request.epoch is not None:
        if request.epoch != epoch:
            reason = "epoch"
        elif request.after > head:
            reason = "ahead"
        elif request.after < floor:
            reason = "trimmed"
        elif request.at is not None and request.after > floor and instant != request.at:
            reason = "epoch"
        else:
            return Start(request.after)
    if request.tail is None:
        return Start(floor, reason)
    return Start(max(floor, head - request.tail), reason)
