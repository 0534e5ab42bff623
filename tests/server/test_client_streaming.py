"""The Python client against a scripted peer: events, drafts, stops."""

from __future__ import annotations

import asyncio

import pytest
from websockets.asyncio.server import ServerConnection

from parlatory.server.client import Chat, Client, connect
from parlatory.server.client_drafts import Draft
from parlatory.server.client_errors import CancelTimeout, ClientClosed, ClientMisuse, ConversationRefused, Refused
from parlatory.server.client_frames import Signal, TurnState
from parlatory.storage import CorruptRow, StoredMessage
from tests.server.test_client_peer import Frame, Peer

C = "echo/a"

pytestmark = pytest.mark.usefixtures("at_once")


def draft(server: Peer, text: str, index: int = 0) -> None:
    message = {"role": "assistant", "content": text}
    server.tell("draft", conversation=C, id="d", turn=1, index=index, message=message)


def delta(server: Peer, index: int, text: str) -> None:
    server.tell("delta", conversation=C, id="d", to=index + 1, ops=[{"add": text}], **{"from": index})


async def test_everything_in_its_order(server: Peer) -> None:
    server.append(C, "hi", "me")
    async with connect(server.url, C) as chat:
        events = chat.events()
        await chat.wait_status("live")
        server.tell("turn", conversation=C, id=1, state="running")
        draft(server, "")
        row = await anext(events)
        assert isinstance(row, StoredMessage) and row.text == "hi"
        assert await anext(events) == TurnState("running", 1) == chat.turn
        assert isinstance(first := await anext(events), Draft) and first == chat.draft
        delta(server, 0, "he")
        assert isinstance(second := await anext(events), Draft) and second.text == "he"
        server.tell("signal", conversation=C, name="n", by="x", data=1)
        assert isinstance(await anext(events), Signal)
        server.append(C, "hello", turn=1)
        server.tell("draftEnd", conversation=C, id="d", seq=2, finish="done")
        answer, end = await anext(events), await anext(events)
        assert isinstance(answer, StoredMessage) and isinstance(end, Draft)
        assert (end.seq, end.finish, end.message) == (answer.seq, "done", answer.message)
        assert chat.draft is None
    assert [event async for event in events] == []


async def test_rows_and_events_share_the_rows(server: Peer) -> None:
    """Each row comes once, here or there; what came before one taken as a row is dropped."""
    async with connect(server.url, C) as chat:
        events = chat.events()
        await chat.wait_status("live")
        server.tell("turn", conversation=C, id=1, state="running")
        server.append(C, "one")
        server.tell("turn", conversation=C, id=1, state="done")
        server.append(C, "two")
        assert (await anext(chat)).seq == 1
        assert await anext(events) == TurnState("done", 1)
        second = await anext(events)
        assert isinstance(second, StoredMessage) and second.seq == 2
        waiting = asyncio.ensure_future(anext(chat))
        await asyncio.sleep(0)
        with pytest.raises(ClientMisuse, match="another task"):
            await anext(events)
        waiting.cancel()


async def test_a_lost_connection_drops_no_event_loop_of_the_application(server: Peer) -> None:
    async with connect(server.url, C) as chat:
        events = chat.events()
        await chat.wait_status("live")
        draft(server, "ab", 2)
        assert isinstance(await anext(events), Draft)
        server.cut()
        await chat.wait_status("offline")
        await chat.wait_status("live")
        end = await anext(events)
        assert isinstance(end, Draft) and end.finish == "lost"


async def test_resets_and_corrupt_rows_and_the_end(server: Peer) -> None:
    met: list[Chat] = []
    server.append(C, "one")
    async with connect(server.url, C, on_reset=met.append) as chat:
        events = chat.events()
        first = await anext(events)
        assert isinstance(first, StoredMessage)
        await chat.wait_status("live")
        server.epoch = "e2"
        server.logs[C][0]["message"]["role"] = "judge"
        server.cut()
        with pytest.raises(CorruptRow):
            await anext(events)
        assert met == [chat]
        await chat.wait_status("live")
        server.tell("closed", conversation=C, code="forbidden")
        with pytest.raises(ConversationRefused):
            await anext(events)


# -- stops


async def test_a_stop_names_the_turn_that_runs(server: Peer) -> None:
    async with connect(server.url, C, on_turn=lambda turn: None) as chat:
        await chat.wait_status("live")
        await chat.cancel()
        server.tell("turn", conversation=C, id=1, state="running")
        await chat.signal("behind the turn")
        await chat.cancel()
        await chat.cancel(9)
    assert [frame.get("turn") for frame in server.of("cancel")] == [None, 1, 9]


async def test_a_stop_made_offline_waits(server: Peer) -> None:
    server.closings = [1011]
    async with connect(server.url, C) as chat:
        await chat.cancel()
    assert len(server.of("cancel")) == 1


async def test_a_stop_that_is_cut_off_is_repeated(server: Peer) -> None:
    def cut(socket: ServerConnection, frame: Frame) -> None:
        del server.on["cancel"]
        server.cut()

    server.on["cancel"] = cut
    async with connect(server.url, C) as chat:
        await chat.cancel(1)
    assert len(server.of("cancel")) == 2


async def test_a_stop_that_times_out(server: Peer) -> None:
    server.on["hello"] = lambda socket, frame: None
    async with connect(server.url, C) as chat:
        with pytest.raises(CancelTimeout) as caught:
            await chat.cancel(timeout_s=0.01)
        assert not caught.value.sent and caught.value.conversation == C
        server.on.clear()
        server.cut()
        await chat.wait_status("live")
        server.on["ping"] = lambda socket, frame: None
        with pytest.raises(CancelTimeout) as caught:
            await chat.cancel(1, timeout_s=0.01)
        assert caught.value.sent
    assert len(server.of("cancel")) == 1


async def test_a_stop_that_is_refused_or_too_late(server: Peer) -> None:
    server.on["cancel"] = lambda socket, frame: server.say(socket, "error", code="forbidden", text="t", conversation=C)
    async with Client(server.url) as client:
        chat = await client.open(C)
        with pytest.raises(Refused):
            await chat.cancel()
        server.on["cancel"] = server.on["ping"] = lambda socket, frame: None
        waiting = asyncio.ensure_future(chat.cancel())
        await server.until(lambda: len(server.of("cancel")) == 2)
        await chat.aclose()
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await chat.cancel()
