from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from parlatory.storage import CorruptRow, Row, StoredMessage, encode_message, user_message

AT = 1_796_025_600_123_456
BODY = encode_message(user_message("h\u00e9llo"))


def test_json_is_the_row_of_the_protocol() -> None:
    row = Row(7, AT, "user:ann", "q0", 6, "stopped", BODY)
    assert row.json() == (
        b'{"seq":7,"at":"2026-11-30T08:00:00.123456Z","by":"user:ann","clientId":"q0","turn":6,"finish":"stopped",'
        b'"message":' + BODY + b"}"
    )
    assert row.json() is row.json()


def test_json_leaves_out_what_is_absent() -> None:
    found = json.loads(Row(1, AT, "agent", None, None, None, BODY).json())
    assert found == {
        "seq": 1,
        "at": "2026-11-30T08:00:00.123456Z",
        "by": "agent",
        "message": {"role": "user", "content": "h\u00e9llo"},
    }
    assert json.loads(Row(1, AT, "agent", None, "call:1", None, BODY).json())["turn"] == "call:1"


def test_stored() -> None:
    stored = Row(7, AT, "user:ann", "q0", 6, "stopped", BODY).stored("bot/a")
    assert stored == StoredMessage(
        seq=7,
        at=datetime(2026, 11, 30, 8, 0, 0, 123456, tzinfo=UTC),
        by="user:ann",
        message=user_message("h\u00e9llo"),
        turn=6,
        client_id="q0",
        finish="stopped",
    )
    assert (stored.role, stored.content, stored.text) == ("user", "h\u00e9llo", "h\u00e9llo")


def test_holding_takes_the_message_as_it_is() -> None:
    message = user_message("x")
    stored = Row(1, AT, "user", None, None, None, BODY).holding(message)
    assert stored.message is message
    assert (stored.seq, stored.turn, stored.client_id, stored.finish) == (1, None, None, None)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"null", b'{"role":"nobody","content":""}'])
def test_t14_a_corrupt_body_names_its_row(body: bytes) -> None:
    with pytest.raises(CorruptRow) as caught:
        Row(7, AT, "user", None, None, None, body).stored("bot/a")
    assert (caught.value.conversation, caught.value.seq) == ("bot/a", 7)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("body", [b'{"role":"us', b"[]", b'{"role":"user","content":"\xff"}', b"", b"{}{}"])
def test_a_body_that_would_spoil_a_frame_is_told(body: bytes) -> None:
    """T14: the row is named; a body that is merely unknown passes."""
    with pytest.raises(CorruptRow) as error:
        Row(7, 0, "agent", None, None, None, body).check("relay/a")
    assert (error.value.conversation, error.value.seq) == ("relay/a", 7)
    Row(7, 0, "agent", None, None, None, b'{"role":"later"}').check("relay/a")
