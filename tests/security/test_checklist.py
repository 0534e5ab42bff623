"""The security checklist of `reference/protocol.md` section 4, as far as what it concerns exists: a test for each line.

| risk | where it is tested |
|---|---|
| CSWSH | server/test_app.py: `test_a_server_for_everybody_on_this_machine_is_not_for_pages_from_elsewhere`, `test_a_list_of_origins_is_exact`; cookies: server/test_connection_access.py `test_cookies_are_for_servers_that_list_their_origins` |
| unauthenticated sockets | here; deadline, size and number: server/test_connection.py (4408, 4400, 1009), server/test_app.py `test_sockets_that_have_not_been_let_in_have_a_limit` |
| token in URL | here (subprotocol); server/test_app.py `test_a_token_in_the_url_is_refused` |
| long-lived session | server/test_connection_access.py: `test_a_token_that_ends_is_announced_and_then_closed`, `test_revoke_closes_one_conversation_or_the_socket`, `test_what_is_open_is_authorized_again`; here: a revoked sender |
| per-conversation authorization | server/test_connection_access.py: `test_authorize_is_asked_for_every_action`, `test_an_authorize_that_fails_allows_nothing`; server/test_access.py |
| id enumeration | here; server/test_connection_access.py `test_forbidden_looks_like_absent_and_loads_no_actor` |
| path traversal of ids | cases/test_server_cases.py `test_odd_names_are_distinct_conversations_and_never_paths` |
| actor creation flood | here |
| message size | cases/test_server_cases.py T53; server/test_connection.py; here: a message in many fragments |
| deflate | here; server/test_app.py `test_the_subprotocol_is_required` (never negotiated) |
| JSON bombs | here; hostile/ |
| slowloris | live/test_slow.py; server/test_reaper.py, server/test_app.py `test_a_handshake_has_a_deadline` |
| connection limits | server/test_app.py `test_sockets_have_a_limit_and_probes_do_not`, `test_an_address_has_a_limit_of_sockets`, `test_a_principal_has_a_limit_of_sockets`; server/test_loopback.py (a /64 is one address) |
| rate | live/test_slow.py T60 (sends in flight); server/test_protocol.py (a token bucket per socket), server/test_connection.py `test_a_socket_that_asks_too_fast_is_refused_and_then_closed`. None per principal |
| amplification | live/test_slow.py `test_pages_of_a_socket_that_is_gone_are_not_read`; server/test_connection.py `test_opens_of_a_client_that_does_not_read_are_bounded` |
| spoofed author | here |
| log/terminal injection | here |
| XSS | here |
| TLS | here (loopback by default); server/test_app.py `test_everybody_beyond_this_machine_has_to_be_asked_for` |
| mixed principals | server/test_connection_access.py `test_auth_renews_the_token_of_the_same_principal`; here: frames behind it |
"""  # noqa: E501

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import unicodedata
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.frames import Opcode
from websockets.typing import Subprotocol

from parlatory.actors import Runtime
from parlatory.server import AccessRequest, Limits, Principal, serve
from parlatory.storage import open_engine

from ..server.peers import PROTOCOL, Json, Peer, RawPeer, Relay, history, request, serving, the_connection, user, wire

C = "relay/c"
QUICK = Limits(close_s=0.1)  # whose peers do not answer a close
TOKENS = {"t-ann": Principal("user:ann"), "t-bob": Principal("user:bob")}


def by_token(request: AccessRequest) -> Principal | None:
    return TOKENS.get(request.token or "")


def everything(*_: object) -> bool:
    return True


HOOKS: dict[str, Any] = {"authenticate": by_token, "authorize": everything}


def text(**frame: Any) -> bytes:
    return wire(json.dumps(frame).encode())


# -- unauthenticated sockets


@pytest.mark.parametrize("token", [None, "t-eve", "t-ann\0", "T-ANN", ""])
async def test_unauthenticated_frames_behind_a_refused_hello_are_not_served(token: str | None) -> None:
    """They come in one piece with it, before anybody has looked at the token."""
    asked: list[object] = []

    def authorize(*arguments: object) -> bool:
        asked.append(arguments)
        return True

    hello: Json = {"type": "hello"} | ({} if token is None else {"token": token})
    frames: list[Json] = [
        {"type": "send", "conversation": C, "clientId": "c", "message": user("x")},
        {"type": "open", "conversation": C},
        {"type": "ping", "n": 1},
        {"type": "auth", "token": "t-ann"},
    ]
    hooks: Any = {"authenticate": by_token, "authorize": authorize}
    async with serving(limits=QUICK, **hooks) as server, RawPeer.to(server) as peer:
        await peer.send(b"".join(text(**frame) for frame in [hello, *frames]))
        end = await peer.read_to_end()
        assert b'"code":4401' in end and b"welcome" not in end and b"pong" not in end and b"ack" not in end
        assert not asked and server.runtime.conversations == 0


async def test_unauthenticated_frames_before_the_hello_are_not_served() -> None:
    async with serving(limits=QUICK) as server, RawPeer.to(server) as peer:
        send = text(type="send", conversation=C, clientId="c", message=user("x"))
        await peer.send(send + text(type="hello") + send)
        end = await peer.read_to_end()
        assert b'"code":4400' in end and b"welcome" not in end
        assert await history(server, C) == []


# -- token in URL


async def test_token_is_never_echoed_as_a_subprotocol(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    offered = [Subprotocol("token.s3cret"), PROTOCOL, Subprotocol("s3cret")]
    async with serving() as server, connect(server.url, subprotocols=offered, proxy=None) as socket:
        assert socket.subprotocol == PROTOCOL
        assert socket.response is not None and "s3cret" not in str(socket.response.headers)
    assert "s3cret" not in caplog.text


# -- long-lived session, mixed principals


async def test_long_lived_session_of_a_revoked_principal_sends_nothing_more() -> None:
    """Not even what arrived together with the revocation, and a send that is being authorized is refused."""
    allowed, asked, go_on = True, asyncio.Event(), asyncio.Event()

    async def authorize(principal: Principal, action: str, _: object) -> bool:
        if action == "send":
            asked.set()
            await go_on.wait()
        return allowed

    async with serving(authenticate=by_token, authorize=authorize) as server:
        async with Peer.admitted(server, token="t-ann") as ann:
            for n in range(3):
                await ann.post(C, str(n), f"c{n}")
            await asked.wait()
            allowed = False
            go_on.set()
            codes = [(await ann.get("ack", "error", clientId=f"c{n}"))["code"] for n in range(3)]
            assert codes == ["forbidden"] * 3
            await server.revoke("user:ann")
            await ann.refused(4403)
        assert server.runtime.conversations == 0


async def test_mixed_principals_what_follows_another_s_token_is_still_by_the_first() -> None:
    async with serving(**HOOKS) as server, Peer.admitted(server, token="t-ann") as peer:
        await peer.send(type="auth", token="t-bob")
        await peer.post(C, "x", "c1")
        assert (await peer.get("error"))["code"] == "forbidden"
        await peer.get("ack")
        (row,) = (await peer.page(C))["rows"]
        assert row["by"] == "user:ann"


# -- id enumeration


async def test_id_enumeration_client_ids_are_the_author_s_own() -> None:
    """Bob neither learns which ids Ann has used nor can take one before her."""
    async with serving(**HOOKS) as server:
        async with Peer.admitted(server, token="t-ann") as ann, Peer.admitted(server, token="t-bob") as bob:
            assert (await ann.say(C, "from ann", "c1"))["seq"] == 1
            for message in ("from ann", "from bob"):
                assert (await bob.say(C, message, f"c1{message[-3:]}"))["type"] == "ack"
            answer = await bob.say(C, "from ann", "c1")
            assert (answer["seq"], answer.get("duplicate")) == (4, None)
            assert (await bob.say(C, "squatted", "c2"))["type"] == "ack"
            answer = await ann.say(C, "mine", "c2")
            assert (answer["type"], answer.get("duplicate")) == ("ack", None)


async def test_id_enumeration_ids_of_the_server_cannot_be_guessed() -> None:
    seen: set[str] = set()
    for _ in range(2):
        async with serving() as server:
            for _ in range(20):
                async with Peer.admitted(server) as peer:
                    seen.add(peer.seen[0]["connection"])
            seen.add(peer.seen[0]["boot"])
    assert len(seen) == 42 and all(len(one.replace("-", "")) >= 16 for one in seen)


async def test_id_enumeration_anonymous_names_do_not_give_the_installation_away() -> None:
    """Who reads `by` cannot come back as that author."""
    secret = "s" * 30
    async with serving() as server, Peer.admitted(server, client=secret) as peer, Peer.admitted(server) as other:
        await other.open(C)
        await peer.open(C)
        await peer.say(C, "x")
        await other.row(C, 1)
        assert secret not in json.dumps(other.seen)
        name = peer.seen[0]["principal"]
        async with Peer.admitted(server, client=name.partition(":")[2]) as thief:
            assert thief.seen[0]["principal"] != name


# -- actor creation flood


async def test_actor_creation_flood_of_opens_writes_nothing_and_leaves_nothing() -> None:
    names = [f"relay/{n}" for n in range(1_000)]
    async with serving(idle_timeout_s=0.05) as server, Peer.admitted(server) as peer:
        for start in range(0, len(names), 20):
            for name in names[start : start + 20]:
                await peer.send(type="open", conversation=name)
                await peer.send(type="page", id="p", conversation=name, before=9)
                await peer.send(type="signal", conversation=name, name="n")
                await peer.send(type="cancel", conversation=name)
                await peer.send(type="close", conversation=name)
            await peer.barrier()
        assert not [frame for frame in peer.seen if frame["type"] == "error"]
        assert list(await server.runtime.engine.list(limit=10)) == []
        async with asyncio.timeout(10):
            while server.runtime.conversations:
                await peer.barrier()


# -- message size, deflate


async def test_message_size_counts_over_all_fragments() -> None:
    limits = Limits(frame_bytes=100_000, close_s=0.1)
    async with serving(limits=limits) as server, RawPeer.to(server, hello=True) as peer:
        reading = asyncio.ensure_future(peer.read_to_end())
        with pytest.raises(ConnectionError):
            await peer.send(wire(b" " * 1000, fin=False))
            while True:
                await peer.send(wire(b" " * 1000, Opcode.CONT, fin=False))
        assert b"\x03\xf1" in await reading


async def test_deflate_a_compressed_frame_is_a_protocol_error() -> None:
    async with serving(limits=QUICK) as server, RawPeer.to(server, hello=True) as peer:
        plain = wire(b"\xaa\x56\x2a")
        await peer.send(bytes([plain[0] | 0x40]) + plain[1:])
        assert b"\x03\xea" in await peer.read_to_end()


# -- JSON bombs

DEEP = "[" * 100_000 + "]" * 100_000
OBJECTS = '{"a":' * 50_000 + "1" + "}" * 50_000
DIGITS = "9" * 100_000
MESSAGE = '{"role":"user","content":"x","metadata":{"v":@}}'
SEND = '{"type":"send","conversation":"relay/c","clientId":"c","message":' + MESSAGE + "}"
BOMBS = {
    "deep message": SEND.replace("@", DEEP),
    "deep object": SEND.replace("@", OBJECTS),
    "long integer": SEND.replace("@", DIGITS),
    "long float": SEND.replace("@", f"0.{DIGITS}e99999"),
    "deep signal": '{"type":"signal","conversation":"relay/c","name":"n","data":@}'.replace("@", DEEP),
    "deep args": '{"type":"call","id":"i","conversation":"relay/c","method":"m","args":{"a":@}}'.replace("@", DEEP),
    "deep unknown key": '{"type":"ping","n":1,"x":@}'.replace("@", DEEP),
    "deep type": '{"type":@}'.replace("@", DEEP),
    "long n": '{"type":"ping","n":@}'.replace("@", DIGITS),
    "many keys": '{"type":"ping",' + "".join(f'"k{n}":1,' for n in range(100_000)) + '"n":1}',
    "half a bomb": '{"type":"send","conversation":"relay/c","clientId":"c","message":' + "[" * 500_000,
}


@pytest.mark.parametrize("name", BOMBS)
async def test_json_bomb_is_answered_and_the_socket_goes_on(name: str, caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    async with serving() as server, Peer.admitted(server) as peer:
        start = loop.time()
        await peer.connection.send(BOMBS[name])
        await peer.barrier()
        assert loop.time() - start < 2
        codes = [frame["code"] for frame in peer.seen if frame["type"] == "error"]
        assert set(codes) <= {"bad_frame", "bad_message", "too_large", "method_not_found"}, codes
        for row in (await peer.page(C))["rows"]:
            assert json.dumps(row)
        assert (await peer.say(C, "still here"))["type"] == "ack"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_json_bomb_duplicate_keys_mean_the_same_to_whoever_checks_and_whoever_stores() -> None:
    """What `authorize` is asked about is what is done, and a role that is refused does not hide behind another."""
    asked: list[tuple[str, str]] = []

    def authorize(_: Principal, action: str, conversation: object) -> bool:
        asked.append((action, str(conversation)))
        return str(conversation) == C

    duplicates = (
        '{"type":"send","conversation":"relay/c","conversation":"relay/vault","clientId":"c","message":%s}',
        '{"type":"send","conversation":"relay/vault","conversation":"relay/c","clientId":"d","message":%s}',
    )
    roles = '{"role":"user","role":"system","content":"x"}', '{"role":"system","role":"user","content":"x"}'
    async with serving(authorize=authorize) as server, Peer.admitted(server) as peer:
        for frame in duplicates:
            for role in roles:
                await peer.connection.send(frame % role)
        await peer.barrier()
        assert await history(server, C) == [row for row in await history(server, C) if row["message"]["role"] == "user"]
        assert server.runtime.resident("relay/vault") is None
        assert {conversation for _, conversation in asked} <= {C, "relay/vault"}


# -- spoofed author


async def test_spoofed_author_the_server_says_who_when_and_where() -> None:
    async with serving(**HOOKS) as server, Peer.admitted(server, token="t-ann") as ann:
        forged = {"seq": 9, "at": "2020-01-01T00:00:00.000000Z", "by": "user:bob", "turn": 1, "finish": "error"}
        for key, value in forged.items():
            for placed in ({"role": "user", "content": "x", key: value}, {key: value, "content": "x", "role": "user"}):
                assert (await ann.say(C, placed))["code"] == "bad_message", key
        for role, content in (("system", "x"), ("assistant", "x"), ("tool", [])):
            answer = await ann.say(C, {"role": role, "content": content})
            assert answer["code"] in ("forbidden", "bad_message"), role
        for wrong in ("USER", "agent", "", None, ["user"]):
            assert (await ann.say(C, {"role": wrong, "content": "x"}))["code"] == "bad_message"
        await ann.send(type="send", conversation=C, clientId="c", message=user("mine"), principal="user:bob", **forged)
        ack = await ann.get("ack")
        assert ack["seq"] == 1
        (row,) = await _rows(ann)
        assert (row["by"], row["seq"], "turn" in row, "finish" in row) == ("user:ann", 1, False, False)
        assert not row["at"].startswith("2020")


async def _rows(peer: Peer) -> list[Json]:
    return list((await peer.page(C))["rows"])


async def test_spoofed_author_of_a_signal() -> None:
    async with serving(**HOOKS) as server:
        async with Peer.admitted(server, token="t-ann") as ann, Peer.admitted(server, token="t-bob") as bob:
            await bob.open(C)
            await ann.send(type="signal", conversation=C, name="typing", data={"by": "user:bob"}, by="user:bob")
            assert (await bob.get("signal"))["by"] == "user:ann"


async def test_spoofed_author_no_token_makes_one_the_agent_or_somebody_anonymous() -> None:
    def authenticate(request: AccessRequest) -> Principal:
        return Principal(request.token or "")

    for name in ("agent", "anonymous", "anonymous:" + "0" * 32, "", "user:\nann", "x" * 300):
        async with serving(authenticate=authenticate, authorize=everything) as server:
            async with Peer.to(server) as peer:
                await peer.send(type="hello", token=name, client="c" * 22)
                await peer.refused(1011)


# -- log and terminal injection

NASTY = "\x1b[2J\x1b]0;owned\x07\r\nCRITICAL:root:forged\n\u2028\u202e\x9b31m"


async def test_log_injection_is_quoted_and_secrets_are_not_there(caplog: pytest.LogCaptureFixture) -> None:
    """Everything that a client names is hostile, and a hook fails; the server logs as much as it ever does."""

    def authorize(_: Principal, action: str, conversation: object) -> bool:
        if action == "page":
            raise RuntimeError("the directory is down")
        return True

    caplog.set_level(logging.DEBUG)
    for name in ("websockets", "parlatory.server.websockets"):
        caplog.set_level(logging.INFO, name)
    caplog.set_level(logging.WARNING, "asyncio")
    async with serving(authenticate=by_token, authorize=authorize) as server:
        headers = {"Authorization": "Bearer s3cret"}
        async with Peer.to(server, headers=headers) as peer:
            await peer.hello(token="t-ann", client="s3cret" * 5)
            frames: list[Json] = [
                {"type": NASTY},
                {"type": "open", "conversation": NASTY},
                {"type": "open", "conversation": "relay/\u202e\u2028"},
                {"type": "open", "conversation": f"nosuch/{'x' * 200}"},
                {"type": "send", "conversation": C, "clientId": NASTY, "message": user("x")},
                {"type": "send", "conversation": C, "clientId": "c", "message": {"role": NASTY, NASTY: NASTY}},
                {"type": "page", "id": NASTY[:60], "conversation": "relay/\u202ea", "before": 1},
                {"type": "call", "id": NASTY[:60], "conversation": C, "method": NASTY},
                {"type": "signal", "conversation": C, "name": NASTY, "data": NASTY},
                {"type": "auth", "token": f"s3cret{NASTY}"},
            ]
            for frame in frames:
                await peer.send(**frame)
            await peer.closed()
        await request(server, "/%1b[2J?token=s3cret")
        async with RawPeer.to(server, handshake=False) as raw:
            await raw.send(b"GET /\x1b[2J HTTP/1.1\r\nX: \x1b[2J\r\n\r\n")
            await raw.read_to_end()
    assert caplog.records
    for record in caplog.records:
        line = record.getMessage()
        assert all(_printable(character) for character in line), repr(line)
        assert "s3cret" not in line and "t-ann" not in line, line
        if record.exc_info is not None and record.exc_info[1] is not None:
            assert "s3cret" not in str(record.exc_info[1])


def _printable(character: str) -> bool:
    return unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp")


# -- XSS


async def test_xss_text_is_stored_as_it_is_and_served_as_text() -> None:
    script = "<script>alert(1)</script>"
    async with serving() as server, Peer.admitted(server) as peer:
        await peer.say(C, script)
        (row,) = await _rows(peer)
        assert row["message"]["content"] == script
        for path in ("/healthz", f"/{script}", f"/v1?{script}", f"/v1/{C}"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {script}\r\n\r\n".encode())
            async with asyncio.timeout(10):
                answer = (await reader.read()).decode()
            writer.close()
            await writer.wait_closed()
            head, _, body = answer.partition("\r\n\r\n")
            assert script not in answer
            assert "content-type: text/plain" in head.lower() or not body


# -- TLS


async def test_tls_is_not_needed_because_it_listens_on_this_machine_alone_by_default() -> None:
    async with Runtime(await open_engine("memory:"), [Relay]) as runtime, serve(runtime, port=0) as server:
        assert server._listener is not None
        assert all(ipaddress.ip_address(one.getsockname()[0]).is_loopback for one in server._listener.sockets)


# -- amplification


async def test_amplification_one_frame_brings_one_bounded_answer() -> None:
    """The largest thing a small frame can ask for is a page; whoever wants more has to ask, or to read, again."""
    async with serving() as server, Peer.admitted(server) as writer:
        for _ in range(30):
            await writer.say(C, "x" * 200_000)
        async with RawPeer.to(server, hello=True) as peer:
            connection = the_connection(server, but=writer)
            await peer.send(text(type="page", id="p", conversation=C, before=2**53 - 1, limit=2**53 - 1) * 50)
            async with asyncio.timeout(10):
                while connection.writable:
                    await writer.barrier()
            for _ in range(20):
                await writer.barrier()
            assert connection.transport.get_write_buffer_size() < 3 << 20
