"""One conversation of a client: position, buffer, reset, holes, pauses."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from parlatory.server.client_frames import Opened, Reset, RowFrame, Rows, TurnState
from parlatory.server.client_subscription import REOPENS_MAX, Met, Position, Subscription
from parlatory.server.frames import Close, Open, encode
from parlatory.storage import CorruptRow, StoredMessage

C = "echo/a"
START = datetime(2026, 11, 30, tzinfo=UTC)


def at(seq: int) -> datetime:
    return START + timedelta(microseconds=seq)


def rows(*seqs: int, epoch: str = "e", message: bytes = b'{"role":"user","content":"x"}') -> Rows:
    return Rows(
        conversation=C,
        epoch=epoch,
        rows=[RowFrame(seq=seq, at=at(seq), by="u", message=msgspec.Raw(message)) for seq in seqs],
    )


def opened(start: int, epoch: str = "e") -> Opened:
    return Opened(conversation=C, epoch=epoch, start=start)


def reset(start: int, epoch: str = "f") -> Reset:
    return Reset(conversation=C, epoch=epoch, start=start, reason="epoch")


def subscription(
    start: int | None = 0,
    *,
    tail: int | None = None,
    position: Position | None = None,
    rows_max: int = 10,
    bytes_max: int = 10**6,
) -> Subscription:
    """Subscribed from `start`, or with its first open not answered."""
    made = Subscription(C, tail, position, rows_max, bytes_max)
    made.begin()
    if start is not None:
        assert made.opened(opened(start))
    return made


def asked(frame: Open | Close | None) -> dict[str, Any]:
    assert frame is not None
    found: dict[str, Any] = json.loads(encode(frame))
    return {key: value for key, value in found.items() if key not in ("type", "conversation")}


def taken(of: Subscription) -> list[int]:
    seqs: list[int] = []
    while (item := of.take()) is not None:
        assert isinstance(item, StoredMessage)
        seqs.append(item.seq)
    return seqs


def test_rows_once_and_in_order() -> None:
    sub = subscription()
    assert (sub.status, sub.ready) == ("replaying", False)
    assert sub.rows(rows(1, 2)) is None
    assert sub.rows(rows(2, 3)) is None, "what is known is dropped"
    assert sub.rows(rows(1)) is None
    assert sub.ready
    assert taken(sub) == [1, 2, 3]
    assert sub.live(3) is None
    assert sub.status == "live"


def test_l15_the_position_moves_before_anybody_sees_the_row() -> None:
    """L15: and it is behind the last row taken, not the last one received."""
    sub = subscription()
    sub.rows(rows(1, 2))
    assert sub.applied == Position("e", 0)
    sub.take()
    assert sub.applied == Position("e", 1, at(1))


def test_t25_a_new_socket_resumes_behind_the_last_row_taken() -> None:
    """T25: rows that were buffered and not taken come again, and exactly once."""
    sub = subscription()
    sub.rows(rows(1, 2, 3))
    sub.take()
    sub.lost()
    sub.take()  # while it is offline
    assert asked(sub.begin()) == {"epoch": "e", "after": 2, "at": "2026-11-30T00:00:00.000002Z"}
    assert not sub.ready
    sub.opened(opened(2))
    sub.rows(rows(3, 4))
    assert taken(sub) == [3, 4]


def test_t32_a_position_without_any_row() -> None:
    """T32: connect, no traffic, drop: the empty position is one too."""
    sub = subscription(0)
    sub.lost()
    assert asked(sub.begin()) == {"epoch": "e", "after": 0}


def test_the_first_open() -> None:
    assert asked(Subscription(C, None, None, 9, 9).begin()) == {}
    assert asked(Subscription(C, 5, None, 9, 9).begin()) == {"tail": 5}
    assert asked(Subscription(C, 5, Position("e", 7, at(7)), 9, 9).begin()) == {
        "epoch": "e", "after": 7, "at": "2026-11-30T00:00:00.000007Z", "tail": 5,
    }  # fmt: skip


def test_t34_l19_l20_a_reset_stands_between_the_logs() -> None:
    """T34, L19, L20: it voids what is buffered; the position is only ever one of the log that it names."""
    sub = subscription()
    sub.rows(rows(1, 2))
    assert sub.take() is not None
    sub.lost()
    sub.begin()
    sub.opened(reset(4))
    sub.rows(rows(5, epoch="f"))
    assert (sub.applied, sub.resets) == (Position("e", 1, at(1)), 0)
    assert sub.take() == Met("f", 4)
    assert (sub.applied, sub.resets) == (Position("f", 4), 1)
    assert taken(sub) == [5]


def test_l19_a_reset_that_was_not_taken_is_met_again_once() -> None:
    sub = subscription()
    sub.lost()
    sub.begin()
    sub.opened(reset(0))
    sub.lost()
    assert asked(sub.begin()) == {"epoch": "e", "after": 0}
    sub.opened(reset(0))
    assert sub.take() == Met("f", 0)
    assert sub.take() is None


def test_another_epoch_is_a_reset_whatever_the_frame_says() -> None:
    sub = subscription()
    sub.lost()
    sub.begin()
    assert sub.opened(opened(0, "other"))
    assert sub.take() == Met("other", 0)


def test_opened_behind_the_position_makes_no_sense() -> None:
    sub = subscription()
    sub.lost()
    sub.begin()
    assert not sub.opened(opened(1))


@pytest.mark.parametrize("frame", [rows(2), rows(1, 3), rows(1, epoch="x")])
def test_a_hole_is_a_reason_to_open_again(frame: Rows) -> None:
    sub = subscription()
    reply = sub.rows(frame)
    have = 1 if [row.seq for row in frame.rows] == [1, 3] else 0
    assert asked(reply)["after"] == have
    assert sub.opening
    assert sub.rows(rows(have + 1)) is None, "it belongs to the position that was given up"
    assert sub.live(9) is None and sub.head(9) is None
    sub.opened(opened(have))
    sub.rows(rows(have + 1))
    assert taken(sub) == list(range(1, have + 2))


def test_l17_only_the_last_open_counts() -> None:
    """L17: opening again is a re-position; what the first one brings is dropped."""
    sub = subscription(None)
    sub.open()
    assert sub.opened(opened(7))
    assert sub.rows(rows(8)) is None and not sub.ready
    assert sub.opened(opened(3))
    sub.rows(rows(4))
    assert taken(sub) == [4]


def test_a_head_above_the_position_opens_again() -> None:
    sub = subscription()
    sub.rows(rows(1))
    assert sub.head(1) is None and sub.head(0) is None
    assert asked(sub.head(2))["after"] == 1
    assert sub.status == "replaying"


def test_live_above_the_position_opens_again() -> None:
    sub = subscription()
    assert asked(sub.live(1))["after"] == 0


def test_who_lagged_forgets_what_was_queued() -> None:
    """Where both ends fell into the lag nobody tells them: only the last one is told."""
    sub = subscription()
    sub.turn(TurnState("queued", 1))
    sub.live(0)
    assert sub.turns.now == TurnState("queued", 1), "this is what it was told since its opening"
    sub.turn(TurnState("queued", 2))
    sub.rows(rows(1, 2))
    sub.live(2)
    sub.turn(TurnState("done", 2))
    assert sub.turns.now == TurnState("done", 2)


def test_a_server_that_never_fills_the_hole_is_given_up() -> None:
    sub = subscription()
    for _ in range(REOPENS_MAX):
        assert sub.rows(rows(2)) is not None
        sub.opened(opened(0))
    with pytest.raises(ValueError, match="missing"):
        sub.rows(rows(2))
    sub.begin()
    sub.opened(opened(0))
    assert sub.rows(rows(2)) is not None, "a new socket begins anew"


def test_nothing_counts_before_the_answer() -> None:
    sub = subscription(None)
    assert sub.rows(rows(1)) is None and sub.live(1) is None and sub.head(1) is None
    assert not sub.ready


def test_a_full_buffer_closes_and_half_of_it_opens() -> None:
    sub = subscription(rows_max=4)
    assert sub.rows(rows(1, 2, 3, 4)) is None
    sub.live(4)
    reply = sub.rows(rows(5))
    assert reply is not None and json.loads(encode(reply)) == {"type": "close", "conversation": C}
    assert sub.status == "replaying"
    assert sub.rows(rows(6)) is None, "under way; it comes again"
    assert sub.resume() is None
    for _ in range(2):
        sub.take()
        assert sub.resume() is None
    sub.take()
    assert asked(sub.resume())["after"] == 5, "what is held is not asked for again"
    assert sub.resume() is None
    sub.opened(opened(5))
    sub.rows(rows(6))
    assert taken(sub) == [4, 5, 6]


def test_a_buffer_is_full_by_bytes_too() -> None:
    sub = subscription(rows_max=1000, bytes_max=1000)
    assert sub.rows(rows(1, 2, 3, 4, 5)) is not None
    sub.take()
    assert sub.resume() is None
    sub.take()
    sub.take()
    assert sub.resume() is not None


def test_a_late_answer_does_not_end_a_pause() -> None:
    sub = subscription(rows_max=1)
    sub.rows(rows(1, 2))
    assert sub.opened(opened(0))
    assert sub.rows(rows(3)) is None
    assert taken(sub) == [1, 2]


def test_a_row_that_cannot_be_read_keeps_its_place() -> None:
    sub = subscription()
    sub.rows(rows(1, message=b'{"role":"judge"}'))
    sub.rows(rows(2))
    item = sub.take()
    assert isinstance(item, CorruptRow)
    assert sub.applied == Position("e", 1)
    assert taken(sub) == [2]


def test_a_refusal_for_now() -> None:
    sub = subscription(None)
    sub.open()
    sub.refused(5.0, "internal")
    assert sub.retry_at is None, "another open is under way"
    sub.refused(5.0, "internal")
    assert sub.retry_at == 5.0 and not sub.opening
    sub.open()
    assert sub.retry_at is None
    sub.opened(opened(0))
    sub.ended()
    assert sub.status == "replaying"


def test_close() -> None:
    assert subscription(0).close() is not None
    assert subscription(None).close() is not None
    sub = subscription(0)
    sub.rows(rows(1))
    sub.lost()
    assert sub.close() is None and not sub.ready


def test_the_turn_is_told_with_the_position() -> None:
    sub = subscription(None)
    sub.opened(Opened(conversation=C, epoch="e", start=0, turn=TurnState("running", 3)))
    assert sub.turns.now == TurnState("running", 3)
