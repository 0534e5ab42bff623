"""The server's frames as a client reads them."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from parlatory.server.client_frames import (
    Closed,
    Delta,
    DraftEnd,
    DraftSet,
    Live,
    Op,
    Opened,
    Presence,
    Reset,
    Rows,
    Signal,
    Turn,
    TurnState,
    decode_row,
    decode_server_frame,
)
from parlatory.server.frames import Welcome
from parlatory.storage import CorruptRow, StoredMessage, user_message

ROW = (
    b'{"seq":7,"at":"2026-11-30T08:00:00.123456Z","by":"user:ann","clientId":"q0","new":1,'
    b'"message":{"role":"user","content":"hi"}}'
)


@pytest.mark.parametrize(
    ("data", "frame"),
    [
        (
            b'{"type":"opened","conversation":"a/b","epoch":"e","floor":0,"head":9,"from":4,"turn":{"state":"running","id":4}}',
            Opened(conversation="a/b", epoch="e", start=4, turn=TurnState("running", 4)),
        ),
        (
            b'{"type":"reset","conversation":"a/b","epoch":"e","floor":0,"head":9,"from":0,"turn":{"state":"idle"},'
            b'"reason":"ahead"}',
            Reset(conversation="a/b", epoch="e", start=0, reason="ahead"),
        ),
        (b'{"type":"live","conversation":"a/b","seq":0}', Live(conversation="a/b", seq=0)),
        (
            b'{"type":"turn","conversation":"a/b","id":"call:1","state":"queued","queued":2}',
            Turn(conversation="a/b", id="call:1", state="queued"),
        ),
        (
            b'{"type":"draft","conversation":"a/b","id":"d","turn":6,"index":2,"message":{"role":"assistant"}}',
            DraftSet(conversation="a/b", id="d", turn=6, index=2, message={"role": "assistant"}),
        ),
        (
            b'{"type":"delta","conversation":"a/b","id":"d","from":2,"to":4,"ops":[{"add":"a"},{"set":0,"part":{}}]}',
            Delta(conversation="a/b", id="d", start=2, to=4, ops=[Op(add="a"), Op(set=0, part={})]),
        ),
        (
            b'{"type":"draftEnd","conversation":"a/b","id":"d","seq":7,"finish":"stopped"}',
            DraftEnd(conversation="a/b", id="d", finish="stopped", seq=7),
        ),
        (
            b'{"type":"draftEnd","conversation":"a/b","id":"d","finish":"done"}',
            DraftEnd(conversation="a/b", id="d", finish="done"),
        ),
        (
            b'{"type":"signal","conversation":"a/b","name":"n","by":"x","data":[1]}',
            Signal(conversation="a/b", name="n", by="x", data=[1]),
        ),
        (b'{"type":"presence","conversation":"a/b","count":101}', Presence(conversation="a/b", count=101)),
        (b'{"type":"closed","conversation":"a/b","code":"forbidden"}', Closed(conversation="a/b", code="forbidden")),
        (b'{"type":"x-new","conversation":7}', None),
    ],
)
def test_frames(data: bytes, frame: object) -> None:
    assert decode_server_frame(data) == frame


def test_welcome_with_unknown_keys() -> None:
    frame = decode_server_frame(
        b'{"type":"welcome","version":"9","connection":"c","principal":"p","beatMs":10000,"boot":"b","more":1,'
        b'"limits":{"frame":1,"message":2,"inflight":3,"conversations":4,"page":5,"more":6}}'
    )
    assert isinstance(frame, Welcome)
    assert frame.limits.page == 5


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":1}',
        b'{"type":"live"}',
        b'{"type":"live","conversation":"\xff","seq":1}',
        b"[" * 99999,
    ],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        decode_server_frame(data)


def test_a_row() -> None:
    expected = StoredMessage(
        seq=7,
        at=datetime(2026, 11, 30, 8, 0, 0, 123456, UTC),
        by="user:ann",
        client_id="q0",
        message=user_message("hi"),
    )
    assert decode_row("a/b", msgspec.Raw(ROW)) == expected
    rows = decode_server_frame(b'{"type":"rows","conversation":"a/b","epoch":"e","rows":[%b]}' % ROW)
    assert isinstance(rows, Rows)
    assert decode_row("a/b", rows.rows[0]) == expected


def test_a_row_that_cannot_be_read_is_its_error() -> None:
    row = decode_row("a/b", msgspec.Raw(ROW.replace(b'"user"', b'"judge"')))
    assert isinstance(row, CorruptRow)
    assert (row.conversation, row.seq) == ("a/b", 7)


def test_what_is_no_row_is_refused() -> None:
    with pytest.raises(ValueError, match="seq"):
        decode_row("a/b", msgspec.Raw(b"{}"))
