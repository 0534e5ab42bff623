"""The frames of a server as a client reads them: lenient in unknown keys, frames of unknown type are no frames."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Raw

from ..storage import CodecError, CorruptRow, StoredMessage, decode_message
from .frames import Ack, AuthExpiring, Beat, Bye, ErrorFrame, Frame, PageAnswer, Pong, Welcome

__all__ = [
    "Closed",
    "Delta",
    "DraftEnd",
    "DraftSet",
    "Live",
    "Op",
    "Opened",
    "Presence",
    "Reset",
    "RowFrame",
    "Rows",
    "ServerFrame",
    "Signal",
    "Turn",
    "TurnState",
    "decode_row",
    "decode_server_frame",
]


class RowFrame(msgspec.Struct, rename="camel"):
    """Is a row on the wire; its message is a view of the frame, valid as long as that is."""

    seq: int
    at: datetime
    by: str
    message: Raw
    client_id: str | None = None
    turn: int | str | None = None
    finish: str | None = None


class TurnState(msgspec.Struct, frozen=True):
    """Says what the agent is doing; `id` is the seq of the row that it answers, or a name that the server minted."""

    state: str
    id: int | str | None = None


class Opened(Frame, tag="opened"):
    """Accepts a position; rows behind `start` follow."""

    conversation: str
    epoch: str
    start: int = msgspec.field(name="from")
    turn: TurnState = TurnState("idle")


class Reset(Frame, tag="reset"):
    """Refuses a position; rows behind `start` follow, and those held before are to be dropped."""

    conversation: str
    epoch: str
    reason: str
    start: int = msgspec.field(name="from")
    turn: TurnState = TurnState("idle")


class Rows(Frame, tag="rows"):
    """Is a run of consecutive rows."""

    conversation: str
    epoch: str
    rows: list[RowFrame]


class Live(Frame, tag="live"):
    """Says that everything up to `seq` has been sent."""

    conversation: str
    seq: int


class DraftSet(Frame, tag="draft"):
    """Tells a draft whole; `index` writes of the agent are in it."""

    conversation: str
    id: str
    turn: int | str
    index: int
    message: dict[str, Any]


class Op(msgspec.Struct):
    """Is one change of a message: `add`, `reasoning`, `part`, or `set` with a `part`."""

    add: str | None = None
    reasoning: str | None = None
    part: dict[str, Any] | None = None
    set: int | None = None


class Delta(Frame, tag="delta"):
    """Is what the agent wrote from its write `start` on, up to `to`."""

    conversation: str
    id: str
    start: int = msgspec.field(name="from")
    to: int
    ops: list[Op]


class DraftEnd(Frame, tag="draftEnd"):
    """Says that a draft is over, and which row it became, if it became one."""

    conversation: str
    id: str
    finish: str
    seq: int | None = None


class Turn(Frame, tag="turn"):
    """Says that a turn changed its state."""

    conversation: str
    id: int | str
    state: str


class Signal(Frame, tag="signal"):
    """Is something ephemeral from another subscriber."""

    conversation: str
    name: str
    by: str
    data: Any = None


class Presence(Frame, tag="presence"):
    """Says who has the conversation open."""

    conversation: str
    count: int
    principals: list[str] | None = None


class Closed(Frame, tag="closed"):
    """Says that the server ended the subscription."""

    conversation: str
    code: str


ServerFrame = (
    Welcome | Opened | Reset | Rows | Live | DraftSet | Delta | DraftEnd | Turn | Ack | PageAnswer | Signal | Presence
    | Closed | ErrorFrame | Beat | AuthExpiring | Bye | Pong
)  # fmt: skip

_KNOWN = {str(cls.__struct_config__.tag) for cls in ServerFrame.__args__}


class _Type(msgspec.Struct):
    type: str


_frame: msgspec.json.Decoder[ServerFrame] = msgspec.json.Decoder(ServerFrame)
_type = msgspec.json.Decoder(_Type)
_row = msgspec.json.Decoder(RowFrame)
_UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)


def decode_server_frame(data: bytes) -> ServerFrame | None:
    """Decodes a frame; None for a type that this version does not know.

    Raises:
        ValueError: it is no frame of the protocol; the text says what is wrong with it.
    """
    try:
        return _frame.decode(data)
    except _UNREADABLE as error:
        refusal = str(error)
    try:
        if _type.decode(data).type not in _KNOWN:
            return None
    except _UNREADABLE:
        pass
    raise ValueError(refusal)


def decode_row(conversation: str, row: RowFrame | Raw) -> StoredMessage | CorruptRow:
    """Decodes a row; one whose message cannot be read comes back as the error that says so, to be raised in its place.

    Raises:
        ValueError: it is no row at all.
    """
    if isinstance(row, Raw):
        try:
            row = _row.decode(row)
        except _UNREADABLE as error:
            raise ValueError(str(error)) from None
    try:
        message = decode_message(row.message)
    except CodecError as error:
        return CorruptRow(conversation, row.seq, str(error))
    return StoredMessage(
        seq=row.seq,
        at=row.at,
        by=row.by,
        message=message,
        turn=row.turn,
        client_id=row.client_id,
        finish=row.finish,
    )
