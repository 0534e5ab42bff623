"""The list of conversations in the chat page: what the server knows, what this browser knows, what is unread."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs

from websockets.http11 import Response

from parlatory.server import Server
from parlatory.server.http import HttpRequest, respond

from ..server.peers import Echo, Relay
from .chromium import Tabs
from .scene import BODIES, OPEN, address, fill, serving, shown

LISTED = "[...document.querySelectorAll('#conversations .name')].map((one) => one.textContent)"
UNREAD = "[...document.querySelectorAll('#conversations .unread')].map((one) => one.firstChild.textContent)"


class Listing:
    """Is the server's list as a test wants it."""

    def __init__(self, server: Server, *agents: str) -> None:
        self.entries: list[dict[str, Any]] = []
        self.agents = list(agents)
        self.status = 200
        self.authorization: str | None = None
        self.asked: list[dict[str, str]] = []
        server.site.add("/v1/conversations", self.answer)

    def set(self, conversation: str, head: int, *, title: str | None = None, text: str = "last") -> None:
        at = f"2026-01-01T00:00:{head:02}.000000Z"
        entry = {
            "conversation": conversation,
            "title": title,
            "head": head,
            "at": at,
            "last": {"by": "agent", "text": text},
        }
        self.entries = [entry, *(one for one in self.entries if one["conversation"] != conversation)]

    def answer(self, request: HttpRequest) -> Response:
        if self.authorization not in (None, request.headers.get("authorization")):
            return respond(401, "")
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        self.asked.append(query)
        start = int(query.get("after", 0))
        page = self.entries[start : start + 2]
        more = str(start + 2) if len(self.entries) > start + 2 else None
        body = {"conversations": page, "next": more, "agents": self.agents}
        return respond(self.status, json.dumps(body), "application/json")


async def test_what_the_server_lists_and_what_is_unread(tabs: Tabs) -> None:
    async with serving(Echo, Relay) as server:
        listing = Listing(server, "echo", "relay")
        listing.set("relay/c", 1, title="Older")
        listing.set("relay/b", 2)
        listing.set("relay/a", 3, title="Holidays")
        page = await tabs.open(address(server, "relay/z"))
        await page.until(f"{LISTED}.length === 3")
        # The open one first, which the server does not have yet; what was there before the first visit is not unread.
        assert await page.get(LISTED) == ["New conversation", "Holidays", "last"]
        assert await page.get(UNREAD) == []
        await page.click("#further")
        await page.until(f"{LISTED}.length === 4")
        assert listing.asked[-1] == {"limit": "50", "after": "2"}
        assert await page.get("document.querySelector('#further').hidden")
        listing.set("relay/a", 8, title="Holidays", text="<b>come</b>")
        await page.get("document.dispatchEvent(new Event('visibilitychange'))")
        await page.until(f"{UNREAD}.join() === '5'")
        assert await page.get("document.title") == "(1) Chat"
        assert "<b>come</b>" in await page.text("#conversations")
        await fill(server, "relay/a", [{"role": "user", "content": f"r{number}"} for number in range(8)])
        await page.click("#conversations li:nth-child(2) a")
        await page.until(f"{BODIES}.length === 8 && {UNREAD}.length === 0")
        assert await page.text("#title") == "Holidays"
        # Another tab of this browser has seen them too.
        other = await tabs.open(address(server, "relay/z"))
        await other.until(f"{LISTED}.includes('Holidays')")
        assert await other.get(UNREAD) == []
        assert page.errors == other.errors == []


async def test_a_choice_of_agents(tabs: Tabs) -> None:
    async with serving(Echo, Relay) as server:
        Listing(server, "echo", "relay")
        page = await tabs.open(address(server))
        await page.until(OPEN)
        assert (await page.get("location.hash")).startswith("#echo/")
        await page.until("!document.querySelector('select#agent').hidden")
        await page.get(
            "(document.querySelector('#agent').value = 'relay', document.querySelector('#new button').click())"
        )
        await page.until("location.hash.startsWith('#relay/')")
        await page.until(OPEN)
        await page.say("hello")
        await shown(page, "hello")
        await page.until(f"{LISTED}.includes('hello')")
        assert page.errors == []


async def test_without_a_list_the_page_works(tabs: Tabs) -> None:
    async with serving(Echo) as server:
        listing = Listing(server)
        listing.status = 403
        page = await tabs.open(address(server))
        await page.until("document.querySelector('input#agent')")
        assert await page.get("document.querySelector('#input').disabled")
        await page.get("document.querySelector('#agent').focus()")
        await page.type("echo")
        await page.press("Enter")
        await page.until(OPEN)
        await page.say("one")
        await shown(page, "one", "echo: one")
        await page.until(f"{LISTED}.join() === 'one'")
        # A conversation in which nothing was said is not worth a line, once one has left it.
        await page.click("#new button")
        await page.until(f"{LISTED}.join() === 'New conversation,one'")
        await page.get("history.back()")
        await page.until(f"{LISTED}.join() === 'one'")


async def test_the_token_is_asked_for_before_a_conversation_is_open(tabs: Tabs) -> None:
    async with serving(Echo) as server:
        listing = Listing(server, "echo")
        listing.set("echo/a", 1, title="Secret")
        listing.authorization = "Bearer s3cret"
        page = await tabs.open(address(server))
        for token in ("wrong", "s3cret"):
            await page.until("document.querySelector('#admission').open && document.activeElement.id === 'token'")
            await page.type(token)
            await page.press("Enter")
        await page.until(f"{OPEN} && location.hash === '#echo/a'")
        assert await page.text("#title") == "Secret"


async def test_the_list_on_a_phone(tabs: Tabs) -> None:
    async with serving(Echo) as server:
        Listing(server, "echo")
        page = await tabs.open(address(server, "echo/phone"), width=390, height=780)
        await page.until(OPEN)
        await page.prefer(prefers_reduced_motion="reduce")  # a click is to hit what has come to rest
        visible = "getComputedStyle(document.querySelector('#sidebar')).visibility === 'visible'"
        assert not await page.get(visible)
        assert await page.get("document.documentElement.scrollWidth") == 390
        await page.click("#menu")
        await page.until(visible)
        assert await page.get("document.activeElement.id") == "hide"
        await page.press("Escape")
        await page.until(f"!({visible}) && document.activeElement.id === 'menu'")
        await page.click("#menu")
        await page.until(visible)
        await page.click("#new button")
        await page.until(f"!({visible}) && location.hash !== '#echo/phone'")
        assert page.errors == []
