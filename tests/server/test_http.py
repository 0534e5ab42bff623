"""Plain HTTP on the port: the table of paths, who asks, and how an answer looks."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator

import pytest
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from parlatory.server.access import Access, AccessRequest, Principal
from parlatory.server.http import HttpRequest, Site, Streamed, read_headers, respond

from .peers import request, serving


def site(authenticate: object = None) -> Site:
    return Site(Access(authenticate, None, 1), lambda: 1000.0)  # type: ignore[arg-type]


def asked(path: str = "/", **headers: str) -> HttpRequest:
    return HttpRequest(path, "", headers, "127.0.0.1")


def test_the_exact_path_comes_before_the_longest_folder() -> None:
    table = site()
    for path in ("/", "/a/", "/a/b/", "/a/b/c"):
        table.add(path, lambda _, path=path: respond(200, path))  # type: ignore[misc]

    def found(path: str) -> bytes | None:
        answer = table.find(path)
        if answer is None:
            return None
        response = answer(asked(path))
        assert isinstance(response, Response)
        return bytes(response.body)

    assert [found(path) for path in ("/", "/a/b/c", "/a/b/x", "/a/x")] == [b"/", b"/a/b/c", b"/a/b/", b"/a/"]
    assert found("/x") is None
    assert found("/a") is None


async def test_an_answer_that_fails_is_500_and_told_without_the_headers(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: HttpRequest) -> Response:
        raise RuntimeError("broken")

    response = await site().answer(broken, asked("/x", authorization="Bearer s3cret"))
    assert response.status_code == 500
    assert "broken" in caplog.text
    assert "s3cret" not in caplog.text


async def test_an_answer_may_wait() -> None:
    async def later(_: HttpRequest) -> Response:
        return respond(200, b"later")

    assert (await site().answer(later, asked())).body == b"later"


async def test_the_bearer_token_is_the_token() -> None:
    seen: list[AccessRequest] = []

    def authenticate(one: AccessRequest) -> Principal | None:
        seen.append(one)
        ends = {"old": 999.0, "new": 1001.0}.get(str(one.token))
        return Principal("user:ann", expires_at=ends) if one.token else None

    table = site(authenticate)
    assert await table.principal(asked(authorization="Bearer new")) == Principal("user:ann", 1001.0)
    assert await table.principal(asked(authorization="bearer  old")) is None
    assert await table.principal(asked(authorization="bearer ever ")) == Principal("user:ann")
    assert await table.principal(asked(authorization="Basic eA==")) is None
    assert await table.principal(asked(authorization="Bearer ")) is None
    assert [one.token for one in seen] == ["new", "old", "ever", None, None]
    assert seen[0].headers["authorization"] == "Bearer new"


async def test_without_authenticate_everybody_is_anonymous() -> None:
    assert await site().principal(asked()) == Principal("anonymous")


async def test_an_answer_in_pieces_leaves_nothing_to_websockets() -> None:
    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"12345"

    answer = Streamed(206, "image/png", {"ETag": '"x"'}, 5, pieces())
    assert answer.head() == (
        b"HTTP/1.1 206 Partial Content\r\nContent-Type: image/png\r\nContent-Length: 5\r\n"
        b'X-Content-Type-Options: nosniff\r\nConnection: close\r\nETag: "x"\r\n\r\n'
    )
    assert (answer.serialize(), [piece async for piece in answer.pieces]) == (b"", [b"12345"])


def test_an_answer_says_its_type_and_length() -> None:
    response = respond(404, "é\n", headers={"Cache-Control": "no-store"})
    assert (response.status_code, response.reason_phrase, response.body) == (404, "Not Found", "é\n".encode())
    assert dict(response.headers.raw_items()) == {
        "Content-Type": "text/plain; charset=utf-8",
        "Content-Length": "3",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        "Cache-Control": "no-store",
    }
    assert respond(200, b"{}", "application/json").headers["Content-Type"] == "application/json"


def test_headers_are_lower_case_and_joined() -> None:
    headers = Headers([("X-A", "1"), ("x-a", "2"), ("Cookie", "c=d")])
    assert read_headers(Request("/", headers), cookies=False) == {"x-a": "1, 2"}
    assert read_headers(Request("/", headers), cookies=True) == {"x-a": "1, 2", "cookie": "c=d"}


async def test_a_request_never_shows_its_headers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "parlatory")
    assert "s3cret" not in repr(asked(authorization="Bearer s3cret"))
    async with serving() as server:
        server.site.add("/who/", lambda one: respond(200, f"{one.path} {one.query} {one.remote}"))
        answer = await request(server, "/who/a%20b?x=1", "Authorization: Bearer s3cret\r\n")
        assert answer == (200, "/who/a%20b x=1 127.0.0.1")
        assert (await request(server, "/who/?token=s3cret"))[0] == 400
    assert "s3cret" not in caplog.text
