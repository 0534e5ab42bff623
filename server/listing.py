"""`GET /v1/conversations`: the list of one's own conversations, the one that was active last first.

One's own are those in which one has a row, as far as one may still open them. Where everything is allowed to everybody
on this machine they are all conversations, and then they are for requests from this machine only.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from websockets.http11 import Response

from ..storage import CorruptRow, Engine, Listing, Row, instant_text, split_name
from .access import ConversationName, Grant, Principal
from .http import HttpRequest, respond, respond_json
from .loopback import from_this_machine
from .query import BadQuery, Query, list_active, read_query
from .shares import Shares, asker

if TYPE_CHECKING:
    from .app import Server

__all__ = ["OwnConversations", "described"]

ROUNDS_MAX = 5
RETRY_S = 1
TITLE_CHARACTERS = 80
TEXT_CHARACTERS = 200


class OwnConversations:
    """Answers with the conversations of whoever asks."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._shares = Shares(server.limits.lists_per_principal)

    async def answer(self, request: HttpRequest) -> Response:
        """Returns one page: the conversations, the cursor of the next page, and the agents one may talk to."""
        server = self._server
        everything = server.local
        if everything and not from_this_machine(request):
            return respond(403, "This server is for this machine only.\n")
        principal = await server.site.principal(request)
        if principal is None:
            return respond(401, "The server needs a token, as Authorization: Bearer ...\n")
        who = asker(principal, request.remote)
        if self._shares.used_up(who):
            return respond(429, "Wait for the lists you have asked for.\n", headers={"Retry-After": str(RETRY_S)})
        try:
            with self._shares.one(who):
                return await self._answer(principal, None if everything else principal.name, read_query(request))
        except BadQuery as error:
            return respond(400, f"{error}\n")

    async def _answer(self, principal: Principal, by: str | None, query: Query) -> Response:
        server = self._server
        found, cursor = await self._page(principal, by, query)
        return respond_json({
            "conversations": [await described(server.runtime.engine, one) for one in found],
            "next": cursor,
            "agents": [
                agent
                for agent in sorted(server.runtime.agents)
                if await self._may_open(principal, ConversationName(agent, secrets.token_urlsafe(12)))
            ],
        })  # fmt: skip

    async def _page(self, principal: Principal, by: str | None, query: Query) -> tuple[list[Listing], str | None]:
        """Returns a page of what may be opened, and the cursor behind it; a shorter page where much may not be."""
        found: list[Listing] = []
        cursor = query.after
        for _ in range(ROUNDS_MAX):
            wanted = query.limit - len(found) + 1
            page = await list_active(self._server.runtime.engine, after=cursor, limit=wanted, by=by)
            for one in page:
                if len(found) == query.limit:
                    return found, cursor
                cursor = one.cursor
                if await self._may_open(principal, ConversationName(*split_name(one.name))):
                    found.append(one)
            if len(page) < wanted:
                return found, None
        return found, cursor

    async def _may_open(self, principal: Principal, conversation: ConversationName) -> bool:
        if conversation.agent not in self._server.runtime.agents:
            return False
        try:
            grant = self._server.access.authorize(principal, "open", conversation)
            return (grant if isinstance(grant, Grant | None) else await grant) is not None
        except Exception as error:  # the application's hook: whom it does not know sees nothing
            self._server.faults.log("authorize failed", error, f"authorize failed, {str(conversation)!r} is not listed")
            return False


async def described(engine: Engine, listing: Listing) -> dict[str, Any]:
    """Returns a conversation as lists show it: what the first message of a user says is its title."""
    last = listing.last
    if last is None and listing.head:  # a long row, which a list does not bring along
        partition = await engine.partition(listing.name)
        rows = await partition.read(after=listing.head - 1, before=listing.head + 1, limit=1)
        last = rows[0] if rows else None
    title = "" if listing.first is None else _text_of(listing.name, listing.first)
    return {
        "conversation": listing.name,
        "title": _shortened(" ".join(title.split())) or None,
        "head": listing.head,
        "at": instant_text(listing.at),
        "last": last and {"by": last.by, "text": _text_of(listing.name, last)[:TEXT_CHARACTERS]},
    }


def _text_of(conversation: str, row: Row) -> str:
    try:
        return row.stored(conversation).text
    except CorruptRow:  # the rest of the list is as good as it was
        return ""


def _shortened(text: str) -> str:
    return text if len(text) <= TITLE_CHARACTERS else text[: TITLE_CHARACTERS - 1].rstrip() + "\u2026"
