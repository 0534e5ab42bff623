"""The server: a runtime on a port. Accepts sockets, answers probes, drains, and ends."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import secrets
import time
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any

from websockets.asyncio.server import Server as WebSocketServer
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.http11 import Request, Response

from .. import __version__
from ..actors import Runtime
from .access import Access, Authenticate, Authorize
from .connection import Connection
from .limits import Limits
from .protocol import Shut
from .reaper import Reaper

__all__ = ["Server", "serve"]

PATH = "/v1"
SUBPROTOCOL = "parlatory.v1"
RESTART_RETRY_MS = (500, 5_000)
RETRY_MS = (0, 0)

logger = logging.getLogger("parlatory.server")


class Server:
    """Is a runtime on a port. Made by `serve`.

    Attributes:
        runtime: what it serves.
        port: the port it listens on; the one that was free, where 0 was asked for.
        draining: set once it stops.
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
        drain_s: float,
    ) -> None:
        self.runtime = runtime
        self.access = access
        self.limits = limits
        self.host = host
        self.port = port
        self.draining = False
        self.version: str = __version__
        self.boot = secrets.token_hex(8)
        self.clock: Callable[[], float] = time.time
        self.reaper = Reaper(lambda: self._connections, limits)
        self._origins = origins
        self._drain_s = drain_s
        self._connections: set[Connection] = set()
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
    def connections(self) -> int:
        """Is how many sockets are connected."""
        return len(self._connections)

    # -- life

    async def start(self) -> None:
        """Starts accepting sockets."""
        self._listener = await serve_websockets(
            self._handle,
            self.host,
            self.port,
            create_connection=Connection,
            process_request=self._process_request,
            subprotocols=None,
            select_subprotocol=lambda _connection, _offered: SUBPROTOCOL,  # type: ignore[arg-type, return-value]
            origins=self._origins,  # type: ignore[arg-type]
            compression=None,
            max_size=self.limits.frame_bytes,
            open_timeout=self.limits.hello_timeout_s,
            close_timeout=self.limits.close_s,
            logger=logging.getLogger("parlatory.server.websockets"),
            server_header=None,
        )
        self.port = next(iter(self._listener.sockets)).getsockname()[1]
        self.reaper.start()
        self._rechecks = asyncio.get_running_loop().create_task(self._recheck(), name="parlatory recheck")

    async def wait_closed(self) -> None:
        """Returns once the server has been closed."""
        await self._closed.wait()

    async def close(self, drain_s: float | None = None) -> None:
        """Drains and closes; idempotent.

        No new sockets are taken, each socket gets its `bye` at a random moment of the drain window and closes with 1012,
        running turns may end until then; what has not ended is delivered again by the next process.

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
            self._listener.server.close()
        connections = list(self._connections)
        for connection in connections:
            connection.session.draining = True
        turns = asyncio.get_running_loop().create_task(self.runtime.drain(window_s), name="parlatory drain")
        byes = [self._bye(connection, window_s) for connection in connections]
        await asyncio.gather(turns, *byes)
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

    async def _bye(self, connection: Connection, window_s: float) -> None:
        # Spread, so that the clients do not all come back at once; a little earlier than the end of the window.
        await asyncio.sleep(random.uniform(0, max(0.0, window_s - self.limits.close_s)))  # noqa: S311
        if connection in self._connections:
            connection.begin_shut(Shut(1012))
            await connection.wait_closed()

    def retry_ms(self, code: int) -> tuple[int, int]:
        """Returns when a client may come back after a close, as a range in milliseconds."""
        return RESTART_RETRY_MS if code in (1012, 1013) else RETRY_MS

    # -- sockets

    async def _handle(self, connection: ServerConnection) -> None:
        assert isinstance(connection, Connection)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        """Answers probes, and refuses handshakes that are not for the protocol."""
        path = request.path.partition("?")[0]
        if path == "/healthz":
            return connection.respond(200, "ok\n")
        if path == "/readyz":
            ready = not self.draining and self.runtime.engine.failed is None
            return connection.respond(200, "ready\n") if ready else connection.respond(503, "not ready\n")
        if path != PATH:
            return connection.respond(404, f"Nothing is here. Clients connect to {PATH}.\n")
        if "?" in request.path and "token=" in request.path:
            return connection.respond(400, "A token does not belong into a URL; send it in the hello frame.\n")
        offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
        if request.headers.get("Upgrade") and SUBPROTOCOL not in (one.strip() for one in offered.split(",")):
            return connection.respond(400, f"The client must offer the subprotocol {SUBPROTOCOL}.\n")
        if self.draining or len(self._connections) >= self.limits.sockets:
            return connection.respond(503, "The server takes no sockets at the moment.\n")
        assert isinstance(connection, Connection)
        connection.attach(self)
        return None

    async def _recheck(self) -> None:
        while True:
            await asyncio.sleep(self.limits.recheck_s)
            for connection in list(self._connections):
                if connection.principal is not None:
                    await connection.recheck()

    async def revoke(self, principal: str, conversation: str | None = None) -> int:
        """Takes access away at once.

        Args:
            principal: the name of the principal.
            conversation: the one whose subscriptions end with `closed`; without it every socket of the principal is
                closed with 4403.

        Returns:
            How many sockets were concerned. What is asked for later is up to `authenticate` and `authorize`.
        """
        concerned = [one for one in self._connections if one.principal is not None and one.principal.name == principal]
        for connection in concerned:
            connection.revoke(conversation)
        return len(concerned)


class serve:  # noqa: N801 - reads as the function that it stands for
    """Serves a runtime: `async with serve(runtime, port=8000) as server:` or `server = await serve(runtime)`.

    Args:
        runtime: the runtime, entered.
        host: where to listen. Elsewhere than on loopback it takes `authenticate` or `allow_anonymous`.
        port: the port; 0 takes a free one.
        authenticate: returns the principal of a socket, or None to refuse it; may be async.
        authorize: says whether a principal may do something to a conversation; may be async.
        allow_anonymous: serves everybody off loopback too.
        origins: the `Origin` headers that are allowed (None in it: none). Needed with cookies.
        limits: all limits, with their defaults.
        drain_s: the window over which sockets are closed when it stops.

    Raises:
        ValueError: it would serve everybody beyond this machine, which was not asked for.
        OSError: the address is taken.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        authenticate: Authenticate | None = None,
        authorize: Authorize | None = None,
        allow_anonymous: bool = False,
        origins: Sequence[str | None] | None = None,
        limits: Limits | None = None,
        drain_s: float = 10,
    ) -> None:
        limits = limits or Limits()
        access = Access(authenticate, authorize, limits.authorize_timeout_s)
        if access.open_to_all and not allow_anonymous:
            if not is_loopback(host):
                raise ValueError(
                    f"everybody who reaches {host} could read and write every conversation: "
                    "give authenticate and authorize, or allow_anonymous=True"
                )
            logger.warning("no authenticate and no authorize: everything is allowed to everybody on this machine")
        self._server = Server(
            runtime, host=host, port=port, access=access, limits=limits, origins=origins, drain_s=drain_s
        )

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


def is_loopback(host: str) -> bool:
    """Says whether an address reaches this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
