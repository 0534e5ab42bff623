"""The frames of parlatory.v1, both ways: their shapes, and their encoding and decoding (PROTOCOL sections 2 and 3).

What a client sends is strict in types and lenient in unknown keys. What is told to many is encoded in `told.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
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
    "RETRY_MS",
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

RETRY_MS = 1_000
"""When it does."""


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
_anything = msgspec.json.Decoder()

# What the decoder raises for text that is no frame. ValueError: an integer longer than Python reads.
_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


def decode_client_frame(text: str) -> ClientFrame:
    """Decodes a frame of a client.

    Raises:
        ValueError: it is no frame of the protocol; the text says what is wrong with it.
    """
    try:
        frame: ClientFrame = _client_frame.decode(text)
    except _UNREADABLE as error:
        frame = _with_bad_message(text, error)
    if isinstance(frame, Open):
        if (frame.epoch is UNSET) != (frame.after is UNSET):
            raise ValueError("epoch and after come together")
        if frame.at is not UNSET and frame.after is UNSET:
            raise ValueError("at stands beside a position")
    elif isinstance(frame, Cancel):
        if frame.turn is not UNSET and frame.id is not UNSET:
            raise ValueError("a cancel names a turn or a call, not both")
    elif isinstance(frame, SignalSent) and frame.data is not UNSET:
        _check_relayed(frame.data)
    return frame


def _check_relayed(data: Raw) -> None:
    """Refuses what only some of the clients that it is relayed to could read, such as 1e999 or a lone surrogate."""
    try:
        _anything.decode(data)
    except _UNREADABLE as error:
        raise ValueError(f"data: {_reason(error)}") from None


def _with_bad_message(text: str, error: Exception) -> Send:
    """Returns a send that its message alone makes unreadable, by a lone surrogate or by its depth: a bad message.

    Raises:
        ValueError: it is a bad frame, for the reason in `error`.
    """
    start, end = _members(text).get("message", (0, 0))
    message = text[start:end]
    if message and _is_json(message):
        try:
            frame = _client_frame.decode(text[:start] + "{}" + text[end:])
            if isinstance(frame, Send):
                frame.message = Raw(message.encode())
                return frame
        except _UNREADABLE:
            pass
    raise ValueError(_reason(error)) from None


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _is_json(text: str) -> bool:
    """Says whether a standard parser reads it, as far as the one of Python can tell."""
    try:
        json.loads(text)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # it gives up, where others read on: long integers, depth
        return True
    return True


def echo_of(text: str) -> dict[str, str]:
    """Returns what an error answers by: `clientId`, `id` and `conversation` of a frame, where they are strings."""
    echo = {}
    members = _members(text)
    for key in ("clientId", "id", "conversation"):
        start, end = members.get(key, (0, 0))
        value = text[start:end].strip()
        if value.startswith('"'):
            try:
                echo[key] = str(json.loads(value))
            except ValueError:
                continue
    return echo


# A string to its end, or to the end of the text, in one step: a second try from its middle would be quadratic.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[][{}:,]', re.DOTALL)
TOKENS_MAX = 100_000
"""How many brackets, colons, commas and strings of a bad frame are looked at, so that it costs milliseconds at most."""


def _members(text: str) -> dict[str, tuple[int, int]]:
    """Returns where in the text the values of an object's members stand, by counting brackets.

    It reads on where parsers refuse or give up: at lone surrogates, at any depth. Of two members of one name the last
    counts.
    """
    members: dict[str, tuple[int, int]] = {}
    if not text.lstrip().startswith("{"):
        return members
    depth = start = 0
    key = word = ""
    for token in islice(_TOKEN.finditer(text), TOKENS_MAX):
        mark = text[token.start()]
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        if depth > 1:
            continue
        if mark == '"':
            word = token.group()
        elif mark == ":" and not key:
            key, start = word, token.end()
        elif key and (mark == "," or depth == 0):
            members[_key(key)] = start, token.start()
            key = ""
        if depth == 0:
            break
    return members


def _key(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return ""


# -- from the server


class WelcomeLimits(msgspec.Struct):
    """Are the limits that a client has to know; see `Limits`."""

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


def encode_error(code: str, text: str, echo: Mapping[str, str]) -> bytes:
    """Encodes an error frame; `echo` names what it answers."""
    frame = ErrorFrame(
        code=code,
        text=text,
        retry_ms=RETRY_MS if code in RETRYABLE else None,
        conversation=echo.get("conversation"),
        client_id=echo.get("clientId"),
        id=echo.get("id"),
    )
    try:
        return encode(frame)
    except UnicodeEncodeError:
        # An id with a lone surrogate goes back as it came, as an escape.
        return json.dumps({"type": "error", "code": code, "text": text, **echo}).encode()
