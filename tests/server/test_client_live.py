"""Drafts, stops and reconnects against the real server and the agent of `examples/echo.py`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from parlatory.server import Chat, Draft, Server, TurnState, connect
from parlatory.server.loading import load_application
from parlatory.storage import StoredMessage
from tests.server.peers import serving
from tests.server.test_client_reconnects import proxied

C = "echo/live"
AGENTS = load_application(str(Path(__file__).resolve().parents[2] / "examples" / "echo.py")).agents

pytestmark = pytest.mark.usefixtures("at_once")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with asyncio.timeout(60), serving(*AGENTS) as made:
        yield made


def words(count: int) -> str:
    return "".join(f"w{number} " for number in range(count))


class Screen:
    """Shows what a chat brings, as an application does, and judges it."""

    def __init__(self, chat: Chat) -> None:
        self.chat = chat
        self.rows: list[StoredMessage] = []
        self.drafts: list[Draft] = []
        self.ends: list[Draft] = []
        self.turns: list[TurnState] = []
        self.open: Draft | None = None
        self._events = chat.events()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            event = await anext(self._events)
            if isinstance(event, StoredMessage):
                assert not self.rows or event.seq == self.rows[-1].seq + 1
                self.rows.append(event)
            elif isinstance(event, TurnState):
                self.turns.append(event)
            elif isinstance(event, Draft):
                self._show(event)

    def _show(self, draft: Draft) -> None:
        if draft.finish is None:
            assert words(len(draft.text.split())) == draft.text, "nothing twice, nothing missing"
            self.drafts.append(draft)
            self.open = draft
            return
        self.ends.append(draft)
        self.open = None
        if draft.seq is not None:
            assert next(row for row in self.rows if row.seq == draft.seq).message == draft.message

    async def writing(self, count: int) -> Draft:
        """Waits until so many words are written."""
        await self.until(lambda: self.open is not None and len(self.open.text.split()) >= count)
        assert self.open is not None
        return self.open

    async def over(self, turn: int) -> TurnState:
        """Waits for the end of a turn."""
        await self.until(lambda: self.turns and self.turns[-1].id == turn and self.turns[-1].state not in BUSY)
        return self.turns[-1]


BUSY = ("queued", "running")


async def test_an_answer_is_seen_while_it_is_written(server: Server) -> None:
    async with connect(server.url, C) as chat:
        screen = Screen(chat)
        turn = await chat.send("/stream 20 5")
        assert await screen.over(turn) == TurnState("done", turn)
        assert [row.text for row in screen.rows] == ["/stream 20 5", words(20)]
        assert [(end.text, end.finish, end.seq) for end in screen.ends] == [(words(20), "done", 2)]
        assert len(screen.drafts) > 2 and {draft.turn for draft in screen.drafts} == {turn}
        assert chat.draft is None and chat.turn == TurnState("done", turn)


async def test_t29_t31_join_in_the_middle_and_the_first_one_leaves(server: Server) -> None:
    """T29, T31: the second client has the history, the partial so far, the rest, and the next turn."""
    async with connect(server.url, C) as second:
        async with connect(server.url, C) as first:
            before = Screen(first)
            await before.over(await first.send("/stream 5 1"))
            turn = await first.send("/stream 60 5")
            seen = await before.writing(10)
            late = await asyncio.wait_for(_joined(server), 10)
            assert late.id == seen.id and late.turn == turn and len(late.text) >= len(seen.text)
            assert [end.id for end in before.ends] != [late.id], "not the answer before it"
        screen = Screen(second)
        await screen.over(turn)
        assert [row.text for row in screen.rows] == ["/stream 5 1", words(5), "/stream 60 5", words(60)]
        turn = await second.send("/stream 3 1")
        await screen.over(turn)
        assert screen.ends[-1].text == words(3) == screen.rows[-1].text


async def _joined(server: Server) -> Draft:
    """Joins in the middle, and returns the first draft that a client is shown."""
    async with connect(server.url, C, tail=1) as chat:
        screen = Screen(chat)
        await screen.until(lambda: screen.open)
        assert [row.text for row in screen.rows] == ["/stream 60 5"]
        assert screen.turns[0].state == "running"
        assert screen.open is not None
        return screen.open


async def test_t35_a_stop_keeps_what_is_written(server: Server) -> None:
    """T35: stopped at word 40 of 100."""
    async with connect(server.url, C) as chat:
        screen = Screen(chat)
        turn = await chat.send("/stream 100 2")
        await screen.writing(40)
        await chat.cancel()
        assert (await screen.over(turn)).state == "stopped"
        said, partial = screen.rows
        assert said.text == "/stream 100 2"
        assert partial.finish == "stopped" and partial.text == words(len(partial.text.split()))
        assert 40 <= len(partial.text.split()) < 100
        turn = await chat.send("hi")
        assert (await screen.over(turn)).state == "done"
        assert screen.rows[-1].text == "echo: hi"


async def test_t40_a_stop_from_another_client(server: Server) -> None:
    """T40: it stops once, all see one end, and a second stop does nothing."""
    async with connect(server.url, C) as first, connect(server.url, C) as second:
        screens = Screen(first), Screen(second)
        turn = await first.send("/stream 10000 2")
        await screens[1].writing(3)
        await asyncio.gather(second.cancel(), second.cancel(), first.cancel(turn))
        for screen in screens:
            assert (await screen.over(turn)).state == "stopped"
        await second.cancel()
        await first.cancel(turn)
        await first.send("/stream 3 1")
        for screen in screens:
            await screen.over(3)
            assert [state.state for state in screen.turns if state.id == turn and state.state not in BUSY] == [
                "stopped"
            ]
            assert [(end.finish, end.seq) for end in screen.ends] == [("stopped", 2), ("done", 4)]
        assert screens[0].rows == screens[1].rows


async def test_a_queued_turn_is_stopped_by_its_name(server: Server) -> None:
    async with connect(server.url, C) as chat:
        screen = Screen(chat)
        running, queued = await chat.send("/stream 10000 2"), await chat.send("never")
        await chat.cancel(queued)
        assert (await screen.over(queued)).state == "stopped"
        assert chat.turn == TurnState("running", running)
        await chat.cancel()
        await screen.over(running)
        await screen.over(await chat.send("hi"))
        assert "echo: never" not in [row.text for row in screen.rows]


@pytest.mark.parametrize("seed", [1, 2])
async def test_l05_reconnects_in_the_middle(server: Server, seed: int) -> None:
    """L05: the connection ends every 30 words, and within frames; the text is that of the row."""
    async with proxied(server, random.Random(seed)) as proxy:
        async with connect(f"ws://127.0.0.1:{proxy.port}/v1", C) as chat, connect(server.url, C) as author:
            screen = Screen(chat)
            turn = await author.send("/stream 400 2")
            for count in range(10, 400, 30):
                await screen.writing(count)
                proxy.cut()
            await screen.until(lambda: len(screen.rows) == 2)
            assert proxy.cuts > 10
            assert screen.rows[-1].text == words(400)
            await screen.until(lambda: screen.open is None)
            assert screen.rows[-1].turn == turn
            assert chat.draft is None
