"""The files of the web pages: which there are, how they are sent, and that what is inline nowhere stays so."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from websockets.http11 import Response

from parlatory.server.http import HttpRequest
from parlatory.server.pages import POLICY, send_file, web_files

from .peers import Relay, request, serving


async def get(path: str, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send_file(HttpRequest(path, "", named, "127.0.0.1"))


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/parlatory.js", "text/javascript; charset=utf-8"),
        ("/parlatory.d.ts", "text/plain; charset=utf-8"),
        ("/chat/page.css", "text/css; charset=utf-8"),
        ("/chat/icon.svg", "image/svg+xml"),
        ("/vendor/purify.es.mjs", "text/javascript; charset=utf-8"),
    ],
)
async def test_a_file_and_its_headers(path: str, content_type: str) -> None:
    response = await get(path)
    assert response.status_code == 200
    name = "index.html" if path == "/" else path[1:]
    assert response.body == files("parlatory.server.web").joinpath(name).read_bytes()
    headers = response.headers
    assert headers["Content-Type"] == content_type
    assert headers["Content-Security-Policy"] == POLICY
    assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "DENY")
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-cache")


def test_the_policy_allows_nothing_inline_and_nobody_else() -> None:
    rules = dict(rule.partition(" ")[::2] for rule in POLICY.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert rules["img-src"] == "'self' data: blob:"
    assert "unsafe" not in POLICY


async def test_what_has_not_changed_is_not_sent_again() -> None:
    etag = (await get("/")).headers["ETag"]
    for known in (etag, f'"other", W/{etag}'):
        response = await get("/", if_none_match=known)
        assert (response.status_code, response.body, response.headers["ETag"]) == (304, b"", etag)
    assert (await get("/", if_none_match='"other"')).status_code == 200
    assert (await get("/chat/page.css")).headers["ETag"] != etag


@pytest.mark.parametrize(
    "path",
    ["/chat/", "/chat/nosuch.js", "/chat/../__init__.py", "/chat/%2e%2e/http.py", "/vendor/README.md", "/index.html"],
)
async def test_nothing_else_is_there(path: str) -> None:
    assert (await get(path)).status_code == 404


def test_nothing_in_the_page_is_inline_and_all_that_it_names_is_there() -> None:
    page = web_files()["/"].content.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert re.findall(r"<script[^>]*>([^<]*)</script>", page) == [""]
    named = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert len(named) > 10
    assert [name for name in named if f"/{name}" not in web_files()] == []


def test_the_modules_name_only_what_is_there() -> None:
    found = web_files()
    modules = {
        path: file.content.decode()
        for path, file in found.items()
        if path.startswith("/chat/") and path.endswith(".js")
    }
    assert "/chat/main.js" in modules
    preloaded = set(re.findall(r'modulepreload" href="([^"]+)"', found["/"].content.decode()))
    for path, text in modules.items():
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), path
        for name in re.findall(r'from "([^"]+)"', text):
            target = "/" + name.removeprefix("../") if name.startswith("../") else "/chat/" + name.removeprefix("./")
            assert target in found, f"{path} imports {name}"
            assert target[1:] in preloaded, f"{target} is not preloaded"


async def test_a_server_has_the_pages_unless_it_is_told_not_to() -> None:
    async with serving(Relay) as server:
        assert server.page == f"http://127.0.0.1:{server.port}/"
        assert (await request(server, "/"))[1].startswith("<!doctype html>")
        assert (await request(server, "/parlatory.js?v=1"))[0] == 200
        assert (await request(server, "/chat/main.js"))[0] == 200
        assert (await request(server, "/?token=x"))[0] == 400
    async with serving(Relay, web=False) as server:
        assert server.page is None
        assert (await request(server, "/"))[0] == 404
        assert (await request(server, "/parlatory.js"))[0] == 404
        assert (await request(server, "/healthz"))[0] == 200
