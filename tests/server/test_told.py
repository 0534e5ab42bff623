from __future__ import annotations

import json

import pytest

from parlatory.actors import Closed, Event, Live, Opened, Presence, RowsTold, Signal, TurnTold
from parlatory.server.told import wire_of
from parlatory.storage import Row

C = "relay/ä"
ROW = Row(2, 1_000_000, "user:ann", "c1", None, None, b'{"role":"user","content":"x"}')
MESSAGE = {"role": "user", "content": "x"}
AT = "1970-01-01T00:00:01.000000Z"


POSITION = {"conversation": C, "epoch": "e", "floor": 1, "head": 4, "from": 2}
EVENTS = [
    (Opened(C, "e", 1, 4, 2, None, "idle", None), {"type": "opened", **POSITION, "turn": {"state": "idle"}}),
    (
        Opened(C, "e", 1, 4, 2, "ahead", "running", 3),
        {"type": "reset", **POSITION, "turn": {"state": "running", "id": 3}, "reason": "ahead"},
    ),
    (Live(C, 4), {"type": "live", "conversation": C, "seq": 4}),
    (TurnTold(C, 3, "done"), {"type": "turn", "conversation": C, "id": 3, "state": "done"}),
    (TurnTold(C, 3, "queued", 2), {"type": "turn", "conversation": C, "id": 3, "state": "queued", "queued": 2}),
    (Signal(C, "typing", None, "bob"), {"type": "signal", "conversation": C, "name": "typing", "by": "bob"}),
    (Signal(C, "at", b"[1]", "bob"), {"type": "signal", "conversation": C, "name": "at", "data": [1], "by": "bob"}),
    (Presence(C, 101, None), {"type": "presence", "conversation": C, "count": 101}),
    (Presence(C, 1, ["a"]), {"type": "presence", "conversation": C, "count": 1, "principals": ["a"]}),
    (Closed(C, "forbidden"), {"type": "closed", "conversation": C, "code": "forbidden"}),
    (
        RowsTold(C, "e", [ROW]),
        {
            "type": "rows",
            "conversation": C,
            "epoch": "e",
            "rows": [{"seq": 2, "at": AT, "by": "user:ann", "clientId": "c1", "message": MESSAGE}],
        },
    ),
]


@pytest.mark.parametrize(("event", "frame"), EVENTS, ids=lambda value: type(value).__name__)
def test_an_event_is_encoded_once(event: Event, frame: dict[str, object]) -> None:
    wire = wire_of(event)
    assert wire[:1] == b"\x81"
    assert json.loads(wire[4:] if wire[1] == 126 else wire[2:]) == frame
    assert wire_of(event) is wire
