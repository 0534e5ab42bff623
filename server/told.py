"""What actors tell, as frames: an event is encoded once, by whoever needs it first, and keeps its bytes."""

from __future__ import annotations

from typing import Any

import msgspec

from ..actors import Closed, DeltaTold, DraftEnded, DraftTold, Event, Live, Opened, Presence, RowsTold, Signal, TurnTold
from .text_frames import framed

__all__ = ["wire_of"]

_encode = msgspec.json.Encoder().encode


def wire_of(event: Event) -> bytes:
    """Returns an event as a WebSocket frame, encoding it only the first time."""
    wire = event.wire
    if wire is None:
        wire = event.wire = framed(_payload(event))
    return wire


def _payload(event: Event) -> bytes:
    conversation = event.conversation
    if isinstance(event, DeltaTold):
        form = b'{"type":"delta","conversation":%b,"id":%b,"from":%d,"to":%d,"ops":%b}'
        return form % (_encode(conversation), _encode(event.id), event.start, event.end, _encode(event.ops))
    if isinstance(event, RowsTold):
        rows = b",".join([row.json() for row in event.rows])
        place = _encode(conversation), _encode(event.epoch)
        return b'{"type":"rows","conversation":%b,"epoch":%b,"rows":[%b]}' % (*place, rows)
    if isinstance(event, Live):
        return b'{"type":"live","conversation":%b,"seq":%d}' % (_encode(conversation), event.seq)
    frame: dict[str, Any]
    if isinstance(event, Opened):
        turn: dict[str, Any] = {"state": event.turn}
        if event.turn_id is not None:
            turn["id"] = event.turn_id
        frame = {
            "type": "opened" if event.reason is None else "reset",
            "conversation": conversation,
            "epoch": event.epoch,
            "floor": event.floor,
            "head": event.head,
            "from": event.start,
            "turn": turn,
        }
        if event.reason is not None:
            frame["reason"] = event.reason
    elif isinstance(event, TurnTold):
        frame = {"type": "turn", "conversation": conversation, "id": event.id, "state": event.state}
        if event.queued is not None:
            frame["queued"] = event.queued
    elif isinstance(event, DraftTold):
        frame = {
            "type": "draft",
            "conversation": conversation,
            "id": event.id,
            "turn": event.turn,
            "index": event.index,
            "message": event.message,
        }
    elif isinstance(event, DraftEnded):
        frame = {"type": "draftEnd", "conversation": conversation, "id": event.id, "finish": event.finish}
        if event.seq is not None:
            frame["seq"] = event.seq
    elif isinstance(event, Signal):
        frame = {"type": "signal", "conversation": conversation, "name": event.name, "by": event.by}
        if event.data is not None:
            frame["data"] = msgspec.Raw(event.data)
    elif isinstance(event, Presence):
        frame = {"type": "presence", "conversation": conversation, "count": event.count}
        if event.principals is not None:
            frame["principals"] = event.principals
    else:
        assert isinstance(event, Closed)
        frame = {"type": "closed", "conversation": conversation, "code": event.code}
    return _encode(frame)
