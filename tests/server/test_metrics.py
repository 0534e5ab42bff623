"""`/metrics`: its text, and who gets it."""

from __future__ import annotations

import re
from typing import Any

from parlatory.server import AccessRequest, Limits, Principal, Server

from .peers import Echo, Peer, RawPeer, request, serving, until

LINE = re.compile(r'parlatory_[a-z0-9_]+(\{[a-z]+="[^"\\\n]*"\})? [0-9.e+-]+')


async def metrics(server: Server) -> dict[str, float]:
    status, body = await request(server, "/metrics", host="localhost")
    assert status == 200
    lines = [line for line in body.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in lines), lines
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


async def test_what_happened_is_counted() -> None:
    async with serving(Echo) as server, Peer.admitted(server) as peer:
        await peer.open("echo/x")
        for _ in range(2):
            await peer.say("echo/x", "hi", "c1")
        await peer.row("echo/x", 2)
        await peer.send(type="nosuch")
        await peer.get("error")
        assert (await request(server, "/v1"))[0] == 426
        async with RawPeer.to(server) as raw:
            await raw.text(type="ping", n=1)
            await raw.read_to_end()
        await until(lambda: server.connections == 1)
        found = await metrics(server)
        wanted: dict[str, Any] = {
            "connections": 2, "connections_total": 4, "subscriptions": 1, "subscriptions_lagging": 0,
            "acks_total": 2, "duplicates_total": 1, "rows_total": 2, "repeats_total": 1,
            'errors_total{code="bad_frame"}': 2, 'sockets_closed_total{code="4400"}': 1,
            'turns_total{outcome="done"}': 1, 'turns_total{outcome="error"}': 0, "turns_running": 0, "drafts_open": 0,
            "agents_resident": 1, "conversations": 1, "commit_queue_rows": 0, "wal_pinned_total": 0,
            "storage_failed": 0, "draining": 0, f'info{{version="{server.version}"}}': 1,
        }  # fmt: skip
        assert {name: found.get(f"parlatory_{name}") for name in wanted} == wanted
        assert found["parlatory_commit_seconds_count"] == found['parlatory_commit_seconds_bucket{le="+Inf"}'] >= 3
        assert found["parlatory_loop_lag_seconds"] >= 0


async def test_every_metric_has_its_help_and_type_once() -> None:
    async with serving() as server:
        _, body = await request(server, "/metrics", host="localhost")
        for word in ("HELP", "TYPE"):
            named = re.findall(rf"^# {word} (\S+)", body, re.MULTILINE)
            assert len(named) == len(set(named)) > 20
        types = dict(re.findall(r"^# TYPE (\S+) (\S+)", body, re.MULTILINE))
        assert all(name.endswith("_total") == (kind == "counter") for name, kind in types.items())


async def test_refusals_are_counted() -> None:
    async with serving(limits=Limits(sockets=1)) as server, Peer.admitted(server):
        assert (await request(server, "/v1", "Upgrade: x\r\nSec-WebSocket-Protocol: parlatory.v1\r\n"))[0] == 503
        assert (await metrics(server))['parlatory_handshakes_refused_total{status="503"}'] == 1


async def test_without_an_operator_they_are_for_this_machine() -> None:
    hooks: dict[str, Any] = {"authenticate": lambda asked: asked.anonymous, "authorize": lambda *_: True}
    for options in ({}, hooks):
        async with serving(**options) as server:
            assert (await request(server, "/metrics", host="localhost"))[0] == 200
            assert (await request(server, "/metrics", host="evil.example"))[0] == 404
            assert (await request(server, "/metrics", "X-Forwarded-For: 10.0.0.1\r\n", host="localhost"))[0] == 404


async def test_with_an_operator_they_are_for_operators() -> None:
    def authenticate(asked: AccessRequest) -> Principal | None:
        return Principal(asked.token) if asked.token else None

    async with serving(authenticate=authenticate, operator=lambda principal: principal.name == "root") as server:
        for token, status in (("root", 200), ("ann", 404)):
            headers = f"Authorization: Bearer {token}\r\n"
            assert (await request(server, "/metrics", headers, host="chat.example"))[0] == status
        assert (await request(server, "/metrics", host="localhost"))[0] == 404
