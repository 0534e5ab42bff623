"""`/inspect` and its data: who may look, and what there is to see."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from parlatory.actors import Agent
from parlatory.server import AccessRequest, Principal, Server
from parlatory.storage import Batch, NewRow, StoredMessage

from .peers import Echo, Peer, Relay, request, serving, until

DATA = "/v1/inspect"
PATHS = [DATA, f"{DATA}/conversations", f"{DATA}/connections", f"{DATA}/conversation?name=relay/x"]
ROW = NewRow(body=b'{"role":"user","content":"hi"}', by="user:ann")


def authenticate(asked: AccessRequest) -> Principal | None:
    return Principal(f"user:{asked.token}") if asked.token else None


async def operator(principal: Principal) -> bool:
    return principal.name == "user:root"


async def get(server: Server, path: str, headers: str = "", host: str = "127.0.0.1:80") -> Any:
    """The answer, or the status of one that is not 200."""
    status, body = await request(server, path, headers, host=host)
    return json.loads(body) if status == 200 else status


def bearer(token: str) -> str:
    return f"Authorization: Bearer {token}\r\n"


# -- who may look


async def test_without_hooks_it_is_for_this_machine() -> None:
    async with serving() as server:
        await (await server.runtime.engine.partition("relay/x")).commit(Batch(rows=[ROW]))
        for path in (*PATHS, "/inspect", "/inspect/main.js"):
            assert (await request(server, path, host="localhost"))[0] == 200
            assert (await request(server, path, host="evil.example"))[0] == 404
            assert (await request(server, path, "Origin: https://evil.example\r\n", host="localhost"))[0] == 404
            assert (await request(server, path, "X-Forwarded-For: 10.0.0.1\r\n", host="localhost"))[0] == 404


async def test_with_other_hooks_and_no_operator_it_is_for_nobody() -> None:
    async with serving(authenticate=authenticate, authorize=lambda *_: True) as server:
        for path in (*PATHS, "/inspect", "/inspect/main.js"):
            assert (await request(server, path, bearer("root"), host="localhost"))[0] == 404


async def test_the_operator_says_who_may_look() -> None:
    async with serving(authenticate=authenticate, authorize=lambda *_: False, operator=operator) as server:
        await (await server.runtime.engine.partition("relay/x")).commit(Batch(rows=[ROW]))
        absent = await request(server, f"{DATA}/nosuch", bearer("root"), host="chat.example")
        for path in PATHS:
            assert (await request(server, path, bearer("root"), host="chat.example"))[0] == 200
            assert await request(server, path, bearer("ann"), host="localhost") == absent
            assert await request(server, path, host="localhost") == absent
        # The page holds nothing of anybody, and asks for the token.
        assert (await request(server, "/inspect", host="chat.example"))[0] == 200
        assert (await request(server, "/inspect/nosuch.js", host="chat.example"))[0] == 404


async def test_an_operator_that_fails_lets_nobody_look(caplog: pytest.LogCaptureFixture) -> None:
    def broken(principal: Principal) -> bool:
        raise RuntimeError("planted")

    async with serving(authenticate=authenticate, operator=broken) as server:
        assert await get(server, DATA, bearer("root")) == 500
        assert "planted" in caplog.text


async def test_without_web_there_is_no_page() -> None:
    async with serving(web=False) as server:
        assert (await request(server, "/inspect", host="localhost"))[0] == 404
        assert (await request(server, DATA, host="localhost"))[0] == 200


# -- what there is to see


async def test_counts_of_everything() -> None:
    async with serving(Relay, Echo) as server, Peer.admitted(server) as peer:
        await peer.open("relay/x")
        for _ in range(2):
            await peer.say("relay/x", "hi", "c1")
        await peer.send(type="nosuch")
        await peer.get("error")
        seen = await get(server, DATA)
        assert (seen["agents"], seen["boot"]) == (["echo", "relay"], server.boot)
        counted = {key: seen["server"][key] for key in ("connections", "pending", "acks", "duplicates", "errors")}
        assert counted == {"connections": 1, "pending": 0, "acks": 2, "duplicates": 1, "errors": {"bad_frame": 1}}
        assert (seen["runtime"]["conversations"], seen["runtime"]["subscriptions"]) == (1, 1)
        assert (seen["storage"]["rows"], seen["storage"]["failed"]) == (1, False)
        assert 0 <= seen["storage"]["commitP50Ms"] <= seen["storage"]["commitP99Ms"]


async def test_conversations_by_activity_with_search_and_pages() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        for name in ("relay/Ann", "relay/bob", "relay/anna"):
            await peer.say(name, f"I am {name}")
        await peer.open("relay/anna")
        first = await get(server, f"{DATA}/conversations?limit=2")
        rest = await get(server, f"{DATA}/conversations?limit=2&after={first['next']}")
        assert [one["conversation"] for one in first["conversations"]] == ["relay/anna", "relay/bob"]
        assert ([one["conversation"] for one in rest["conversations"]], rest["next"]) == (["relay/Ann"], None)
        assert [one["now"]["subscribers"] for one in first["conversations"]] == [1, 0]
        assert first["conversations"][0]["title"] == "I am relay/anna"
        found = await get(server, f"{DATA}/conversations?search=ANN")
        assert [one["conversation"] for one in found["conversations"]] == ["relay/anna", "relay/Ann"]
        assert await get(server, f"{DATA}/conversations?after=x") == 400
        assert (await get(server, f"{DATA}/conversations?search=token"))["conversations"] == []


class Slow(Agent):
    """Writes half an answer, and the rest never."""

    async def on_message(self, row: StoredMessage) -> None:
        async with self.reply() as draft:
            await draft.write("half a")
            await asyncio.get_running_loop().create_future()


async def test_a_conversation_with_its_turn_its_draft_and_its_subscribers() -> None:
    async with serving(Slow) as server, Peer.admitted(server) as peer:
        await peer.open("slow/x")
        await peer.say("slow/x", "one")
        await peer.say("slow/x", "two")
        await peer.get("draft")
        record = server.runtime.resident("slow/x")
        assert record is not None
        await until(lambda: record.lane.draft is not None and record.lane.draft.picture().message["content"])
        seen = await get(server, f"{DATA}/conversation?name=slow/x")
        assert (seen["conversation"], seen["head"], seen["floor"], seen["more"]) == ("slow/x", 2, 0, False)
        assert seen["epoch"] == record.epoch
        assert [(row["seq"], row["message"]["content"]) for row in seen["rows"]] == [(1, "one"), (2, "two")]
        now = seen["now"]
        assert (now["state"], now["turn"], now["attempt"], now["queued"]) == ("running", 1, 1, 1)
        assert (now["resident"], now["mailbox"], now["inFlight"], now["writing"]) == (True, 1, 0, True)
        assert (now["draft"]["turn"], now["draft"]["message"]) == (1, {"role": "assistant", "content": "half a"})
        me = peer.seen[0]
        assert now["subscriptions"] == [
            {"principal": me["principal"], "connection": me["connection"], "position": 2, "lag": 0, "live": True}
        ]


async def test_rows_are_paged_and_a_corrupt_one_is_told() -> None:
    async with serving() as server:
        partition = await server.runtime.engine.partition("relay/ 50%/\u00e9")
        await partition.commit(Batch(rows=[ROW, ROW, NewRow(body=b"{corrupt", by="user:ann"), ROW]))
        path = f"{DATA}/conversation?name={quote(partition.name)}&limit=2"
        seen = await get(server, path)
        assert (seen["now"], seen["more"]) == (None, True)
        assert seen["rows"][0]["seq"] == 3 and "row 3" in seen["rows"][0]["fault"]
        assert seen["rows"][1]["message"] == {"role": "user", "content": "hi"}
        seen = await get(server, f"{path}&before=3")
        assert ([row["seq"] for row in seen["rows"]], seen["more"]) == ([1, 2], False)
        assert server.runtime.conversations == 0  # looking loads no actor


@pytest.mark.parametrize("name", ["relay/nosuch", "nosuch", "", "%00", "relay/"])
async def test_what_is_not_there_is_404(name: str) -> None:
    async with serving() as server:
        assert await get(server, f"{DATA}/conversation?name={name}") == 404
        assert await get(server, f"{DATA}/{name or 'x'}") == 404


async def test_connections() -> None:
    async with serving() as server, Peer.admitted(server) as peer:
        await peer.open("relay/x")
        seen = await get(server, f"{DATA}/connections")
        assert seen["total"] == 2  # and the one that asks
        (one,) = [each for each in seen["connections"] if each["principal"]]
        assert (one["id"], one["principal"]) == (peer.seen[0]["connection"], peer.seen[0]["principal"])
        assert (one["peer"], one["open"], one["inflight"], one["writable"]) == ("127.0.0.1", 1, 0, True)


async def test_nobody_looks_nothing_runs() -> None:
    """A look leaves nothing behind: no task, no timer, no record."""
    async with serving() as server:
        before = len(asyncio.all_tasks())
        for path in PATHS[:3]:
            await get(server, path)
        await until(lambda: server.connections == 0)
        assert len(asyncio.all_tasks()) == before
        assert server.runtime.conversations == 0
