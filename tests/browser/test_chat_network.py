"""The chat page without a network, behind a server that restarts, and where the server wants a token."""

from __future__ import annotations

from pathlib import Path

from parlatory.server import AccessRequest, ConversationName, Principal
from parlatory.storage import open_engine

from ..live.proxy import Proxy
from ..server.peers import Echo, history
from .chromium import Tabs
from .scene import BODIES, DRAFT, OPEN, address, serving, shown, story

LOST = "document.querySelector('#connection').dataset.state === 'lost'"
NOWHERE = 1  # a port on which nobody listens


async def test_offline_in_mid_stream_and_back(tabs: Tabs) -> None:
    agent, pieces = story()
    async with serving(agent) as server, Proxy.to(server.port) as proxy:
        page = await tabs.open(address(server, "story/net", proxy.port))
        await page.until(OPEN)
        await page.say("go")
        pieces.put_nowait("before, ")
        await page.until(f"{DRAFT} === 'before,'")
        proxy.onward = NOWHERE
        for link in proxy.links:
            link.cut()
        await page.offline(True)
        await page.until(f"{LOST} && document.querySelector('#connection').textContent.startsWith('Offline')")
        pieces.put_nowait("meanwhile, ")
        await page.say("written offline")
        await page.until("document.querySelector('#tail .unsent .end')?.textContent === 'Waits for a connection'")
        await page.until("document.querySelector('#connection').textContent === 'Offline, 1 unsent'")
        proxy.onward = server.port
        await page.offline(False)
        await page.until(OPEN)
        pieces.put_nowait("after")
        await page.until(f"{DRAFT} === 'before, meanwhile, after'")
        for piece in (None, "second", None):
            pieces.put_nowait(piece)
        await shown(page, "go", "written offline", "before, meanwhile, after", "second")
        rows = await history(server, "story/net")
        assert [row["message"]["content"] for row in rows] == await page.get(BODIES)
        assert await page.get("document.querySelectorAll('.unsent').length") == 0


async def test_what_was_written_offline_survives_a_reload(tabs: Tabs) -> None:
    async with serving(Echo) as server, Proxy.to(server.port) as proxy:
        page = await tabs.open(address(server, "echo/outbox", proxy.port))
        await page.until(OPEN)
        proxy.onward = NOWHERE
        for link in proxy.links:
            link.cut()
        await page.until(LOST)
        await page.say("kept")
        await page.until("document.querySelector('#tail .unsent')")
        proxy.onward = server.port
        await page.reload()
        await shown(page, "kept", "echo: kept")
        assert len(await history(server, "echo/outbox")) == 2


async def test_a_restart_of_the_server(tabs: Tabs, tmp_path: Path) -> None:
    async with serving(Echo, engine=await open_engine(f"sqlite:///{tmp_path}")) as server:
        port = server.port
        page = await tabs.open(address(server, "echo/restart"))
        await page.until(OPEN)
        await page.say("one")
        await shown(page, "one", "echo: one")
    await page.until(LOST)
    await page.say("two")
    await page.until("document.querySelector('#tail .unsent')")
    async with serving(Echo, engine=await open_engine(f"sqlite:///{tmp_path}"), port=port) as server:
        await page.until(OPEN)
        await shown(page, "one", "echo: one", "two", "echo: two")
        assert len(await history(server, "echo/restart")) == 4


async def test_a_log_that_was_exchanged_is_shown_anew(tabs: Tabs) -> None:
    async with serving(Echo) as server:
        port = server.port
        page = await tabs.open(address(server, "echo/reset"))
        await page.until(OPEN)
        await page.say("gone")
        await shown(page, "gone", "echo: gone")
    async with serving(Echo, port=port) as server:
        await server.runtime.get(Echo, "reset").append({"role": "user", "content": "other"})
        await shown(page, "other", "echo: other")


async def test_the_token_is_asked_for_and_kept_for_the_tab(tabs: Tabs) -> None:
    asked: list[str | None] = []

    def authenticate(request: AccessRequest) -> Principal | None:
        asked.append(request.token)
        return Principal("user:ann") if request.token == "s3cret" else None

    def authorize(principal: Principal, action: str, conversation: ConversationName) -> bool:
        return conversation.name != "closed"

    async with serving(Echo, authenticate=authenticate, authorize=authorize) as server:
        page = await tabs.open(address(server, "echo/admitted"))
        await page.until("document.querySelector('#admission').open")
        await page.type("wrong")
        await page.press("Enter")
        await page.until("document.querySelector('#refusal').textContent.includes('did not accept')")
        await page.until("document.querySelector('#admission').open && document.activeElement.id === 'token'")
        await page.type("s3cret")
        await page.press("Enter")
        await page.until(OPEN)
        await page.say("hi")
        await shown(page, "hi", "echo: hi")
        assert asked[0] is None and {"wrong", "s3cret"} <= set(asked)
        await page.reload()
        await shown(page, "hi", "echo: hi")
        assert "s3cret" not in await page.get("location.href + JSON.stringify(localStorage) + document.cookie")
        await page.get("(location.hash = '#echo/closed')")
        await page.until("document.querySelector('#tail .notice')?.textContent.startsWith('You may not read')")
        assert await page.get("document.querySelector('#input').disabled")


async def test_a_page_that_is_refused_says_so(tabs: Tabs) -> None:
    """A browser does not tell a page why there is no socket; that there never was one is known."""
    notice = "document.querySelector('#tail .notice')?.textContent"
    refused = "'The server refuses this page or cannot be reached.'"
    options = {"authenticate": lambda request: request.anonymous, "authorize": lambda *_: True}
    async with serving(Echo, origins=["https://chat.example"], **options) as server:
        page = await tabs.open(f"http://chat.localhost:{server.port}/#echo/refused")
        await page.until(f"{notice} === {refused}")
        assert server.counters.refused[403] >= 3
        page = await tabs.open(address(server, "echo/refused"))
        await page.until(OPEN)
        assert await page.get(notice) is None


async def test_answers_that_come_at_once_are_all_there(tabs: Tabs) -> None:
    """200 connections lost at any place: each row once (the page's part of it: rows stand once, in order)."""
    async with serving(Echo) as server, Proxy.to(server.port) as proxy:
        page = await tabs.open(address(server, "echo/storm", proxy.port))
        await page.until(OPEN)
        said = [f"m{number}" for number in range(12)]
        for number, text in enumerate(said):
            await page.say(text)
            if number % 4 == 3:
                proxy.links[-1].cut()
        await page.until("document.querySelectorAll('#rows .row').length === 24", 30)
        bodies = await page.get(BODIES)
        assert [one for one in bodies if not one.startswith("echo")] == said
        assert sorted(bodies) == sorted([*said, *(f"echo: {one}" for one in said)])
