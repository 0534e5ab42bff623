"""Rows: a committed message in its envelope, as bytes (`Row`) and decoded (`StoredMessage`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from .codec import decode_message
from .errors import CodecError, CorruptRow
from .instants import instant_text, to_datetime
from .messages import Message

__all__ = ["Row", "StoredMessage"]


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Is a message as the log holds it.

    `seq` counts the rows of its conversation from 1 without gaps and is their only order. `at` is the instant of the
    commit in UTC, never before that of the row in front. `by` is the author: a principal, `agent`, or whom the appender
    named. `turn` is the turn that appended it, `client_id` the id its client gave it, `finish` how a draft ended where
    that is not `done`: `stopped`, `error` or `interrupted`.
    """

    seq: int
    at: datetime
    by: str
    message: Message
    turn: int | str | None = None
    client_id: str | None = None
    finish: str | None = None

    @property
    def role(self) -> str:
        """Is the role of the message: `system`, `user`, `assistant` or `tool`."""
        return self.message.role

    @property
    def content(self) -> Any:
        """Is the content of the message: text, or a tuple of parts."""
        return self.message.content

    @property
    def text(self) -> str:
        """Is all text of the message, joined."""
        return self.message.text


class _Envelope(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    seq: int
    at: str
    by: str
    client_id: str | None = None
    turn: int | str | None = None
    finish: str | None = None
    message: msgspec.Raw


_encode = msgspec.json.Encoder().encode
_any_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Row:
    """Is a row as bytes: `body` is the JSON of its message, stored, broadcast and replayed as it is."""

    __slots__ = ("_json", "at", "body", "by", "client_id", "finish", "seq", "turn")

    def __init__(
        self,
        seq: int,
        at: int,
        by: str,
        client_id: str | None,
        turn: int | str | None,
        finish: str | None,
        body: bytes,
    ) -> None:
        self.seq = seq
        self.at = at
        self.by = by
        self.client_id = client_id
        self.turn = turn
        self.finish = finish
        self.body = body
        self._json: bytes | None = None

    def json(self) -> bytes:
        """Returns the row as the protocol writes it (PROTOCOL section 3); encoded once, however often it is asked."""
        if self._json is None:
            self._json = _encode(
                _Envelope(
                    seq=self.seq,
                    at=instant_text(self.at),
                    by=self.by,
                    client_id=self.client_id,
                    turn=self.turn,
                    finish=self.finish,
                    message=msgspec.Raw(self.body),
                )
            )
        return self._json

    def check(self, conversation: str) -> None:
        """Checks that the body may stand in a frame: text that is a JSON object. What it means is not looked at.

        Raises:
            CorruptRow: it is not; it carries `conversation` and the seq.
        """
        try:
            _any_object.decode(self.body.decode())
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise CorruptRow(conversation, self.seq, str(error)) from error

    def stored(self, conversation: str) -> StoredMessage:
        """Returns the row decoded.

        Raises:
            CorruptRow: the body does not decode; it carries `conversation` and the seq.
        """
        try:
            message = decode_message(self.body)
        except CodecError as error:
            raise CorruptRow(conversation, self.seq, str(error)) from error
        return self.holding(message)

    def holding(self, message: Message) -> StoredMessage:
        """Returns the row around its message, for whoever has that decoded."""
        return StoredMessage(
            seq=self.seq,
            at=to_datetime(self.at),
            by=self.by,
            message=message,
            turn=self.turn,
            client_id=self.client_id,
            finish=self.finish,
        )
