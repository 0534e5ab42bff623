"""The server's side of a parlatory.v1 session, without I/O: text in, a decision out.

    GREETING --hello--> ADMITTING --admitted--> SERVING
        |                   |                      |
        +-------------------+----------------------+--shut, or the socket is gone--> CLOSING

- GREETING: only a hello of at most 4 KiB is taken; anything else ends the session.
- ADMITTING: whoever runs the session authenticates; it hands in no text meanwhile.
- SERVING: each text is refused, answered here, or a frame to be served. What couples frames is kept here: bad frames in
  a row, how fast they come, sends and calls that wait for their answer, which conversations are open, whether the
  server drains.
- CLOSING: nothing is taken any more.

Not here: who may do what, the log, and what is told.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
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
)
from .limits import Limits
from .rate import TokenBucket

__all__ = ["Decision", "Refusal", "ServerSession", "SessionState", "Shut", "echo_for"]


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


class Refusal(NamedTuple):
    """Says that a frame is refused: a code of the protocol, a text for people, and what names the frame."""

    code: str
    text: str
    echo: Mapping[str, str]


class Decision(NamedTuple):
    """Is what to do about one text: refuse it, answer it, or serve its frame; then close the socket."""

    refusal: Refusal | None = None
    answer: bytes | None = None
    serve: ClientFrame | None = None
    conversation: ConversationName | None = None
    shut: Shut | None = None


NOTHING = Decision()
# What frames take of `Limits.frames_per_s`; those that are not here take 1.
COSTS = {Open: 5.0, Page: 5.0, Auth: 5.0, Send: 0.1, Call: 0.1}


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

    __slots__ = ("_bad", "_bucket", "_limits", "draining", "inflight", "opened", "state")

    def __init__(self, limits: Limits) -> None:
        self.state = SessionState.GREETING
        self.opened: set[str] = set()
        self.inflight = 0
        self.draining = False
        self._limits = limits
        self._bad = 0
        self._bucket = TokenBucket(limits.frames_per_s, limits.frames_burst)

    def admitted(self) -> None:
        """Notes that the socket has been authenticated."""
        assert self.state is SessionState.ADMITTING
        self.state = SessionState.SERVING

    def answered(self) -> None:
        """Notes that a send or a call has had its answer."""
        self.inflight -= 1

    def receive(self, text: str, now: float) -> Decision:
        """Decides over one text of the client, which came at `now` (seconds, by a clock that does not go back)."""
        if self.state is SessionState.SERVING:
            return self._frame(text, now)
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
            return Decision(Refusal("bad_frame", str(error), _echo_of(text)), shut=Shut(4400))
        self.state = SessionState.ADMITTING
        return Decision(serve=frame)

    def _frame(self, text: str, now: float) -> Decision:
        try:
            frame = decode_client_frame(text)
            if isinstance(frame, Hello):
                raise ValueError("a second hello")
            conversation = None if isinstance(frame, (Auth, Ping)) else _named(frame.conversation)
        except ValueError as error:  # InvalidName is one
            return self._bad_frame(str(error), text)
        self._bad = 0
        if isinstance(frame, Ping):  # for nothing: a socket that does not take its answers is not read either
            return Decision(answer=encode(Pong(n=frame.n)))
        left = self._bucket.take(COSTS.get(type(frame), 1.0), now)
        if left < 0:
            return self._too_fast(frame, left)
        if conversation is None:
            return Decision(serve=frame)
        refusal = self._refusal(frame)
        if refusal is not None:
            return Decision(refusal)
        if isinstance(frame, (Send, Call)):
            self.inflight += 1
        return Decision(serve=frame, conversation=conversation)

    def _too_fast(self, frame: ClientFrame, left: float) -> Decision:
        refusal = Refusal("rate", "this socket asks for too much; wait, then go on more slowly", echo_for(frame))
        if left >= -self._limits.frames_burst:
            return Decision(refusal)
        self.state = SessionState.CLOSING
        return Decision(refusal, shut=Shut(4429))

    def _bad_frame(self, reason: str, text: str) -> Decision:
        self._bad += 1
        refusal = Refusal("bad_frame", reason, _echo_of(text))
        if self._bad < self._limits.bad_frames:
            return Decision(refusal)
        self.state = SessionState.CLOSING
        return Decision(refusal, shut=Shut(4400))

    def _refusal(self, frame: ClientFrame) -> Refusal | None:
        """Refuses what this socket may not do now, whatever the conversation."""
        limits, code, text = self._limits, "", ""
        # Tuples: a union would be made anew for each frame.
        if isinstance(frame, (Send, Call, SignalSent)) and self.draining:
            code, text = "draining", "the server restarts; repeat after it is back"
        elif isinstance(frame, (Send, Call)):
            if self.inflight >= limits.inflight:
                code, text = "rate", f"{limits.inflight} sends and calls wait for their answer; wait for one"
        elif isinstance(frame, SignalSent):
            size = len(frame.name.encode()) + (0 if frame.data is UNSET else len(bytes(frame.data)))
            if size > limits.signal_bytes:
                code, text = "too_large", f"a signal of {size} bytes is over the limit of {limits.signal_bytes}"
        elif isinstance(frame, Open) and frame.conversation not in self.opened:
            if len(self.opened) >= limits.conversations:
                code, text = "too_many", f"{limits.conversations} conversations are open; close one first"
        return Refusal(code, text, echo_for(frame)) if code else None


def echo_for(frame: ClientFrame) -> dict[str, str]:
    """Returns what an error names of a frame."""
    keys = {}
    if not isinstance(frame, (Hello, Auth, Ping)):
        keys["conversation"] = frame.conversation
    if isinstance(frame, Send):
        keys["clientId"] = frame.client_id
    elif isinstance(frame, (Page, Call)):
        keys["id"] = frame.id
    elif isinstance(frame, Cancel) and isinstance(frame.id, str):
        keys["id"] = frame.id
    return keys


def _echo_of(text: str) -> dict[str, str]:
    """Returns what an error names of a text that is no frame: the conversation only where it is one."""
    keys = echo_of(text)
    try:
        split_name(keys.get("conversation", ""))
    except InvalidName:
        keys.pop("conversation", None)
    return keys
