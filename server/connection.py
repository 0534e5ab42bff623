"""A connection: one socket, its session, its subscriptions. Serves what the session lets through.

Frames are served in order, one at a time. What the reader waits for is the application's `authorize` and reads of the log
(an open, a page), never a commit and never user code in a turn; a send is handed to the log and answered when it is
committed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Raw
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Event as WebSocketEvent

from ..actors import Closed as ConversationClosed
from ..actors import Conversation, Event, PositionRequest, Signal, Subscription, UnknownAgent
from ..storage import Committed, ParlatoryError, new_row, parse_message
from .access import AccessRequest, ConversationName, Grant, Principal
from .frames import (
    RETRYABLE,
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
from .protocol import RETRY_MS, Decision, ServerSession, SessionState, Shut, echo_for
from .socket import Socket
from .told import wire_of

if TYPE_CHECKING:
    from .app import Server

__all__ = ["Connection"]

FORBIDDEN = "you may not do this, or there is no such agent or conversation"
PAGE_BYTES = 1 << 20
BEAT_SPREAD = 0.2
EXPIRY_NOTICE_S = 30.0
USER_ONLY = frozenset({"user"})

logger = logging.getLogger("parlatory.server")


class Refusal(Exception):
    """Says that a frame is refused, with a code of the protocol."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Connection(Socket):
    """Serves one socket."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app: Server
        self.principal: Principal | None = None
        self._hello = Hello()
        self._subscriptions: dict[str, tuple[Conversation, Subscription]] = {}
        self._beat: asyncio.TimerHandle | None = None
        self._expiry: asyncio.TimerHandle | None = None
        self._shutting: asyncio.Task[None] | None = None
        self._said_bye = False
        # Texts that the reader has to serve, and the one that waits for something.
        self._queued = 0
        self._slow: asyncio.Task[None] | None = None

    def attach(self, app: Server) -> None:
        """Makes it a connection of a server; called before anything is served."""
        self.app = app
        self.answers_bytes_max = app.limits.answers_bytes
        self.session = ServerSession(app.limits)
        self.session.draining = app.draining

    # -- a sink of the hub

    def tell(self, event: Event) -> None:
        """Writes an event of a conversation."""
        self.write(wire_of(event))
        if isinstance(event, ConversationClosed):
            self._subscriptions.pop(event.conversation, None)
            self.session.opened.discard(event.conversation)

    def answer(self, payload: bytes) -> None:
        """Writes an answer, unless the last frame has been said."""
        if not self._said_bye:
            super().answer(payload)

    def on_writable(self) -> None:
        """Lets the hubs go on with their rows."""
        for _, subscription in self._subscriptions.values():
            subscription.resume()

    # -- reading

    def process_event(self, event: WebSocketEvent) -> None:
        """Serves a text in the step that brought it, where nothing stands in front of it; else the reader does."""
        if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY):
            if not self._queued and event.opcode is Opcode.TEXT and event.fin and self.may_be_read:
                try:
                    text = str(event.data, "utf-8")
                except UnicodeDecodeError:
                    pass  # the reader closes with 1007
                else:
                    self._receive_now(text)
                    return
            self._queued += 1
        super().process_event(event)

    def _receive_now(self, text: str) -> None:
        waiting = self._receive(text)
        if waiting is not None:
            self._queued += 1
            self._slow = self.loop.create_task(self._finish(waiting), name=f"parlatory serve {self.id}")

    async def _finish(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except ConnectionClosed:
            pass
        finally:
            self._queued -= 1
            self._slow = None

    async def run(self) -> None:
        """Serves the socket to its end: reads what could not be served in the step that brought it."""
        hello = self.loop.call_later(self.app.limits.hello_timeout_s, self._no_hello)
        try:
            while True:
                text = await self.recv()
                if self._slow is not None:
                    await asyncio.wait({self._slow})
                await self.may_read()
                if not isinstance(text, str):
                    self.begin_shut(Shut(1003, bye=False))
                    continue
                waiting = self._receive(text)
                if waiting is not None:
                    await waiting
                self._queued -= 1
        except ConnectionClosed:
            pass
        finally:
            hello.cancel()
            self._end()
            if self._slow is not None:  # what was sent before leaving is served all the same
                await asyncio.wait({self._slow})
            if self._shutting is not None:
                await asyncio.wait({self._shutting})

    def _receive(self, text: str) -> Awaitable[None] | None:
        """Takes a text; returns what is left to wait for."""
        decision = self.session.receive(text)
        if decision.answer is not None:
            self.answer(decision.answer)
        if decision.shut is not None:
            self.begin_shut(decision.shut)
        return None if decision.serve is None else self._serve(decision)

    def _serve(self, decision: Decision) -> Awaitable[None] | None:
        """Serves a frame: at once where nothing has to be waited for, else as something to wait for."""
        frame, name = decision.serve, decision.conversation
        if isinstance(frame, Hello):
            return self._admit(frame)
        if isinstance(frame, Auth):
            return self._renew(frame)
        assert frame is not None and name is not None and self.principal is not None
        if isinstance(frame, Close):
            self._unsubscribe(frame.conversation)
            return None
        try:
            if name.agent not in self.app.runtime.agents:
                raise Refusal("forbidden", FORBIDDEN)
            allowed = self.app.access.authorize(self.principal, _action(frame), name)
        except Exception as error:  # the application's hook, or a refusal: answered either way
            self._refuse(frame, error)
            return None
        if isinstance(frame, Send) and not inspect.isawaitable(allowed):
            record = self.app.runtime.resident(frame.conversation)
            if record is not None:
                self._send(frame, record, allowed)
                return None
        return self._serve_slowly(frame, allowed)

    async def _serve_slowly(self, frame: ClientFrame, answer: bool | Grant | Awaitable[bool | Grant]) -> None:
        try:
            allowed = await answer if inspect.isawaitable(answer) else answer
            if not allowed:
                raise Refusal("forbidden", FORBIDDEN)
            if isinstance(frame, Call):
                raise Refusal("method_not_found", f"the agent has no method {frame.method!r}")
            assert isinstance(frame, Open | Page | Send | Cancel | SignalSent)
            if isinstance(frame, Cancel):
                self._cancel(frame)
                return
            record = await self.app.runtime.conversation(frame.conversation)
            if isinstance(frame, Send):
                self._send(frame, record, allowed)
            elif isinstance(frame, Open):
                await self._open(frame, record)
            elif isinstance(frame, Page):
                await self._page(frame, record)
            elif isinstance(frame, SignalSent):
                self._signal(frame, record)
        except ConnectionClosed:
            raise
        except Exception as error:  # whatever it is, the client is told, and what is ours is logged
            self._refuse(frame, error)

    # -- frames

    async def _admit(self, frame: Hello) -> None:
        self._hello = frame
        principal = await self._authenticated(None if frame.token is UNSET else frame.token)
        if principal is None:
            self.begin_shut(Shut(4401))
            return
        self.principal = principal
        self.session.admitted()
        self._welcome()
        self._schedule_beat()

    async def _renew(self, frame: Auth) -> None:
        principal = await self._authenticated(frame.token)
        if principal is None:
            self.begin_shut(Shut(4401))
            return
        assert self.principal is not None
        if principal.name != self.principal.name:
            self.answer(encode_error("forbidden", "a socket keeps its principal; open another socket"))
            return
        self.principal = principal
        self._welcome()
        await self.recheck()

    async def _authenticated(self, token: str | None) -> Principal | None:
        """Returns the principal of a token, or None; a hook that fails lets nobody in."""
        client = None if self._hello.client is UNSET else cast(str, self._hello.client)
        assert self.request is not None
        headers = {name.lower(): value for name, value in self.request.headers.raw_items()}
        remote = self.remote_address
        request = AccessRequest(token, client, headers, str(remote[0]) if isinstance(remote, tuple) else "")
        try:
            return await self.app.access.authenticate(request)
        except Exception:  # the application's hook
            logger.exception("connection %s: authenticate failed, nobody is let in", self.id)
            return None

    def _welcome(self) -> None:
        limits, app = self.app.limits, self.app
        assert self.principal is not None
        told = WelcomeLimits(
            limits.frame_bytes, limits.message_bytes, limits.inflight, limits.conversations, limits.page_rows
        )
        self.answer(
            encode(
                Welcome(
                    version=app.version,
                    connection=str(self.id),
                    principal=self.principal.name,
                    beat_ms=limits.beat_ms,
                    limits=told,
                    boot=app.boot,
                )
            )
        )
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self.principal.expires_at is not None:
            self._schedule_expiry(self.principal.expires_at)

    async def _open(self, frame: Open, record: Conversation) -> None:
        request = PositionRequest(
            None if frame.epoch is UNSET else cast(str, frame.epoch),
            0 if frame.after is UNSET else cast(int, frame.after),
            None if frame.at is UNSET else cast(str, frame.at),
            None if frame.tail is UNSET else cast(int, frame.tail),
        )
        assert self.principal is not None
        known = self._subscriptions.get(frame.conversation)
        # The answer goes straight to the socket: behind what is corked, in front of its rows.
        self.uncork()
        subscription = await record.open(self, self.principal.name, request, known and known[1])
        self._subscriptions[frame.conversation] = record, subscription
        self.session.opened.add(frame.conversation)
        if self._ended:
            self._unsubscribe(frame.conversation)

    async def _page(self, frame: Page, record: Conversation) -> None:
        most = self.app.limits.page_rows
        limit = most if frame.limit is UNSET else min(max(1, cast(int, frame.limit)), most)
        before = min(frame.before, record.head + 1)
        rows = await record.read(before=before, limit=limit, max_bytes=PAGE_BYTES, newest=True)
        size = sum(len(row.json()) + 1 for row in rows)
        while len(rows) > 1 and size > PAGE_BYTES:  # the envelopes count too
            size -= len(rows.pop(0).json()) + 1
        first = rows[0].seq if rows else before
        answer = PageAnswer(
            id=frame.id,
            conversation=frame.conversation,
            epoch=record.epoch,
            rows=[Raw(row.json()) for row in rows],
            more=first > record.floor + 1,
        )
        self.answer(encode(answer))

    def _send(self, frame: Send, record: Conversation, allowed: bool | Grant) -> None:
        """Hands a message to the log, in this step: what is accepted is committed in the order sent."""
        try:
            assert self.principal is not None
            if not allowed:
                raise Refusal("forbidden", FORBIDDEN)
            message = parse_message(frame.message)
            roles = allowed.roles if isinstance(allowed, Grant) else USER_ONLY
            if message.role not in roles:
                raise Refusal("forbidden", f"you may not speak as {message.role}")
            _, row = new_row(
                message,
                by=self.principal.name,
                client_id=frame.client_id,
                max_bytes=self.app.limits.message_bytes,
            )
            acknowledged = False

            def told(committed: Committed) -> None:
                nonlocal acknowledged
                acknowledged = True
                self._acknowledge(frame, committed)

            def done(future: asyncio.Future[Committed]) -> None:
                if not acknowledged:
                    self._settled(frame, future)

            record.post(row, told).add_done_callback(done)
        except Exception as error:  # as above: told, and logged where it is ours
            self._refuse(frame, error)

    def _acknowledge(self, frame: Send, committed: Committed) -> None:
        self.session.answered()
        ack = Ack(
            conversation=frame.conversation,
            client_id=frame.client_id,
            seq=committed.seq,
            duplicate=committed.duplicate,
        )
        self.answer(encode(ack))

    def _settled(self, frame: Send, future: asyncio.Future[Committed]) -> None:
        """Answers a send that became no new row: a repeat, or refused by the log."""
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._refuse(frame, error)
        elif not future.cancelled():
            self._acknowledge(frame, future.result())

    def _cancel(self, frame: Cancel) -> None:
        record = self.app.runtime.resident(frame.conversation)
        if record is not None and frame.id is UNSET:
            record.lane.cancel(None if frame.turn is UNSET else cast(int | str, frame.turn))

    def _signal(self, frame: SignalSent, record: Conversation) -> None:
        assert self.principal is not None
        data = None if frame.data is UNSET else bytes(cast(Raw, frame.data))
        record.signal(Signal(frame.conversation, frame.name, data, self.principal.name), self)

    def _refuse(self, frame: ClientFrame, error: BaseException) -> None:
        """Answers a frame that was not served, and logs what is the server's fault."""
        if isinstance(frame, Send | Call):
            self.session.answered()
        kind = type(frame).__name__.lower()
        if isinstance(error, Refusal):
            code, text = error.code, str(error)
        elif isinstance(error, UnknownAgent):
            code, text = "forbidden", FORBIDDEN
        elif isinstance(error, ParlatoryError) and error.code != "internal":
            code, text = error.code, str(error)
        else:
            code, text = "internal", "the server could not do it; repeat later"
            logger.error("connection %s: a %s frame failed", self.id, kind, exc_info=error)
        logger.info("connection %s: a %s frame is refused: %s, %s", self.id, kind, code, text)
        retry_ms = RETRY_MS if code in RETRYABLE else None
        self.answer(encode_error(code, text, retry_ms, echo_for(frame)))

    # -- subscriptions

    def _unsubscribe(self, conversation: str) -> None:
        known = self._subscriptions.pop(conversation, None)
        if known is not None:
            record, subscription = known
            self.session.opened.discard(conversation)
            record.hub.unsubscribe(subscription)

    async def recheck(self, conversation: str | None = None) -> None:
        """Authorizes open subscriptions again, and ends those that are not allowed any more."""
        assert self.principal is not None
        for name, (record, subscription) in list(self._subscriptions.items()):
            if conversation is None or name == conversation:
                agent, _, rest = name.partition("/")
                try:
                    answer = self.app.access.authorize(self.principal, "open", ConversationName(agent, rest))
                    allowed = await answer if inspect.isawaitable(answer) else answer
                except Exception:  # the application's hook: who cannot be checked is not let in
                    logger.exception("connection %s: authorize failed, %r is closed", self.id, name)
                    allowed = False
                if not allowed:
                    record.hub.end(subscription, "forbidden")

    def revoke(self, conversation: str | None) -> None:
        """Takes access away at once: to one conversation, or to everything, which closes the socket with 4403."""
        if conversation is None:
            self.begin_shut(Shut(4403))
        elif conversation in self._subscriptions:
            record, subscription = self._subscriptions[conversation]
            record.hub.end(subscription, "forbidden")

    # -- time

    def _schedule_beat(self) -> None:
        seconds = self.app.limits.beat_ms / 1000 * random.uniform(1 - BEAT_SPREAD, 1 + BEAT_SPREAD)  # noqa: S311
        self._beat = self.loop.call_later(seconds, self._send_beat)

    def _send_beat(self) -> None:
        if self.writable:
            live = self._subscriptions.items()
            self.answer(encode(Beat(heads={name: sub.position for name, (_, sub) in live if sub.live})))
        self._schedule_beat()

    def _schedule_expiry(self, expires_at: float) -> None:
        left = expires_at - self.app.clock()
        notice = max(0.0, left - EXPIRY_NOTICE_S)
        self._expiry = self.loop.call_later(notice, self._warn_expiry, max(0.0, left - notice))

    def _warn_expiry(self, left: float) -> None:
        self.answer(encode(AuthExpiring(in_ms=int(left * 1000))))
        self._expiry = self.loop.call_later(left, self.begin_shut, Shut(4401))

    def _no_hello(self) -> None:
        if self.session.state is SessionState.GREETING:
            self.begin_shut(Shut(4408))

    # -- the end

    @property
    def _ended(self) -> bool:
        return self.session.state is SessionState.CLOSING or self._shutting is not None

    def begin_shut(self, shut: Shut) -> None:
        """Starts closing the socket; idempotent."""
        if self._shutting is None:
            self.session.state = SessionState.CLOSING
            self._shutting = self.loop.create_task(self._say_bye_and_close(shut), name=f"parlatory shut {self.id}")

    async def _say_bye_and_close(self, shut: Shut) -> None:
        self._end()
        if shut.bye and self.writable:
            low, high = self.app.retry_ms(shut.code)
            self.answer(encode(Bye(code=shut.code, retry_ms=(low, high))))
        self._said_bye = True
        logger.info("connection %s closed by the server with %d", self.id, shut.code)
        await self.shut(shut.code, self.app.limits.close_s)

    def _end(self) -> None:
        """Takes the connection out of everything; idempotent."""
        self.session.state = SessionState.CLOSING
        for conversation in list(self._subscriptions):
            self._unsubscribe(conversation)
        for timer in (self._beat, self._expiry):
            if timer is not None:
                timer.cancel()


def _action(frame: ClientFrame) -> str:
    """Returns what `authorize` is asked for a frame."""
    if isinstance(frame, SignalSent):
        return "signal"
    return type(frame).__name__.lower()


