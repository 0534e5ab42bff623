"""What the port answers over plain HTTP: which path has which answer, and how an answer looks.

websockets reads GET requests only and closes behind each answer. A path is public, or its answer asks
`Site.principal` who wants it.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from http import HTTPStatus

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from .access import Access, AccessRequest, Principal

__all__ = ["Answer", "HttpRequest", "Site", "Streamed", "read_headers", "respond", "respond_json"]

logger = logging.getLogger("parlatory.server")


class HttpRequest(msgspec.Struct, frozen=True):
    """Is a request without a socket.

    Attributes:
        path: the path, as sent: percent-encoded.
        query: what stands behind its `?`, as sent.
        headers: by lower-case name; those of one name are joined by `, `.
        remote: the address of the peer.
    """

    path: str
    query: str
    headers: Mapping[str, str]
    remote: str

    def __repr__(self) -> str:
        return f"<HttpRequest {self.path!r} from {self.remote}>"  # headers hold tokens, and this may end in a log


Answer = Callable[[HttpRequest], Response | Awaitable[Response]]


class Site:
    """Is the table of paths: exact ones, and those below a folder.

    Args:
        access: says who a request is.
        clock: seconds since 1970.
    """

    def __init__(self, access: Access, clock: Callable[[], float]) -> None:
        self._access = access
        self._clock = clock
        self._exact: dict[str, Answer] = {}
        self._below: dict[str, Answer] = {}

    def add(self, path: str, answer: Answer) -> None:
        """Answers a path; one that ends with `/` and is longer answers everything below it."""
        (self._below if len(path) > 1 and path.endswith("/") else self._exact)[path] = answer

    def find(self, path: str) -> Answer | None:
        """Returns what answers a path, or None: the longest folder where it is not there itself."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        folders = [folder for folder in self._below if path.startswith(folder)]
        return self._below[max(folders, key=len)] if folders else None

    async def answer(self, answer: Answer, request: HttpRequest) -> Response:
        """Returns the answer to a request; a fault of ours is 500 and in the log."""
        try:
            response = answer(request)
            if inspect.isawaitable(response):
                response = await response
        except Exception:
            logger.exception("no answer to %r", request)
            response = respond(500, "The server failed; its log says why.\n")
        return response

    async def principal(self, request: HttpRequest) -> Principal | None:
        """Returns who asks, by what `authenticate` makes of the headers, or None where it refuses.

        A page sends its token as `Authorization: Bearer ...`, which the hook sees as the token; never in a URL.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        bearer = token.strip() if scheme.lower() == "bearer" else None
        asked = AccessRequest(bearer or None, None, request.headers, request.remote)
        principal = await self._access.authenticate(asked)
        if principal is None or principal.expires_at is None or principal.expires_at > self._clock():
            return principal
        return None


class Streamed(Response):
    """Is an answer whose body comes in pieces, each when the peer has taken the one before. Its parts as `respond`'s.

    `Socket.stream` sends it; what is then left to websockets is to end the connection.
    """

    def __init__(
        self, status: int, content_type: str, headers: Mapping[str, str], size: int, pieces: AsyncGenerator[bytes, None]
    ) -> None:
        whole = respond(status, b"", content_type, {**headers, "Content-Length": str(size)})
        super().__init__(whole.status_code, whole.reason_phrase, whole.headers)
        self.pieces = pieces

    def head(self) -> bytes:
        """Returns the lines in front of the body."""
        return super().serialize()

    def serialize(self) -> bytes:
        """Returns what is left to send: nothing."""
        return b""


def respond(
    status: int,
    body: str | bytes,
    content_type: str = "text/plain; charset=utf-8",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Returns an answer. It says its type and length, and that no type is to be guessed."""
    content = body.encode() if isinstance(body, str) else body
    lines = {
        "Content-Type": content_type,
        "Content-Length": str(len(content)),
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **(headers or {}),
    }
    return Response(status, HTTPStatus(status).phrase, Headers(lines), content)


def respond_json(value: object) -> Response:
    """Returns an answer that is JSON, for whoever asked and for no cache or other page."""
    headers = {"Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin"}
    return respond(200, msgspec.json.encode(value), "application/json", headers)


def read_headers(request: Request, *, cookies: bool) -> dict[str, str]:
    """Returns the headers of a handshake or request by lower-case name, with or without its cookies."""
    headers: dict[str, str] = {}
    for name, value in request.headers.raw_items():
        name = name.lower()
        if name != "cookie" or cookies:
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
