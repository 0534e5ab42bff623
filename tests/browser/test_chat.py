"""The chat page in a browser: send, stream, stop, two tabs, a reload, the keyboard."""

from __future__ import annotations

from ..server.peers import Echo, Relay, history
from .chromium import Tabs
from .scene import BODIES, DRAFT, FAIL, OPEN, address, serving, shown, story

STOP_SHOWN = "!document.querySelector('#stop').hidden"


async def test_send_and_stream(tabs: Tabs) -> None:
    agent, pieces = story()
    async with serving(agent) as server:
        page = await tabs.open(address(server, "story/a"))
        await page.until(OPEN)
        assert await page.text("#greeting") == "Say something to Story."
        await page.say("Tell me")
        await shown(page, "Tell me")
        assert await page.get("document.querySelector('#greeting').hidden")
        await page.until("document.querySelector('.typing')")
        await page.until("document.querySelector('#announcer').textContent === 'Story is answering'")
        pieces.put_nowait("Once *upon*")
        assert await page.until(DRAFT) == "Once upon"
        pieces.put_nowait(" a time")
        await page.until(f"{DRAFT} === 'Once upon a time'")
        # Who listens hears the answer as a whole, not each word of it.
        assert await page.text("#announcer") == "Story is answering"
        pieces.put_nowait(None)
        await shown(page, "Tell me", "Once upon a time")
        await page.until("document.querySelector('#announcer').textContent === 'Story: Once *upon* a time'")
        await page.until(f"!({STOP_SHOWN}) && !document.querySelector('.draft')")
        assert await page.get("document.querySelector('#rows .assistant em').textContent") == "upon"
        assert [row["message"]["content"] for row in await history(server, "story/a")] == [
            "Tell me",
            "Once *upon* a time",
        ]
        assert page.errors == []


async def test_stop_by_button_and_by_key(tabs: Tabs) -> None:
    agent, pieces = story()
    async with serving(agent) as server:
        page = await tabs.open(address(server, "story/stop"))
        await page.until(OPEN)
        for number, stop in enumerate((page.click("#stop"), page.press("Escape")), 1):
            await page.say(f"go {number}")
            pieces.put_nowait(f"part {number}")
            await page.until(f"{DRAFT} === 'part {number}' && {STOP_SHOWN}")
            await stop
            await page.until(f"document.querySelectorAll('#rows .end.stopped').length === {number}")
            await page.until(f"!({STOP_SHOWN})")
            assert (await page.get(BODIES))[-1] == f"part {number}"
        rows = await history(server, "story/stop")
        assert [row.get("finish") for row in rows] == [None, "stopped", None, "stopped"]
        assert page.errors == []


async def test_a_second_tab_shows_the_running_answer_and_outlives_the_first(tabs: Tabs) -> None:
    agent, pieces = story()
    async with serving(agent) as server:
        first = await tabs.open(address(server, "story/two"))
        await first.until(OPEN)
        await first.say("go")
        pieces.put_nowait("so far")
        await first.until(DRAFT)
        second = await tabs.open(address(server, "story/two"))
        await second.until(f"{DRAFT} === 'so far' && {STOP_SHOWN}")
        await first.close()
        pieces.put_nowait(", and on")
        await second.until(f"{DRAFT} === 'so far, and on'")
        pieces.put_nowait(None)
        await shown(second, "go", "so far, and on")
        await second.say("again")
        pieces.put_nowait("next")
        pieces.put_nowait(None)
        await shown(second, "go", "so far, and on", "again", "next")
        # One installation is one author: what the first tab said is the reader's own here too.
        assert await second.get("document.querySelectorAll('#rows .mine').length") == 2
        assert second.errors == []


async def test_a_reload_in_mid_stream_goes_on(tabs: Tabs) -> None:
    agent, pieces = story()
    async with serving(agent) as server:
        page = await tabs.open(address(server, "story/reload"))
        await page.until(OPEN)
        for piece in ("first answer", None, "second "):
            pieces.put_nowait(piece)
        await page.say("one")
        await shown(page, "one", "first answer")
        await page.say("two")
        await page.until(f"{DRAFT} === 'second'")
        await page.type("not sent yet")
        await page.reload()
        await shown(page, "one", "first answer", "two")
        await page.until(f"{DRAFT} === 'second'")
        assert await page.get("document.querySelector('#input').value") == "not sent yet"
        pieces.put_nowait("answer")
        await page.until(f"{DRAFT} === 'second answer'")
        pieces.put_nowait(None)
        await shown(page, "one", "first answer", "two", "second answer")
        assert await page.get("document.querySelectorAll('#tail > *').length") == 0
        assert page.errors == []


async def test_who_reads_above_is_not_taken_to_the_end(tabs: Tabs) -> None:
    agent, pieces = story()
    away = "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight)(" \
        "document.querySelector('#messages'))"  # fmt: skip
    async with serving(agent) as server:
        page = await tabs.open(address(server, "story/scroll"))
        await page.until(OPEN)
        await page.say("go")
        for number in range(60):
            pieces.put_nowait(f"paragraph {number}\n\n")
        await page.until(f"{DRAFT}?.endsWith('paragraph 59')")
        assert await page.until(f"{away} < 2 || 'far'") is True
        await page.wheel("#messages", -20)  # less than what counts as the end
        await page.until(f"{away} > 5 && !document.querySelector('#latest').hidden")
        place = await page.get("document.querySelector('#messages').scrollTop")
        pieces.put_nowait("more\n\nand more")
        await page.until(f"{DRAFT}?.endsWith('and more')")
        pieces.put_nowait(None)
        await page.until(f"{BODIES}.length === 2 && document.querySelector('#tail').childElementCount === 0")
        assert await page.get("document.querySelector('#messages').scrollTop") == place
        await page.click("#latest")
        await page.until(f"{away} < 2 && document.querySelector('#latest').hidden")
        assert await page.get("document.activeElement.id") == "input"
        assert page.errors == []


async def test_an_agent_that_fails_is_told(tabs: Tabs) -> None:
    agent, pieces = story()
    async with serving(agent) as server:
        page = await tabs.open(address(server, "story/fail"))
        await page.until(OPEN)
        await page.say("go")
        pieces.put_nowait(FAIL)
        await page.until("document.querySelector('#tail .notice')?.textContent.startsWith('The agent failed')")
        await page.say("again")
        pieces.put_nowait("half")
        await page.until(f"{DRAFT} === 'half' && !document.querySelector('#tail .notice')")
        pieces.put_nowait(FAIL)
        await page.until(f"document.querySelector('#rows .end.error') && !({STOP_SHOWN})")
        assert await page.get("document.querySelectorAll('#tail > *').length") == 0  # the row says it
        assert page.errors == []


async def test_keys(tabs: Tabs) -> None:
    async with serving(Relay) as server:
        page = await tabs.open(address(server, "relay/keys"))
        await page.until(OPEN)
        assert await page.get("document.activeElement.id") == "input"
        await page.press("Enter")  # nothing to send
        await page.type("one")
        await page.press("Enter", shift=True)
        await page.type("two")
        await page.press("Enter")
        await shown(page, "one\ntwo")
        await page.get("document.querySelector('#skip').focus()")
        await page.press("Enter")
        assert await page.get("[document.activeElement.id, location.hash]") == ["input", "#relay/keys"]
        assert await page.get("document.querySelectorAll('#rows .row').length") == 1


async def test_a_new_conversation_and_back(tabs: Tabs) -> None:
    async with serving(Echo) as server:
        page = await tabs.open(address(server, "echo/old"))
        await page.until(OPEN)
        await page.say("old")
        await shown(page, "old", "echo: old")
        await page.click("#new button")
        await page.until("document.querySelectorAll('#rows .row').length === 0 && location.hash !== '#echo/old'")
        await page.until(OPEN)
        await page.say("new")
        await shown(page, "new", "echo: new")
        assert await page.text("#title") == "new"
        await page.get("history.back()")
        await shown(page, "old", "echo: old")
        await page.until("document.querySelector('#conversations [aria-current]').innerText.startsWith('old')")
        # Without a name the page opens the last conversation.
        again = await tabs.open(address(server))
        await shown(again, "old", "echo: old")
