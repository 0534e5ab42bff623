"""The task that keeps a socket: connecting, coming back, giving up, silence."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from http import HTTPStatus

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from parlatory.server import client_link
from parlatory.server.client import Client, connect
from parlatory.server.client_errors import (
    ClientClosed,
    ClientError,
    ClientMisuse,
    ConnectionRefused,
    ConversationRefused,
    SendTimeout,
)
from tests.server.test_client_peer import PROTOCOL, Frame, Peer

C = "echo/a"

pytestmark = pytest.mark.usefixtures("at_once")


async def problem_of(url: str, **fields: object) -> ConnectionRefused:
    """The error with which a client gives up."""
    async with asyncio.timeout(10), connect(url, C, **fields) as chat:  # type: ignore[arg-type]
        with pytest.raises(ConnectionRefused) as caught:
            await anext(chat)
        assert chat.status == "closed"
        assert chat.problem == str(caught.value)
        with pytest.raises(ConnectionRefused):
            await chat.send("x")
        with pytest.raises(ConnectionRefused):
            await anext(chat)
        return caught.value


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


async def test_a_server_that_is_not_there_yet() -> None:
    port = free_port()
    async with asyncio.timeout(20), connect(f"ws://127.0.0.1:{port}/v1", C) as chat:
        assert await chat.wait_status("offline") == "offline"
        assert chat.problem is not None and str(port) in chat.problem
        sending = asyncio.ensure_future(chat.send("hi"))
        made = Peer()
        async with await serve(made.handle, "127.0.0.1", port, subprotocols=[PROTOCOL]):
            assert await sending == 1
            assert chat.problem is None
            made.cut()


@pytest.mark.parametrize("status", [400, 403, 404])
async def test_another_server(status: int) -> None:
    def refuse(socket: ServerConnection, request: Request) -> Response:
        return socket.respond(HTTPStatus(status), "no")

    async def handle(socket: ServerConnection) -> None:
        raise AssertionError

    async with await serve(handle, "127.0.0.1", 0, process_request=refuse) as made:
        port = next(iter(made.sockets)).getsockname()[1]
        error = await problem_of(f"ws://127.0.0.1:{port}/v1")
    assert error.close_code == status and "address" in str(error)


async def test_a_server_that_is_full_for_now() -> None:
    made, answers = Peer(), [HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS]

    def refuse(socket: ServerConnection, request: Request) -> Response | None:
        return socket.respond(answers.pop(0), "later") if answers else None

    async with await serve(made.handle, "127.0.0.1", 0, process_request=refuse, subprotocols=[PROTOCOL]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/v1", C) as chat:
            assert await chat.send("hi") == 1
            answers.append(HTTPStatus.NOT_FOUND)  # a gateway, while the server restarts
            made.cut()
            assert await chat.send("hi") == 2
        made.cut()


async def test_a_server_of_another_protocol() -> None:
    made = Peer()
    async with await serve(made.handle, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        error = await problem_of(f"ws://127.0.0.1:{port}/v1")
    assert "no parlatory server" in str(error) and error.close_code is None


async def test_a_server_that_turns_into_another_one(server: Peer) -> None:
    """After a first success it is a gateway that errs, and is asked again."""
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        assert server.server is not None
        server.closings = [1011]
        server.cut()
        assert await chat.send("hi") == 1


@pytest.mark.parametrize("code", [4400, 4403])
async def test_never_again(server: Peer, code: int) -> None:
    server.closings = [code]
    assert (await problem_of(server.url)).close_code == code
    assert len(server.of("hello")) == 1


@pytest.mark.parametrize("token", [None, "t"])
async def test_a_constant_token_is_tried_twice(server: Peer, token: str | None) -> None:
    server.closings = [4401, 4401, 4401]
    error = await problem_of(server.url, token=token)
    assert error.close_code == 4401 and "token" in str(error)
    assert len(server.of("hello")) == 2


async def test_a_fresh_token_after_4401(server: Peer) -> None:
    tokens = iter("abcd")

    async def slowly() -> str:
        return next(tokens)

    server.closings = [4401, 4401]
    async with connect(server.url, C, token=slowly) as chat:
        assert await chat.send("hi") == 1
        server.cut()
        assert await chat.send("hi") == 2
    assert [frame["token"] for frame in server.of("hello")] == ["a", "b", "c", "c"]


async def test_a_token_that_cannot_be_had_now(server: Peer) -> None:
    answers: list[str | OSError] = ["a", OSError("no network")]

    def ask() -> str:
        answer = answers.pop()
        if isinstance(answer, OSError):
            raise answer
        return answer

    async with connect(server.url, C, token=ask) as chat:
        assert await chat.wait_status("offline") == "offline"
        assert "no network" in str(chat.problem)
        assert await chat.send("hi") == 1


async def test_a_token_that_cannot_be_had(server: Peer) -> None:
    def ask() -> str:
        raise KeyError("vault")

    assert "vault" in str(await problem_of(server.url, token=ask))
    assert "hello" in str(await problem_of(server.url, token="t" * 5000))


async def test_what_bye_asks_for_is_waited(server: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With close 1012 and with a socket that just ends behind its `bye`."""
    delays: list[float] = []
    wait = asyncio.sleep

    async def watched(delay: float) -> None:
        delays.append(delay)
        await wait(0)

    monkeypatch.setattr(asyncio, "sleep", watched)
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        server.tell("bye", code=1012, retryMs=[1500, 1500])
        server.close(server.sockets[-1], 1012)
        await chat.wait_status("offline")
        await chat.wait_status("live")
        server.tell("bye", code=1013, retryMs=[2500, 2500])
        server.sockets[-1].transport.close()
        await chat.wait_status("offline")
        await chat.wait_status("live")
    assert delays[:2] == [1.5, 2.5]


@pytest.mark.parametrize("welcome", [True, False])
async def test_silence_is_death(server: Peer, monkeypatch: pytest.MonkeyPatch, welcome: bool) -> None:
    server.beat_ms = 20
    if not welcome:
        monkeypatch.setattr(client_link, "WELCOME_S", 0.1)
        server.on["hello"] = lambda socket, frame: server.on.clear()
    async with connect(server.url, C) as chat:
        await server.until(lambda: len(server.of("hello")) == 2)
        await server.until(lambda: len(server.of("open")) >= 1)
        assert chat.problem is None or "silent" in chat.problem


async def test_beats_keep_it_alive(server: Peer) -> None:
    server.beat_ms = 200
    loop = asyncio.get_running_loop()
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        beats, done = 0, loop.create_future()

        def beat() -> None:
            nonlocal beats
            beats += 1
            server.tell("beat", heads={C: 0})
            loop.call_later(0.05, beat) if beats < 16 else done.set_result(None)

        beat()
        await done
    assert len(server.of("hello")) == 1


async def test_a_frame_that_takes_longer_than_five_beats_is_waited_for_while_it_comes(
    server: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a slow line, where a client that comes back each time would never get it."""
    server.beat_ms = 100
    monkeypatch.setattr(client_link, "WELCOME_S", 0.5)  # the first look at the silence comes after a fifth of it
    text = json.dumps({"type": "signal", "conversation": C, "name": "long", "data": "x" * 2000, "by": "ann"}).encode()
    frame = b"\x81\x7e" + len(text).to_bytes(2, "big") + text
    heard = asyncio.Event()
    async with connect(server.url, C, on_signal=lambda _: heard.set()) as chat:
        await chat.wait_status("live")
        assert server.server is not None
        (line,) = server.server.connections
        pieces = [frame[start : start + 100] for start in range(0, len(frame), 100)]

        def trickle() -> None:
            line.transport.write(pieces.pop(0))
            if pieces:
                asyncio.get_running_loop().call_later(0.03, trickle)

        trickle()
        await heard.wait()
    assert len(server.of("hello")) == 1


async def test_a_server_that_does_not_keep_to_the_protocol(server: Peer) -> None:
    def nonsense(socket: ServerConnection, frame: Frame) -> None:
        del server.on["open"]
        for _ in range(3):
            server.say(socket, "live")  # without its keys; the first one ends it

    server.on["open"] = nonsense
    async with connect(server.url, C) as chat:
        assert await chat.wait_status("live") == "live"
    assert len(server.of("hello")) == 2


async def test_a_refusal_for_now_is_repeated(server: Peer) -> None:
    def busy(socket: ServerConnection, frame: Frame) -> None:
        del server.on["send"]
        server.say(socket, "error", code="busy", text="t", retryMs=20, conversation=C, clientId=frame["clientId"])

    server.on["send"] = busy
    async with connect(server.url, C) as chat:
        first = asyncio.ensure_future(chat.send("one"))
        await server.until(lambda: server.of("send"))
        await chat.signal("n")  # behind the refusal
        assert await chat.send("two") == 2
        assert await first == 1


async def test_a_timer_does_not_outlive_the_client(server: Peer) -> None:
    server.on["send"] = lambda socket, frame: server.say(
        socket, "error", code="busy", text="t", retryMs=10**6, conversation=C, clientId=frame["clientId"]
    )
    async with connect(server.url, C) as chat:
        sending = [asyncio.ensure_future(chat.send(text)) for text in "ab"]
        await server.until(lambda: len(server.of("send")) == 2)
        await chat.signal("n")  # behind the refusals
    with pytest.raises(ClientClosed):
        await sending[0]
    with pytest.raises(ClientClosed):
        await sending[1]


async def test_a_peer_that_does_not_answer_the_close(server: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_link, "CLOSE_S", 0.05)
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        server.sockets[-1].transport.pause_reading()


async def test_a_bug_is_not_swallowed(server: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits gets an error, and so does whoever closes."""

    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError

    client = Client(server.url)
    chat = await client.open(C)
    monkeypatch.setattr(client_link, "connect", broken)
    with pytest.raises(ClientError, match="ZeroDivisionError"):
        await anext(chat)
    with pytest.raises(ZeroDivisionError):
        await client.aclose()
    del client, chat
    gc.collect()


async def test_closed_before_it_began(server: Peer) -> None:
    client = Client(server.url)
    await client.aclose()
    await client.aclose()
    with pytest.raises(ClientClosed):
        await client.open(C)


async def test_cancelled_while_it_connects() -> None:
    """A listener that accepts and says nothing."""
    writers: list[asyncio.StreamWriter] = []
    async with await asyncio.start_server(lambda reader, writer: writers.append(writer), "127.0.0.1", 0) as made:
        port = made.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}/v1", C) as chat:
            assert chat.status == "connecting"
            waiting = asyncio.ensure_future(anext(chat, None))
            assert await asyncio.wait([waiting], timeout=0.05) == (set(), {waiting})
        assert await waiting is None
        for writer in writers:
            writer.close()
            await writer.wait_closed()


async def test_what_others_tell_reaches_the_callbacks(server: Peer) -> None:
    heard: asyncio.Queue[object] = asyncio.Queue()
    async with connect(
        server.url, C, on_signal=heard.put_nowait, on_presence=heard.put_nowait, on_turn=heard.put_nowait
    ) as chat:
        await chat.wait_status("live")
        server.tell("signal", conversation=C, name="typing", by="x")
        server.tell("presence", conversation=C, count=1)
        server.tell("turn", conversation=C, id=1, state="running")
        server.tell("error", code="bad_frame", text="noted, and nothing else")
        assert [type(await heard.get()).__name__ for _ in range(3)] == ["Signal", "Presence", "TurnState"]
        assert await chat.signal("typing")


async def test_pages_and_rows_and_the_end_of_a_subscription(server: Peer) -> None:
    server.append(C, "one")
    async with Client(server.url) as client:
        chat = await client.open(C)
        reading = asyncio.ensure_future(anext(chat))
        assert len((await chat.page()).rows) == 1
        assert (await reading).seq == 1
        reading = asyncio.ensure_future(anext(chat))
        await chat.signal("n")
        server.tell("closed", conversation=C, code="forbidden")
        with pytest.raises(ConversationRefused):
            await reading
        again = await client.open(C)
        await again.aclose()
        assert await anext(again, None) is None


async def test_a_timeout_and_a_cancellation(server: Peer) -> None:
    server.on["send"] = lambda socket, frame: None
    async with connect(server.url, C) as chat:
        await chat.wait_status("live")
        with pytest.raises(SendTimeout) as caught:
            await chat.send("x", timeout_s=0.01, client_id="id")
        assert caught.value.sent
        sending = asyncio.ensure_future(chat.send("y"))
        await server.until(lambda: len(server.of("send")) == 2)
        with pytest.raises(ClientMisuse, match="new one"):
            await chat.send("x", client_id="id")
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()


async def test_a_client_that_nobody_holds_ends(server: Peer) -> None:
    client = Client(server.url)
    await (await client.open(C)).wait_status("live")
    with pytest.warns(ResourceWarning, match="unclosed"):
        del client
        gc.collect()
    await server.until(lambda: not server.sockets)


def test_stopping_after_its_loop() -> None:
    """What the garbage collector does late must not fail."""

    async def leave() -> Client:
        async with Client("ws://127.0.0.1:1/v1") as client:
            await client.open(C)
        return client

    asyncio.run(leave())._link.stop()


async def test_tls_to_a_server_without_it_has_a_reason(server: Peer) -> None:
    async with connect(server.url.replace("ws:", "wss:"), C) as chat:
        await chat.wait_status("offline")
        assert chat.problem is not None and not chat.problem.endswith(": ")
