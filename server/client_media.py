"""Fetching pictures and files over HTTP, beside the socket: one small GET over asyncio's streams, bounded in size."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import quote

from websockets.uri import parse_uri

from ..storage import Media, TooLarge, UnknownMedia, split_name
from .client_errors import MediaFailed

__all__ = ["fetch_media"]

LINE_BYTES_MAX = 16 << 10
HEADERS_MAX = 100
NO_VISIBLE = re.compile(r"[^\x21-\x7e]")


class Head(NamedTuple):
    """Is what stands in front of a body."""

    status: int
    headers: dict[str, str]


async def fetch_media(
    url: str, conversation: str, hash: str, token: str | None, *, max_bytes: int, timeout_s: float
) -> Media:
    """Returns media of a conversation.

    Args:
        url: the server, as for the socket: `ws://host:port/v1`.
        conversation: `<agent>/<name>`.
        hash: the SHA-256 of the media, in hex.
        token: goes along as `Authorization: Bearer ...`.
        max_bytes: the most they may have.
        timeout_s: how long it may take.

    Raises:
        UnknownMedia: there are no such media, or the principal may not see them.
        TooLarge: they have more than `max_bytes`.
        MediaFailed: the server refused, cannot be reached, did not answer in time, or sent something else.
    """
    if token is not None and NO_VISIBLE.search(token):
        raise MediaFailed(hash, "the token has characters that no header takes; nothing was sent")
    try:
        async with asyncio.timeout(timeout_s), _answer(url, conversation, hash, token) as (head, reader):
            if head.status == 404:
                raise UnknownMedia(hash)
            if head.status != 200:
                raise MediaFailed(hash, f"the server answered with HTTP {head.status}", head.status)
            data = await _body(head, reader, max_bytes)
            if await asyncio.to_thread(lambda: sha256(data).hexdigest()) != hash:
                raise MediaFailed(hash, "what came is something else")
            return Media(data=data, media_type=head.headers.get("content-type", "application/octet-stream"))
    except TimeoutError as error:
        raise MediaFailed(hash, f"they did not come within {timeout_s:g} s") from error
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, TooLarge):
            raise
        raise MediaFailed(hash, str(error) or type(error).__name__) from error


@asynccontextmanager
async def _answer(
    url: str, conversation: str, hash: str, token: str | None
) -> AsyncIterator[tuple[Head, asyncio.StreamReader]]:
    """Asks the server, and closes the connection at the end."""
    server = parse_uri(url)
    agent, name = split_name(conversation)
    host = f"[{server.host}]" if ":" in server.host else server.host
    lines = [
        f"GET {server.path.rstrip('/')}/media/{agent}/{quote(name, safe='')}/{hash} HTTP/1.1",
        f"Host: {host}:{server.port}",
        "Connection: close",
        "Accept-Encoding: identity",
    ]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    reader, writer = await asyncio.open_connection(
        server.host, server.port, ssl=server.secure or None, limit=LINE_BYTES_MAX
    )
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode())
        yield await _head(reader), reader
    finally:
        writer.transport.abort()


async def _head(reader: asyncio.StreamReader) -> Head:
    version, _, rest = (await _line(reader)).partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
        raise ValueError("the server does not speak HTTP")
    headers: dict[str, str] = {}
    while line := await _line(reader):
        if len(headers) == HEADERS_MAX:
            raise ValueError("the answer has too many headers")
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return Head(int(rest[:3]), headers)


async def _line(reader: asyncio.StreamReader) -> str:
    try:
        return (await reader.readuntil(b"\n")).decode("iso-8859-1").rstrip("\r\n")
    except asyncio.LimitOverrunError as error:
        raise ValueError(f"the answer has a line over {LINE_BYTES_MAX} bytes") from error


async def _body(head: Head, reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """Reads a body of known length, or one that a proxy sends in chunks."""
    if head.headers.get("transfer-encoding", "").lower() == "chunked":
        return await _chunks(reader, max_bytes)
    size = int(head.headers.get("content-length", ""))
    if size > max_bytes:
        raise TooLarge("media", size, max_bytes)
    return await reader.readexactly(size)


async def _chunks(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    total = 0
    while size := int((await _line(reader)).partition(";")[0], 16):
        total += size
        if total > max_bytes:
            raise TooLarge("media", total, max_bytes)
        chunks.append(await reader.readexactly(size))
        await _line(reader)
    return b"".join(chunks)
