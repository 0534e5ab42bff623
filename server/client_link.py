"""The shell of the client: one task that keeps a socket to the server and carries out what the session decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any, TypeAlias

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.connection import broadcast
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from ..storage import CorruptRow, Media, StoredMessage
from .client_effects import (
    Done,
    Drop,
    Effect,
    Ended,
    Failed,
    Noted,
    Present,
    Ready,
    Signalled,
    StatusChanged,
    TurnTold,
)
from .client_errors import (
    CancelTimeout,
    ClientClosed,
    ClientError,
    ClientMisuse,
    ConnectionRefused,
    MediaFailed,
    SendTimeout,
)
from .client_events import Ephemeral
from .client_frames import Presence, Signal, TurnState
from .client_media import fetch_media
from .client_retry import FINAL, STABLE_S, Backoff, explain
from .client_session import ClientSession
from .client_subscription import Met, Status, Subscription
from .transport import Gone

__all__ = ["Link", "Listener", "Token"]

log = logging.getLogger(__name__)

SUBPROTOCOL = Subprotocol("parlatory.v1")
WELCOME_S = 10.0
CLOSE_S = 1.0
FRAME_BYTES_MAX = 16 << 20
"""The longest frame read before the server has told its limits, and at least after."""
SILENT_TICKS_MAX = 5
# HTTP answers of a handshake that say "later", not "never".
_LATER = frozenset({408, 425, 429})

Token: TypeAlias = str | Callable[[], str | Awaitable[str]] | None


class Listener:
    """Is who listens to one subscription."""

    def __init__(
        self,
        on_status: Callable[[Status], object] | None,
        on_signal: Callable[[Signal], object] | None,
        on_presence: Callable[[Presence], object] | None,
        on_turn: Callable[[TurnState], object] | None,
    ) -> None:
        self.on_status = on_status
        self.on_signal = on_signal
        self.on_presence = on_presence
        self.on_turn = on_turn
        # Waits until there is something to take, or nothing will ever be.
        self.reader: asyncio.Future[None] | None = None
        # Wait for one of their states.
        self.watchers: list[tuple[frozenset[Status], asyncio.Future[Status]]] = []

    def wake_reader(self) -> None:
        """Wakes whoever iterates."""
        if self.reader is not None and not self.reader.done():
            self.reader.set_result(None)

    def tell_status(self, status: Status) -> None:
        """Wakes whoever waits for this status, and those who wait for another one that can no longer come."""
        for wanted, watcher in self.watchers:
            if (status in wanted or status == "closed") and not watcher.done():
                watcher.set_result(status)


class Link:
    """Keeps one socket at a time to `url`, for the session; `random` returns floats in [0, 1)."""

    def __init__(self, url: str, token: Token, session: ClientSession, random: Callable[[], float]) -> None:
        # Why there is no connection, for people; None while there is one.
        self.problem: str | None = None
        self.session = session
        self._url = url
        self._token = token
        # The token in use; a source is asked again only after it was rejected.
        self._current: str | None = None
        self._rejections = 0
        self._backoff = Backoff(random)
        self._listeners: dict[Subscription, Listener] = {}
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._ws: ClientConnection | None = None
        # The socket was given up here; what it has brought meanwhile is not read.
        self._dropped = False
        # Ticks since the last frame. Ticks of the loop, not time: a loop that was blocked has not listened.
        self._silent_ticks = 0
        self._ticker: asyncio.TimerHandle | None = None
        self._waker: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._welcomed_once = False

    # -- for the application

    @property
    def closed(self) -> bool:
        """Is whether it is over, or never began."""
        return self._task is None or self._task.done()

    def start(self) -> None:
        """Starts the task, once."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"parlatory client of {self._url}")

    def stop(self) -> None:
        """Cancels the task; callable when its loop is closed already."""
        if self._task is not None and not self._task.get_loop().is_closed():
            self._task.cancel()

    async def aclose(self) -> None:
        """Ends everything and waits for the task. Safe to repeat."""
        if self.session.error is None:
            self.session.end(ClientClosed("the client was closed"))
            self.pump()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled() and (error := self._task.exception()) is not None:
                raise error

    def listen(self, subscription: Subscription, listener: Listener) -> None:
        """Tells the listener what happens to the subscription, until that ends."""
        self._listeners[subscription] = listener
        self.pump()

    def take(self, subscription: Subscription) -> StoredMessage | CorruptRow | Met | None:
        """Returns what comes next in a conversation; None if there is nothing now."""
        item = self.session.take(subscription)
        if self.session.pending:
            self.pump()
        return item

    def take_event(self, subscription: Subscription) -> StoredMessage | CorruptRow | Met | Ephemeral | None:
        """Returns what comes next in a conversation, rows and events; None if there is nothing now."""
        item = self.session.take_event(subscription)
        if self.session.pending:
            self.pump()
        return item

    async def send(self, conversation: str, client_id: str, body: bytes, timeout_s: float | None) -> int:
        """Sends a message and returns its seq."""
        loop = asyncio.get_running_loop()
        entry = self.session.send(conversation, client_id, body, loop.time())
        if entry is None:
            raise ClientMisuse(f"client id {client_id!r} is of a message that is still being sent; use a new one")
        future = self._expect(entry.request)
        try:
            async with asyncio.timeout(timeout_s):
                return int(await future)
        except TimeoutError:
            if future.done() and not future.cancelled():
                return int(future.result())
            raise SendTimeout(client_id, sent=not self.session.forget(entry)) from None
        except asyncio.CancelledError:
            self.session.forget(entry)
            raise
        finally:
            self._futures.pop(entry.request, None)

    async def request(self, request: int) -> Any:
        """Waits for a page or a signal."""
        try:
            return await self._expect(request)
        finally:
            self._futures.pop(request, None)
            self.session.forget_request(request)

    async def cancel(self, conversation: str, turn: int | str | None, timeout_s: float | None) -> None:
        """Stops a turn; returns once the server has heard it."""
        request = self.session.cancel(conversation, turn)
        future = self._expect(request)
        sent = False
        try:
            async with asyncio.timeout(timeout_s):
                try:
                    await future
                finally:
                    self._futures.pop(request, None)
                    sent = self.session.forget_request(request)
        except TimeoutError:
            raise CancelTimeout(conversation, sent) from None

    async def fetch(self, conversation: str, hash: str, max_bytes: int, timeout_s: float) -> Media:
        """Returns media, over HTTP; asks the source for a fresh token where the server no longer takes the one in use.

        It shares nothing with the socket but the token.
        """
        renewable = callable(self._token)
        while True:
            try:
                await self._ask_for_token()
            except OSError as error:
                raise MediaFailed(hash, f"there is no token: {error or type(error).__name__}") from error
            token = self._current
            try:
                return await fetch_media(self._url, conversation, hash, token, max_bytes=max_bytes, timeout_s=timeout_s)
            except MediaFailed as error:
                if error.status != 401 or not renewable:
                    raise
            renewable = False
            if self._current == token:
                self._current = None

    def pump(self) -> None:
        """Sends and does what the session decided; to be called after every call of it."""
        session = self.session
        for frame in session.frames():
            if self._ws is not None:
                broadcast((self._ws,), frame, text=True)
        for effect in session.effects():
            self._carry_out(effect)
        self._rearm()

    # -- inside

    def _expect(self, request: int) -> asyncio.Future[Any]:
        future = self._futures[request] = asyncio.get_running_loop().create_future()
        self.pump()
        return future

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Ready(subscription):
                if (listener := self._listeners.get(subscription)) is not None:
                    listener.wake_reader()
            case Done(request, value):
                if (future := self._futures.get(request)) is not None and not future.done():
                    future.set_result(value)
            case Failed(request, error):
                if (future := self._futures.get(request)) is not None and not future.done():
                    future.set_exception(error)
            case StatusChanged(subscription, status):
                if (listener := self._listeners.get(subscription)) is not None:
                    listener.tell_status(status)
                    self._call(listener.on_status, status)
            case Ended(subscription):
                if (listener := self._listeners.pop(subscription, None)) is not None:
                    listener.wake_reader()
            case Signalled(subscription, frame):
                self._call(self._listeners[subscription].on_signal, frame)
            case Present(subscription, frame):
                self._call(self._listeners[subscription].on_presence, frame)
            case TurnTold(subscription, turn):
                self._call(self._listeners[subscription].on_turn, turn)
            case Noted(text):
                log.warning("%s: %s", self._url, text)
            case Drop(text):
                self._drop(f"the server does not keep to the protocol: {text}")

    def _call(self, callback: Callable[[Any], object] | None, argument: object) -> None:
        """Calls back in the next turn of the loop: what it raises is the loop's to report, and it may call us."""
        if callback is not None:
            asyncio.get_running_loop().call_soon(callback, argument)

    def _drop(self, problem: str) -> None:
        if self._ws is not None and not self._dropped:
            log.warning("%s: dropping the connection: %s", self._url, problem)
            self.problem = problem
            self._dropped = True
            self._ws.transport.abort()

    def _rearm(self) -> None:
        deadline = self.session.deadline()
        if self._waker is not None:
            if deadline == self._waker.when():
                return
            self._waker.cancel()
            self._waker = None
        if deadline is not None:
            self._waker = asyncio.get_running_loop().call_at(deadline, self._wake)

    def _wake(self) -> None:
        self._waker = None
        # The loop may call a hair early.
        self.session.wake(asyncio.get_running_loop().time() + 0.001)
        self.pump()

    async def _run(self) -> None:
        try:
            while True:
                delay_s = await self._visit()
                self.pump()
                await asyncio.sleep(delay_s)
        except ConnectionRefused as error:
            self._end(error)
        except Exception as error:
            self._end(ClientError(f"the client failed and cannot go on: {error!r}"))
            raise
        finally:
            if self._waker is not None:
                self._waker.cancel()

    def _end(self, error: ClientError) -> None:
        self.problem = str(error)
        if self.session.error is None:
            self.session.end(error)
        self.pump()

    async def _visit(self) -> float:
        """Connects, and talks until the socket ends; returns how long to wait before the next time."""
        loop = asyncio.get_running_loop()
        close_code = retry_ms = None
        ws = await self._connect()
        if ws is not None:
            started = loop.time()
            try:
                self.session.greet(self._current)
                close_code = await self._talk(ws)
            finally:
                self._ws = None
                if self._ticker is not None:
                    self._ticker.cancel()
                await _hang_up(ws)
            if (bye := self.session.bye) is not None:
                close_code = close_code or bye.code
                retry_ms = bye.retry_ms
            if self.problem is None:
                self.problem = explain(close_code)
            if self.session.fruitful or loop.time() - started >= STABLE_S:
                self._backoff.reset()
        self.session.lost(close_code)
        if close_code in FINAL:
            raise ConnectionRefused(explain(close_code), close_code)
        if close_code == 4401:
            self._rejected()
        return self._backoff.delay_s(close_code, retry_ms)

    def _rejected(self) -> None:
        self._current = None
        self._rejections += 1
        if not callable(self._token) and self._rejections > 1:
            raise ConnectionRefused(explain(4401), 4401)

    async def _connect(self) -> ClientConnection | None:
        limits = self.session.limits
        try:
            await self._ask_for_token()
            ws = await connect(
                self._url,
                subprotocols=[SUBPROTOCOL],
                compression=None,
                ping_interval=None,  # beats do it, and a ping behind a long upload would end a healthy connection
                open_timeout=WELCOME_S,
                close_timeout=CLOSE_S,
                max_size=max(FRAME_BYTES_MAX, 2 * limits.frame if limits else 0),
                create_connection=_Socket,
            )
        except InvalidStatus as error:
            status = error.response.status_code
            hint = f"is {self._url} the address of a parlatory server?"
            if self._url.count("/") == 2 or self._url.endswith("/"):
                hint = f"add /v1 to the address: {self._url.rstrip('/')}/v1"
            self.problem = f"the server answered with HTTP {status}: {hint}"
            if not self._welcomed_once and 400 <= status < 500 and status not in _LATER:
                raise ConnectionRefused(self.problem, status) from error
        except (OSError, InvalidHandshake) as error:
            self.problem = f"cannot connect to {self._url}: {str(error) or type(error).__name__}"
        else:
            if ws.subprotocol == SUBPROTOCOL:
                return ws
            await _hang_up(ws)
            self.problem = f"{self._url} is no parlatory server: it does not speak {SUBPROTOCOL}"
            if not self._welcomed_once:
                raise ConnectionRefused(self.problem)
        return None

    async def _ask_for_token(self) -> None:
        if self._current is None:
            if not callable(self._token):
                self._current = self._token
                return
            try:
                token = self._token()
                self._current = await token if isawaitable(token) else token
            except OSError:
                raise
            except Exception as error:
                raise ConnectionRefused(f"there is no token: {error!r}") from error

    async def _talk(self, ws: ClientConnection) -> int | None:
        """Reads the socket to its end and returns the server's close code, if there is one."""
        loop = asyncio.get_running_loop()
        session = self.session
        self.problem = None
        self._dropped = False
        self._ws = ws
        self._silent_ticks = 0
        self._ticker = loop.call_later(WELCOME_S / SILENT_TICKS_MAX, self._tick)
        self.pump()
        try:
            while not self._dropped:
                data = await ws.recv(decode=False)
                self._silent_ticks = 0
                welcomed = session.welcomed
                session.receive(data, loop.time())
                self.pump()
                if not welcomed and session.welcomed:
                    self._welcome(ws)
        except ConnectionClosed as error:
            return error.rcvd.code if error.rcvd is not None else None
        return None

    def _welcome(self, ws: ClientConnection) -> None:
        self._welcomed_once = True
        self._rejections = 0
        if (limits := self.session.limits) is not None:
            ws.protocol.max_message_size = max(FRAME_BYTES_MAX, 2 * limits.frame)

    def _tick(self) -> None:
        # On a slow line a frame may take longer than its beats; while bytes of it come, the server is not silent.
        if isinstance(self._ws, _Socket) and self._ws.heard():
            self._silent_ticks = 0
        self._silent_ticks += 1
        if self._silent_ticks > SILENT_TICKS_MAX:
            self._drop("the server has fallen silent")
            return
        # 2.5 beats of silence are five ticks of half a beat.
        beat_s = self.session.beat_s if self.session.welcomed else None
        period_s = WELCOME_S / SILENT_TICKS_MAX if beat_s is None else beat_s / 2
        self._ticker = asyncio.get_running_loop().call_later(period_s, self._tick)


class _Socket(Gone, ClientConnection):
    """Is a socket that knows whether anything came."""

    _heard = False

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the server."""
        self._heard = True
        super().data_received(data)

    def heard(self) -> bool:
        """Says whether anything came since this was last asked."""
        heard, self._heard = self._heard, False
        return heard


async def _hang_up(ws: ClientConnection) -> None:
    """Closes in time, also towards a peer that does not read."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await ws.close()
    ws.transport.abort()
    await ws.wait_closed()
