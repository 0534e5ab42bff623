"""Who a connection is and what it may do: the application's hooks, over a real server."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from parlatory.server import AccessRequest, ConversationName, Grant, Limits, Principal
from parlatory.storage import Engine, MessageLog, Partition, open_engine, user_message

from .peers import CLIENT, Json, Peer, RawPeer, later, serving, the_connection, until, user

C = "relay/x"
ANN, BOB = Principal("user:ann"), Principal("user:bob")
TOKENS = {"ann": ANN, "ann2": ANN, "bob": BOB}


def by_token(request: AccessRequest) -> Principal | None:
    return TOKENS.get(request.token or "")


def everything(*_: object) -> bool:
    return True


HOOKS: dict[str, Any] = {"authenticate": by_token, "authorize": everything}


def held_up(engine: Engine) -> tuple[asyncio.Event, asyncio.Event]:
    """Holds up who opens a partition: sets the first event when somebody does, and lets them in with the second."""
    entered, go_on, partition = asyncio.Event(), asyncio.Event(), engine.partition

    async def slow_partition(name: str) -> Partition:
        entered.set()
        await go_on.wait()
        return await partition(name)

    engine.partition = slow_partition  # type: ignore[method-assign]
    return entered, go_on


# -- authenticate


async def test_authenticate_sees_the_handshake() -> None:
    seen: list[AccessRequest] = []

    def authenticate(request: AccessRequest) -> Principal:
        seen.append(request)
        return request.anonymous

    headers = [("Authorization", "Bearer a"), ("X-Two", "1"), ("X-Two", "2"), ("Cookie", "c=1")]
    async with serving(authenticate=authenticate, origins=["https://a.example"]) as server:
        async with Peer.to(server, origin="https://A.example", headers=headers) as peer:
            await peer.hello(token="t")
    (request,) = seen
    assert (request.token, request.client, request.remote) == ("t", CLIENT, "127.0.0.1")
    assert request.headers["authorization"] == "Bearer a"
    assert request.headers["x-two"] == "1, 2"
    assert request.headers["cookie"] == "c=1"


async def test_cookies_are_for_servers_that_list_their_origins(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[AccessRequest] = []

    def authenticate(request: AccessRequest) -> Principal:
        seen.append(request)
        return request.anonymous

    async with serving(authenticate=authenticate) as server:
        for _ in range(2):
            async with Peer.to(server, headers={"Cookie": "session=s3cret"}) as peer:
                await peer.hello()
    assert ["cookie" in request.headers for request in seen] == [False, False]
    (warning,) = [record.getMessage() for record in caplog.records if "cookies" in record.getMessage()]
    assert "give serve the origins" in warning and "s3cret" not in warning


async def test_a_refused_token_closes_4401(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(**HOOKS) as server, Peer.to(server) as peer:
            await peer.send(type="hello", token="s3cret")
            await peer.refused(4401)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("parlatory")]
    assert any("is not let in" in line for line in ours) and not any("s3cret" in line for line in ours)


@pytest.mark.parametrize("answer", ["raise", "s3cret", Principal("agent")])
async def test_a_hook_that_fails_lets_nobody_in(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is no verdict over the token: clients come back with the same."""

    def authenticate(_: AccessRequest) -> Any:
        if answer == "raise":
            raise RuntimeError("the directory is down")
        return answer

    async with serving(authenticate=authenticate) as server, Peer.to(server) as peer:
        await peer.send(type="hello", token="s3cret")
        await peer.refused(1011)
        assert peer.seen[-1]["retryMs"] == [500, 5000]
    assert "authenticate failed, it is not let in" in caplog.text and "s3cret" not in caplog.text


async def test_a_slow_authenticate_holds_the_frames_behind_it() -> None:
    waiting = asyncio.Event()

    async def authenticate(request: AccessRequest) -> Principal:
        await waiting.wait()
        return request.anonymous

    async with serving(authenticate=authenticate, authorize=everything) as server, Peer.to(server) as peer:
        await peer.send(type="hello")
        await peer.post(C, "1", "c1")
        await peer.send(type="ping", n=1)
        await until(lambda: the_connection(server)._queued == 3)
        waiting.set()
        await peer.get("ack", clientId="c1")
        assert [frame["type"] for frame in peer.seen[:2]] == ["welcome", "pong"]


async def test_an_authenticate_that_takes_too_long_ends_it() -> None:
    async def authenticate(_: AccessRequest) -> Principal:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    limits = Limits(authorize_timeout_s=0.02)
    async with serving(authenticate=authenticate, limits=limits) as server, Peer.to(server) as peer:
        await peer.send(type="hello")
        await peer.refused(1011)


@pytest.mark.parametrize("end", ["leaves", "is drained"])
async def test_a_socket_that_ends_while_it_is_authenticated_is_not_let_in(end: str) -> None:
    asked, waiting = asyncio.Event(), asyncio.Event()

    async def authenticate(request: AccessRequest) -> Principal:
        asked.set()
        await waiting.wait()
        return request.anonymous

    async with serving(authenticate=authenticate, limits=Limits(close_s=0.1)) as server:
        async with RawPeer.to(server) as peer:
            await peer.text(type="hello")
            await asked.wait()
            connection = the_connection(server)
            if end == "leaves":
                peer.sock.close()
                await until(lambda: not server.connections)
            else:
                closing = asyncio.ensure_future(server.close(0))
                await peer.read_to_end()
            waiting.set()
            if end != "leaves":
                await closing
            await until(lambda: connection._slow is None)
            assert connection.principal is None and connection._beat is None and server._pending == 0


# -- auth, expiry


async def test_auth_renews_the_token_of_the_same_principal() -> None:
    async with serving(**HOOKS) as server, Peer.to(server) as peer:
        first = await peer.hello(token="ann")
        await peer.send(type="auth", token="ann2")
        assert (await peer.get("welcome"))["connection"] == first["connection"]
        await peer.send(type="auth", token="bob")
        assert (await peer.get("error"))["code"] == "forbidden"
        await peer.send(type="auth", token="eve")
        await peer.refused(4401)


async def test_an_auth_whose_hook_fails_may_be_repeated() -> None:
    broken = False

    def authenticate(request: AccessRequest) -> Principal | None:
        if broken:
            raise RuntimeError("the directory is down")
        return by_token(request)

    async with serving(authenticate=authenticate) as server, Peer.to(server) as peer:
        await peer.hello(token="ann")
        broken = True
        await peer.send(type="auth", token="ann2")
        error = await peer.get("error")
        assert error["code"] == "internal" and error["retryMs"] > 0
        broken = False
        await peer.send(type="auth", token="ann2")
        await peer.get("welcome")


async def test_an_auth_that_is_overtaken_by_the_end_says_nothing() -> None:
    waiting = asyncio.Event()

    async def authenticate(request: AccessRequest) -> Principal | None:
        if request.token == "ann2":
            await waiting.wait()
        return by_token(request)

    async with serving(authenticate=authenticate) as server, Peer.to(server) as peer:
        await peer.hello(token="ann")
        await peer.send(type="auth", token="ann2")
        await until(lambda: the_connection(server)._slow)
        assert await server.revoke("user:ann") == 1
        waiting.set()
        await peer.refused(4403)
        assert [frame["type"] for frame in peer.seen] == ["welcome", "bye"]


async def test_a_token_that_ends_is_announced_and_then_closed() -> None:
    now = time.time()
    ends = {"soon": now + 0.15, "later": now + 1000, "past": now - 1}

    def authenticate(request: AccessRequest) -> Principal:
        return Principal("user:ann", ends.get(request.token or ""))

    async with serving(authenticate=authenticate) as server:
        async with Peer.to(server) as peer:
            await peer.hello(token="soon")
            assert 0 < (await peer.get("authExpiring"))["inMs"] <= 150
            await peer.refused(4401)
        async with Peer.to(server) as peer:
            await peer.hello(token="later")
            timer = the_connection(server)._expiry
            assert timer is not None and timer.when() > asyncio.get_running_loop().time() + 900
            await peer.send(type="auth", token="none")
            await peer.get("welcome")
            assert timer.cancelled() and the_connection(server)._expiry is None
            await peer.send(type="auth", token="past")
            await peer.refused(4401)
        async with Peer.to(server) as peer:
            await peer.send(type="hello", token="past")
            await peer.refused(4401)


# -- authorize


async def test_authorize_is_asked_for_every_action() -> None:
    asked: list[tuple[str, str, str]] = []

    def authorize(principal: Principal, action: str, conversation: ConversationName) -> bool:
        asked.append((principal.name, action, str(conversation)))
        return True

    hooks: Any = {"authenticate": by_token, "authorize": authorize}
    async with serving(**hooks) as server, Peer.admitted(server, token="ann") as peer:
        await peer.open(C)
        await peer.page(C)
        await peer.say(C, "x")
        for frame in ({"type": "signal", "name": "n"}, {"type": "cancel"}, {"type": "call", "id": "i", "method": "m"}):
            await peer.send(conversation=C, **frame)
        await peer.send(type="close", conversation=C)
        await peer.send(type="open", conversation="nosuch/x")
        await peer.barrier()
    assert asked == [("user:ann", action, C) for action in ("open", "page", "send", "signal", "cancel", "call")]


FRAMES: list[Json] = [
    {"type": "open"},
    {"type": "page", "id": "i", "before": 1},
    {"type": "send", "clientId": "c", "message": user("x")},
    {"type": "signal", "name": "n"},
    {"type": "cancel"},
    {"type": "call", "id": "i", "method": "m"},
]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame["type"])
async def test_forbidden_looks_like_absent_and_loads_no_actor(frame: Json, slow: bool) -> None:
    def authorize(*_: object) -> Any:
        return later(False) if slow else False

    hooks: Any = {"authenticate": by_token, "authorize": authorize}
    async with serving(**hooks) as server, Peer.admitted(server, token="ann") as peer:
        errors = []
        for conversation in ("relay/x", "nosuch/x"):
            await peer.send(conversation=conversation, **frame)
            errors.append(await peer.get("error", conversation=conversation))
        for error in errors:
            del error["conversation"]
        assert errors[0] == errors[1] and errors[0]["code"] == "forbidden"
        assert server.runtime.conversations == 0
        assert the_connection(server).session.inflight == 0


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("answer", ["raise", "yes", None])
async def test_an_authorize_that_fails_allows_nothing(
    answer: Any, slow: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def wrong_later() -> Any:
        return wrong()

    def wrong() -> Any:
        if answer == "raise":
            raise RuntimeError("the directory is down")
        return answer

    def authorize(*_: object) -> Any:
        return wrong_later() if slow else wrong()

    async with serving(authorize=authorize) as server, Peer.admitted(server) as peer:
        for frame in FRAMES:
            await peer.send(conversation=C, **frame)
            error = await peer.get("error")
            assert error["code"] == "internal" and error["retryMs"] > 0
        assert the_connection(server).session.inflight == 0
        assert f"connection {the_connection(server).id}: a send frame failed" in caplog.text


async def test_an_authorize_that_fails_again_and_again_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def authorize(principal: Any, *_: object) -> Any:
        return principal.id == "ann"

    async with serving(authorize=authorize) as server, Peer.admitted(server) as peer:
        for _ in range(5):
            await peer.send(type="open", conversation=C)
            await peer.get("error", code="internal")
    failures = [record for record in caplog.records if "an open frame failed" in record.getMessage()]
    assert len(failures) == 1 and failures[0].exc_info


async def test_an_authorize_that_takes_too_long_is_internal_and_the_order_is_kept() -> None:
    def authorize(_: Principal, action: str, conversation: ConversationName) -> Any:
        return asyncio.get_running_loop().create_future() if conversation.name == "slow" else later(True)

    async with serving(authorize=authorize, limits=Limits(authorize_timeout_s=0.05)) as server:
        async with Peer.admitted(server) as peer:
            await peer.post("relay/slow", "x", "c1")
            for n in range(5):
                await peer.post(C, str(n), f"n{n}")
            await peer.send(type="ping", n=1)
            assert (await peer.get("error"))["code"] == "internal"
            acks = [await peer.get("ack") for _ in range(5)]
            assert [(ack["clientId"], ack["seq"]) for ack in acks] == [(f"n{n}", n + 1) for n in range(5)]


async def test_a_grant_lets_speak_in_other_roles() -> None:
    def authorize(_: Principal, action: str, conversation: ConversationName) -> bool | Grant:
        return Grant(roles={"assistant"}) if conversation.name == "bot" else True

    async with serving(authorize=authorize) as server, Peer.admitted(server) as peer:
        said = {"role": "assistant", "content": "x"}
        assert (await peer.say("relay/x", said))["code"] == "forbidden"
        assert (await peer.say("relay/bot", said))["type"] == "ack"
        assert (await peer.say("relay/bot", "x"))["code"] == "forbidden"


# -- revoke, recheck


async def test_revoke_closes_one_conversation_or_the_socket(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(**HOOKS) as server, Peer.admitted(server, token="ann") as ann:
        async with Peer.admitted(server, token="bob") as bob:
            for peer in (ann, bob):
                await peer.open(C)
                await peer.live(C)
            assert await server.revoke("user:eve") == 0
            assert await server.revoke("user:ann", "relay/other") == 1
            assert await server.revoke("user:ann", C) == 1
            assert (await ann.get("closed"))["code"] == "forbidden"
            await bob.say(C, "for bob")
            await ann.barrier()
            assert ann.seqs(C) == []
            await ann.open(C)  # what is asked for later is up to authorize
            assert await ann.live(C) == [1]
            with caplog.at_level(logging.INFO):
                assert await server.revoke("user:ann") == 1
            await ann.refused(4403)
            await bob.barrier()
        assert "is closed with 4403" in caplog.text


async def test_a_revocation_during_an_open_is_not_missed() -> None:
    """The open was allowed; access went away before the subscription was there."""
    allowed, engine = True, await open_engine("memory:")
    entered, go_on = held_up(engine)
    async with serving(engine=engine, authenticate=by_token, authorize=lambda *_: allowed) as server:
        async with Peer.admitted(server, token="ann") as peer:
            await peer.send(type="open", conversation=C)
            await entered.wait()
            allowed = False
            await server.revoke("user:ann", C)
            go_on.set()
            assert (await peer.get("closed"))["code"] == "forbidden"
            assert not the_connection(server)._subscriptions


UNDER_WAY: dict[str, Json] = {
    "open": {"type": "open"},
    "page": {"type": "page", "id": "p", "before": 9},
    "send": {"type": "send", "clientId": "late", "message": user("late")},
}


@pytest.mark.parametrize("kind", UNDER_WAY)
async def test_what_is_being_authorized_when_access_is_revoked_is_refused(kind: str) -> None:
    """Whatever is answered to the question of before."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def authorize(*_: object) -> bool:
        asked.set()
        await go_on.wait()
        return True

    async with serving(authenticate=by_token, authorize=authorize) as server:
        async with Peer.admitted(server, token="ann") as peer:
            await peer.send(conversation=C, **UNDER_WAY[kind])
            await asked.wait()
            assert await server.revoke("user:ann", "relay/other") == 1
            assert await server.revoke("user:ann", C) == 1
            go_on.set()
            await peer.barrier()
            assert [frame.get("code") for frame in peer.seen] == [None, "forbidden", None]
            assert server.runtime.conversations == 0


@pytest.mark.parametrize("kind", UNDER_WAY)
async def test_what_is_being_loaded_when_access_is_revoked_brings_no_row(kind: str) -> None:
    """Not even while `authorize` thinks about it once more."""
    engine = await open_engine("memory:")
    await MessageLog(await engine.partition(C)).append(user_message("secret"))
    (entered, go_on), slow = held_up(engine), asyncio.Event()

    async def authorize(*_: object) -> bool:
        if entered.is_set():
            await slow.wait()
        return True

    async with serving(engine=engine, authenticate=by_token, authorize=authorize) as server:
        async with Peer.admitted(server, token="ann") as peer:
            await peer.send(conversation=C, **UNDER_WAY[kind])
            await entered.wait()
            await server.revoke("user:ann", C)
            go_on.set()
            assert (await peer.get("closed", "error"))["code"] == "forbidden"
            await until(lambda: the_connection(server)._slow is None)
            record = server.runtime.resident(C)
            assert record is not None and record.head == 1 and not record.hub.subscriptions
            await peer.barrier()
            assert not {"rows", "page", "ack"} & {frame["type"] for frame in peer.seen}


async def test_a_page_that_is_being_read_when_access_is_revoked_is_refused() -> None:
    async with serving(**HOOKS) as server, Peer.admitted(server, token="ann") as peer:
        await peer.say(C, "secret")
        record = server.runtime.resident(C)
        assert record is not None
        entered, go_on, read = asyncio.Event(), asyncio.Event(), record.read

        async def slow_read(**bounds: Any) -> Any:
            entered.set()
            await go_on.wait()
            return await read(**bounds)

        record.read = slow_read  # type: ignore[method-assign]
        await peer.send(type="page", conversation=C, id="p", before=9)
        await entered.wait()
        await server.revoke("user:ann", C)
        go_on.set()
        assert (await peer.get("page", "error"))["code"] == "forbidden"


async def test_a_send_that_is_being_authorized_when_all_access_is_revoked_is_not_appended() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def authorize(*_: object) -> bool:
        asked.set()
        await go_on.wait()
        return True

    async with serving(authenticate=by_token, authorize=authorize) as server:
        async with Peer.admitted(server, token="ann") as peer:
            connection = the_connection(server)
            await peer.post(C, "late", "c1")
            await asked.wait()
            await server.revoke("user:ann")
            go_on.set()
            await peer.refused(4403)
            await until(lambda: connection._slow is None)
            assert server.runtime.conversations == 0


async def test_an_open_that_is_overtaken_by_the_end_leaves_no_subscription() -> None:
    engine = await open_engine("memory:")
    entered, go_on = held_up(engine)
    async with serving(engine=engine, **HOOKS) as server, Peer.admitted(server, token="ann") as peer:
        connection = the_connection(server)
        await peer.send(type="open", conversation=C)
        await entered.wait()
        await server.revoke("user:ann")
        go_on.set()
        await peer.refused(4403)
        await until(lambda: connection._slow is None)
        record = server.runtime.resident(C)
        assert record is not None and not record.hub.subscriptions
        assert [frame["type"] for frame in peer.seen] == ["welcome", "bye"]


@pytest.mark.parametrize(("later_answer", "code"), [(False, "forbidden"), ("nonsense", "internal")])
@pytest.mark.parametrize("slow", [False, True])
async def test_what_is_open_is_authorized_again(later_answer: Any, code: str, slow: bool) -> None:
    answers: dict[str, Any] = {}

    def authorize(_: Principal, action: str, conversation: ConversationName) -> Any:
        answer = answers.get(conversation.name, True)
        return later(answer) if slow else answer

    async with serving(authorize=authorize, limits=Limits(recheck_s=0.02)) as server, Peer.admitted(server) as peer:
        connection = the_connection(server)
        async with Peer.to(server):  # one that has not been let in is not asked about
            await peer.open("relay/stays")
            await peer.open("relay/goes")
            answers["goes"] = later_answer
            closed = await peer.get("closed")
            assert (closed["conversation"], closed["code"]) == ("relay/goes", code)
            assert list(connection._subscriptions) == ["relay/stays"]


async def test_what_is_open_is_authorized_again_with_a_new_token() -> None:
    def authorize(principal: Principal, action: str, conversation: ConversationName) -> bool:
        return bool(principal.claims.get("may", True))

    def authenticate(request: AccessRequest) -> Principal:
        return Principal("user:ann", claims={"may": request.token != "less"})

    hooks: Any = {"authenticate": authenticate, "authorize": authorize}
    async with serving(**hooks) as server, Peer.admitted(server, token="t") as peer:
        await peer.open(C)
        await peer.send(type="auth", token="less")
        await peer.get("welcome")
        assert (await peer.get("closed"))["code"] == "forbidden"
