"""An agent that says what a test tells it, and what a page shows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from websockets.http11 import Response

from parlatory.actors import Agent
from parlatory.server import Server
from parlatory.server.http import HttpRequest, respond
from parlatory.storage import MessageLog, StoredMessage

from ..server import peers
from .chromium import Page

__all__ = ["BODIES", "DRAFT", "FAIL", "OPEN", "Pieces", "address", "fill", "serving", "shown", "story"]

FAIL = "(fail)"
Pieces = asyncio.Queue[str | None]
# What a page says once it is caught up, what is being written, and the bodies of all rows.
OPEN = "document.querySelector('#connection').textContent === 'Connected'"
DRAFT = "document.querySelector('.draft .body')?.innerText.trim()"
BODIES = "[...document.querySelectorAll('#rows .body')].map((one) => one.innerText.trim())"


def story() -> tuple[type[Agent], Pieces]:
    """Returns an agent `story` and what it says: each piece at once; None ends its answer, FAIL breaks it off."""
    pieces: Pieces = asyncio.Queue()

    class Story(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            async with self.reply() as draft:
                while (piece := await pieces.get()) is not None:
                    if piece == FAIL:
                        raise RuntimeError("told to fail")
                    await draft.write(piece)

    return Story, pieces


@asynccontextmanager
async def serving(*agents: type[Agent], **options: Any) -> AsyncIterator[Server]:
    """Serves agents, and an empty list of conversations where the server has none of its own."""

    def nothing(_: HttpRequest) -> Response:
        return respond(200, json.dumps({"conversations": [], "next": None}), "application/json")

    async with peers.serving(*agents, **options) as server:
        if server.site.find("/v1/conversations") is None:
            server.site.add("/v1/conversations", nothing)
        yield server


def address(server: Server, conversation: str = "", port: int | None = None) -> str:
    return f"http://127.0.0.1:{port or server.port}/" + (f"#{conversation}" if conversation else "")


async def fill(server: Server, conversation: str, messages: Sequence[Mapping[str, Any]], by: str | None = None) -> None:
    """Fills a conversation that nobody has open."""
    log = MessageLog(await server.runtime.engine.partition(conversation))
    for start in range(0, len(messages), 2000):
        await log.append_many(messages[start : start + 2000], by=by)


async def shown(page: Page, *bodies: str) -> None:
    """Waits until these are the rows of the page."""
    await page.until(f"JSON.stringify({BODIES}) === JSON.stringify({list(bodies)!r})")
