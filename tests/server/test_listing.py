"""`GET /v1/conversations`: whose list it is, what is in it, and what is said of a conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import pytest

from parlatory.actors import Agent
from parlatory.server import AccessRequest, ConversationName, Limits, Principal, Server
from parlatory.storage import Batch, NewRow

from .peers import Relay, request, serving

PATH = "/v1/conversations"


class Vault(Agent):
    """Is there, and nobody may use it."""


def authenticate(asked: AccessRequest) -> Principal | None:
    return Principal(f"user:{asked.token}") if asked.token else None


def authorize(principal: Principal, action: str, conversation: ConversationName) -> bool:
    assert action == "open"
    if "fail" in conversation.name:
        raise RuntimeError("planted")
    return conversation.agent != "vault" and "closed" not in conversation.name


async def append(server: Server, name: str, text: Any = "hi", by: str = "user:ann", role: str = "user") -> None:
    partition = await server.runtime.engine.partition(name)
    body = json.dumps({"role": role, "content": text}, separators=(",", ":")).encode()
    await partition.commit(Batch(rows=[NewRow(body=body, by=by)]))


async def get(server: Server, query: str = "", token: str | None = None, host: str = "localhost") -> Any:
    """The answer, or the status of one that is not 200."""
    headers = "" if token is None else f"Authorization: Bearer {token}\r\n"
    status, body = await request(server, PATH + query, headers, host=host)
    return json.loads(body) if status == 200 else status


def names(answer: Any) -> list[str]:
    return [one["conversation"] for one in answer["conversations"]]


async def filled(server: Server, conversations: Iterable[str], by: str = "user:ann") -> None:
    for name in conversations:
        await append(server, name, by=by)


async def test_one_s_own_are_those_one_takes_part_in() -> None:
    async with serving(Relay, Vault, authenticate=authenticate, authorize=authorize) as server:
        await filled(server, ["relay/1", "relay/2"])
        await filled(server, ["relay/3", "relay/1"], by="user:bob")
        answer = await get(server, token="ann")
        assert (names(answer), answer["next"]) == (["relay/1", "relay/2"], None)
        assert names(await get(server, token="bob")) == ["relay/1", "relay/3"]
        assert names(await get(server, token="eve")) == []
        assert await get(server) == 401


async def test_what_one_may_not_open_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Relay, Vault, authenticate=authenticate, authorize=authorize) as server:
        await filled(server, ["relay/1", "vault/2", "relay/closed", "relay/fail", "gone/x", "relay/5"])
        answer = await get(server, token="ann")
        assert names(answer) == ["relay/5", "relay/1"]
        assert answer["agents"] == ["relay"]
        assert "'relay/fail' is not listed" in caplog.text


async def test_pages_go_on_behind_what_may_not_be_opened() -> None:
    async def later(principal: Principal, action: str, conversation: ConversationName) -> bool:
        return authorize(principal, action, conversation)

    async with serving(Relay, authenticate=authenticate, authorize=later) as server:
        await filled(server, [f"relay/{'closed' if n % 3 else ''}{n}" for n in range(30)])
        seen: list[str] = []
        cursor = ""
        pages = 0
        while True:
            answer = await get(server, f"?limit=4&after={cursor}", token="ann")
            seen += names(answer)
            pages += 1
            assert len(answer["conversations"]) <= 4
            if answer["next"] is None:
                break
            cursor = answer["next"]
        assert seen == [f"relay/{n}" for n in range(27, -1, -3)]
        assert pages >= 3


async def test_a_long_stretch_of_what_may_not_be_opened_gives_a_short_page() -> None:
    async with serving(Relay, authenticate=authenticate, authorize=authorize) as server:
        await filled(server, ["relay/last", *(f"relay/closed{n}" for n in range(20))])
        answer = await get(server, "?limit=1", token="ann")
        assert names(answer) == []
        assert names(await get(server, f"?limit=30&after={answer['next']}", token="ann")) == ["relay/last"]


async def test_where_everything_is_allowed_all_are_one_s_own() -> None:
    async with serving(Relay, Vault) as server:
        await filled(server, ["relay/1", "vault/2"], by="anybody")
        answer = await get(server)
        assert (names(answer), answer["agents"]) == (["vault/2", "relay/1"], ["relay", "vault"])
        assert await get(server, host="evil.example") == 403


async def test_strangers_who_may_do_everything_see_their_own_only() -> None:
    async with serving(Relay, allow_anonymous=True) as server:
        await filled(server, ["relay/secret"], by="anonymous:abc")
        await filled(server, ["relay/mine"], by="anonymous")
        assert names(await get(server, host="chat.example")) == ["relay/mine"]


async def test_what_is_said_of_a_conversation() -> None:
    async with serving(Relay) as server:
        await append(server, "relay/x", "Welcome!", by="agent", role="assistant")
        await append(server, "relay/x", " Where\n is  my " + "very " * 30 + "parcel?")
        await append(server, "relay/x", [{"type": "text", "text": "Here. " * 50}], by="agent", role="assistant")
        (one,) = (await get(server))["conversations"]
        assert one["title"] == ("Where is my " + "very " * 14)[:79].rstrip() + "\u2026"
        assert (one["head"], one["at"][-1], len(one["at"])) == (3, "Z", 27)
        assert one["last"] == {"by": "agent", "text": ("Here. " * 50)[:200]}


async def test_what_has_no_text_has_no_title() -> None:
    async with serving(Relay) as server:
        await append(server, "relay/a", "  ")
        await append(server, "relay/b", "x" * (100 << 10), by="agent", role="assistant")
        partition = await server.runtime.engine.partition("relay/c")
        await partition.commit(Batch(rows=[NewRow(body=b'{"role":"user", corrupt', by="user:ann")]))
        found = {one["conversation"]: (one["title"], one["last"]) for one in (await get(server))["conversations"]}
        assert found == {
            "relay/a": (None, {"by": "user:ann", "text": "  "}),
            "relay/b": (None, {"by": "agent", "text": "x" * 200}),
            "relay/c": (None, {"by": "user:ann", "text": ""}),
        }


@pytest.mark.parametrize("query", ["?after=x", "?limit=x", "?limit=-1", "?limit=1.5", "?limit=", "?after=" + "9" * 40])
async def test_a_query_that_is_none_is_400(query: str) -> None:
    async with serving(Relay) as server:
        assert await get(server, query) == 400


async def test_a_limit_is_kept_within_bounds() -> None:
    async with serving(Relay) as server:
        await filled(server, ["relay/1", "relay/2"])
        assert len((await get(server, "?limit=0"))["conversations"]) == 1
        assert len((await get(server, "?limit=9999&limit=2000"))["conversations"]) == 2


async def test_a_name_is_any_name() -> None:
    async with serving(Relay) as server:
        await filled(server, ["relay/</script>/../%2e ?token=#"])
        assert names(await get(server)) == ["relay/</script>/../%2e ?token=#"]
        assert (await request(server, f"{PATH}?{quote('access_token')}=x", host="localhost"))[0] == 400


async def test_nobody_has_more_lists_made_at_a_time_than_a_few() -> None:
    going_on, asked = asyncio.Event(), asyncio.Event()

    async def slow(principal: Principal, action: str, conversation: ConversationName) -> bool:
        asked.set()
        await going_on.wait()
        return True

    limits = Limits(lists_per_principal=1)
    async with serving(authenticate=authenticate, authorize=slow, limits=limits) as server:
        first = asyncio.create_task(get(server, token="ann"))
        await asked.wait()
        assert await get(server, token="ann") == 429
        other = asyncio.create_task(get(server, token="bob"))
        going_on.set()
        assert names(await first) == names(await other) == []
        assert names(await get(server, token="ann")) == []
