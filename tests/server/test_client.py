"""The Python client against a scripted peer: rows, sends, pages, signals, status, misuse."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection

from parlatory.server.client import Chat, Client, connect
from parlatory.server.client_errors import (
    ClientClosed,
    ClientMisuse,
    ConversationRefused,
    Refused,
    SendRefused,
    SendTimeout,
)
from parlatory.server.client_frames import Presence, Signal, TurnState
from parlatory.server.client_subscription import Position, Status
from parlatory.storage import CodecError, CorruptRow, InvalidName, StoredMessage, TooLarge, system_message
from parlatory.storage.messages import Image, Text
from tests.server.test_client_peer import Frame, Peer

C, D = "echo/a", "echo/b"

pytestmark = pytest.mark.usefixtures("at_once")


async def take(chat: Chat, count: int) -> list[int]:
    return [(await anext(chat)).seq for _ in range(count)]


def silent(socket: ServerConnection, frame: Frame) -> None:
    """Answers nothing."""


# -- rows


async def test_rows_and_sends(server: Peer) -> None:
    server.append(C, "one")
    async with connect(server.url, C) as chat:
        assert (chat.position, chat.epoch, chat.resets, chat.principal) == (None, None, 0, None)
        assert await chat.send("two") == 2
        rows = [row async for row in limited(chat, 2)]
        assert [(row.seq, row.by, row.text) for row in rows] == [(1, "agent", "one"), (2, "me", "two")]
        assert chat.position == Position("e1", 2, rows[-1].at)
        assert (chat.epoch, chat.conversation, chat.principal, chat.turn) == ("e1", C, "me", TurnState("idle"))
    (hello,) = server.of("hello")
    assert re.fullmatch("[A-Za-z0-9_-]{22}", hello["client"])
    (sent,) = server.of("send")
    assert re.fullmatch("[A-Za-z0-9_-]{22}", sent["clientId"])


async def limited(chat: Chat, count: int) -> AsyncIterator[StoredMessage]:
    async for row in chat:
        yield row
        count -= 1
        if not count:
            return


async def test_t25_what_was_missed_comes_once(server: Peer) -> None:
    """T25: gone at 5, the log grows to 20."""
    for number in range(5):
        server.append(C, str(number))
    async with connect(server.url, C) as chat:
        assert await take(chat, 5) == [1, 2, 3, 4, 5]
        server.cut()
        await chat.wait_status("offline")
        for number in range(15):
            server.append(C, str(number))
        assert await take(chat, 15) == list(range(6, 21))
        server.append(C, "live")
        assert await take(chat, 1) == [21]
        assert not chat.ready
    resumed = server.of("open")[-1]
    assert (resumed["after"], resumed["at"]) == (5, "2026-11-30T00:00:00.000005Z")


async def test_t26_rows_that_were_not_taken_come_again_once(server: Peer) -> None:
    for number in range(6):
        server.append(C, str(number))
    async with connect(server.url, C) as chat:
        assert await take(chat, 2) == [1, 2]
        await chat.wait_status("live")
        server.cut()
        await chat.wait_status("offline")
        assert chat.ready, "what came can be taken offline"
        assert await take(chat, 1) == [3]
        await chat.wait_status("live")
        assert await take(chat, 3) == [4, 5, 6]


async def test_t32_nothing_came_before_the_drop(server: Peer) -> None:
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        server.cut()
        await chat.wait_status("offline")
        server.append(C, "one")
        assert await take(chat, 1) == [1]
    assert (server.of("open")[-1]["epoch"], server.of("open")[-1]["after"]) == ("e1", 0)


@pytest.mark.parametrize("later", [False, True])
async def test_t34_a_reset_is_met_between_the_logs(server: Peer, later: bool) -> None:
    """T34: the log was wiped. The application hears of it in the task that iterates, before the first new row."""
    held: list[int] = []

    def drop(chat: Chat) -> None:
        assert (chat.epoch, chat.resets) == ("e2", 1)
        held.clear()

    async def drop_later(chat: Chat) -> None:
        await asyncio.sleep(0)
        drop(chat)

    for number in range(3):
        server.append(C, str(number))
    async with connect(server.url, C, on_reset=drop_later if later else drop) as chat:
        held += await take(chat, 2)
        await chat.wait_status("live")
        server.epoch, server.logs[C] = "e2", []
        server.append(C, "new")
        server.cut()
        await chat.wait_status("offline")
        await chat.wait_status("live")
        assert (held, chat.epoch) == ([1, 2], "e1")
        held += await take(chat, 1)
        assert held == [1]


async def test_t34_a_reset_without_anybody_who_wants_to_know(server: Peer) -> None:
    server.append(C, "one")
    async with connect(server.url, C, position=Position("gone", 10**9), tail=1) as chat:
        assert await take(chat, 1) == [1]
        assert chat.resets == 1


async def test_a_position_of_an_earlier_process(server: Peer) -> None:
    for number in range(4):
        server.append(C, str(number))
    async with connect(server.url, C, tail=2) as chat:
        assert await take(chat, 1) == [3]
        position = chat.position
    async with connect(server.url, C, position=position) as chat:
        assert await take(chat, 1) == [4]


async def test_l15_the_chat_is_opened_again_inside_of_the_loop(server: Peer) -> None:
    """L15: the row in hand is not handed out again."""
    for number in range(3):
        server.append(C, str(number))
    async with Client(server.url) as client:
        chat = await client.open(C)
        seen: list[int] = []
        while len(seen) < 3:
            async for row in chat:
                seen.append(row.seq)
                await chat.aclose()
                chat = await client.open(C, position=chat.position)
                break
        assert seen == [1, 2, 3]


async def test_a_row_that_cannot_be_read_does_not_end_it(server: Peer) -> None:
    server.append(C, "one")
    server.logs[C][0]["message"]["role"] = "judge"
    server.append(C, "two")
    async with connect(server.url, C) as chat:
        with pytest.raises(CorruptRow):
            await anext(chat)
        assert await take(chat, 1) == [2]


async def test_a_slow_application_costs_a_position(server: Peer) -> None:
    """And sends are answered meanwhile, although the application takes no rows."""
    for number in range(500):
        server.append(C, str(number))
    async with connect(server.url, C, rows_max=50) as chat:
        await server.until(lambda: server.of("close"))
        assert await chat.send("x") == 501
        assert await take(chat, 501) == list(range(1, 502))
        assert await chat.wait_status("live") == "live"
    assert len(server.of("open")) > 1 and len(server.of("hello")) == 1


async def test_a_cancelled_iteration_loses_nothing(server: Peer) -> None:
    async with connect(server.url, C) as chat:
        for seq in range(1, 4):
            taking = asyncio.ensure_future(anext(chat))
            await chat.wait_status("live")
            await asyncio.sleep(0)
            taking.cancel()
            await asyncio.wait([taking])
            server.append(C, "x")
            assert await take(chat, 1) == [seq]


async def test_two_iterations_at_once(server: Peer) -> None:
    async with connect(server.url, C) as chat:
        first = asyncio.ensure_future(anext(chat))
        await asyncio.sleep(0)
        with pytest.raises(ClientMisuse, match="another task"):
            await anext(chat)
        server.append(C, "x")
        await chat.send("y")
        assert (await first).seq == 1


# -- sends


async def test_t47_l13_a_lost_ack(server: Peer) -> None:
    """T47, L13: the socket ends between commit and ack."""

    def commit_only(socket: ServerConnection, frame: Frame) -> None:
        del server.on["send"]
        server.subscribers.clear()  # its row would be as good as an ack
        server.commit(frame)
        server.cut()

    server.on["send"] = commit_only
    async with connect(server.url, C) as chat:
        assert await chat.send("pay") == 1
    first, second = server.of("send")
    assert first["clientId"] == second["clientId"]
    assert len(server.logs[C]) == 1


async def test_sends_made_offline_keep_their_order(server: Peer) -> None:
    server.closings = [1011, 1011]
    async with connect(server.url, C) as chat:
        assert await asyncio.gather(*(chat.send(str(number)) for number in range(100))) == list(range(1, 101))
    assert [row["message"]["content"] for row in server.logs[C]] == [str(number) for number in range(100)]


async def test_what_can_be_sent(server: Peer) -> None:
    server.on["send"] = lambda socket, frame: server.say(
        socket, "ack", conversation=C, clientId=frame["clientId"], seq=len(server.of("send"))
    )
    async with connect(server.url, C) as chat:
        await chat.send([Text(text="see"), Image(url="https://x.test/a.png")])
        await chat.send(system_message("be kind"), client_id="mine")
        with pytest.raises(CodecError):
            await chat.send([Image()])
        with pytest.raises(CodecError):
            await chat.send("half \ud83d")
        with pytest.raises(ClientMisuse, match="client_id"):
            await chat.send("x", client_id="no spaces")
    parts, system = server.of("send")
    assert [part["type"] for part in parts["message"]["content"]] == ["text", "image"]
    assert (system["message"]["role"], system["clientId"]) == ("system", "mine")


async def test_a_client_id_in_use(server: Peer) -> None:
    async with connect(server.url, C) as chat:
        first = asyncio.ensure_future(chat.send("x", client_id="id"))
        await asyncio.sleep(0)
        with pytest.raises(ClientMisuse, match="new one"):
            await chat.send("y", client_id="id")
        assert await first == 1


async def test_l21_a_refused_send(server: Peer) -> None:
    server.on["send"] = lambda socket, frame: server.say(
        socket, "error", code="forbidden", text="t", conversation=C, clientId=frame["clientId"]
    )
    async with connect(server.url, C) as chat:
        with pytest.raises(SendRefused) as caught:
            await chat.send("x")
        assert caught.value.code == "forbidden"
        assert chat.status != "closed"


@pytest.mark.parametrize("size", [900_000, 1_100_000, 8 << 20, 64 << 20])
async def test_t53_what_is_too_large_is_refused_here(server: Peer, size: int) -> None:
    """T53: 0.9, 1.1, 8 and 64 MB. No socket ends over it, and nothing is tried again."""
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        if size < 1 << 20:
            assert await chat.send("x" * size) == 1
        else:
            with pytest.raises(TooLarge) as caught:
                await chat.send("x" * size)
            assert caught.value.limit == 1 << 20
        assert await chat.send("y") == (2 if size < 1 << 20 else 1)
    assert len(server.of("hello")) == 1


async def test_t53_a_limit_that_nobody_told(server: Peer) -> None:
    """T53: something in between ends the socket with 1009; the message is refused, not repeated for ever."""
    server.on["send"] = lambda socket, frame: server.close(socket, 1009)
    async with connect(server.url, C) as chat:
        with pytest.raises(TooLarge):
            await chat.send("x")
        server.on.clear()
        assert await chat.send("y") == 1


async def test_a_send_that_was_not_sent_times_out(server: Peer) -> None:
    server.on["hello"] = silent
    async with connect(server.url, C) as chat:
        with pytest.raises(SendTimeout) as caught:
            await chat.send("x", timeout_s=0.01)
        assert not caught.value.sent
        server.on.clear()
        server.cut()
        assert await chat.send("y") == 1
    assert [row["message"]["content"] for row in server.logs[C]] == ["y"]


async def test_a_send_that_was_sent_times_out(server: Peer) -> None:
    server.on["send"] = silent
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        with pytest.raises(SendTimeout) as caught:
            await chat.send("x", timeout_s=0.01)
        assert caught.value.sent
        server.on.clear()
        server.cut()
        assert await chat.send("y") == 2, "the first is still brought to its end"
        assert caught.value.client_id == server.logs[C][0]["clientId"]


async def test_a_send_that_is_cancelled(server: Peer) -> None:
    server.on["hello"] = silent
    async with connect(server.url, C) as chat:
        sending = asyncio.ensure_future(chat.send("x"))
        await server.until(lambda: server.of("hello"))
        sending.cancel()
        await asyncio.wait([sending])
        server.on.clear()
        server.cut()
        assert await chat.send("y") == 1


async def test_an_answer_that_comes_with_the_timeout(server: Peer) -> None:
    """The answer is there before the timeout can raise: it counts."""
    server.on["send"] = silent
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        link = chat._link

        def answer() -> None:
            (future,) = link._futures.values()
            loop.call_soon(future.set_result, 7)

        loop = asyncio.get_running_loop()
        now = loop.time()
        loop.call_at(now + 0.01, answer)
        try:
            assert await chat.send("x", timeout_s=now + 0.01 - loop.time()) == 7
        except SendTimeout as error:
            assert error.sent


# -- pages, signals, status


async def test_pages(server: Peer) -> None:
    for number in range(5):
        server.append(C, str(number))
    async with connect(server.url, C, tail=0) as chat:
        newest = await chat.page(limit=2)
        assert ([row.seq for row in newest.rows], newest.more, newest.epoch) == ([4, 5], True, "e1")
        older = await chat.page(before=newest.rows[0].seq)
        assert ([row.seq for row in older.rows], older.more) == ([1, 2, 3], False)


async def test_a_page_is_asked_for_again(server: Peer) -> None:
    def cut(socket: ServerConnection, frame: Frame) -> None:
        del server.on["page"]
        server.cut()

    server.on["page"] = cut
    async with connect(server.url, C) as chat:
        assert (await chat.page()).rows == ()


async def test_signals_and_presence_and_turns(server: Peer) -> None:
    heard: list[object] = []
    all_heard = asyncio.Event()

    def hear(what: object) -> None:
        heard.append(what)
        if len(heard) == 3:
            all_heard.set()

    async with (
        connect(server.url, C, on_signal=hear, on_presence=hear, on_turn=hear) as listener,
        connect(server.url, C) as chat,
    ):
        await listener.wait_status("live")
        assert await chat.signal("typing", {"on": True}) is True
        await chat.wait_status("live")
        for socket in server.sockets:
            server.say(socket, "presence", conversation=C, count=1, principals=["me"])
            server.say(socket, "turn", conversation=C, id=3, state="running")
        await all_heard.wait()
        assert [type(what) for what in heard] == [Signal, Presence, TurnState]
        assert listener.turn == TurnState("running", 3)
        with pytest.raises(CodecError):
            await chat.signal("typing", object())
        server.on["signal"] = lambda socket, frame: server.say(
            socket, "error", code="rate", text="t", retryMs=1, conversation=C
        )
        with pytest.raises(Refused) as caught:
            await chat.signal("typing")
        assert caught.value.code == "rate"
        server.cut()
        await chat.wait_status("offline")
        assert await chat.signal("typing") is False


async def test_status(server: Peer) -> None:
    told: list[Status] = []
    async with connect(server.url, C, on_status=told.append) as chat:
        assert chat.status == "connecting"
        assert await chat.wait_status("connecting") == "connecting"
        assert await chat.wait_status() == "replaying"
        assert await chat.wait_status("live", "closed") == "live"
        server.cut()
        assert await chat.wait_status("offline") == "offline"
        assert await chat.wait_status("live") == "live"
        waiting = asyncio.ensure_future(chat.wait_status("offline"))
        await asyncio.sleep(0)
        await chat.aclose()
        assert await waiting == "closed" and await chat.wait_status("live") == "closed"
        await asyncio.sleep(0)
    assert told == ["replaying", "live", "offline", "replaying", "live", "closed"]


async def test_a_callback_that_raises_is_reported_and_harms_nothing(server: Peer) -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def fail(status: Status) -> None:
        raise ZeroDivisionError

    async with connect(server.url, C, on_status=fail) as chat:
        assert await chat.send("x") == 1
        await chat.wait_status("live")
    assert reported and all(isinstance(error, ZeroDivisionError) for error in reported)


# -- several conversations, the end, misuse


async def test_several_conversations_on_one_socket(server: Peer) -> None:
    async with Client(server.url) as client:
        first, second = await client.open(C), await client.open(D)
        assert list(await asyncio.gather(first.send("a"), second.send("b"), first.send("c"))) == [1, 1, 2]
        assert await take(first, 2) == [1, 2]
        await second.aclose()
        await second.aclose()
        assert [row async for row in second] == []
        with pytest.raises(ClientClosed):
            await second.send("x")
        with pytest.raises(ClientClosed):
            await second.page()
        assert await first.send("d") == 3
        assert client.problem is None
        again = await client.open(D)
        assert await take(again, 1) == [1]
    assert len(server.of("hello")) == 1
    assert [row async for row in first] == []


async def test_l17_a_conversation_is_open_once(server: Peer) -> None:
    async with Client(server.url) as client:
        await client.open(C)
        with pytest.raises(ClientMisuse, match="that chat"):
            await client.open(C)


async def test_the_33rd_conversation(server: Peer) -> None:
    async with Client(server.url) as client:
        for number in range(32):
            chat = await client.open(f"echo/{number}")
        with pytest.raises(ClientMisuse, match="32"):
            await client.open(C)
        await chat.aclose()
        chat = await client.open(C)
        await chat.wait_status("live")
        server.limits["conversations"] = 5
        server.cut()
        await chat.wait_status("offline")
        await chat.wait_status("live")
        with pytest.raises(ClientMisuse, match="5"):
            await client.open(D)


async def test_the_server_ends_a_conversation(server: Peer) -> None:
    server.append(C, "one")
    async with Client(server.url) as client:
        chat, other = await client.open(C), await client.open(D)
        await chat.wait_status("live")
        server.tell("closed", conversation=C, code="forbidden")
        assert await chat.wait_status("live", "offline") == "live"
        await chat.wait_status("closed")
        assert await take(chat, 1) == [1], "what came before can still be taken"
        for _ in range(2):
            with pytest.raises(ConversationRefused) as caught:
                await anext(chat)
            assert caught.value.code == "forbidden"
        assert chat.problem is not None and "forbidden" in chat.problem
        assert await other.send("x") == 1


async def test_whoever_iterates_is_woken_by_the_end(server: Peer) -> None:
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        waiting = asyncio.ensure_future(anext(chat, None))
        await asyncio.sleep(0)
        await chat.aclose()
        assert await waiting is None


async def test_what_waits_when_the_client_closes(server: Peer) -> None:
    server.on["send"] = server.on["page"] = silent
    async with connect(server.url, C) as chat:
        waiting = [asyncio.ensure_future(chat.send("x")), asyncio.ensure_future(chat.page())]
        await server.until(lambda: server.of("page"))
    assert [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == [ClientClosed] * 2


async def test_misuse(server: Peer) -> None:
    for url in ("http://x/v1", "x", "ws://"):
        with pytest.raises(ClientMisuse, match="ws://host:port/v1"):
            Client(url)
    with pytest.raises(ClientMisuse, match="22 to 64"):
        Client(server.url, client="short")
    async with Client(server.url, client="i" * 22) as client:
        with pytest.raises(InvalidName):
            await client.open("nope")
        await (await client.open(C)).wait_status("live")
    assert server.of("hello")[0]["client"] == "i" * 22


async def test_an_unclosed_client_warns(server: Peer) -> None:
    client = Client(server.url)
    chat = await client.open(C)
    await chat.wait_status("live")
    task = chat._link._task
    assert task is not None
    with pytest.warns(ResourceWarning, match="aclose"):
        del client, chat
        gc.collect()
    await asyncio.wait([task])
    assert task.cancelled()


def test_it_loads_neither_engine_nor_runtime() -> None:
    script = (
        "import sys\nfrom parlatory.server.client import connect\n"
        "import parlatory.server.cli_chat, parlatory.server.cli_tail\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "parlatory.server.client_link" in loaded
    assert not {name for name in loaded if name.split(".")[0] in ("aiosqlite", "sqlite3")}
    assert not {name for name in loaded if name.startswith("parlatory.actors")}


def test_the_iterator_type() -> None:
    """mypy reads it: a chat is an iterator of rows."""
    assert issubclass(Chat, AsyncIterator)


@pytest.mark.parametrize(("tail", "error", "says"), [
    (-1, ValueError, "tail is a number of rows, not -1"),
    ("x", TypeError, "tail is a number of rows, not a str"),
    (True, TypeError, "not a bool"),
])  # fmt: skip
async def test_a_tail_that_is_none(tail: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        async with connect("ws://127.0.0.1:1/v1", C, tail=tail):
            raise AssertionError("it was opened")
