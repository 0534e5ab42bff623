"""The protocol of a client without I/O: frames in, frames and effects out (PROTOCOL, sections 2 to 4).

The session outlives its sockets. `greet` begins one, `receive` takes what it brings, `lost` ends it; between `lost`
and the next `greet` everything the application asks for is kept. After each call the shell sends `frames()` and
carries out `effects()`. Time is an argument (monotonic seconds); `deadline()` says when `wake` is due.

Everything that gets an answer is a *request*, an integer that `Done` or `Failed` names exactly once, unless it was
forgotten. What is not sent, or not answered when a socket is lost, is sent again on the next one: opens, pages,
cancels, sends, in this order. Signals are not; they are ephemeral. Nor is a cancel that names no turn: it might stop
one that began later.

An `error` that names only a conversation may be about an `open`, or about a signal or a cancel. A server handles frames
in order, so it is about the oldest of these that is not answered. Silence is the answer to a signal and to a cancel: a
`ping` behind each of them makes the end of it heard.
"""

from __future__ import annotations

from collections import deque

import msgspec
from msgspec import UNSET, Raw

from ..storage import CorruptRow, StoredMessage, TooLarge
from .client_effects import (
    Done,
    Drop,
    Effect,
    Ended,
    Failed,
    History,
    Noted,
    Present,
    Ready,
    Signalled,
    StatusChanged,
    TurnTold,
)
from .client_errors import ClientClosed, ClientError, ConnectionRefused, ConversationRefused, Refused, SendRefused
from .client_events import Ephemeral
from .client_frames import (
    Closed,
    Delta,
    DraftEnd,
    DraftSet,
    Live,
    Opened,
    Presence,
    Reset,
    Rows,
    ServerFrame,
    Signal,
    Turn,
    TurnState,
    decode_row,
    decode_server_frame,
)
from .client_outbox import Outbox, Outgoing
from .client_subscription import Met, Position, Subscription
from .frames import (
    RETRYABLE,
    Ack,
    Beat,
    Bye,
    Cancel,
    Close,
    ErrorFrame,
    Hello,
    Open,
    Page,
    PageAnswer,
    Ping,
    Pong,
    SignalSent,
    Welcome,
    WelcomeLimits,
    encode,
)

__all__ = ["CONVERSATIONS_MAX", "ClientSession"]

INFLIGHT_MAX = 32
CONVERSATIONS_MAX = 32
HELLO_BYTES_MAX = 4096
BEFORE_NEWEST = 2**53 - 1
RETRY_S = 1.0
"""How long to wait where the server says that it makes sense to repeat, and not when."""


class _PageAsked:
    __slots__ = ("before", "conversation", "limit", "retry_at")

    def __init__(self, conversation: str, before: int, limit: int | None) -> None:
        self.conversation = conversation
        self.before = before
        self.limit = limit
        # Monotonic time at which to ask again after a refusal for now.
        self.retry_at: float | None = None


class _CancelAsked:
    __slots__ = ("conversation", "turn")

    def __init__(self, conversation: str, turn: int | str | None) -> None:
        self.conversation = conversation
        self.turn = turn


class _Opening(msgspec.Struct, frozen=True):
    """Is an open that is not answered; `ping` numbers the first ping behind it, whose pong comes later."""

    conversation: str
    ping: int
    subscription: Subscription


class _Pinged(msgspec.Struct, frozen=True):
    """Is a signal or a cancel with a ping behind it, whose pong is not here."""

    conversation: str
    ping: int
    request: int
    cancel: bool


class ClientSession:
    """Is what a client knows, over all its sockets.

    `client` is the random id of the installation; `rows_max` and `bytes_max` bound the buffer of each conversation.
    """

    def __init__(self, client: str, *, rows_max: int, bytes_max: int) -> None:
        # Of the last `welcome`; None before the first one.
        self.limits: WelcomeLimits | None = None
        self.principal: str | None = None
        self.beat_s: float | None = None
        # Of the socket: accepted, has brought a row, the `bye`.
        self.welcomed = False
        self.fruitful = False
        self.bye: Bye | None = None
        # Why it is over; nothing can be asked for any more.
        self.error: ClientError | None = None
        self._client = client
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._requests = 0
        self._subscriptions: dict[str, Subscription] = {}
        self._outbox = Outbox()
        self._pages: dict[int, _PageAsked] = {}
        self._cancels: dict[int, _CancelAsked] = {}
        # What was said on this socket and has no answer yet that would name more than the conversation, oldest first.
        self._asked: deque[_Opening | _Pinged] = deque()
        self._pings = 0
        self._frames: list[bytes] = []
        self._effects: list[Effect] = []

    def frames(self) -> list[bytes]:
        """Returns the frames to send, in order, and forgets them."""
        frames, self._frames = self._frames, []
        return frames

    def effects(self) -> list[Effect]:
        """Returns what is to be done, in order, and forgets it."""
        effects, self._effects = self._effects, []
        return effects

    @property
    def pending(self) -> bool:
        """Is whether there are frames or effects."""
        return bool(self._frames or self._effects)

    # -- sockets

    def greet(self, token: str | None) -> None:
        """A socket is there: says hello.

        Raises:
            ConnectionRefused: the hello is longer than any server reads.
        """
        hello = encode(Hello(token=UNSET if token is None else token, client=self._client))
        if len(hello) > HELLO_BYTES_MAX:
            raise ConnectionRefused(f"the token makes a hello of {len(hello)} bytes; a server reads {HELLO_BYTES_MAX}")
        self.welcomed = self.fruitful = False
        self.bye = None
        self._frames.append(hello)

    def lost(self, close_code: int | None = None) -> None:
        """The socket is gone, or there was none; `close_code` is the server's."""
        self._frames.clear()
        if close_code == 1009 and (entry := self._outbox.largest_sent()) is not None:
            # Not repeated: it would end every socket the same way.
            limit = self.limits.frame if self.limits else 0
            self._fail_send(entry, TooLarge("frame", len(entry.frame()), limit))
        self.welcomed = False
        self._outbox.lost()
        for page in self._pages.values():
            page.retry_at = None
        for asked in self._asked:
            if isinstance(asked, _Pinged):
                cancel = self._cancels.get(asked.request)
                if cancel is None or cancel.turn is None:
                    self._settle(asked, Done(asked.request, False))
        self._asked.clear()
        for subscription in self._subscriptions.values():
            subscription.lost()
            subscription.status = "offline"
            self._tell_status(subscription)

    def end(self, error: ClientError) -> None:
        """There will be no further socket: ends every subscription and every request with this error."""
        self.error = error
        for subscription in list(self._subscriptions.values()):
            if isinstance(error, ClientClosed):
                subscription.close()  # nobody wants what is buffered
            self._end(subscription, error)
        for entry in self._outbox.all():
            self._fail_send(entry, error)
        for request in (*self._pages, *self._cancels):
            self._effects.append(Failed(request, error))
        self._pages.clear()
        self._cancels.clear()
        self.lost()

    def deadline(self) -> float | None:
        """Returns the monotonic time at which `wake` is due; None if there is nothing to wait for."""
        if not self.welcomed:
            return None
        times = [self._outbox.deadline()]
        times += [subscription.retry_at for subscription in self._subscriptions.values()]
        times += [page.retry_at for page in self._pages.values()]
        return min((time for time in times if time is not None), default=None)

    def wake(self, now: float) -> None:
        """Repeats what is due."""
        if not self.welcomed:
            return
        for subscription in self._subscriptions.values():
            if subscription.retry_at is not None and subscription.retry_at <= now:
                self._say(subscription, subscription.open())
        for request, page in self._pages.items():
            if page.retry_at is not None and page.retry_at <= now:
                self._ask(request, page)
        self._flush(now)

    # -- what the application asks for

    def open(self, conversation: str, tail: int | None, position: Position | None) -> Subscription:
        """Subscribes to a conversation that is not open."""
        subscription = Subscription(conversation, tail, position, self._rows_max, self._bytes_max)
        self._subscriptions[conversation] = subscription
        if self.welcomed:
            self._say(subscription, subscription.begin())
        return subscription

    def is_open(self, conversation: str) -> bool:
        """Returns whether the conversation is open."""
        return conversation in self._subscriptions

    def open_count(self) -> int:
        """Returns how many conversations are open."""
        return len(self._subscriptions)

    def close(self, subscription: Subscription) -> None:
        """Unsubscribes. What was not sent is forgotten; what was sent is still brought to its end, unheard."""
        conversation = subscription.conversation
        if subscription.error is not None:
            return
        error = ClientClosed(f"the chat {conversation!r} was closed")
        self._say(subscription, subscription.close())
        self._end(subscription, error)
        for entry in self._outbox.of(conversation):
            if entry.wanted:
                self._effects.append(Failed(entry.request, error))
                self._outbox.forget(entry)
        asked: dict[int, _PageAsked | _CancelAsked] = {**self._pages, **self._cancels}
        for request in [request for request, what in asked.items() if what.conversation == conversation]:
            self.forget_request(request)
            self._effects.append(Failed(request, error))

    def take(self, subscription: Subscription) -> StoredMessage | CorruptRow | Met | None:
        """Returns what comes next in a conversation; None if there is nothing now."""
        item = subscription.take()
        self._resume(subscription)
        return item

    def take_event(self, subscription: Subscription) -> StoredMessage | CorruptRow | Met | Ephemeral | None:
        """Returns what comes next in a conversation, rows and events; None if there is nothing now."""
        item = subscription.take_event()
        self._resume(subscription)
        return item

    def send(self, conversation: str, client_id: str, body: bytes, now: float) -> Outgoing | None:
        """Sends a message, or keeps it until it can be sent; None if the client id is in use already."""
        if (conversation, client_id) in self._outbox:
            return None
        entry = Outgoing(self._request(), conversation, client_id, body)
        self._outbox.add(entry)
        self._flush(now)
        return entry

    def forget(self, entry: Outgoing) -> bool:
        """Nobody waits for this send any more. Returns whether it is certain that it never comes into the log."""
        return self._outbox.forget(entry)

    def page(self, conversation: str, before: int | None, limit: int | None) -> int:
        """Asks for older rows; the newest ones without `before`."""
        request = self._request()
        page = _PageAsked(conversation, BEFORE_NEWEST if before is None else before, limit)
        self._pages[request] = page
        if self.welcomed:
            self._ask(request, page)
        return request

    def forget_request(self, request: int) -> bool:
        """Nobody waits for this page or cancel any more; returns whether it is a cancel sent on this socket."""
        self._pages.pop(request, None)
        self._cancels.pop(request, None)
        return any(isinstance(asked, _Pinged) and asked.cancel and asked.request == request for asked in self._asked)

    def cancel(self, conversation: str, turn: int | str | None) -> int:
        """Stops a turn, or the one that runs; offline it waits."""
        request = self._request()
        asked = self._cancels[request] = _CancelAsked(conversation, turn)
        if self.welcomed:
            self._stop(request, asked)
        return request

    def signal(self, conversation: str, name: str, data: bytes | None) -> int | None:
        """Signals to the other subscribers; None if there is no socket to do it on."""
        if not self.welcomed:
            return None
        request = self._request()
        raw = UNSET if data is None else Raw(data)
        self._frames.append(encode(SignalSent(conversation=conversation, name=name, data=raw)))
        self._ping(request, conversation, cancel=False)
        return request

    # -- what the server says

    def receive(self, data: bytes, now: float) -> None:
        """Takes in a frame."""
        try:
            frame = decode_server_frame(data)
            if frame is not None:
                self._accept(frame, now, len(data))
        except ValueError as error:
            self._effects.append(Drop(str(error)))

    def _accept(self, frame: ServerFrame, now: float, size: int) -> None:
        match frame:
            case Rows():
                self._rows(frame, now)
            case Ack():
                entry = self._outbox.answered(frame.conversation, frame.client_id)
                if entry is not None:
                    self._effects.append(Done(entry.request, frame.seq))
                self._flush(now)
            case ErrorFrame():
                self._error(frame, now)
            case Welcome():
                self._welcome(frame, now)
            case Bye():
                self.bye = frame
            case PageAnswer():
                self._page(frame)
            case Pong():
                self._pong(frame.n)
            case Beat():
                for conversation, head in frame.heads.items():
                    if (subscription := self._subscriptions.get(conversation)) is not None:
                        self._reply(subscription, subscription.head(head))
            case DraftSet() | Delta() | DraftEnd() | Turn() | Signal() | Presence():
                if (subscription := self._subscriptions.get(frame.conversation)) is not None:
                    self._ephemeral(subscription, frame, size)
            case Opened() | Reset():
                if (subscription := self._opened(frame.conversation)) is not None:
                    self._about(subscription, frame, now)
            case Live() | Closed():
                if (subscription := self._subscriptions.get(frame.conversation)) is not None:
                    self._about(subscription, frame, now)

    def _ephemeral(
        self, subscription: Subscription, frame: DraftSet | Delta | DraftEnd | Turn | Signal | Presence, size: int
    ) -> None:
        match frame:
            case DraftSet():
                subscription.draft_set(frame)
            case Delta():
                self._reply(subscription, subscription.delta(frame))
            case DraftEnd():
                subscription.draft_end(frame)
            case Turn():
                turn = TurnState(frame.state, frame.id)
                subscription.turn(turn)
                self._effects.append(TurnTold(subscription, turn))
            case Signal():
                subscription.signal(frame, size)
                self._effects.append(Signalled(subscription, frame))
            case Presence():
                self._effects.append(Present(subscription, frame))
        if subscription.events:
            self._effects.append(Ready(subscription))

    def _about(self, subscription: Subscription, frame: Opened | Reset | Live | Closed, now: float) -> None:
        match frame:
            case Opened() | Reset():
                if not subscription.opened(frame):
                    raise ValueError(f"{frame.conversation!r} was opened at {frame.start}, behind the rows asked for")
                if subscription.ready or subscription.events:
                    self._effects.append(Ready(subscription))
                self._tell_status(subscription)
            case Live():
                self._reply(subscription, subscription.live(frame.seq))
                if subscription.events:
                    self._effects.append(Ready(subscription))
            case Closed():
                subscription.ended()
                if frame.code in RETRYABLE:
                    subscription.retry_at = now + RETRY_S
                    self._tell_status(subscription)
                else:
                    text = "the server ended the subscription"
                    self._end(subscription, ConversationRefused(frame.code, text, frame.conversation))

    def _welcome(self, frame: Welcome, now: float) -> None:
        self.limits = frame.limits
        self.principal = frame.principal
        self.beat_s = max(frame.beat_ms, 1) / 1000
        if self.welcomed:
            return
        self.welcomed = True
        for subscription in self._subscriptions.values():
            self._say(subscription, subscription.begin())
        for request, page in self._pages.items():
            self._ask(request, page)
        for request, asked in self._cancels.items():
            self._stop(request, asked)
        self._flush(now)

    def _rows(self, frame: Rows, now: float) -> None:
        self.fruitful = True
        if len(self._outbox):
            for row in frame.rows:
                if row.client_id is None or row.by != self.principal:
                    continue
                if (entry := self._outbox.seen(frame.conversation, row.client_id)) is not None:
                    self._effects.append(Done(entry.request, row.seq))
        if (subscription := self._subscriptions.get(frame.conversation)) is not None:
            reply = subscription.rows(frame)
            if subscription.ready:
                self._effects.append(Ready(subscription))
            self._reply(subscription, reply)

    def _page(self, frame: PageAnswer) -> None:
        # An id that is not ours, or no longer, is nobody's.
        request = int(frame.id) if frame.id.isdecimal() else -1
        if request not in self._pages:
            return
        rows = [decode_row(frame.conversation, row) for row in frame.rows]
        del self._pages[request]
        good = tuple(row for row in rows if isinstance(row, StoredMessage))
        broken = next((row for row in rows if isinstance(row, CorruptRow)), None)
        if broken is not None:
            self._effects.append(Failed(request, broken))
        else:
            self._effects.append(Done(request, History(good, frame.more, frame.epoch)))

    def _error(self, frame: ErrorFrame, now: float) -> None:
        conversation = frame.conversation or ""
        retry_at = None
        if frame.code in RETRYABLE:
            retry_at = now + (RETRY_S if frame.retry_ms is None else max(frame.retry_ms, 0) / 1000)
        if frame.client_id is not None:
            self._send_refused(frame, conversation, frame.client_id, retry_at)
            self._flush(now)
            return
        if frame.id is not None:
            request = int(frame.id) if frame.id.isdecimal() else -1
            if (page := self._pages.get(request)) is not None:
                if retry_at is None:
                    del self._pages[request]
                    self._effects.append(Failed(request, Refused(frame.code, frame.text, conversation)))
                else:
                    page.retry_at = retry_at
            return
        asked = self._oldest(conversation)
        if asked is None:
            self._effects.append(Noted(f"the server refused a frame: {frame.code} ({frame.text})"))
            return
        self._asked.remove(asked)
        if isinstance(asked, _Pinged):
            self._settle(asked, Failed(asked.request, Refused(frame.code, frame.text, conversation)))
        elif asked.subscription.error is None:
            asked.subscription.refused(retry_at, frame.code)
            if retry_at is None:
                self._end(asked.subscription, ConversationRefused(frame.code, frame.text, conversation))

    def _send_refused(self, frame: ErrorFrame, conversation: str, client_id: str, retry_at: float | None) -> None:
        if retry_at is not None:
            self._outbox.refused(conversation, client_id, retry_at, frame.code == "internal")
        elif (entry := self._outbox.answered(conversation, client_id)) is not None:
            error = SendRefused(frame.code, frame.text, conversation, client_id)
            self._effects.append(Failed(entry.request, error))

    # -- inside

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _ask(self, request: int, page: _PageAsked) -> None:
        page.retry_at = None
        limit = UNSET if page.limit is None else page.limit
        frame = Page(id=str(request), conversation=page.conversation, before=page.before, limit=limit)
        self._frames.append(encode(frame))

    def _stop(self, request: int, asked: _CancelAsked) -> None:
        turn = UNSET if asked.turn is None else asked.turn
        self._frames.append(encode(Cancel(conversation=asked.conversation, turn=turn)))
        self._ping(request, asked.conversation, cancel=True)

    def _ping(self, request: int, conversation: str, *, cancel: bool) -> None:
        """Learns by the pong that the server has handled the frame before it."""
        self._pings += 1
        self._frames.append(encode(Ping(n=self._pings)))
        self._asked.append(_Pinged(conversation, self._pings, request, cancel))

    def _pong(self, n: int) -> None:
        while self._asked and self._asked[0].ping <= n:
            asked = self._asked.popleft()
            if isinstance(asked, _Opening):
                raise ValueError(f"a later frame than the open of {asked.conversation!r} was answered first")
            self._settle(asked, Done(asked.request, True))

    def _oldest(self, conversation: str) -> _Opening | _Pinged | None:
        """Returns what the next answer that names only this conversation is about."""
        return next((asked for asked in self._asked if asked.conversation == conversation), None)

    def _opened(self, conversation: str) -> Subscription | None:
        """Returns the chat whose open is answered; None if it was closed here meanwhile."""
        asked = self._oldest(conversation)
        if not isinstance(asked, _Opening):
            return self._subscriptions.get(conversation)
        self._asked.remove(asked)
        return None if asked.subscription.error else asked.subscription

    def _settle(self, pinged: _Pinged, effect: Done | Failed) -> None:
        if not pinged.cancel or self._cancels.pop(pinged.request, None) is not None:
            self._effects.append(effect)

    def _resume(self, subscription: Subscription) -> None:
        if self.welcomed:
            self._say(subscription, subscription.resume())

    def _say(self, subscription: Subscription, frame: Open | Close | None) -> None:
        if isinstance(frame, Open):
            self._asked.append(_Opening(subscription.conversation, self._pings + 1, subscription))
        if frame is not None:
            self._frames.append(encode(frame))

    def _flush(self, now: float) -> None:
        """Sends what may be sent; what is over a limit is refused here, because the server might close over it."""
        if not self.welcomed:
            return
        self._outbox.release(now)
        assert self.limits is not None
        inflight_max = min(INFLIGHT_MAX, self.limits.inflight)
        while self._outbox.inflight < inflight_max and (entry := self._outbox.next(now)) is not None:
            frame = entry.frame()
            if len(entry.body) > self.limits.message:
                self._fail_send(entry, TooLarge("message", len(entry.body), self.limits.message))
            elif len(frame) > self.limits.frame:
                self._fail_send(entry, TooLarge("frame", len(frame), self.limits.frame))
            else:
                self._frames.append(frame)

    def _fail_send(self, entry: Outgoing, error: Exception) -> None:
        self._outbox.answered(entry.conversation, entry.client_id)
        self._effects.append(Failed(entry.request, error))

    def _reply(self, subscription: Subscription, frame: Open | Close | None) -> None:
        self._say(subscription, frame)
        self._tell_status(subscription)

    def _end(self, subscription: Subscription, error: ClientError) -> None:
        del self._subscriptions[subscription.conversation]
        subscription.error = error
        subscription.retry_at = None
        subscription.status = "closed"
        self._tell_status(subscription)
        self._effects.append(Ended(subscription))

    def _tell_status(self, subscription: Subscription) -> None:
        if subscription.status != subscription.told:
            subscription.told = subscription.status
            self._effects.append(StatusChanged(subscription, subscription.status))
