"""Fetching media with the client: from a server, with a token, through proxies, and from servers that misbehave."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256

import pytest

from parlatory.server import Client, Principal, connect
from parlatory.server.access import AccessRequest
from parlatory.server.client_errors import ClientClosed, ClientMisuse, MediaFailed, SendRefused
from parlatory.server.client_media import fetch_media
from parlatory.storage import Image, Media, Text, TooLarge, UnknownMedia, user_message

from .peers import DEADLINE_S, serving

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 2000
HASH = sha256(PNG).hexdigest()
NAME = "relay/ann/\u00e9 ?#%"


async def test_a_picture_goes_there_and_back() -> None:
    """Sent in a message, told as a ref, fetched by its part; one that is small needs no server."""
    async with serving() as server, connect(server.url, NAME) as chat:
        small = Image(data=base64.b64encode(b"GIF89a").decode())
        big = Image(data=base64.b64encode(PNG).decode(), media_type="image/png")
        await chat.send([Text(text="look"), big, small], client_id="c" * 22)
        row = await anext(chat)
        kept = Image(ref={"parlatory": f"sha256:{HASH}"}, media_type="image/png")
        assert row.content == (Text(text="look"), kept, small)
        assert await chat.media(row.content[1]) == await chat.media(HASH) == Media(data=PNG, media_type="image/png")
        assert await chat.media(small) == Media(data=b"GIF89a", media_type="image/gif")
        for elsewhere in (Image(url="https://example.org"), {"openai": "file-1"}):
            with pytest.raises(ClientMisuse, match="names no media"):
                await chat.media(elsewhere)
        with pytest.raises(UnknownMedia) as unknown:
            await chat.media("0" * 64)
        assert unknown.value.hash == "0" * 64
        with pytest.raises(TooLarge) as large:
            await chat.media(HASH, max_bytes=1000)
        assert (large.value.size, large.value.limit) == (len(PNG), 1000)
        await chat.aclose()
        with pytest.raises(ClientClosed):
            await chat.media(HASH)


async def test_a_ref_to_what_is_not_there_is_refused() -> None:
    """T53: the text says what to do, and the connection stays."""
    async with serving() as server, connect(server.url, "relay/ann") as chat:
        await server.runtime.get("relay", "bob").append(user_message([Image(data=base64.b64encode(PNG).decode())]))
        with pytest.raises(SendRefused, match="put them there first") as refused:
            await chat.send([Image(ref={"parlatory": f"sha256:{HASH}"}, media_type="image/png")])
        assert refused.value.code == "bad_message"
        assert await chat.send("hi") == 1


class Tokens:
    """Gives a new token each time; the server takes those that are not in `old`."""

    def __init__(self) -> None:
        self.given = 0
        self.old: set[str] = set()
        self.error: Exception | None = None

    def __call__(self) -> str:
        if self.error is not None:
            raise self.error
        self.given += 1
        return f"t{self.given}"

    def authenticate(self, request: AccessRequest) -> Principal | None:
        return None if request.token is None or request.token in self.old else Principal("user:ann")


async def test_the_token_goes_along_and_is_renewed() -> None:
    tokens = Tokens()
    async with (
        serving(authenticate=tokens.authenticate, authorize=lambda *_: True) as server,
        Client(server.url, token=tokens) as client,
    ):
        ref = await server.runtime.get("relay", "ann").put_media(PNG, "image/png")
        chat = await client.open("relay/ann")
        await chat.wait_status("live")
        assert (await chat.media(ref)).data == PNG
        assert tokens.given == 1
        tokens.old = {"t1"}
        assert (await chat.media(ref)).data == PNG
        assert tokens.given == 2
        tokens.old |= {"t2", "t3"}
        with pytest.raises(MediaFailed, match="HTTP 401") as failed:
            await chat.media(ref)
        assert (failed.value.status, failed.value.temporary, tokens.given) == (401, False, 3)
        tokens.error = OSError("no network")
        with pytest.raises(MediaFailed, match="there is no token: no network") as failed:
            await chat.media(ref)
        assert failed.value.temporary


async def test_a_token_that_is_fixed_is_tried_once() -> None:
    tokens = Tokens()
    async with (
        serving(authenticate=tokens.authenticate, authorize=lambda *_: True) as server,
        Client(server.url, token="mine") as client,
    ):
        chat = await client.open("relay/ann")
        await chat.wait_status("live")
        tokens.old = {"mine"}
        with pytest.raises(MediaFailed, match="HTTP 401"):
            await chat.media(HASH)


# -- whatever else may answer


class Fake:
    """Answers one request after the other with bytes; what was asked is kept."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.asked = b""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked = await reader.readuntil(b"\r\n\r\n")
        if self.answer is None:
            await reader.read()  # says nothing until the client goes
        else:
            writer.write(self.answer)
        writer.close()


@asynccontextmanager
async def answering(answer: bytes | None, path: str = "/v1") -> AsyncIterator[Fake]:
    fake = Fake(answer)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    fake.url = f"ws://127.0.0.1:{port}{path}"
    async with server:
        yield fake


async def fetched(
    fake: Fake, token: str | None = None, timeout_s: float = DEADLINE_S, data: bytes | None = None
) -> Media:
    hash = HASH if data is None else sha256(data).hexdigest()
    return await fetch_media(fake.url, NAME, hash, token, max_bytes=10, timeout_s=timeout_s)


async def test_what_is_asked() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-LENGTH: 3\r\nContent-Type:image/png\r\n\r\n123"
    async with answering(answer, "/chat/v1/") as fake:
        assert await fetched(fake, "t0k", data=b"123") == Media(data=b"123", media_type="image/png")
        first, *headers = fake.asked.decode().split("\r\n")
        assert first == f"GET /chat/v1/media/relay/ann%2F%C3%A9%20%3F%23%25/{sha256(b'123').hexdigest()} HTTP/1.1"
        assert "Authorization: Bearer t0k" in headers
        assert f"Host: {fake.url.split('/')[2]}" in headers
        await fetched(fake, data=b"123")
        assert b"Authorization" not in fake.asked


async def test_a_proxy_may_send_chunks() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with answering(head + b"3\r\n123\r\nA;x=y\r\n" + b"x" * 10 + b"\r\n0\r\n\r\n") as fake:
        with pytest.raises(TooLarge):
            await fetched(fake)
    async with answering(head + b"3\r\n123\r\n2\r\n45\r\n0\r\n\r\n") as fake:
        assert await fetched(fake, data=b"12345") == Media(data=b"12345", media_type="application/octet-stream")


@pytest.mark.parametrize(
    ("answer", "text", "status"),
    [
        (b"HTTP/1.1 503 Busy\r\n\r\n", "HTTP 503", 503),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://x\r\n\r\n", "HTTP 301", 301),
        (b"SSH-2.0-x\r\n\r\n", "does not speak HTTP", None),
        (b"HTTP/1.1 OK\r\n\r\n", "does not speak HTTP", None),
        (b"HTTP/1.1 200 OK\r\n\r\n123", "invalid literal", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n123", "3 bytes read", None),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 40_000, "a line over", None),
        (b"HTTP/1.1 200 OK\r\n" + b"".join(b"X%d: y\r\n" % index for index in range(200)), "too many headers", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n123", "something else", None),
        (b"", "0 bytes read", None),
    ],
)
async def test_answers_that_are_none(answer: bytes, text: str, status: int | None) -> None:
    async with answering(answer) as fake:
        with pytest.raises(MediaFailed, match=text) as failed:
            await fetched(fake)
        assert failed.value.status == status


async def test_a_server_that_does_not_answer() -> None:
    async with answering(None) as fake:
        with pytest.raises(MediaFailed, match=r"did not come within 0.05 s") as failed:
            await fetched(fake, timeout_s=0.05)
        assert failed.value.temporary
    with pytest.raises(MediaFailed, match="Connect"):
        await fetched(fake)


async def test_a_token_that_would_be_a_header_is_not_sent() -> None:
    async with answering(b"") as fake:
        with pytest.raises(MediaFailed, match="no header takes") as failed:
            await fetched(fake, "a\r\nX: y")
        assert "X: y" not in str(failed.value)
        assert fake.asked == b""
