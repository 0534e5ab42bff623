"""The inspector in a real browser: it shows what goes on, follows it, and asks strangers for a token."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from parlatory.actors import Agent
from parlatory.server import AccessRequest, Principal, Server
from parlatory.storage import StoredMessage

from ..server.peers import Peer, Relay, serving
from .chromium import Page, Tabs

NAMES = "[...document.querySelectorAll('#conversations .name')].map((one) => one.textContent)"
ROWS = "[...document.querySelectorAll('#rows .text')].map((one) => one.textContent)"
SHOTS = os.environ.get("PARLATORY_SCREENSHOTS")


class Writer(Agent):
    """Writes half an answer and waits."""

    async def on_message(self, row: StoredMessage) -> None:
        async with self.reply() as draft:
            await draft.write("half an ")
            await asyncio.get_running_loop().create_future()


def address(server: Server, conversation: str = "") -> str:
    return f"http://127.0.0.1:{server.port}/inspect" + (f"#{conversation}" if conversation else "")


async def figure(page: Page, name: str) -> str:
    tile = f"[...document.querySelectorAll('#figures div')].find((one) => one.dataset.key === '{name}')"
    found: str = await page.get(f"{tile}.children[1].textContent")
    return found


async def test_it_shows_and_follows_what_goes_on(tabs: Tabs) -> None:
    async with serving(Relay, Writer) as server, Peer.admitted(server) as peer:
        await peer.say("relay/old", "<script>alert(1)</script><img src=x onerror=alert(2)>")
        await peer.say("relay/bob", "hi")
        page = await tabs.open(address(server))
        await page.until(f"{NAMES}.join() === 'relay/bob,relay/old'")
        assert await figure(page, "Connections") == "1"

        await page.click("#conversations li:nth-child(2) button")
        await page.until(f"{ROWS}.length === 1")
        assert await page.get(ROWS) == ["<script>alert(1)</script><img src=x onerror=alert(2)>"]
        assert await page.get("document.querySelector('#name').textContent") == "relay/old"
        await peer.open("relay/old")
        await peer.say("relay/old", "more")
        await page.until(f"{ROWS}.length === 2 && {ROWS}[0] === 'more'")
        assert await page.get(NAMES) == ["relay/old", "relay/bob"]
        await page.until("document.querySelectorAll('#subscribers tbody tr').length === 1")

        await peer.say("writer/x", "go")
        await page.get("location.hash = encodeURIComponent('writer/x')")
        await page.until("document.querySelector('#draft .text').textContent === 'half an '")
        assert "running, 1 (attempt 1)" in await page.text("#facts")
        assert await figure(page, "Drafts") == "1"
        assert page.errors == []


async def test_older_rows_and_search(tabs: Tabs) -> None:
    async with serving(Relay) as server, Peer.admitted(server) as peer:
        await peer.fill("relay/long", [str(n) for n in range(70)])
        await peer.say("relay/50% token/\u00e9", "hi")
        page = await tabs.open(address(server, "relay%2Flong"))
        await page.until(f"{ROWS}.length === 50 && {ROWS}[0] === '69'")
        await page.get("document.querySelector('#older').click()")
        await page.until(f"{ROWS}.length === 70 && {ROWS}[69] === '0' && document.querySelector('#older').hidden")
        await page.get("document.querySelector('#search').focus()")
        await page.type("% TOKEN")
        await page.until(f"{NAMES}.join() === 'relay/50% token/\u00e9'")
        await page.click("#conversations button")
        await page.until(f"{ROWS}.join() === 'hi'")
        await page.get("location.hash = 'relay%2Fnosuch'")
        await page.until("document.querySelector('#hint').textContent === 'There is no such conversation.'")
        assert await page.get("document.querySelector('#chosen').hidden")


async def test_nobody_looks_nothing_is_asked(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        page = await tabs.open(address(server))
        await page.until("document.querySelector('#status').textContent === 'Live'")
        await page.click("#pause")
        await page.until("document.querySelector('#status').textContent === 'Paused'")
        accepted = server.counters.accepted
        await page.get("new Promise((resolve) => setTimeout(resolve, 1500))")
        assert server.counters.accepted == accepted
        await page.click("#pause")
        await page.until("document.querySelector('#status').textContent === 'Live'")


async def test_strangers_give_a_token(tabs: Tabs) -> None:
    def authenticate(asked: AccessRequest) -> Principal | None:
        return Principal(asked.token) if asked.token else None

    def operator(principal: Principal) -> bool:
        return principal.name == "root"

    async with serving(Relay, authenticate=authenticate, operator=operator) as server:
        page = await tabs.open(address(server))
        for token, told in (("ann", "This token is no operator's"), ("root", "Live")):
            await page.until("!document.querySelector('#gate').hidden")
            await page.get("document.querySelector('#token').focus()")
            await page.type(token)
            await page.press("Enter")
            await page.until(f"document.querySelector('#status').textContent === {told!r}".replace('"', "`"))
        assert await page.get("document.querySelector('#gate').hidden && !document.querySelector('#main').hidden")
        assert "root" not in await page.get("location.href")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_it_is_accessible(tabs: Tabs, axe: str, scheme: str) -> None:
    async with serving(Relay, Writer) as server, Peer.admitted(server) as peer:
        for name in ("relay/x", "writer/y"):
            await peer.say(name, "hi")
            await peer.open(name)
        page = await tabs.open("about:blank")
        await page.prefer(prefers_color_scheme=scheme)
        await page.goto(address(server, "writer%2Fy"))
        await page.until("!document.querySelector('#draft').hidden")
        await page.get("document.querySelector('#sockets').open = true")
        await page.until("document.querySelectorAll('#sockets tbody tr').length")
        if SHOTS:
            await page.screenshot(Path(SHOTS) / f"inspector-{scheme}.png")
        await page.get(f"{axe}; 0")
        found = await page.get("axe.run().then(({violations}) => violations.map((one) => `${one.impact}: ${one.id}`))")
        assert found == []
        assert page.errors == []
