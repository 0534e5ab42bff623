"""Pictures and files over HTTP: `GET /v1/media/<agent>/<name>/<sha256>`, for whoever may page the conversation.

What somebody uploaded is served as nothing but data: its type is not guessed, no page can be made of it, and what is no
picture is saved instead of shown. It never changes, so a browser may keep it. Forbidden looks like absent: the same
answer, no actor is loaded, nothing is written. Where everything is allowed to everybody on this machine, they are for
requests from this machine only.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from websockets.http11 import Response

from ..storage import Blob, InvalidName, Partition, hash_of, split_name
from .access import ConversationName, Principal
from .http import HttpRequest, Streamed, respond
from .loopback import from_this_machine
from .shares import Shares, asker

if TYPE_CHECKING:
    from .app import Server

__all__ = ["MEDIA_PATH", "MediaAnswer"]

MEDIA_PATH = "/v1/media/"
ACTION = "page"
# Types that a browser shows as a picture and never runs; SVG is none of them.
PICTURES = {"image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"}
HEADER_TYPE = re.compile(r"(?=.{1,255}\Z)[\w!#$&^.+-]+/[\w!#$&^.+-]+(?:; ?[\w.-]+=[\w.+-]+)*", re.ASCII)
RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")
RETRY_S = 5


class MediaAnswer:
    """Answers requests for media, at most `limits.downloads` at a time, each from one piece in memory.

    Attributes:
        running: how many are being sent now.
    """

    def __init__(self, app: Server) -> None:
        self.running = 0
        self._app = app
        self._shares = Shares(app.limits.downloads_per_principal)

    async def __call__(self, request: HttpRequest) -> Response:
        """Returns the media that a path names."""
        if self._app.local and not from_this_machine(request):
            return _absent()
        principal = await self._app.site.principal(request)
        if principal is None:
            return respond(401, "The token is missing or no longer accepted.\n", headers={"WWW-Authenticate": "Bearer"})
        wanted = _wanted(request.path)
        if wanted is None or not await self._may_read(principal, wanted[0]):
            return _absent()
        name, hash = wanted
        partition = await self._app.runtime.engine.partition(str(name))
        first = await partition.media(hash)
        if first is None:
            return _absent()
        if _matches(request.headers.get("if-none-match", ""), hash):
            return respond(304, b"", _type(first), {**_headers(first), "Content-Length": str(first.size)})
        if self.running >= self._app.limits.downloads:
            return respond(503, "Too much is being sent at the moment.\n", headers={"Retry-After": str(RETRY_S)})
        who = asker(principal, request.remote)
        if self._shares.used_up(who):
            return respond(429, "Too much is being sent to you at the moment.\n", headers={"Retry-After": str(RETRY_S)})
        start, end = 0, first.size
        if (asked := request.headers.get("range")) is not None and "if-range" not in request.headers:
            span = _span(asked, first.size)
            if span is not None:
                start, end = span
                if start >= end:
                    return respond(416, b"", headers={"Content-Range": f"bytes */{first.size}"})
        return self._sent(partition, first, start, end, who)

    async def _may_read(self, principal: Principal, name: ConversationName) -> bool:
        if name.agent not in self._app.runtime.agents:
            return False
        grant = self._app.access.authorize(principal, ACTION, name)
        return (await grant if inspect.isawaitable(grant) else grant) is not None

    def _sent(self, partition: Partition, first: Blob, start: int, end: int, who: str) -> Response:
        headers = _headers(first)
        whole = end - start == first.size
        if not whole:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{first.size}"
        pieces = self._pieces(partition, first, start, end, who)
        return Streamed(200 if whole else 206, _type(first), headers, end - start, pieces)

    async def _pieces(
        self, partition: Partition, piece: Blob, start: int, end: int, who: str
    ) -> AsyncGenerator[bytes, None]:
        self.running += 1
        try:
            with self._shares.one(who):
                while start < end:
                    if not piece.start <= start < piece.start + len(piece.data):
                        more = await partition.media(piece.hash, start)
                        if more is None:
                            raise LookupError("the media went while they were being sent")
                        piece = more
                    yield piece.data[start - piece.start : end - piece.start]
                    start = piece.start + len(piece.data)
        finally:
            self.running -= 1


def _wanted(path: str) -> tuple[ConversationName, str] | None:
    """Reads the conversation and the hash off a path; a `/` of a name may be encoded or not."""
    quoted, _, hash = path.removeprefix(MEDIA_PATH).rpartition("/")
    try:
        agent, name = split_name(unquote_to_bytes(quoted).decode())
    except (InvalidName, UnicodeDecodeError):
        return None
    return None if hash_of(hash) != hash else (ConversationName(agent, name), hash)


def _absent() -> Response:
    return respond(404, "There are no such media, or you may not see them.\n", headers={"Cache-Control": "no-store"})


def _type(blob: Blob) -> str:
    """Returns the type of media as a header may say it: a part can call its media what it likes."""
    return blob.media_type if HEADER_TYPE.fullmatch(blob.media_type) else "application/octet-stream"


def _headers(blob: Blob) -> dict[str, str]:
    """Returns what is said of media beside their type and length."""
    headers = {
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "private, max-age=31536000, immutable",
        "Vary": "Authorization, Cookie",
        "ETag": f'"{blob.hash}"',
        "Accept-Ranges": "bytes",
    }
    if blob.media_type.lower() not in PICTURES:
        headers["Content-Disposition"] = "attachment"
    return headers


def _matches(if_none_match: str, hash: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in if_none_match.split(",")]
    return "*" in tags or f'"{hash}"' in tags


def _span(asked: str, size: int) -> tuple[int, int] | None:
    """Returns the bytes that a `Range` asks for, from and up to; None where it is to be ignored."""
    found = RANGE.fullmatch(asked.strip())
    if found is None or not any(found.groups()):
        return None
    first, last = found.groups()
    if not first:
        return max(0, size - int(last)), size
    if last and int(last) < int(first):
        return None
    return int(first), min(size, int(last) + 1) if last else size
