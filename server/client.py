"""The Python client: conversations of a server, with every row exactly once and every send exactly once.

    async with connect("ws://localhost:8000/v1", "bot/ann", tail=50) as chat:
        await chat.send("hi")
        async for row in chat:
            print(row.by, row.text)

Instead of the rows alone, `chat.events()` brings what the agent is writing as well:

        async for event in chat.events():
            if isinstance(event, Draft):
                show(event.id, event.text)

The connection is kept by a task of the client. When it is lost the client comes back by itself, goes on behind the
last row that the application has taken, and sends again what was not answered. `connect` and `open` do not wait for
it: a send made offline waits, and so does the iteration.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self, TypeAlias

from websockets.exceptions import InvalidURI
from websockets.uri import parse_uri

from ..storage import (
    MEDIA_BYTES_MAX,
    AssistantMessage,
    CodecError,
    CorruptRow,
    Media,
    MediaRef,
    Message,
    StoredMessage,
    SystemMessage,
    ToolMessage,
    UserMessage,
    check_message,
    check_name,
    hash_of,
    inline_media,
    kind_of,
    normalize,
    user_message,
)
from .client_drafts import Draft
from .client_effects import History
from .client_errors import ClientClosed, ClientMisuse
from .client_events import Ephemeral
from .client_frames import Presence, Signal, TurnState
from .client_link import Link, Listener, Token
from .client_session import CONVERSATIONS_MAX, ClientSession
from .client_subscription import Met, Position, Status, Subscription
from .frames import encode

__all__ = ["Chat", "ChatEvent", "Client", "Events", "connect"]

ChatEvent: TypeAlias = StoredMessage | Draft | TurnState | Signal
"""What `Chat.events` brings."""

MEDIA_TIMEOUT_S = 60.0

_CLIENT_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_INSTALLATION = re.compile(r"[A-Za-z0-9_-]{22,64}")
_MESSAGES = (SystemMessage, UserMessage, AssistantMessage, ToolMessage)


def _random_id() -> str:
    """Returns 128 random bits as base64url."""
    return secrets.token_urlsafe(16)


def _json(value: object) -> bytes:
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CodecError("$", f"is not JSON: {error}") from error


@asynccontextmanager
async def connect(
    url: str,
    conversation: str,
    *,
    token: Token = None,
    tail: int | None = None,
    position: Position | None = None,
    client: str | None = None,
    rows_max: int = 1000,
    bytes_max: int = 8 << 20,
    on_reset: Callable[[Chat], Awaitable[None] | None] | None = None,
    on_status: Callable[[Status], object] | None = None,
    on_signal: Callable[[Signal], object] | None = None,
    on_presence: Callable[[Presence], object] | None = None,
    on_turn: Callable[[TurnState], object] | None = None,
) -> AsyncIterator[Chat]:
    """Opens one conversation on a connection of its own, and closes both at the end.

    The arguments are those of `Client` and `Client.open`.
    """
    async with Client(url, token=token, client=client, rows_max=rows_max, bytes_max=bytes_max) as owner:
        yield await owner.open(
            conversation,
            tail=tail,
            position=position,
            on_reset=on_reset,
            on_status=on_status,
            on_signal=on_signal,
            on_presence=on_presence,
            on_turn=on_turn,
        )


class Client:
    """Is one connection to a server, with up to 32 conversations on it.

    Args:
        url: the server, such as `ws://localhost:8000/v1`.
        token: what proves who you are; or a function, also an async one, that returns a fresh one. It is called for the
            first connection, and whenever the server no longer accepts what it returned. If it raises an OSError, such
            as a TimeoutError, it is called again later; any other error ends the client.
        client: the random id of this installation, 22 to 64 of `[A-Za-z0-9_-]`. A server without authentication knows
            an author by it: keep it to remain the same one after a restart. Drawn at random if it is not given.
        rows_max: rows of a conversation that are held until the application takes them.
        bytes_max: bytes of such rows.

    Raises:
        ClientMisuse: the url or the id is none.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Token = None,
        client: str | None = None,
        rows_max: int = 1000,
        bytes_max: int = 8 << 20,
    ) -> None:
        try:
            parse_uri(url)
        except InvalidURI:
            raise ClientMisuse(f"{url!r} is no address of a server; it has the form ws://host:port/v1") from None
        if client is None:
            client = _random_id()
        elif not _INSTALLATION.fullmatch(client):
            raise ClientMisuse("client is the random id of an installation, 22 to 64 of [A-Za-z0-9_-]")
        self._session = ClientSession(client, rows_max=rows_max, bytes_max=bytes_max)
        self._link = Link(url, token, self._session, random.random)

    @property
    def problem(self) -> str | None:
        """Says why there is no connection, for people; None while there is one."""
        return self._link.problem

    @property
    def principal(self) -> str | None:
        """Names who the server takes this client for; None before the first connection."""
        return self._session.principal

    async def open(
        self,
        conversation: str,
        *,
        tail: int | None = None,
        position: Position | None = None,
        on_reset: Callable[[Chat], Awaitable[None] | None] | None = None,
        on_status: Callable[[Status], object] | None = None,
        on_signal: Callable[[Signal], object] | None = None,
        on_presence: Callable[[Presence], object] | None = None,
        on_turn: Callable[[TurnState], object] | None = None,
    ) -> Chat:
        """Opens a conversation; does not wait for the server.

        Args:
            conversation: `<agent>/<name>`.
            tail: begin with the last so many rows; without it with the first one there is.
            position: go on behind this place instead, `chat.position` of an earlier process. If the log is no longer
                that one, this is a reset.
            on_reset: is called with the chat when the log turns out to be another one (restored, wiped, trimmed beyond
                the position): drop the rows you hold. It runs inside of the iteration, also as a coroutine, after the
                last row of the old log and before the first of the new one.
            on_status: is called with each new status.
            on_signal: is called with what others signal.
            on_presence: is called with who has the conversation open.
            on_turn: is called with what the agent does.

        Raises:
            InvalidName: the conversation is none.
            TypeError, ValueError: `tail` is no number of rows.
            ClientMisuse: it is open already, or 32 are.
            ClientClosed: the client was closed.
            ConnectionRefused: the server does not talk to this client.
        """
        check_name(conversation)
        if tail is not None and (not isinstance(tail, int) or isinstance(tail, bool)):
            raise TypeError(f"tail is a number of rows, not {kind_of(tail)}")
        if tail is not None and tail < 0:
            raise ValueError(f"tail is a number of rows, not {tail}")
        session = self._session
        if session.error is not None:
            raise session.error.with_traceback(None)
        if session.is_open(conversation):
            raise ClientMisuse(f"{conversation!r} is open on this client: use that chat, or close it first")
        most = min(CONVERSATIONS_MAX, session.limits.conversations) if session.limits else CONVERSATIONS_MAX
        if session.open_count() >= most:
            raise ClientMisuse(f"{most} conversations are open, which is all a connection may have: use another Client")
        subscription = session.open(conversation, tail, position)
        listener = Listener(on_status, on_signal, on_presence, on_turn)
        self._link.listen(subscription, listener)
        self._link.start()
        return Chat(self, self._link, subscription, listener, on_reset)

    async def aclose(self) -> None:
        """Closes all chats and the connection. Sends that wait raise `ClientClosed`. Safe to repeat."""
        await self._link.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # The task refers to the link only, so that a client nobody holds any more comes here.
        link: Link | None = getattr(self, "_link", None)
        if link is not None and not link.closed:
            warnings.warn(f"unclosed {self!r}: use `async with`, or await aclose()", ResourceWarning, 2, source=self)
            link.stop()


class Chat:
    """Is one open conversation: iterate over it for its rows, in order and each exactly once.

    One task at a time iterates. The position moves before the row is handed out; the iteration may be left and taken up
    again at any time. Up to `rows_max` rows wait for it; above that the server keeps the place.
    """

    def __init__(
        self,
        client: Client,
        link: Link,
        subscription: Subscription,
        listener: Listener,
        on_reset: Callable[[Chat], Awaitable[None] | None] | None,
    ) -> None:
        self._client = client  # keeps it alive
        self._link = link
        self._subscription = subscription
        self._listener = listener
        self._on_reset = on_reset

    @property
    def conversation(self) -> str:
        """Names the conversation."""
        return self._subscription.conversation

    @property
    def status(self) -> Status:
        """Is `connecting` at first, `replaying` rows, `live`, `offline` while it tries again, `closed` at the end."""
        return self._subscription.status

    @property
    def problem(self) -> str | None:
        """Says why the chat is offline or closed, or why the server does not open it now, for people."""
        error = self._subscription.error
        return self._link.problem or self._subscription.problem if error is None else str(error)

    @property
    def position(self) -> Position | None:
        """Is the place behind the last row taken; None until the server has told where the log begins."""
        return self._subscription.applied

    @property
    def epoch(self) -> str | None:
        """Names the log that the rows taken so far are from."""
        position = self._subscription.applied
        return None if position is None else position.epoch

    @property
    def resets(self) -> int:
        """Counts how often the log turned out to be another one."""
        return self._subscription.resets

    @property
    def ready(self) -> bool:
        """Is whether the next row is at hand."""
        return self._subscription.ready

    @property
    def turn(self) -> TurnState:
        """Is what the agent does, as far as the server told: the turn that runs, or waits, or was told last."""
        return self._subscription.turns.now

    @property
    def draft(self) -> Draft | None:
        """Is what the agent is writing now, as far as the server told; None if it writes nothing."""
        return self._subscription.draft

    @property
    def principal(self) -> str | None:
        """Names who the server takes this client for: `by` of the rows it sends. None before the first connection."""
        return self._client.principal

    async def send(
        self,
        message: str | Message | Mapping[str, Any] | Iterable[object],
        *,
        timeout_s: float | None = None,
        client_id: str | None = None,
    ) -> int:
        """Appends a message, exactly once, and returns the seq of its row.

        Offline it waits for the connection. A send that is cancelled, or that times out, is forgotten if it was not
        sent yet. If it was, it stays with the client until it is answered: it may be appended although nobody waits.

        Args:
            message: text, the parts of a user message, a message, or a mapping that `normalize` reads.
            timeout_s: how long to wait; for ever if it is None.
            client_id: the id under which the server knows the message again, 1 to 64 of `[A-Za-z0-9_-]` and
                unguessable. Drawn at random; to be given by an application that keeps what it sends across restarts.

        Raises:
            CodecError: the message is none that can be stored.
            TooLarge: it is over the limit of the server.
            SendRefused: the server refused it.
            SendTimeout: there was no answer in time.
            ClientClosed: the chat was closed here.
            ConversationRefused: the server has ended the chat.
            ConnectionRefused: the server does not talk to this client.
            ClientMisuse: the client id is none, or in use.
        """
        self._check_open()
        if client_id is None:
            client_id = _random_id()
        elif not _CLIENT_ID.fullmatch(client_id):
            raise ClientMisuse("client_id is 1 to 64 of [A-Za-z0-9_-]")
        if isinstance(message, str):
            message = user_message(message)
        elif isinstance(message, Mapping):
            message = normalize(message)
        elif not isinstance(message, _MESSAGES):
            message = UserMessage(content=_parts(message))
        # Its size is checked when the limits of the server are known.
        body = check_message(message, max_bytes=2**53)
        return await self._link.send(self.conversation, client_id, body, timeout_s)

    async def page(self, before: int | None = None, limit: int | None = None) -> History:
        """Returns rows below seq `before`, oldest first; the newest ones if it is None. The iteration is not touched.

        A page has at most `limit` rows, and at most what the server allows (200). Offline it waits for the connection.

        Raises:
            Refused: the server refused it.
            CorruptRow: one of the rows cannot be read.
            ClientClosed: the chat was closed here.
        """
        self._check_open()
        history: History = await self._link.request(self._link.session.page(self.conversation, before, limit))
        return history

    async def media(
        self, ref: MediaRef, *, max_bytes: int = MEDIA_BYTES_MAX, timeout_s: float = MEDIA_TIMEOUT_S
    ) -> Media:
        """Returns the bytes and the type of a picture or file, whether they lie in its part or beside the row.

        What lies beside its row is fetched over HTTP, with the token, at the address of the server; no proxy is used.

        Args:
            ref: the part, its `ref`, or `sha256:...`.
            max_bytes: the most it may have; 32 MiB if it is not given.
            timeout_s: how long it may take.

        Raises:
            UnknownMedia: there are no such media, or you may not see them.
            TooLarge: they have more than `max_bytes`.
            MediaFailed: the server refused, cannot be reached, or did not answer in time.
            ClientMisuse: they are elsewhere, at a URL or a provider, or this is no ref at all.
            ClientClosed: the chat was closed here.
        """
        self._check_open()
        if (inline := inline_media(ref)) is not None:
            return inline
        hash = hash_of(ref)
        if hash is None:
            raise ClientMisuse(f"{ref!r} names no media of a conversation; fetch a url yourself")
        return await self._link.fetch(self.conversation, hash, max_bytes, timeout_s)

    async def signal(self, name: str, data: object = None) -> bool:
        """Tells the other subscribers something ephemeral; returns whether the server took it, False if it is offline.

        Raises:
            CodecError: the data is no JSON.
            Refused: the server refused it.
        """
        self._check_open()
        body = None if data is None else _json(data)
        request = self._link.session.signal(self.conversation, name, body)
        return False if request is None else bool(await self._link.request(request))

    async def cancel(self, turn: int | str | None = None, *, timeout_s: float | None = None) -> None:
        """Stops a turn of the agent, whoever caused it; nothing if it does not run or is over.

        What it wrote stays, as a row with finish `stopped`. This returns once the server has heard it; the end of the
        turn is told as any other. Offline it waits for the connection. One that is cancelled, or that times out, is not
        sent any more.

        Args:
            turn: its id. Without it the turn that runs, or the first one queued, as `chat.turn` says now: one that
                begins later is not hit. Where none is known the server stops what runs.
            timeout_s: how long to wait; for ever if it is None.

        Raises:
            Refused: the server refused it.
            CancelTimeout: there was no answer in time.
            ClientClosed: the chat was closed here.
            ConversationRefused: the server has ended the chat.
            ConnectionRefused: the server does not talk to this client.
        """
        self._check_open()
        if turn is None:
            turn = self._subscription.turns.stoppable
        await self._link.cancel(self.conversation, turn, timeout_s)

    async def wait_status(self, *wanted: Status) -> Status:
        """Waits until the status is one of these, or `closed`, and returns it; without arguments, until it changes."""
        status = self.status
        if status in wanted or status == "closed":
            return status
        states: frozenset[Status] = frozenset(wanted or ("connecting", "replaying", "live", "offline"))
        watcher: tuple[frozenset[Status], asyncio.Future[Status]] = states, asyncio.get_running_loop().create_future()
        self._listener.watchers.append(watcher)
        try:
            return await watcher[1]
        finally:
            self._listener.watchers.remove(watcher)

    def events(self) -> Events:
        """Returns an iterator over everything: rows, drafts, turns and signals, each at its place.

        The rows are those that iterating over the chat brings, each exactly once between the two: whoever takes a row
        has it, and what else came before a row that is taken there is dropped. Use one of the two. One task at a time
        iterates, here or there.

        The rest is kept from the first call on, and is ephemeral: who is slow gets the latest snapshot of an open
        draft, the last state of a turn and the last signal of each name and author, at most 256 of them. A draft that
        is over comes once more, with its `finish`, behind its row and with the same message.
        """
        self._subscription.want_events()
        return Events(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        """Returns the next row.

        Raises:
            StopAsyncIteration: the chat was closed here.
            CorruptRow: this row cannot be read; the next call goes on behind it.
            ConversationRefused: the server has ended the chat.
            ConnectionRefused: the server does not talk to this client.
            ClientMisuse: another task iterates.
        """
        while True:
            item = await self._sift(self._link.take(self._subscription))
            if item is not None:
                return item

    async def aclose(self) -> None:
        """Unsubscribes. Sends that wait raise `ClientClosed`. Safe to repeat; the client stays open."""
        self._link.session.close(self._subscription)
        self._link.pump()

    def _check_open(self) -> None:
        if self._subscription.error is not None:
            raise self._subscription.error.with_traceback(None)

    async def _wait_for_rows(self) -> None:
        listener = self._listener
        if listener.reader is not None:
            raise ClientMisuse(f"another task iterates over {self.conversation!r}: let one hand the rows to the other")
        listener.reader = asyncio.get_running_loop().create_future()
        try:
            await listener.reader
        finally:
            listener.reader = None

    async def _next_event(self) -> ChatEvent:
        while True:
            item = self._link.take_event(self._subscription)
            if isinstance(item, Ephemeral):
                return item
            if (row := await self._sift(item)) is not None:
                return row

    async def _sift(self, item: StoredMessage | CorruptRow | Met | None) -> StoredMessage | None:
        """Returns a row; None after a reset, or after a wait for there to be something."""
        if isinstance(item, StoredMessage):
            return item
        if isinstance(item, CorruptRow):
            raise item
        if isinstance(item, Met):
            outcome = None if self._on_reset is None else self._on_reset(self)
            if isawaitable(outcome):
                await outcome
        elif isinstance(self._subscription.error, ClientClosed):
            raise StopAsyncIteration
        elif self._subscription.error is not None:
            raise self._subscription.error.with_traceback(None)
        else:
            await self._wait_for_rows()
        return None


class Events:
    """Is the iterator that `Chat.events` returns. It may be left and taken up again, as the chat itself."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ChatEvent:
        """Returns the next row, draft, turn or signal; raises as the iteration over the chat does."""
        return await self._chat._next_event()


def _parts(content: object) -> Any:
    """Returns parts as a tuple, and anything else as it is: the append check refuses that, and says where."""
    return tuple(content) if isinstance(content, Iterable) and not isinstance(content, bytes) else content
