"""Media over HTTP: who may, what is said of them, in which pieces they come, and what a slow reader costs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from hashlib import sha256

import pytest

from parlatory.server import Limits, Principal, Server
from parlatory.server.access import AccessRequest, ConversationName
from parlatory.storage import Engine, Image, open_engine, user_message

from .peers import DEADLINE_S, RawPeer, Relay, serving, until

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 3000  # three pieces
HASH = sha256(PNG).hexdigest()
NAME = "relay/ann/\u00e9 %2F"
QUOTED = "relay/ann%2F%C3%A9%20%252F"


class Answer:
    def __init__(self, raw: bytes) -> None:
        head, _, self.body = raw.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.status = int(first.split()[1])
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}


async def get(server: Server, path: str, headers: str = "", host: str = "localhost") -> Answer:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        raw = await reader.read()
    writer.close()
    await writer.wait_closed()
    return Answer(raw)


def authenticate(request: AccessRequest) -> Principal | None:
    return None if request.token is None else Principal(request.token)


def authorize(principal: Principal, action: str, conversation: ConversationName) -> bool:
    return principal.name == "ann" and action == "page" and conversation.name.startswith("ann")


async def stored(server: Server, data: bytes = PNG, media_type: str = "image/png", name: str = NAME) -> str:
    """Puts media into a conversation, and returns their path."""
    agent, _, rest = name.partition("/")
    ref = await server.runtime.get(agent, rest).put_media(data, media_type)
    return f"/v1/media/{QUOTED if name == NAME else name}/{ref['parlatory'].removeprefix('sha256:')}"


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


async def test_a_picture(server: Server) -> None:
    path = await stored(server)
    answer = await get(server, path)
    assert (answer.status, answer.body) == (200, PNG)
    assert answer.headers == {
        "content-type": "image/png",
        "content-length": str(len(PNG)),
        "x-content-type-options": "nosniff",
        "connection": "close",
        "content-security-policy": "default-src 'none'; sandbox",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "private, max-age=31536000, immutable",
        "vary": "Authorization, Cookie",
        "etag": f'"{HASH}"',
        "accept-ranges": "bytes",
    }


async def test_what_a_send_brought_is_served(server: Server) -> None:
    """The whole way: a picture above 64 KiB in a message becomes a ref in the row, and the ref a picture again."""
    message = user_message([Image(data=base64.b64encode(PNG).decode())])
    ref = server.runtime.get(Relay, "bob")
    await ref.append(message)
    row = await (await ref.log()).last()
    assert row is not None
    assert row.content == (Image(ref={"parlatory": f"sha256:{HASH}"}, media_type="image/png"),)
    answer = await get(server, f"/v1/media/relay/bob/{HASH}")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "image/png", PNG)


@pytest.mark.parametrize("media_type", ["text/html", "image/svg+xml", "text/plain; charset=utf-8"])
async def test_what_is_no_picture_is_saved(server: Server, media_type: str) -> None:
    answer = await get(server, await stored(server, b"<script>", media_type))
    assert (answer.headers["content-type"], answer.headers["content-disposition"]) == (media_type, "attachment")


async def test_pictures_are_known_in_any_case(server: Server) -> None:
    assert "content-disposition" not in (await get(server, await stored(server, media_type="IMAGE/PNG"))).headers


async def test_a_type_that_would_be_a_header_is_not_said(server: Server) -> None:
    """A part may call itself what it likes; only media types reach a header."""
    data = b"x" * 70_000
    part = {"type": "file", "data": base64.b64encode(data).decode(), "mediaType": "text/html\r\nSet-Cookie: a=b"}
    await server.runtime.get(Relay, "bob").append({"role": "user", "content": [part]})
    answer = await get(server, f"/v1/media/relay/bob/{sha256(data).hexdigest()}")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "application/octet-stream", data)
    assert "set-cookie" not in answer.headers
    answer = await get(server, f"/v1/media/relay/bob/{sha256(data).hexdigest()}", "If-None-Match: *\r\n")
    assert (answer.status, answer.headers["content-type"]) == (304, "application/octet-stream")


async def test_a_type_that_is_too_long_for_a_header_is_not_said(server: Server) -> None:
    data = b"x" * 70_000
    part = {"type": "file", "data": base64.b64encode(data).decode(), "mediaType": f"text/{'x' * 500_000}"}
    await server.runtime.get(Relay, "bob").append({"role": "user", "content": [part]})
    answer = await get(server, f"/v1/media/relay/bob/{sha256(data).hexdigest()}")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "application/octet-stream", data)


async def test_what_is_for_this_machine_is_not_for_pages_from_elsewhere(server: Server) -> None:
    """Such as one whose name was made to resolve to this machine."""
    path = await stored(server)
    absent = await get(server, path.replace(HASH, "0" * 64))
    for answer in (await get(server, path, host="evil.example"), await get(server, path, "Via: 1.1 proxy\r\n")):
        assert (answer.status, answer.body, answer.headers) == (404, absent.body, absent.headers)
    async with serving(allow_anonymous=True) as for_all:
        assert (await get(for_all, await stored(for_all), host="chat.example")).status == 200


async def test_empty_media(server: Server) -> None:
    answer = await get(server, await stored(server, b""))
    assert (answer.status, answer.headers["content-length"], answer.body) == (200, "0", b"")


async def test_forbidden_looks_like_absent() -> None:
    """Whatever is wrong, the answer is the same, no actor is loaded and nothing is written."""
    engine = await open_engine("memory:")
    async with serving(engine=engine, authenticate=authenticate, authorize=authorize) as server:
        path = await stored(server)
        others = await stored(server, b"other", name="relay/bob")
        resident = server.runtime.conversations
        assert (await get(server, path, "Authorization: Bearer ann\r\n")).body == PNG
        absent = [
            others,  # of a conversation that is not hers
            path.replace(HASH, "0" * 64),
            path.replace("ann", "anna"),  # hers, and empty
            path.replace("relay", "vault"),
            path.replace(HASH, HASH.upper()),
            path.replace(HASH, HASH[:-1]),
            path.replace(HASH, f"sha256:{HASH}"),
            f"/v1/media/{HASH}",
            f"/v1/media/relay/{HASH}",
            f"/v1/media/relay/%FF/{HASH}",
            f"/v1/media/relay/%00/{HASH}",
            "/v1/media/",
        ]
        answers = [await get(server, one, "Authorization: Bearer ann\r\n") for one in absent]
        answers.append(await get(server, path, "Authorization: Bearer bob\r\n"))
        assert {(one.status, one.body) for one in answers} == {(404, answers[0].body)}
        assert {one.headers["cache-control"] for one in answers} == {"no-store"}
        assert server.runtime.conversations == resident
        assert [found.name for found in await engine.list()] == [NAME, "relay/bob"]
        refused = [await get(server, one) for one in (path, "/v1/media/nothing")]
        assert {(one.status, one.headers["www-authenticate"]) for one in refused} == {(401, "Bearer")}


async def test_authorize_may_wait() -> None:
    async def later(principal: Principal, action: str, conversation: ConversationName) -> bool:
        await asyncio.sleep(0)
        return conversation.name != "bob"

    async with serving(authorize=later) as server:
        assert (await get(server, await stored(server))).status == 200
        assert (await get(server, await stored(server, name="relay/bob"))).status == 404


async def test_a_name_may_hold_slashes_as_they_are(server: Server) -> None:
    path = await stored(server, name="relay/a/b")
    assert (await get(server, path)).status == (await get(server, path.replace("a/b", "a%2fb"))).status == 200


@pytest.mark.parametrize("tag", [f'"{HASH}"', f'W/"{HASH}"', f'"x", "{HASH}"', "*"])
async def test_what_the_browser_has_is_not_sent_again(server: Server, tag: str) -> None:
    path = await stored(server)
    answer = await get(server, path, f"If-None-Match: {tag}\r\n")
    assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", f'"{HASH}"')
    assert answer.headers["content-length"] == str(len(PNG))
    assert (await get(server, path, 'If-None-Match: "x"\r\n')).status == 200


@pytest.mark.parametrize(
    ("asked", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=262143-262145", 262143, 262146),
        ("bytes=300000-", 300000, len(PNG)),
        ("bytes=-5", len(PNG) - 5, len(PNG)),
        (f"bytes=5-{10**14}", 5, len(PNG)),
    ],
)
async def test_a_range(server: Server, asked: str, start: int, end: int) -> None:
    answer = await get(server, await stored(server), f"Range: {asked}\r\n")
    assert (answer.status, answer.body) == (206, PNG[start:end])
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(PNG)}"
    assert answer.headers["content-length"] == str(end - start)


@pytest.mark.parametrize("asked", [f"bytes={len(PNG)}-", "bytes=-0"])
async def test_a_range_behind_the_end(server: Server, asked: str) -> None:
    answer = await get(server, await stored(server), f"Range: {asked}\r\n")
    assert (answer.status, answer.headers["content-range"]) == (416, f"bytes */{len(PNG)}")


@pytest.mark.parametrize("asked", ["bytes=0-1,3-4", "bytes=5-4", "bytes=-", "lines=1-2", "bytes=0-0\r\nIf-Range: x"])
async def test_a_range_that_is_ignored(server: Server, asked: str) -> None:
    answer = await get(server, await stored(server), f"Range: {asked}\r\n")
    assert (answer.status, answer.body) == (200, PNG)


# -- slow readers

BIG = bytes(8 << 20)


async def downloading(server: Server, peer: RawPeer, path: str, headers: str = "") -> None:
    await peer.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
    await peer.read_until(b"\r\n\r\n")


async def test_a_slow_reader_costs_a_piece(server: Server) -> None:
    """What it does not take is not read; it gets everything, however long it takes, if it takes something."""
    path = await stored(server, BIG)
    async with RawPeer.to(server, handshake=False) as peer:
        await downloading(server, peer, path)
        (connection,) = server._connections
        await until(lambda: not connection.writable)
        assert connection.transport.get_write_buffer_size() <= (256 << 10) + (64 << 10)
        assert connection.streaming
        assert connection._deadline.cancelled()
        rest = await peer.read_to_end()
        assert len(rest) == len(BIG)
        await until(lambda: not server._connections)


async def test_a_reader_that_stops_is_aborted() -> None:
    async with serving(limits=Limits(stall_s=0.2)) as server:
        path = await stored(server, BIG)
        async with RawPeer.to(server, handshake=False) as peer:
            await downloading(server, peer, path)
            await until(lambda: server.reaper.stalled == 1 and not server._connections)


async def test_a_reader_that_goes_away(server: Server) -> None:
    path = await stored(server, BIG)
    async with RawPeer.to(server, handshake=False) as peer:
        await downloading(server, peer, path)
        (connection,) = server._connections
        await until(lambda: not connection.writable)
    await until(lambda: not server._connections)
    assert (await get(server, path)).status == 200


async def test_downloads_are_counted() -> None:
    async with serving(limits=Limits(downloads=1)) as server:
        path = await stored(server, BIG)
        async with RawPeer.to(server, handshake=False) as peer:
            await downloading(server, peer, path)
            refused = await get(server, path)
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")
        await until(lambda: not server._connections)
        assert (await get(server, path)).status == 200


async def test_nobody_takes_all_downloads() -> None:
    def everybody(principal: Principal, action: str, conversation: ConversationName) -> bool:
        return True

    limits = Limits(downloads_per_principal=1)
    async with serving(limits=limits, authenticate=authenticate, authorize=everybody) as server:
        path = await stored(server, BIG)
        async with RawPeer.to(server, handshake=False) as peer:
            await downloading(server, peer, path, "Authorization: Bearer ann\r\n")
            refused = await get(server, path, "Authorization: Bearer ann\r\n")
            assert (refused.status, refused.headers["retry-after"]) == (429, "5")
            assert (await get(server, path, "Authorization: Bearer bob\r\n")).status == 200
        await until(lambda: not server._connections)
        assert (await get(server, path, "Authorization: Bearer ann\r\n")).status == 200
    async with serving(limits=limits) as server:  # those without a name are told apart by their address
        path = await stored(server, BIG)
        async with RawPeer.to(server, handshake=False) as peer:
            await downloading(server, peer, path)
            assert (await get(server, path)).status == 429


async def test_media_that_go_meanwhile_break_off(caplog: pytest.LogCaptureFixture) -> None:
    """What was promised cannot be kept: the connection ends early, which its reader sees by the length."""
    engine: Engine = await open_engine("memory:")
    async with serving(engine=engine) as server:
        path = await stored(server, BIG)
        async with RawPeer.to(server, handshake=False) as peer:
            await downloading(server, peer, path)
            (connection,) = server._connections
            await until(lambda: not connection.writable)
            engine._tables[1].media.clear()  # type: ignore[attr-defined]
            assert len(await peer.read_to_end()) < len(BIG)
        assert "an answer breaks off" in caplog.text


async def test_closing_ends_downloads() -> None:
    async with serving() as server:
        path = await stored(server, BIG)
        async with RawPeer.to(server, handshake=False) as peer:
            await downloading(server, peer, path)
            await server.close(0)
            assert not server._connections


async def test_who_sends_no_handshake_is_dropped() -> None:
    async with serving(limits=Limits(hello_timeout_s=0.05)) as server:
        async with RawPeer.to(server, handshake=False) as peer:
            assert await peer.read_to_end() == b""
        await until(lambda: not server._connections)
