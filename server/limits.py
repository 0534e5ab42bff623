"""The limits of a server, with their units and defaults (PROTOCOL section 1)."""

from __future__ import annotations

import math

import msgspec

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Are the limits of a server. All are above 0.

    Attributes:
        frame_bytes: a frame from a client; over it the socket closes with 1009.
        message_bytes: a message as stored; over it the send is refused.
        first_frame_bytes: the hello.
        inflight: unacknowledged sends and calls per socket.
        conversations: open conversations per socket.
        page_rows: rows of a page.
        signal_bytes: the name and data of a signal.
        bad_frames: the bad frame in a row that closes the socket.
        answers_bytes: answers that may wait for a client that does not read, before it is not read either.
        hello_timeout_s: how long a socket may take for its handshake, and then to say hello.
        authorize_timeout_s: how long `authenticate` and `authorize` may take.
        frame_timeout_s: how long a frame may take to arrive, from its first byte to its last.
        beat_ms: the time between beats, +-20 %.
        stall_s: how long data may wait without any progress before the socket is aborted; half as long again is left
            for progress that the peer's kernel has not told of yet.
        silence_s: how long a peer may be silent before it is pinged, and again before it is aborted.
        close_s: how long the closing of a socket may take before it is aborted.
        recheck_s: how often open subscriptions are authorized again.
        lists_per_principal: lists of conversations that are made at a time for one principal, or for one network (as
            for sockets) where it is plain `anonymous`; more are refused with HTTP 429.
        downloads: media that are sent over HTTP at a time; more are refused with HTTP 503.
        downloads_per_principal: those of one principal, or of one network (as for sockets) where it is plain
            `anonymous`; more are refused with HTTP 429.
        sockets: sockets at a time; more are refused with HTTP 503.
        pending: sockets at a time that have not been let in yet; more are dropped.
        pending_per_address: those of one address or /64 (as below), so that one does not hold all places.
        sockets_per_address: sockets at a time of one IPv4 address, or of one /64 of IPv6; more are refused with HTTP
            429. Behind a reverse proxy all sockets have its address.
        sockets_per_principal: sockets at a time of one principal; more are closed with 1013. Plain `anonymous`, which
            is everybody without a name, is not counted.
        frames_per_s: what a socket may ask for in a second: a signal, cancel or close counts 1, an open, page or auth
            5, a send or call 1/10, for these have a window of their own, a ping nothing. Over it frames are refused as
            `rate`.
        frames_burst: how much it may ask for at once. Refused frames count too: one that owes as much again is closed
            with 4429.

    Raises:
        ValueError: one of them is not above 0.
    """

    frame_bytes: int = 4 << 20
    message_bytes: int = 1 << 20
    first_frame_bytes: int = 4096
    inflight: int = 32
    conversations: int = 32
    page_rows: int = 200
    signal_bytes: int = 16 << 10
    bad_frames: int = 16
    answers_bytes: int = 64 << 10
    hello_timeout_s: float = 5
    authorize_timeout_s: float = 5
    frame_timeout_s: float = 120
    beat_ms: int = 10_000
    stall_s: float = 20
    silence_s: float = 20
    close_s: float = 2
    recheck_s: float = 60
    lists_per_principal: int = 8
    downloads: int = 100
    downloads_per_principal: int = 20
    sockets: int = 50_000
    pending: int = 2_000
    pending_per_address: int = 1_000
    sockets_per_address: int = 10_000
    sockets_per_principal: int = 5_000
    frames_per_s: float = 10_000
    frames_burst: float = 20_000

    def __post_init__(self) -> None:
        """Refuses what would be no limit."""
        for name, value in msgspec.structs.asdict(self).items():
            if not 0 < value < math.inf:
                raise ValueError(f"the limit {name} is {value}; give a number above 0")
