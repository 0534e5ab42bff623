"""The server's side of a parlatory.v1 session, without I/O: text in, a decision out.

    GREETING --hello--> ADMITTING --admitted--> SERVING --shut--> CLOSING
        \\__________________ bad first frame, refusal ______________/

- GREETING: only a hello of at most 4 KiB is taken; anything else ends the session.
- ADMITTING: whoever runs the session authenticates; it hands in no frame meanwhile.
- SERVING: each frame is refused, answered here, or to be served. What couples frames is kept here: bad frames in a row,
  sends and calls that wait for their answer, which conversations are open, whether the server drains.
- CLOSING: nothing is taken any more.

Not here: who may do what, the log, and what is told.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import NamedTuple

from msgspec import UNSET

from ..storage import InvalidName, split_name
from .access import ConversationName
from .frames import (
    Auth,
    Call,
    Cancel,
    ClientFrame,
    Close,
    Hello,
    Open,
    Page,
    Ping,
    Pong,
    Send,
    SignalSent,
    decode_client_frame,
    echo_of,
    encode,
    encode_error,
)
from .limits import Limits

__all__ = ["Decision", "RETRY_MS", "ServerSession", "SessionState", "Shut", "echo_for"]

RETRY_MS = 1_000
"""When a client may repeat a frame that was refused for the time being."""


class SessionState(enum.Enum):
    """Is where a session stands; see the module."""

    GREETING = enum.auto()
    ADMITTING = enum.auto()
    SERVING = enum.auto()
    CLOSING = enum.auto()


class Shut(NamedTuple):
    """Says that the socket is to be closed with a code, after a `bye` where that is to be said."""

    code: int
    bye: bool = True


class Decision(NamedTuple):
    """Is what to do about one text: send an answer, serve a frame for a conversation, close the socket; in this order."""

    answer: bytes | None = None
    serve: ClientFrame | None = None
    conversation: ConversationName | None = None
    shut: Shut | None = None


NOTHING = Decision()


@lru_cache(maxsize=4096)
def _named(conversation: str) -> ConversationName:
    return ConversationName(*split_name(conversation))


class ServerSession:
    """Is the state of one socket.

    Attributes:
        state: where it stands.
        opened: the conversations that are open.
        inflight: sends and calls that wait for their answer.
        draining: set once the server stops; what changes anything is then refused.
    """

    __slots__ = ("_bad", "_limits", "draining", "inflight", "opened", "state")

    def __init__(self, limits: Limits) -> None:
        self.state = SessionState.GREETING
        self.opened: set[str] = set()
        self.inflight = 0
        self.draining = False
        self._limits = limits
        self._bad = 0

    def admitted(self) -> None:
        """Notes that the socket has been authenticated."""
        assert self.state is SessionState.ADMITTING
        self.state = SessionState.SERVING

    def answered(self) -> None:
        """Notes that a send or a call has had its answer."""
        self.inflight -= 1

    def receive(self, text: str) -> Decision:
        """Decides over one text of the client."""
        if self.state is SessionState.SERVING:
            return self._frame(text)
        if self.state is SessionState.GREETING:
            return self._greeting(text)
        return NOTHING

    def _greeting(self, text: str) -> Decision:
        if len(text.encode()) > self._limits.first_frame_bytes:
            self.state = SessionState.CLOSING
            return Decision(shut=Shut(1009, bye=False))
        try:
            frame = decode_client_frame(text)
            if not isinstance(frame, Hello):
                raise ValueError("the first frame is hello")
        except ValueError as error:
            self.state = SessionState.CLOSING
            return Decision(answer=encode_error("bad_frame", str(error), echo=_well_formed(echo_of(text))), shut=Shut(4400))
        self.state = SessionState.ADMITTING
        return Decision(serve=frame)

    def _frame(self, text: str) -> Decision:
        try:
            frame = decode_client_frame(text)
            if isinstance(frame, Hello):
                raise ValueError("a second hello")
            conversation = None if isinstance(frame, Auth | Ping) else _named(frame.conversation)
        except (ValueError, InvalidName) as error:
            return self._bad_frame(str(error), text)
        self._bad = 0
        if isinstance(frame, Ping):
            return Decision(answer=encode(Pong(n=frame.n)))
        if conversation is None:
            return Decision(serve=frame)
        refusal = self._refusal(frame)
        if refusal is not None:
            return Decision(answer=refusal)
        if isinstance(frame, Send | Call):
            self.inflight += 1
        return Decision(serve=frame, conversation=conversation)

    def _bad_frame(self, text: str, frame: str) -> Decision:
        self._bad += 1
        answer = encode_error("bad_frame", text, echo=_well_formed(echo_of(frame)))
        if self._bad < self._limits.bad_frames:
            return Decision(answer=answer)
        self.state = SessionState.CLOSING
        return Decision(answer=answer, shut=Shut(4400))

    def _refusal(self, frame: ClientFrame) -> bytes | None:
        """Returns the error frame for what this socket may not do now, whatever the conversation."""
        if isinstance(frame, Send | Call | SignalSent) and self.draining:
            return encode_error("draining", "the server restarts; repeat after it is back", RETRY_MS, echo_for(frame))
        if isinstance(frame, Send | Call) and self.inflight >= self._limits.inflight:
            text = f"{self._limits.inflight} sends and calls wait for their answer; wait for one"
            return encode_error("rate", text, RETRY_MS, echo_for(frame))
        if isinstance(frame, SignalSent):
            size = len(frame.name.encode()) + (0 if frame.data is UNSET else len(bytes(frame.data)))
            if size > self._limits.signal_bytes:
                text = f"a signal of {size} bytes is over the limit of {self._limits.signal_bytes}"
                return encode_error("too_large", text, echo=echo_for(frame))
        if (
            isinstance(frame, Open)
            and frame.conversation not in self.opened
            and len(self.opened) >= self._limits.conversations
        ):
            text = f"{self._limits.conversations} conversations are open; close one first"
            return encode_error("too_many", text, echo=echo_for(frame))
        return None


def echo_for(frame: ClientFrame) -> dict[str, str]:
    """Returns what an error names of a frame."""
    keys = {}
    if isinstance(frame, Open | Close | Page | Send | Cancel | Call | SignalSent):
        keys["conversation"] = frame.conversation
    if isinstance(frame, Send):
        keys["clientId"] = frame.client_id
    elif isinstance(frame, Page | Call):
        keys["id"] = frame.id
    elif isinstance(frame, Cancel) and isinstance(frame.id, str):
        keys["id"] = frame.id
    return keys


def _well_formed(keys: dict[str, str]) -> dict[str, str]:
    """Takes the conversation out where it is none."""
    if "conversation" in keys:
        try:
            split_name(keys["conversation"])
        except InvalidName:
            return {key: value for key, value in keys.items() if key != "conversation"}
    return keys
