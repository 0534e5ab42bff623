"""The files of the web pages on the port: the chat page, `parlatory.js`, and what they load.

They come from the package `server/web`, are read once, and hold nothing of anybody: who may read a conversation is
asked on the socket. Nothing in them is inline, so the policy they are served with allows none of it.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from websockets.http11 import Response

from .http import HttpRequest, Site, respond

__all__ = ["add_pages", "send_file"]

PATHS = ("/", "/parlatory.js", "/parlatory.d.ts", "/chat/", "/vendor/")
TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "ts": "text/plain; charset=utf-8",
}
# 'self' in connect-src is the socket of the same host too.
POLICY = "; ".join((
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types dompurify",
))  # fmt: skip
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


class WebFile(msgspec.Struct, frozen=True):
    """Is a file as it is sent."""

    content: bytes
    content_type: str
    etag: str


def add_pages(site: Site) -> None:
    """Answers the chat page and what it loads."""
    for path in PATHS:
        site.add(path, send_file)


async def send_file(request: HttpRequest) -> Response:
    """Answers with the file of a path below `server/web`; `/` is its `index.html`."""
    found = (await asyncio.to_thread(web_files)).get(request.path)
    if found is None:
        return respond(404, "Nothing is here.\n")
    headers = HEADERS | {"ETag": found.etag}
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if found.etag in known:
        return respond(304, b"", found.content_type, headers)
    return respond(200, found.content, found.content_type, headers)


@cache
def web_files() -> Mapping[str, WebFile]:
    """Reads all files, by the path they are served at."""
    found: dict[str, WebFile] = {}
    _collect(files(f"{__package__}.web"), "/", found)
    found["/"] = found.pop("/index.html")
    return found


def _collect(folder: Traversable, path: str, found: dict[str, WebFile]) -> None:
    for entry in folder.iterdir():
        if entry.is_dir():
            _collect(entry, f"{path}{entry.name}/", found)
        elif content_type := TYPES.get(entry.name.rpartition(".")[2]):
            content = entry.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            found[path + entry.name] = WebFile(content, content_type, etag)
