"""A connection: one socket, its session, its subscriptions. Serves what the session lets through.

A send goes from bytes to ack like this, all of it in the step of the loop that brought the bytes, up to the log:

    Socket.process_event   a whole text, nothing in front of it
    receive                the session decodes and decides (`protocol.py`): refuse, answer, or serve a frame
    _serve                 the application's `authorize` is asked; where it need not wait, neither do we
    _perform, _send        the message is checked and handed to the log of its conversation
    ...                    the log commits and tells its subscribers
    _acknowledge           called by the log behind that: the ack leaves in one write with the row

Frames are served in order, one at a time. What may hold back those behind is a hook of the application, or a read of
the log (an open, a page, the first send to a conversation): never a commit, never user code in a turn.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw
from websockets.protocol import State

from ..actors import Closed as ConversationClosed
from ..actors import Conversation, Event, PositionRequest, Signal, Subscription
from ..storage import Committed, ParlatoryError, StorageError, new_row, parse_message
from .access import AccessRequest, ConversationName, Grant, Principal
from .frames import (
    Ack,
    Auth,
    AuthExpiring,
    Beat,
    Bye,
    Call,
    Cancel,
    ClientFrame,
    Close,
    Hello,
    Open,
    Page,
    PageAnswer,
    Send,
    SignalSent,
    Welcome,
    WelcomeLimits,
    encode,
    encode_error,
)
from .http import read_headers
from .protocol import Refusal, ServerSession, SessionState, Shut, echo_for
from .socket import Socket
from .told import wire_of

if TYPE_CHECKING:
    from .app import Server

__all__ = ["Connection"]

PAGE_BYTES = 1 << 20
BEAT_SPREAD = 0.2
EXPIRY_NOTICE_S = 30.0
GREETING_SLACK_BYTES = 1 << 10
# When a client may come back after these codes; after the others it may at once, or never.
RETRY_MS = (500, 5_000)
RETRY_LATER = (1011, 1012, 1013)
# The errors below that say what the client did wrong, or that it is to repeat; all others are the server's.
TOLD_CODES = ("bad_message", "too_large", "client_id_conflict", "busy", "draining")

logger = logging.getLogger("parlatory.server")


class Refused(Exception):
    """Says that a frame is refused, with a code of the protocol."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Forbidden(Refused):
    """Says that something is forbidden, in the words in which something absent is."""

    def __init__(self) -> None:
        super().__init__("forbidden", "you may not do this, or there is no such agent or conversation")


class Connection(Socket):
    """Serves one socket of a server."""

    def __init__(self, *args: Any, app: Server, **options: Any) -> None:
        super().__init__(*args, answers_bytes=app.limits.answers_bytes, **options)
        self.app = app
        # The address of the peer; empty where it has none.
        self.peer = ""
        # What the protocol lets through, and when.
        self.session = ServerSession(app.limits)
        # Who is on the other side; None until the hello is accepted. Its name never changes.
        self.principal: Principal | None = None
        # How many bytes came behind the handshake while no hello was whole.
        self._greeting_bytes = 0
        # The installation that the hello named; later tokens stand beside it.
        self._client: str | None = None
        # What is open, by conversation. Holding the record keeps the runtime from letting it go.
        self._subscriptions: dict[str, Subscription] = {}
        # The conversation that the frame being served is about, and whether access to it was taken away meanwhile.
        self._serving: ConversationName | None = None
        self._revoked = False
        # Ends a connection that has sent no handshake in time, or has not taken its answer.
        self._deadline = self.loop.call_later(app.limits.hello_timeout_s, self._not_in_time)
        # The next beat; the notice that the token ends or, behind it, the end.
        self._beat: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        # Closes the socket, once the server has decided to; nothing is written from then on.
        self._shutting: asyncio.Task[None] | None = None

    # -- life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Joins the server, which may have too many."""
        super().connection_made(transport)
        remote = self.remote_address
        self.peer = str(remote[0]) if isinstance(remote, tuple) else ""
        self.app.joined(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Leaves the server."""
        self._deadline.cancel()
        super().connection_lost(exc)
        self.app.left(self)

    def at_end_of_step(self, call: Callable[[], object]) -> None:
        """Calls behind what is told in this step, so that an ack leaves in one write with its row."""
        self.app.runtime.engine.after_telling(call)

    async def run(self) -> None:
        """Serves the socket from its handshake to its end."""
        self._deadline.cancel()
        deadline = self.loop.call_later(self.app.limits.hello_timeout_s, self._no_hello)
        try:
            await self.read()
        finally:
            deadline.cancel()
            self._end()
            if self._shutting is not None:
                await asyncio.wait({self._shutting})
            logger.info("connection %s ended with %s", self.id, self.protocol.close_code)

    @property
    def _ended(self) -> bool:
        return self.session.state is SessionState.CLOSING or self.protocol.state is State.CLOSED

    def begin_shut(self, shut: Shut) -> None:
        """Says `bye` and starts closing the socket; idempotent."""
        if self._shutting is None:
            self._end()
            if shut.bye and self.writable:
                retry_ms = RETRY_MS if shut.code in RETRY_LATER else (0, 0)
                self.answer(encode(Bye(code=shut.code, retry_ms=retry_ms)))
            self.app.counters.closed[shut.code] += 1
            logger.info("connection %s is closed with %d", self.id, shut.code)
            closing = self.shut(shut.code, self.app.limits.close_s)
            self._shutting = self.loop.create_task(closing, name=f"parlatory shut {self.id}")

    def failed(self, error: Exception) -> None:
        """Ends a socket whose serving has a fault of ours."""
        logger.error("connection %s: serving it failed", self.id, exc_info=error)
        self.begin_shut(Shut(1011))

    def _end(self) -> None:
        """Takes the connection out of everything; idempotent."""
        self.session.state = SessionState.CLOSING
        for conversation in list(self._subscriptions):
            self._unsubscribe(conversation)
        for timer in (self._beat, self._expiry):
            if timer is not None:
                timer.cancel()

    # -- writing

    def tell(self, event: Event) -> None:
        """Writes an event of a conversation, as a sink of its hub."""
        if self._shutting is None:
            self.write(event.wire or wire_of(event))
            if isinstance(event, ConversationClosed):
                self._subscriptions.pop(event.conversation, None)
                self.session.opened.discard(event.conversation)

    def answer(self, payload: bytes) -> None:
        """Writes an answer, unless the last frame has been said."""
        if self._shutting is None:
            super().answer(payload)

    def on_writable(self) -> None:
        """Lets the hubs go on with their rows."""
        for subscription in self._subscriptions.values():
            subscription.resume()

    def _refuse(self, frame: ClientFrame, error: Exception) -> None:
        """Answers a frame that was let through and not served, and logs what is the server's fault."""
        if isinstance(frame, (Send, Call)):
            self.session.answered()
        if isinstance(error, Refused) or (isinstance(error, ParlatoryError) and error.code in TOLD_CODES):
            refusal = Refusal(error.code, str(error), echo_for(frame))
        else:
            refusal = Refusal("internal", "the server could not do it; repeat later", echo_for(frame))
            kind = type(frame).__name__.lower()
            what = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} frame failed"
            if isinstance(error, StorageError):  # which has logged what went wrong
                logger.error("connection %s: %s: %s", self.id, what, error)
            else:
                self.app.faults.log(what, error, f"connection {self.id}: {what}")
        self._say(refusal)

    def _say(self, refusal: Refusal) -> None:
        logger.info("connection %s: %s, %r %r", self.id, refusal.code, refusal.text, refusal.echo)
        self.app.counters.errors[refusal.code] += 1
        self.answer(encode_error(refusal.code, refusal.text, refusal.echo))

    # -- reading

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the peer; not many of them before its hello is whole."""
        greeting = self.session.state is SessionState.GREETING and self.protocol.state is State.OPEN
        super().data_received(data)
        self.app.runtime.engine.begin()  # nothing that could be written together with it comes in this step
        if greeting and self.session.state is SessionState.GREETING:
            self._greeting_bytes += len(data)
            most = self.app.limits.first_frame_bytes
            if self._greeting_bytes > most + GREETING_SLACK_BYTES and self.protocol.state is State.OPEN:
                logger.info("connection %s: its first frame is over %d bytes", self.id, most)
                self._end()
                self.protocol.fail(1009, f"the first frame is over {most} bytes")
                self.send_data()

    def receive(self, data: str | bytes) -> Awaitable[None] | None:
        """Takes a text; returns what is left to wait for before the next one may be served."""
        if isinstance(data, bytes):
            self.begin_shut(Shut(1003, bye=False))
            return None
        decision = self.session.receive(data, self.heard_at)
        if decision.refusal is not None:
            self._say(decision.refusal)
        elif decision.answer is not None:
            self.answer(decision.answer)
        if decision.shut is not None:
            self.begin_shut(decision.shut)
        frame = decision.serve
        if frame is None:
            return None
        if isinstance(frame, Hello):
            return self._admit(frame)
        if isinstance(frame, Auth):
            return self._renew(frame)
        assert decision.conversation is not None
        return self._serve(frame, decision.conversation)

    def _serve(self, frame: ClientFrame, name: ConversationName) -> Awaitable[None] | None:
        """Asks whether a frame is allowed, and serves it: at once where nothing has to be waited for."""
        assert self.principal is not None
        self._serving, self._revoked = name, False
        try:
            if isinstance(frame, Close):
                self._unsubscribe(frame.conversation)
                return None
            if isinstance(frame, (Open, Page)) and self.protocol.state is not State.OPEN:
                return None  # what came before the end is served, but nobody is there to read rows
            if name.agent not in self.app.runtime.agents:
                raise Forbidden
            grant = self.app.access.authorize(self.principal, _action(frame), name)
            if grant is None or isinstance(grant, Grant):
                return self._perform(frame, grant)
        except Exception as error:  # a refusal, or the application's hook: answered either way
            self._refuse(frame, error)
            return None
        return self._perform_later(frame, grant)

    async def _perform_later(self, frame: ClientFrame, grant: Awaitable[Grant | None]) -> None:
        try:
            granted = await grant
            self._still_allowed()
            waiting = self._perform(frame, granted)
        except Exception as error:  # as above
            self._refuse(frame, error)
        else:
            if waiting is not None:
                await waiting

    def _perform(self, frame: ClientFrame, grant: Grant | None) -> Awaitable[None] | None:
        """Serves a frame, at once where the record of the conversation is there and the log need not be read."""
        assert isinstance(frame, (Open, Page, Send, Cancel, Call, SignalSent))
        if grant is None:
            raise Forbidden
        record = self.app.runtime.resident(frame.conversation)
        if isinstance(frame, Send):
            if record is not None:
                self._send(frame, record, grant)
                return None
        elif isinstance(frame, Call):
            raise Refused("method_not_found", f"the agent has no method {frame.method!r}")
        elif isinstance(frame, Cancel):
            if record is not None and frame.id is UNSET:  # without a record nothing runs
                record.lane.cancel(None if frame.turn is UNSET else frame.turn)
            return None
        elif isinstance(frame, SignalSent):
            if record is not None:  # without one nobody listens
                self._signal(frame, record)
            return None
        return self._perform_on_record(frame, grant)

    async def _perform_on_record(self, frame: Open | Page | Send, grant: Grant) -> None:
        try:
            record = await self.app.runtime.conversation(frame.conversation)
            if isinstance(frame, Open):
                await self._open(frame, record)
            elif isinstance(frame, Send):
                self._still_allowed()
                self._send(frame, record, grant)
            else:
                await self._page(frame, record)
        except Exception as error:  # whatever it is, the client is told, and what is ours is logged
            self._refuse(frame, error)

    # -- frames

    def _send(self, frame: Send, record: Conversation, grant: Grant) -> None:
        """Hands a message to the log, in this step: what is accepted is committed in the order sent."""
        assert self.principal is not None
        message = parse_message(frame.message)
        if message.role not in grant.roles:
            raise Refused("forbidden", f"you may not speak as {message.role}")
        most = self.app.limits.message_bytes
        _, row = new_row(message, by=self.principal.name, client_id=frame.client_id, max_bytes=most)
        acknowledged = False

        def told(committed: Committed) -> None:
            nonlocal acknowledged
            acknowledged = True
            self._acknowledge(frame, committed)

        def settled(future: asyncio.Future[Committed]) -> None:
            """Answers what became no new row: a repeat, or what the log refused."""
            if acknowledged:
                return
            try:
                self._acknowledge(frame, future.result())
            except Exception as error:
                self._refuse(frame, error)
            except asyncio.CancelledError:
                self._refuse(frame, StorageError("the log gave up a commit"))

        record.post(row, told, settled)

    def _acknowledge(self, frame: Send, committed: Committed) -> None:
        self.session.answered()
        self.app.counters.acks += 1
        self.app.counters.duplicates += committed.duplicate
        ack = Ack(
            conversation=frame.conversation,
            client_id=frame.client_id,
            seq=committed.seq,
            duplicate=committed.duplicate,
        )
        self.answer(encode(ack))

    async def _open(self, frame: Open, record: Conversation) -> None:
        assert self.principal is not None
        request = PositionRequest(
            None if frame.epoch is UNSET else frame.epoch,
            0 if frame.after is UNSET else frame.after,
            None if frame.at is UNSET else frame.at,
            None if frame.tail is UNSET else frame.tail,
        )
        known = self._subscriptions.get(frame.conversation)
        subscription = await record.open(self, self.principal.name, request, known)
        self._subscriptions[frame.conversation] = subscription
        self.session.opened.add(frame.conversation)
        if self._ended:
            self._unsubscribe(frame.conversation)
        elif self._revoked:
            subscription.end("forbidden")  # in the step that began it: no row was told

    async def _page(self, frame: Page, record: Conversation) -> None:
        most = self.app.limits.page_rows
        limit = most if frame.limit is UNSET else min(max(1, frame.limit), most)
        before = min(frame.before, record.head + 1)
        rows = await record.read(before=before, limit=limit, max_bytes=PAGE_BYTES, newest=True)
        self._still_allowed()
        texts = [row.json() for row in rows]
        size, first = sum(map(len, texts)) + len(texts), 0
        while size > PAGE_BYTES and first < len(texts) - 1:  # the log counts messages; their envelopes count too
            size -= len(texts[first]) + 1
            first += 1
        answer = PageAnswer(
            id=frame.id,
            conversation=frame.conversation,
            epoch=record.epoch,
            rows=[Raw(text) for text in texts[first:]],
            more=(rows[first].seq if rows else before) > record.floor + 1,
        )
        self.answer(encode(answer))

    def _signal(self, frame: SignalSent, record: Conversation) -> None:
        assert self.principal is not None
        data = None if frame.data is UNSET else bytes(frame.data)
        record.signal(Signal(frame.conversation, frame.name, data, self.principal.name), self)

    def _unsubscribe(self, conversation: str) -> None:
        subscription = self._subscriptions.pop(conversation, None)
        if subscription is not None:
            self.session.opened.discard(conversation)
            subscription.unsubscribe()

    # -- access

    async def _admit(self, frame: Hello) -> None:
        self._client = None if frame.client is UNSET else frame.client
        try:
            principal = await self._authenticated(None if frame.token is UNSET else frame.token)
        except Exception as error:  # the application's hook: a fault of it is no verdict over the token
            whole = f"connection {self.id}: authenticate failed, it is not let in"
            self.app.faults.log("authenticate failed", error, whole)
            self.begin_shut(Shut(1011))
            return
        if self._ended:
            return
        if principal is None:
            logger.info("connection %s is not let in", self.id)
            self.begin_shut(Shut(4401))
            return
        if not self.app.admits(self, principal.name):
            logger.info("connection %s is not let in: %r has too many sockets", self.id, principal.name)
            self.begin_shut(Shut(1013))
            return
        self.principal = principal
        self.session.admitted()
        self._welcome(principal)
        self._schedule_beat()

    async def _renew(self, frame: Auth) -> None:
        assert self.principal is not None
        try:
            principal = await self._authenticated(frame.token)
        except Exception as error:  # as above; what was valid before stays so until it ends
            self._refuse(frame, error)
            return
        if self._ended:
            return
        if principal is None:
            logger.info("connection %s has no valid token any more", self.id)
            self.begin_shut(Shut(4401))
            return
        if principal.name != self.principal.name:
            self._refuse(frame, Refused("forbidden", "a socket keeps its principal; open another socket"))
            return
        self.principal = principal
        self._welcome(principal)
        await self.recheck()

    async def _authenticated(self, token: str | None) -> Principal | None:
        """Returns the principal of a token that is valid now, or None."""
        assert self.request is not None
        brings = "Cookie" in self.request.headers
        headers = read_headers(self.request, cookies=brings and self.app.may_use_cookies(self))
        request = AccessRequest(token, self._client, headers, self.peer)
        principal = await self.app.access.authenticate(request)
        if principal is None or principal.expires_at is None or principal.expires_at > self.app.clock():
            return principal
        return None

    def _welcome(self, principal: Principal) -> None:
        limits, app = self.app.limits, self.app
        welcome = Welcome(
            version=app.version,
            connection=str(self.id),
            principal=principal.name,
            beat_ms=limits.beat_ms,
            limits=WelcomeLimits(
                limits.frame_bytes, limits.message_bytes, limits.inflight, limits.conversations, limits.page_rows
            ),
            boot=app.boot,
        )
        self.answer(encode(welcome))
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if principal.expires_at is not None:
            left = max(0.0, principal.expires_at - app.clock())
            notice = min(left, EXPIRY_NOTICE_S)
            self._expiry = self.loop.call_later(left - notice, self._warn_expiry, notice)

    def _warn_expiry(self, left: float) -> None:
        self.answer(encode(AuthExpiring(in_ms=int(left * 1000))))
        self._expiry = self.loop.call_later(left, self.begin_shut, Shut(4401))

    def revoke(self, conversation: str | None) -> None:
        """Takes access away at once: to one conversation, or to everything, which closes the socket with 4403."""
        self._revoked |= conversation in (None, str(self._serving))
        if conversation is None:
            self.begin_shut(Shut(4403))
            return
        if conversation in self._subscriptions:
            self._subscriptions[conversation].end("forbidden")

    def _still_allowed(self) -> None:
        """Refuses what was granted, or asked for, before access was taken away, and is to be done after that."""
        if self._revoked:
            raise Forbidden

    async def recheck(self) -> None:
        """Authorizes what is open once more, and ends what is not allowed any more."""
        assert self.principal is not None
        for name, subscription in list(self._subscriptions.items()):
            agent, _, rest = name.partition("/")
            try:
                grant = self.app.access.authorize(self.principal, "open", ConversationName(agent, rest))
                if not isinstance(grant, Grant | None):
                    grant = await grant
                code = None if grant is not None else "forbidden"
            except Exception as error:  # the application's hook: whom it does not know is not left in
                whole = f"connection {self.id}: authorize failed, {name!r} is closed"
                self.app.faults.log("authorize failed", error, whole)
                code = "internal"
            if code is not None:
                subscription.end(code)

    # -- time

    async def stream(self, head: bytes, pieces: AsyncGenerator[bytes, None]) -> None:
        """Sends an HTTP answer in pieces; it may take as long as it makes progress."""
        self._deadline.cancel()
        await super().stream(head, pieces)

    def _not_in_time(self) -> None:
        logger.info("connection %s: no handshake in time", self.id)
        self.transport.abort()

    def _no_hello(self) -> None:
        if self.session.state is SessionState.GREETING:
            self.begin_shut(Shut(4408))

    def _schedule_beat(self) -> None:
        seconds = self.app.limits.beat_ms / 1000 * random.uniform(1 - BEAT_SPREAD, 1 + BEAT_SPREAD)
        self._beat = self.loop.call_later(seconds, self._send_beat)

    def _send_beat(self) -> None:
        if self.writable:
            opened = self._subscriptions.items()
            self.answer(encode(Beat(heads={name: sub.position for name, sub in opened if sub.live})))
        self._schedule_beat()


_ACTIONS = {Open: "open", Page: "page", Send: "send", SignalSent: "signal", Cancel: "cancel", Call: "call"}


def _action(frame: ClientFrame) -> str:
    """Returns what `authorize` is asked for a frame."""
    return _ACTIONS[type(frame)]
