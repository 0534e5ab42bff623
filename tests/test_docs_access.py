"""The hooks of docs/access.md, as they stand there, under a server."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from parlatory import connect
from parlatory.server import AccessRequest, ConnectionRefused, ConversationRefused, SendRefused
from parlatory.server.connection import _ACTIONS
from parlatory.storage import open_engine

from .server.peers import request, serving, until

PAGE = (Path(__file__).parent.parent / "docs" / "access.md").read_text(encoding="utf-8")
CODE = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S))


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """All Python of the page, as one module."""
    module = ModuleType("access_page_under_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(CODE, "docs/access.md", "exec"), vars(module))
    return module


def test_the_page_names_every_action_and_field() -> None:
    assert set(_ACTIONS.values()) == set(re.findall(r"^\| `(\w+)` \| for ", PAGE, re.M))
    assert all(f"| `{field}` |" in PAGE for field in (*AccessRequest.__struct_fields__, "anonymous"))


def test_tokens_of_one_s_own(page: ModuleType) -> None:
    def of(token: str | None) -> object:
        return page.authenticate(AccessRequest(token, None, {}, "127.0.0.1"))

    good = page.token_of("ann")
    principal = page.authenticate(AccessRequest(good, None, {}, "127.0.0.1"))
    assert principal.name == "user:ann" and principal.expires_at > page.time.time() and not principal.claims["staff"]
    for bad in (None, "", "ann", good + "0", good.replace("ann", "bob"), good.replace(".", ".1", 1), "é" + good):
        assert of(bad) is None


async def test_one_s_own_conversations(page: ModuleType) -> None:
    engine = await open_engine("memory:")
    hooks = {"authenticate": page.authenticate, "authorize": page.rule_of(engine)}
    async with serving(page.Bot, engine=engine, **hooks) as server, asyncio.timeout(10):
        for token in (None, page.token_of("ann", seconds=-1)):
            with pytest.raises(ConnectionRefused):
                async with connect(server.url, "bot/x", token=token) as chat:
                    await chat.send("hi")
        async with connect(server.url, "bot/x", token=page.token_of("ann")) as ann:
            await ann.send("hi")
            with pytest.raises(SendRefused):
                await ann.send({"role": "assistant", "content": "I am the agent"})
            async with connect(server.url, "bot/x", token=page.token_of("bob")) as bob:
                with pytest.raises((ConversationRefused, SendRefused)):  # whichever answer comes first
                    await bob.send("let me in")
        async with connect(server.url, "bot/x", token=page.token_of("sam")) as sam:
            await sam.send({"role": "assistant", "content": "Sam here"})
        for user, own in (("ann", ["bot/x"]), ("bob", [])):
            header = f"Authorization: Bearer {page.token_of(user)}\r\n"
            status, text = await request(server, "/v1/conversations", header)
            listed = json.loads(text)
            assert status == 200 and listed["agents"] == ["bot"]
            assert [one["conversation"] for one in listed["conversations"]] == own


async def test_the_server_of_the_page_starts(
    page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    running = asyncio.ensure_future(page.main(port=0))
    await until(lambda: any("parlatory recheck" in task.get_name() for task in asyncio.all_tasks()))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (tmp_path / "data" / "parlatory.sqlite").exists()
