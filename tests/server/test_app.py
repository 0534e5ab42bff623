from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from parlatory.actors import Agent, Runtime
from parlatory.server import AccessRequest, Limits, Principal, serve
from parlatory.server.loopback import is_loopback
from parlatory.storage import StorageBusy, StoredMessage, open_engine

from .peers import CLIENT, DEADLINE_S, PROTOCOL, Peer, RawPeer, Relay, request, serving, until

C = "relay/x"
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: parlatory.v1\r\n"
KEYS = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"


def anonymous(request: AccessRequest) -> Principal:
    return request.anonymous


# -- HTTP


async def test_probes() -> None:
    async with serving() as server:
        assert await request(server, "/healthz") == (200, "ok\n")
        assert await request(server, "/readyz?x=1") == (200, "ready\n")
        assert (await request(server, "/nosuch"))[0] == 404
        assert (await request(server, "/v1"))[0] == 426
        assert (await request(server, "/v1", method="POST"))[0] in (400, 405)


async def test_a_server_whose_storage_does_not_answer_is_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    engine = await open_engine("memory:")
    async with serving(engine=engine) as server:

        async def busy(**_: object) -> Any:
            raise StorageBusy("too much to do")

        engine.list = busy  # type: ignore[method-assign]
        assert await request(server, "/readyz") == (503, "not ready\n")
        assert "storage does not answer" in caplog.text
        assert (await request(server, "/healthz"))[0] == 200


async def test_a_server_whose_storage_has_failed_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await open_engine("memory:")
    async with serving(engine=engine) as server:
        monkeypatch.setattr(type(engine), "failed", property(lambda _: OSError("fsync")))
        assert await request(server, "/readyz") == (503, "not ready\n")


@pytest.mark.parametrize("query", ["token=s3cret", "x=1&access_token=s3cret", "TOKEN=s3cret", "%74oken=s3cret"])
async def test_a_token_in_the_url_is_refused(query: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving() as server:
            status, text = await request(server, f"/v1?{query}", UPGRADE + KEYS)
            assert status == 400 and "hello frame" in text and "s3cret" not in text
            assert (await request(server, "/v1?sticky=7", UPGRADE + KEYS.replace("13", "12")))[0] == 400
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("parlatory")]
    assert any("refused with HTTP 400" in line for line in ours) and not any("s3cret" in line for line in ours)


@pytest.mark.parametrize("offered", [None, ["parlatory.v2"], ["xparlatory.v1"]])
async def test_the_subprotocol_is_required(offered: Any) -> None:
    async with serving() as server:
        with pytest.raises(InvalidStatus) as raised:
            async with connect(server.url, subprotocols=offered, proxy=None):
                pass
        assert raised.value.response.status_code == 400
        both: Any = ["a", PROTOCOL, "b"]
        async with connect(server.url, subprotocols=both, proxy=None) as socket:
            assert socket.subprotocol == PROTOCOL and not socket.protocol.extensions


async def test_a_handshake_that_says_everything_twice_is_refused() -> None:
    async with serving() as server:
        assert (await request(server, "/v1", UPGRADE + UPGRADE + KEYS))[0] in (400, 426)
        origins = "Origin: http://localhost\r\nOrigin: http://localhost\r\n"
        assert (await request(server, "/v1", UPGRADE + KEYS + origins))[0] == 403


# -- origins


async def comes_in(server: Any, origin: str | None) -> bool:
    try:
        async with Peer.to(server, origin=origin) as peer:
            await peer.hello()
            return True
    except InvalidStatus as error:
        assert error.response.status_code == 403
        return False


LOCAL = [None, "http://localhost:3000", "http://127.0.0.1", "https://[::1]:8443"]
FOREIGN = ["https://evil.example", "http://localhost.evil.example", "null", "", "http://[::1", "http://10.0.0.1"]


@pytest.mark.parametrize("origin", [*LOCAL, *FOREIGN])
async def test_a_server_for_everybody_on_this_machine_is_not_for_pages_from_elsewhere(origin: str | None) -> None:
    async with serving() as server:
        assert await comes_in(server, origin) == (origin in LOCAL)


@pytest.mark.parametrize("options", [{"allow_anonymous": True}, {"authenticate": anonymous}])
async def test_without_a_list_pages_come_from_anywhere_where_access_is_decided(options: Any) -> None:
    async with serving(**options) as server:
        assert await comes_in(server, "https://evil.example")


async def test_a_list_of_origins_is_exact() -> None:
    async with serving(origins=["https://Chat.example", "http://localhost:3000"]) as server:
        for good in ("https://chat.example", "https://CHAT.example", "http://localhost:3000"):
            assert await comes_in(server, good)
        for other in ("http://chat.example", "https://chat.example:444", "https://x.chat.example", "http://localhost"):
            assert not await comes_in(server, other)
        for origin in (None, "null"):
            assert not await comes_in(server, origin)
    async with serving(origins=["https://chat.example", None]) as server:
        assert await comes_in(server, None)


async def test_a_list_of_origins_does_not_shut_out_the_server_s_own_page_on_this_machine() -> None:
    async with serving(authenticate=anonymous, origins=["https://chat.example"]) as server:
        own = f"http://127.0.0.1:{server.port}"
        assert await comes_in(server, own)
        assert not await comes_in(server, "http://127.0.0.1:1")
        # a page whose name was made to resolve to the server names itself as the host too
        rebound = f"Origin: http://evil.example:{server.port}\r\n"
        host = f"evil.example:{server.port}"
        assert (await request(server, "/v1", UPGRADE + KEYS + rebound, host=host))[0] == 403
        twice = f"Origin: {own}\r\nHost: evil.example\r\n"
        assert (await request(server, "/v1", UPGRADE + KEYS + twice))[0] in (400, 403)
    async with serving(authenticate=anonymous, origins=["https://chat.example"], web=False) as server:
        assert not await comes_in(server, f"http://127.0.0.1:{server.port}")


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"host": "0.0.0.0", "origins": ["https://chat.example", None]}, True),
        ({"host": "10.0.0.1", "origins": ["http://10.0.0.2:8000"]}, True),
        ({"host": "10.0.0.1", "port": 8000, "origins": ["http://10.0.0.1:8000"]}, False),
        ({"host": "0.0.0.0", "origins": None}, False),
        ({"host": "0.0.0.0", "origins": ["https://chat.example"], "web": False}, False),
        ({"host": "127.0.0.1", "origins": ["https://chat.example"]}, False),
    ],
)
async def test_where_the_chat_page_does_not_work_is_said_at_once(
    options: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    serve(Runtime(await open_engine("memory:"), [Relay]), authenticate=anonymous, **options)
    listed = (options["origins"] or [""])[0]
    assert (f"the chat page works at localhost and {listed} only" in caplog.text) == warned


async def test_cookies_are_mentioned_only_where_somebody_is_asked_for_them(caplog: pytest.LogCaptureFixture) -> None:
    for hook, warned in ((None, False), (anonymous, True)):
        async with serving(authenticate=hook) as server, Peer.to(server, headers={"Cookie": "a=1"}) as peer:
            await peer.hello()
        assert ("brings cookies" in caplog.text) == warned
    async with serving(authenticate=anonymous, origins=[None]) as server:
        async with Peer.to(server, headers={"Cookie": "a=1"}) as peer:
            await peer.hello()
    assert caplog.text.count("brings cookies") == 1


async def test_what_is_open_is_asked_for_again_and_may_be_revoked() -> None:
    allowed = True
    async with serving(authorize=lambda *_: allowed, limits=Limits(recheck_s=0.02)) as server:
        async with Peer.to(server), Peer.admitted(server) as peer:
            await peer.open(C)
            allowed = False
            assert (await peer.get("closed"))["code"] == "forbidden"
            assert await server.revoke("user:nobody") == 0
            assert await server.revoke(peer.seen[0]["principal"]) == 1
            await peer.refused(4403)


# -- serve


@pytest.mark.parametrize("origins", ["https://a.example", ["https://a.example/"], ["a.example"], ["*"]])
async def test_an_origin_is_an_origin(origins: Any) -> None:
    with pytest.raises(ValueError, match="[oO]rigin"):
        serve(Runtime(await open_engine("memory:"), [Relay]), origins=origins)


async def test_what_decides_about_access_is_of_the_right_kind() -> None:
    runtime = Runtime(await open_engine("memory:"), [Relay])
    wrong: Any
    for wrong in ({"authenticate": "ann"}, {"authorize": True}, {"operator": ["ann"]}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} is a function, not"):
            serve(runtime, **wrong)
    with pytest.raises(TypeError, match="allow_anonymous is True or False, not 'no'"):
        serve(runtime, host="0.0.0.0", allow_anonymous="no")  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com", ""])
async def test_everybody_beyond_this_machine_has_to_be_asked_for(host: str) -> None:
    runtime = Runtime(await open_engine("memory:"), [Relay])
    with pytest.raises(ValueError, match="could read and write every conversation"):
        serve(runtime, host=host)
    serve(runtime, host=host, allow_anonymous=True)
    serve(runtime, host=host, authenticate=anonymous)
    with pytest.raises(ValueError, match="drain_s"):
        serve(runtime, drain_s=float("nan"))


def test_loopback() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.9.9.9", "::1"))
    assert not any(is_loopback(host) for host in ("10.0.0.1", "0.0.0.0", "localhost.example", ""))


async def test_everything_allowed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with serving():
        pass
    assert "everything is allowed to everybody on this machine" in caplog.text
    caplog.clear()
    async with serving(authenticate=anonymous) as server:
        assert server.url == f"ws://127.0.0.1:{server.port}/v1"
    assert "everything is allowed" not in caplog.text


async def test_an_address_that_is_taken_or_unknown() -> None:
    async with serving() as server, Runtime(await open_engine("memory:"), [Relay]) as runtime:
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1, port {server.port}: Address already in use"):
            await serve(runtime, port=server.port)
        with pytest.raises(OSError, match="cannot listen on 192.0.2.1"):
            await serve(runtime, host="192.0.2.1", port=0, allow_anonymous=True)


async def test_ipv6_urls_have_brackets() -> None:
    async with Runtime(await open_engine("memory:"), [Relay]) as runtime:
        serving = serve(runtime, host="::1", port=0)
        try:
            server = await serving
        except OSError:
            pytest.skip("no IPv6 here")
        assert server.url == f"ws://[::1]:{server.port}/v1"
        async with Peer.admitted(server) as peer:
            await peer.barrier()
        await server.close(0)


async def test_a_level_set_by_the_application_is_kept() -> None:
    log = logging.getLogger("parlatory.server.websockets")
    before = log.level
    try:
        log.setLevel(logging.ERROR)
        async with serving():
            assert log.level == logging.ERROR
        log.setLevel(logging.DEBUG)
        async with serving():
            assert log.level == logging.INFO  # below it, tokens are written
    finally:
        log.setLevel(before)


# -- how many


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lets a listener say it")
async def test_segments_are_no_larger_on_loopback_than_on_a_network() -> None:
    """With 64 KiB a reader of 128 KiB was seen to read once in 25 s: the kernel that sends waits for room for one."""
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= 1460
        writer.close()
        await writer.wait_closed()
        assert await reader.read() == b""


async def test_sockets_have_a_limit_and_probes_do_not() -> None:
    async with serving(limits=Limits(sockets=2)) as server, Peer.admitted(server) as first:
        async with Peer.admitted(server):
            assert (await request(server, "/v1", UPGRADE + KEYS))[0] == 503
            assert (await request(server, "/healthz"))[0] == 200
        await until(lambda: server.connections == 1)
        async with Peer.admitted(server):
            await first.barrier()


async def test_sockets_that_have_not_been_let_in_have_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(limits=Limits(pending=2)) as server, Peer.admitted(server) as peer:
        with caplog.at_level(logging.INFO):
            async with RawPeer.to(server, handshake=False) as silent, Peer.to(server) as late:
                async with RawPeer.to(server, handshake=False) as dropped:
                    assert await dropped.read_to_end() == b""
                assert "others wait to be let in" in caplog.text
                await late.hello()
                async with Peer.admitted(server) as other:
                    await other.barrier()
                await silent.send(b"x")
        await peer.barrier()
        await until(lambda: server.connections == 1)
        assert server._pending == 0


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a machine has one loopback address")
async def test_one_address_does_not_hold_the_places_of_all_that_have_not_been_let_in() -> None:
    async with serving(limits=Limits(pending=4, pending_per_address=2)) as server:
        with contextlib.ExitStack() as silent:

            def comes(address: str) -> socket.socket:
                one = socket.create_connection(("127.0.0.1", server.port), source_address=(address, 0))
                one.setblocking(False)
                return silent.enter_context(one)

            async def is_dropped(one: socket.socket) -> bool:
                try:
                    return await asyncio.get_running_loop().sock_recv(one, 1) == b""
                except ConnectionResetError:
                    return True

            ones = [comes("127.0.0.1") for _ in range(2)]
            await until(lambda: server.pending == 2)
            assert await is_dropped(comes("127.0.0.1"))
            others = [comes("127.0.0.2") for _ in range(2)]
            await until(lambda: server.pending == 4)
            assert await is_dropped(comes("127.0.0.3")), "there are four"
            for one in others:
                one.close()
            await until(lambda: server.pending == 2)
            assert await is_dropped(comes("127.0.0.1"))
            ones[0].close()
            await until(lambda: server.pending == 1)
            async with Peer.admitted(server) as peer:
                await peer.barrier()
        await until(lambda: server.pending == 0)
        assert not server._pending_by_network


async def test_an_address_has_a_limit_of_sockets() -> None:
    async with serving(limits=Limits(sockets_per_address=2)) as server, Peer.admitted(server) as first:
        async with Peer.admitted(server):
            assert (await request(server, "/v1", UPGRADE + KEYS))[0] == 429
            assert (await request(server, "/healthz"))[0] == 200
        await until(lambda: server.connections == 1)
        async with Peer.admitted(server):
            await first.barrier()
    assert not server._by_network


async def test_a_principal_has_a_limit_of_sockets(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(limits=Limits(sockets_per_principal=2)) as server, Peer.admitted(server) as first:
        async with Peer.admitted(server), Peer.to(server) as third:
            await third.send(type="hello", client=CLIENT)
            await third.refused(1013)
            assert third.seen[-1]["retryMs"] == [500, 5_000]
            async with Peer.admitted(server, client="d" * 22) as other:
                await other.barrier()
        await until(lambda: server.connections == 1)
        async with Peer.admitted(server):
            await first.barrier()
    await until(lambda: not server._by_principal)


async def test_those_without_a_name_are_not_one_principal() -> None:
    limits = Limits(sockets_per_principal=1)
    async with serving(limits=limits) as server, Peer.to(server) as first, Peer.to(server) as second:
        for peer in (first, second):
            await peer.send(type="hello")
            assert (await peer.get("welcome"))["principal"] == "anonymous"


async def test_a_handshake_has_a_deadline() -> None:
    async with serving(limits=Limits(hello_timeout_s=0.1)) as server:
        async with RawPeer.to(server, handshake=False) as slow:
            await slow.send(b"GET /v1 HTTP/1.1\r\n")
            assert await slow.read_to_end() == b""
        await until(lambda: not server.connections)


# -- the end


class Worker(Agent):
    """Works until it is let go."""

    started: asyncio.Event
    finish: asyncio.Event

    async def on_message(self, row: StoredMessage) -> None:
        self.started.set()
        await self.finish.wait()
        await self.say("finished")


async def test_a_drain_serves_what_changes_nothing_until_its_bye() -> None:
    Worker.started, Worker.finish = asyncio.Event(), asyncio.Event()
    async with serving(Relay, Worker) as server, Peer.admitted(server) as peer:
        await peer.say(C, "x", "c1")
        await peer.say("worker/x", "x")
        await peer.open("worker/x")
        await Worker.started.wait()
        closing = asyncio.ensure_future(server.close(1000))  # no socket comes to its turn
        await peer.barrier()
        for client_id in ("c1", "c2"):
            refusal = await peer.say(C, "x", client_id)
            assert refusal["code"] == "draining" and refusal["retryMs"] > 0
        assert (await peer.open(C))["head"] == 1
        assert len((await peer.page(C))["rows"]) == 1
        with pytest.raises(OSError):
            async with Peer.to(server):
                pass
        Worker.finish.set()
        await peer.row("worker/x", 2)
        await server.revoke(peer.seen[0]["principal"])  # it leaves early: the drain need not wait for its turn
        await peer.refused(4403)
        await asyncio.wait_for(closing, DEADLINE_S)
        await server.wait_closed()
        await server.close()


async def test_closes_are_spread_over_the_window() -> None:
    loop = asyncio.get_running_loop()
    async with serving() as server:

        async def client() -> float:
            async with Peer.admitted(server) as peer:
                admitted.release()
                await peer.refused(1012)
                assert peer.seen[-1]["retryMs"] == [500, 5000]
                return loop.time()

        admitted = asyncio.Semaphore(0)
        clients = [asyncio.ensure_future(client()) for _ in range(20)]
        for _ in clients:
            await admitted.acquire()
        start = loop.time()
        await server.close(2)
        ends = sorted(end - start for end in await asyncio.gather(*clients))
        assert ends[0] < 0.8 and 0.8 < ends[-1] < 2.4
        assert max(later - earlier for earlier, later in zip(ends, ends[1:], strict=False)) < 1.2
        assert server.connections == 0


async def test_a_drain_ends_who_does_not_answer_or_never_finished_its_handshake() -> None:
    async with serving(limits=Limits(close_s=0.1)) as server:
        async with RawPeer.to(server, hello=True) as mute, RawPeer.to(server, handshake=False) as half:
            await half.send(b"GET /v1")
            await until(lambda: server.connections == 2)
            await asyncio.wait_for(server.close(0), DEADLINE_S)
            assert (await mute.read_to_end())[-4:] == b"\x88\x02\x03\xf4"
            assert await half.read_to_end() == b""
        assert server.connections == 0


async def test_a_socket_that_comes_while_it_drains_is_refused() -> None:
    async with serving() as server, Peer.admitted(server), RawPeer.to(server, handshake=False) as late:
        await until(lambda: server.connections == 2)
        closing = asyncio.ensure_future(server.close(0.2))
        await until(lambda: server.draining)
        await late.send(f"GET /readyz HTTP/1.1\r\nHost: x\r\n{UPGRADE}{KEYS}\r\n".encode())
        assert b"503" in await late.read_until(b"\r\n")
        await closing


@pytest.mark.parametrize("steps", range(6))
async def test_a_socket_that_comes_with_the_end_does_not_outlive_it(steps: int) -> None:
    """What the kernel took for the server goes with it, in whatever step of the loop it was handed over."""
    async with serving(limits=Limits(hello_timeout_s=600)) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as late:
            for _ in range(steps):
                await asyncio.sleep(0)
            await asyncio.wait_for(server.close(0), DEADLINE_S)
            assert server.connections == 0
            late.setblocking(False)
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(DEADLINE_S):
                    assert await asyncio.get_running_loop().sock_recv(late, 1) == b""


async def test_close_before_start() -> None:
    async with Runtime(await open_engine("memory:"), [Relay]) as runtime:
        serving = serve(runtime, port=0)
        await serving._server.close(0)


async def test_nothing_is_left_behind() -> None:
    async with serving() as server, Peer.admitted(server) as peer, RawPeer.to(server, handshake=False):
        await peer.say("echo/x", "x")
        await server.close(0)
        with pytest.raises(ConnectionClosed):
            while True:
                await peer.receive()
    left = {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}
    assert not [name for name in left if name.startswith("parlatory")], left
