"""The server: a runtime on a port. Accepts sockets, answers probes, drains, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl

from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.http11 import Request, Response
from websockets.protocol import State

from .. import __version__
from ..actors import Runtime
from ..storage import StorageError
from .access import ANYBODY, Access, Authenticate, Authorize, Operator
from .connection import Connection
from .counters import Counters
from .faults import Faults
from .http import Answer, HttpRequest, Site, Streamed, read_headers, respond
from .inspector import Inspector
from .limits import Limits
from .listing import OwnConversations
from .loopback import from_this_machine, host_of, is_loopback, is_own_page, network_of
from .media import MEDIA_PATH, MediaAnswer
from .metrics import CONTENT_TYPE, metrics_of
from .pages import add_pages
from .protocol import Shut
from .reaper import Reaper

__all__ = ["Server", "serve"]

PATH = "/v1"
SUBPROTOCOL = "parlatory.v1"
RECHECKS_AT_ONCE = 100
READY_TIMEOUT_S = 2.0
ABSENT = f"Nothing is here. Clients connect to {PATH}.\n"
# The part of the drain window over which the sockets are closed; the rest is for their clients to answer.
DRAIN_SPREAD = 0.8
# The largest segment of TCP: that of an Ethernet. Loopback, where a proxy may sit, has 64 KiB; a kernel that has not
# the room for one segment at a slow reader waits with it, for twice as long each time.
SEGMENT_BYTES = 1460
# How many steps of the loop it takes until a socket that was accepted has joined.
JOIN_STEPS = 3
ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#]+|null")

logger = logging.getLogger("parlatory.server")
websockets_logger = logging.getLogger("parlatory.server.websockets")


class Server:
    """Is a runtime on a port. Made by `serve`.

    Attributes:
        runtime: what it serves.
        port: the port it listens on; the one that was free, where 0 was asked for.
        draining: set once it stops.
        counters: what happened to its sockets.
        local: everything is allowed to everybody on this machine: then not to web pages from elsewhere.
        version, boot: what a welcome says of the release, and of this run of the process.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        host: str,
        port: int,
        access: Access,
        limits: Limits,
        origins: Sequence[str | None] | None,
        local: bool,
        drain_s: float,
        web: bool,
    ) -> None:
        self.runtime = runtime
        self.access = access
        self.limits = limits
        self.host = host
        self.port = port
        self.draining = False
        self.counters = Counters()
        self.version: str = __version__
        self.boot = secrets.token_hex(8)
        self.clock: Callable[[], float] = time.time
        # What fails again and again, such as a hook of the application.
        self.faults = Faults()
        self.reaper = Reaper(lambda: self._connections, limits)
        self.site = Site(access, lambda: self.clock())
        self.site.add("/healthz", lambda _: respond(200, "ok\n"))
        self.site.add("/readyz", self._readiness)
        self.site.add(MEDIA_PATH, MediaAnswer(self))
        self.site.add("/metrics", self._metrics)
        self.site.add(f"{PATH}/conversations", OwnConversations(self).answer)
        Inspector(self).add_to(self.site, web=web)
        if web:
            add_pages(self.site)
        self._origins = origins
        self.local = local
        self._drain_s = drain_s
        # All sockets, from their TCP connection to its end, and how many of them have not been let in yet.
        self._connections: set[Connection] = set()
        self._pending = 0
        # How many of them each network has, how many that are not let in, and of those let in each principal.
        self._by_network: Counter[str] = Counter()
        self._pending_by_network: Counter[str] = Counter()
        self._by_principal: Counter[str] = Counter()
        self._warned_of_cookies = False
        self._listener: WebSocketServer | None = None
        self._rechecks: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = asyncio.Event()

    @property
    def url(self) -> str:
        """Is the address that clients connect to."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ws://{host}:{self.port}{PATH}"

    @property
    def page(self) -> str | None:
        """Is the address of the chat page; None where there is none."""
        return f"http{self.url.removeprefix('ws').removesuffix(PATH)}/" if self.site.find("/") else None

    @property
    def connections(self) -> int:
        """Is how many sockets are connected, let in or not yet."""
        return len(self._connections)

    @property
    def pending(self) -> int:
        """Is how many of them have not been let in yet."""
        return self._pending

    @property
    def sockets(self) -> Iterator[Connection]:
        """Goes through the sockets, in no order."""
        return iter(self._connections)

    # -- life

    async def start(self) -> None:
        """Starts accepting sockets.

        Raises:
            OSError: the address is taken, or none of this machine.
        """
        if websockets_logger.getEffectiveLevel() < logging.INFO:
            websockets_logger.setLevel(logging.INFO)  # below, it writes frames and headers, which hold tokens
        try:
            self._listener = await serve_websockets(
                self._handle,
                self.host,
                self.port,
                create_connection=partial(Connection, app=self),  # type: ignore[arg-type]
                process_request=self._process_request,
                select_subprotocol=lambda _connection, _offered: SUBPROTOCOL,  # type: ignore[arg-type, return-value]
                compression=None,
                max_size=self.limits.frame_bytes,
                open_timeout=None,  # a connection has a deadline of its own, which an answer in pieces may exceed
                close_timeout=self.limits.close_s,
                logger=websockets_logger,
                server_header=None,
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise OSError(error.errno, f"cannot listen on {self.host}, port {self.port}: {reason}") from error
        if sys.platform == "linux":
            for listener in self._listener.sockets:
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SEGMENT_BYTES)
        self.port = next(iter(self._listener.sockets)).getsockname()[1]
        self.reaper.start()
        self._rechecks = asyncio.get_running_loop().create_task(self._recheck(), name="parlatory recheck")

    async def wait_closed(self) -> None:
        """Returns once the server has been closed."""
        await self._closed.wait()

    async def close(self, drain_s: float | None = None) -> None:
        """Drains and closes; idempotent.

        No new sockets are taken, each socket gets its `bye` at a random moment of the drain window and closes with
        1012, running turns may end until then; what has not ended is delivered again by the next process.

        Args:
            drain_s: the drain window in seconds; by default that of `serve`.
        """
        if self._closing is None:
            window = self._drain_s if drain_s is None else drain_s
            self._closing = asyncio.get_running_loop().create_task(self._close(window), name="parlatory server close")
        await asyncio.shield(self._closing)

    async def _close(self, window_s: float) -> None:
        self.draining = True
        if self._listener is not None:
            await self._stop_accepting(self._listener)
        for connection in self._connections:
            connection.session.draining = True
        byes = [self._bye(one, window_s) for one in self._connections if one.protocol.state is State.OPEN]
        await asyncio.gather(self.runtime.drain(window_s), *byes)
        for connection in self._connections:
            connection.transport.abort()
        if self._rechecks is not None:
            self._rechecks.cancel()
            await asyncio.wait({self._rechecks})
        self.reaper.stop()
        if self._listener is not None:
            self._listener.close(close_connections=False)
            await self._listener.wait_closed()
        self._closed.set()

    async def _stop_accepting(self, listener: WebSocketServer) -> None:
        """Closes the port, once every socket has joined that was accepted before: asyncio forgets one that has not."""
        loop = asyncio.get_running_loop()
        for one in listener.sockets:
            with contextlib.suppress(NotImplementedError):  # not every loop has readers
                loop.remove_reader(one.fileno())
        for _ in range(JOIN_STEPS):
            await asyncio.sleep(0)
        listener.server.close()  # never the listener's own close first: it hangs on one stuck reader

    async def _bye(self, connection: Connection, window_s: float) -> None:
        """Closes a socket somewhen in the window, so that the clients do not all come back at once."""
        closed = asyncio.ensure_future(connection.wait_closed())
        await asyncio.wait({closed}, timeout=random.uniform(0, window_s * DRAIN_SPREAD))
        connection.begin_shut(Shut(1012))
        await closed

    # -- sockets

    def joined(self, connection: Connection) -> None:
        """Takes a socket in, or drops it where too many have not been let in yet, of all or of its network."""
        network = network_of(connection.peer)
        self._connections.add(connection)
        self._by_network[network] += 1
        self._pending += 1
        self._pending_by_network[network] += 1
        self.counters.accepted += 1
        others, of_network = self._pending - 1, self._pending_by_network[network] - 1
        if others >= self.limits.pending or of_network >= self.limits.pending_per_address:
            self.counters.dropped += 1
            said = "connection %s dropped: %d others wait to be let in, %d of them from its address"
            logger.info(said, connection.id, others, of_network)
            connection.transport.abort()

    def admits(self, connection: Connection, principal: str) -> bool:
        """Lets a socket of a principal in, unless that has too many."""
        if principal != ANYBODY and self._by_principal[principal] >= self.limits.sockets_per_principal:
            return False
        self._by_principal[principal] += 1
        self._no_longer_pending(connection)
        return True

    def _no_longer_pending(self, connection: Connection) -> None:
        self._pending -= 1
        _count_off(self._pending_by_network, network_of(connection.peer))

    def left(self, connection: Connection) -> None:
        """Forgets a socket."""
        self._connections.discard(connection)
        _count_off(self._by_network, network_of(connection.peer))
        if connection.principal is None:
            self._no_longer_pending(connection)
        else:
            _count_off(self._by_principal, connection.principal.name)

    def may_use_cookies(self, connection: Connection) -> bool:
        """Says whether `authenticate` sees cookies; warns once where a socket brings some and it does not."""
        if self._origins is not None:
            return True
        if self.access.authenticates and not self._warned_of_cookies:
            self._warned_of_cookies = True
            logger.warning(
                "connection %s brings cookies, which authenticate does not see: any web page could use them; "
                "give serve the origins that may",
                connection.id,
            )
        return False

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Connection)
        await connection.run()

    def _process_request(
        self, connection: ServerConnection, request: Request
    ) -> Response | None | Awaitable[Response | None]:
        """Answers what is asked over plain HTTP, and refuses handshakes that are not for the protocol."""
        assert isinstance(connection, Connection)
        path, _, query = request.path.partition("?")
        found = self.site.find(path)
        if found is not None and not _holds_token(query):
            headers = read_headers(request, cookies=self._origins is not None)
            assert isinstance(connection, Connection)
            return self._answer(connection, found, HttpRequest(path, query, headers, connection.peer))
        refusal = self._handshake_refusal(connection.peer, path, query, request)
        if refusal is None:
            return None
        status, text = refusal
        self.counters.refused[status] += 1
        logger.info("connection %s refused with HTTP %d: %s", connection.id, status, text)
        return respond(status, f"{text}\n")

    async def _answer(self, connection: Connection, answer: Answer, request: HttpRequest) -> Response:
        response = await self.site.answer(answer, request)
        if isinstance(response, Streamed):
            await connection.stream(response.head(), response.pieces)
        return response

    def _handshake_refusal(self, peer: str, path: str, query: str, request: Request) -> tuple[int, str] | None:
        if _holds_token(query):
            return 400, "A token does not belong into a URL, where logs keep it; send it in the hello frame."
        if path != PATH:
            return 404, ABSENT.strip()
        headers = request.headers
        offered = [one.strip() for one in ",".join(headers.get_all("Sec-WebSocket-Protocol")).split(",")]
        if headers.get_all("Upgrade") and SUBPROTOCOL not in offered:
            return 400, f"The client must offer the subprotocol {SUBPROTOCOL}."
        if not self._origin_allowed(headers.get_all("Origin"), headers.get_all("Host")):
            return 403, "Pages of this Origin may not connect; the server's operator lists those that may."
        if self.draining or len(self._connections) > self.limits.sockets:
            return 503, "The server takes no sockets at the moment."
        if self._by_network[network_of(peer)] > self.limits.sockets_per_address:
            return 429, "Too many sockets come from this address."
        return None

    def _origin_allowed(self, origins: Sequence[str], hosts: Sequence[str]) -> bool:
        """Says whether a page may connect. A client that is no browser names no Origin, or the one it likes."""
        if len(origins) > 1:
            return False
        origin = origins[0].lower() if origins else None
        if self._origins is not None:
            own = self.page is not None and origin is not None and len(hosts) == 1 and is_own_page(origin, hosts[0])
            return own or origin in self._origins
        return origin is None or not self.local or is_loopback(host_of(origin))

    async def _readiness(self, _request: HttpRequest) -> Response:
        """Answers whether sockets are welcome: storage answers, and the server does not drain."""
        try:
            if not self.draining and self.runtime.engine.failed is None:
                async with asyncio.timeout(READY_TIMEOUT_S):
                    await self.runtime.engine.list(limit=1)
                return respond(200, "ready\n")
        except (StorageError, TimeoutError) as error:
            logger.warning("not ready: storage does not answer: %r", error)
        return respond(503, "not ready\n")

    async def _metrics(self, request: HttpRequest) -> Response:
        if await self.may_operate(request, from_this_machine(request)):
            return respond(200, metrics_of(self), CONTENT_TYPE, {"Cache-Control": "no-store"})
        return respond(404, ABSENT)

    # -- access

    async def may_operate(self, request: HttpRequest, otherwise: bool) -> bool:
        """Says whether a request is of an operator; where the application does not say who is one, `otherwise`."""
        if not self.access.has_operator:
            return otherwise
        principal = await self.site.principal(request)
        return principal is not None and await self.access.operates(principal)

    async def _recheck(self) -> None:
        """Authorizes open subscriptions again and again, some at a time: a hook may wait."""
        while True:
            await asyncio.sleep(self.limits.recheck_s)
            connections = [one for one in self._connections if one.principal is not None]
            for start in range(0, len(connections), RECHECKS_AT_ONCE):
                await asyncio.gather(*(one.recheck() for one in connections[start : start + RECHECKS_AT_ONCE]))

    async def revoke(self, principal: str, conversation: str | None = None) -> int:
        """Takes access away at once.

        Args:
            principal: the name of the principal.
            conversation: the one whose subscriptions end with `closed`; without it every socket of the principal is
                closed with 4403.

        Returns:
            How many sockets were concerned. What they have asked for and did not get yet is refused; what is asked for
            later is up to `authenticate` and `authorize`.
        """
        concerned = [one for one in self._connections if one.principal is not None and one.principal.name == principal]
        for connection in concerned:
            connection.revoke(conversation)
        return len(concerned)


class serve:
    """Serves a runtime: `async with serve(runtime, port=8000) as server:` or `server = await serve(runtime)`.

    Args:
        runtime: the runtime, entered.
        host: where to listen. Elsewhere than on loopback it takes `authenticate` or `allow_anonymous`.
        port: the port; 0 takes a free one.
        authenticate: returns the principal of a socket, or None to refuse it; may be async.
        authorize: says whether a principal may do something to a conversation; may be async.
        operator: says whether a principal runs the server: it may open `/inspect`, which shows every conversation, and
            `/metrics`; may be async. Without it `/metrics` answers requests from this machine only, and so does
            `/inspect` where there are no other hooks either; else nobody may open that.
        allow_anonymous: serves everybody off loopback too.
        origins: the `Origin` headers that are allowed, such as `https://chat.example`; None among them allows clients
            that send none, as those do that are no browsers. Without it `authenticate` sees no cookies, and a server
            that is open to everybody on this machine takes web pages of this machine only.
        limits: all limits, with their defaults.
        drain_s: the window over which sockets are closed when it stops.
        web: serves the chat page at `/`, and `/parlatory.js`. Behind a reverse proxy, or with cookies, `origins` lists
            the address that people open it at.

    Raises:
        ValueError: it would serve everybody beyond this machine, which was not asked for; or an origin is none.
        TypeError: a hook is no function, or `allow_anonymous` neither True nor False.
        OSError: when it starts, the address is taken, or none of this machine.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        operator: Operator | None = None,
        allow_anonymous: bool = False,
        origins: Sequence[str | None] | None = None,
        limits: Limits | None = None,
        drain_s: float = 10,
        web: bool = True,
    ) -> None:
        if not isinstance(allow_anonymous, bool):
            raise TypeError(f"allow_anonymous is True or False, not {allow_anonymous!r}")  # "no" would be a yes
        limits = limits or Limits()
        access = Access(authenticate, authorize, limits.authorize_timeout_s, operator)
        local = access.open_to_all and not allow_anonymous
        if local:
            if not is_loopback(host):
                raise ValueError(
                    f"everybody who reaches {host} could read and write every conversation: "
                    "give authenticate and authorize, or allow_anonymous (--allow-anonymous)"
                )
            logger.warning("no authenticate and no authorize: everything is allowed to everybody on this machine")
        if isinstance(origins, str):
            raise ValueError(f"origins is a list, such as [{origins!r}]")
        if origins is not None:
            origins = [None if origin is None else _checked_origin(origin) for origin in origins]
        if not drain_s >= 0:
            raise ValueError("drain_s is a number of seconds")
        self._server = Server(
            runtime,
            host=host,
            port=port,
            access=access,
            limits=limits,
            origins=origins,
            local=local,
            drain_s=drain_s,
            web=web,
        )
        if web and origins is not None and not is_loopback(host):
            _warn_of_page(self._server, origins)

    def __await__(self) -> Generator[Any, None, Server]:
        """Starts the server."""
        return self._start().__await__()

    async def _start(self) -> Server:
        await self._server.start()
        return self._server

    async def __aenter__(self) -> Server:
        """Starts the server."""
        return await self._start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the server, without a drain window: whoever wants one has called `close` before."""
        await self._server.close(0)


def _warn_of_page(server: Server, origins: Sequence[str | None]) -> None:
    """Says at once where the chat page will not work: a browser tells a page nothing of a refused handshake."""
    if f"{server.page}".removesuffix("/") not in origins:
        listed = [origin for origin in origins if origin is not None]
        logger.warning(
            "the chat page works at %s only: list each address that people open it at among the origins (--origin)",
            " and ".join(["localhost", *listed]),
        )


def _count_off(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def _holds_token(query: str) -> bool:
    return any("token" in name.lower() for name, _ in parse_qsl(query, keep_blank_values=True))


def _checked_origin(origin: str) -> str:
    lowered = origin.lower()
    if not ORIGIN.fullmatch(lowered):
        raise ValueError(f"{origin!r} is no Origin: it is a scheme, a host and perhaps a port, such as https://chat.example")
    return lowered
