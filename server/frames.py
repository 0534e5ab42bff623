"""The frames of parlatory.v1, both ways: their shapes, and their encoding and decoding (PROTOCOL sections 2 and 3).

What a client sends is strict in types and lenient in unknown keys. A frame that is told to many is encoded once and kept
on its event.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

__all__ = [
    "Ack",
    "Auth",
    "AuthExpiring",
    "Beat",
    "Bye",
    "Call",
    "Cancel",
    "ClientFrame",
    "Close",
    "ErrorFrame",
    "Hello",
    "Open",
    "Page",
    "PageAnswer",
    "Ping",
    "Pong",
    "RETRYABLE",
    "Send",
    "SignalSent",
    "Welcome",
    "WelcomeLimits",
    "decode_client_frame",
    "echo_of",
    "encode",
    "encode_error",
]

INT_MAX = 2**53 - 1

Int = Annotated[int, Meta(ge=0, le=INT_MAX)]
ClientId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
Installation = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{22,64}\Z")]
CallId = Annotated[str, Meta(min_length=1, max_length=64)]
Instant = Annotated[str, Meta(pattern=r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z")]
Epoch = Annotated[str, Meta(min_length=1, max_length=64)]

RETRYABLE = frozenset({"busy", "rate", "draining", "internal"})
"""The error codes on which repeating the same frame makes sense."""


class Frame(msgspec.Struct, tag_field="type", rename="camel", omit_defaults=True, kw_only=True):
    """Is the base of all frames."""


# -- from the client


class Hello(Frame, tag="hello"):
    """Is the first frame of a socket."""

    token: str | UnsetType = UNSET
    client: Installation | UnsetType = UNSET


class Auth(Frame, tag="auth"):
    """Brings a new token for the same principal."""

    token: str


class Open(Frame, tag="open"):
    """Subscribes to a conversation, or moves the subscription."""

    conversation: str
    epoch: Epoch | UnsetType = UNSET
    after: Int | UnsetType = UNSET
    at: Instant | UnsetType = UNSET
    tail: Int | UnsetType = UNSET


class Page(Frame, tag="page"):
    """Asks for rows below a seq."""

    id: CallId
    conversation: str
    before: Int
    limit: Int | UnsetType = UNSET


class Close(Frame, tag="close"):
    """Unsubscribes."""

    conversation: str


class Send(Frame, tag="send"):
    """Appends a message."""

    conversation: str
    client_id: ClientId
    message: Raw


class Cancel(Frame, tag="cancel"):
    """Stops a turn or a call."""

    conversation: str
    turn: Int | str | UnsetType = UNSET
    id: CallId | UnsetType = UNSET


class Call(Frame, tag="call"):
    """Calls a method of the agent."""

    id: CallId
    conversation: str
    method: str
    args: dict[str, Any] | UnsetType = UNSET
    key: ClientId | UnsetType = UNSET


class SignalSent(Frame, tag="signal"):
    """Relays something ephemeral."""

    conversation: str
    name: str
    data: Raw | UnsetType = UNSET


class Ping(Frame, tag="ping"):
    """Asks for a pong."""

    n: Int


ClientFrame = Hello | Auth | Open | Page | Close | Send | Cancel | Call | SignalSent | Ping

_client_frame = msgspec.json.Decoder(ClientFrame)


def decode_client_frame(text: str | bytes) -> ClientFrame:
    """Decodes a frame of a client.

    Raises:
        ValueError: it is no frame of the protocol; the text says what is wrong with it.
    """
    try:
        frame: ClientFrame = _client_frame.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        frame = _with_bad_message(text, error)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(frame, Open):
        if (frame.epoch is UNSET) != (frame.after is UNSET):
            raise ValueError("epoch and after come together")
        if frame.at is not UNSET and frame.after is UNSET:
            raise ValueError("at stands beside a position")
    elif isinstance(frame, Cancel) and frame.turn is not UNSET and frame.id is not UNSET:
        raise ValueError("a cancel names a turn or a call, not both")
    return frame


def _with_bad_message(text: str | bytes, error: Exception) -> Send:
    """Returns a send whose message alone makes it unreadable, such as by a lone surrogate: that is a bad message.

    Raises:
        ValueError: it is a bad frame, for the reason in `error`.
    """
    try:
        loaded = json.loads(text)
        if isinstance(loaded, dict) and isinstance(message := loaded.get("message"), dict):
            frame = _client_frame.decode(json.dumps({**loaded, "message": {}}))
            if isinstance(frame, Send):
                frame.message = Raw(json.dumps(message).encode())
                return frame
    except (ValueError, RecursionError, msgspec.MsgspecError):
        pass
    raise ValueError(str(error)) from None


class _Echo(msgspec.Struct, rename="camel"):
    conversation: Any = None
    client_id: Any = None
    id: Any = None


_echo = msgspec.json.Decoder(_Echo)


def echo_of(text: str | bytes) -> dict[str, str]:
    """Returns what an error answers by: `clientId`, `id` and `conversation` of a frame, where they are strings."""
    try:
        found = _echo.decode(text)
        keys = {"clientId": found.client_id, "id": found.id, "conversation": found.conversation}
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:
            # A standard parser reads some texts that the strict one does not, such as lone surrogates.
            loaded = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        if not isinstance(loaded, dict):
            return {}
        keys = {key: loaded.get(key) for key in ("clientId", "id", "conversation")}
    return {key: value for key, value in keys.items() if isinstance(value, str)}


# -- from the server


class WelcomeLimits(msgspec.Struct):
    """Are the limits of the server: bytes of a frame and of a message, sends in flight, open conversations, page rows."""

    frame: int
    message: int
    inflight: int
    conversations: int
    page: int


class Welcome(Frame, tag="welcome"):
    """Accepts a socket."""

    version: str
    connection: str
    principal: str
    beat_ms: int
    limits: WelcomeLimits
    boot: str


class Ack(Frame, tag="ack"):
    """Says that a send is committed."""

    conversation: str
    client_id: str
    seq: int
    duplicate: bool = False


class PageAnswer(Frame, tag="page"):
    """Answers a page; the rows are their JSON."""

    id: str
    conversation: str
    epoch: str
    rows: list[Raw]
    more: bool


class ErrorFrame(Frame, tag="error"):
    """Refuses one frame."""

    code: str
    text: str
    retry_ms: int | None = None
    conversation: str | None = None
    client_id: str | None = None
    id: str | None = None


class Beat(Frame, tag="beat"):
    """Says that the server lives, and where the caught-up subscriptions stand."""

    heads: dict[str, int]


class AuthExpiring(Frame, tag="authExpiring"):
    """Says when the token ends."""

    in_ms: int


class Bye(Frame, tag="bye"):
    """Is the last frame."""

    code: int
    retry_ms: tuple[int, int]


class Pong(Frame, tag="pong"):
    """Answers a ping."""

    n: int


_encoder = msgspec.json.Encoder()
encode = _encoder.encode
"""Encodes a frame of the server."""


def encode_error(
    code: str, text: str, retry_ms: int | None = None, echo: dict[str, str] | None = None
) -> bytes:
    """Encodes an error frame; `echo` names what it answers. `retry_ms` is given for the retryable codes and no other."""
    assert (code in RETRYABLE) == (retry_ms is not None)
    keys = echo or {}
    frame = ErrorFrame(
        code=code,
        text=text,
        retry_ms=retry_ms,
        conversation=keys.get("conversation"),
        client_id=keys.get("clientId"),
        id=keys.get("id"),
    )
    try:
        return encode(frame)
    except UnicodeEncodeError:
        # An id with a lone surrogate goes back as it came, as an escape.
        return json.dumps({"type": "error", "code": code, "text": text, **keys}).encode()
