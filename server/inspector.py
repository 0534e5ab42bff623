"""`GET /v1/inspect/...`: what goes on in a server, for those who run it. It looks when it is asked, and never else.

    /v1/inspect                              counts of everything
    /v1/inspect/conversations                by last activity: `search`, `after`, `limit`
    /v1/inspect/conversation                 one of them, with its last rows: `name`, `before`, `limit`
    /v1/inspect/connections                  sockets, 200 of them

Forbidden looks like absent.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
from websockets.http11 import Response

from ..actors import ConversationPicture
from ..storage import CorruptRow, InvalidName, Row, instant_text
from .connection import Connection
from .http import HttpRequest, Site, respond, respond_json
from .listing import described
from .loopback import from_this_machine
from .pages import send_file
from .query import BadQuery, Query, list_active, read_query

if TYPE_CHECKING:
    from .app import Server

__all__ = ["Inspector"]

DATA = "/v1/inspect"
PAGE = "/inspect"
ROWS_BYTES = 256 << 10
SHOWN_MAX = 200
ABSENT = "Nothing is here.\n"


class Inspector:
    """Answers those who run a server: by its `operator`; without one, whoever sits at its machine."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def add_to(self, site: Site, *, web: bool) -> None:
        """Answers the data and, with the other pages, the page."""
        site.add(DATA, self.answer)
        site.add(f"{DATA}/", self.answer)
        if web:
            site.add(PAGE, self.page)
            site.add(f"{PAGE}/", self.page)

    async def page(self, request: HttpRequest) -> Response:
        """Returns a file of the page. It holds nothing of anybody; who has no token yet gives it there."""
        if not (self._server.access.has_operator or self._at_home(request)):
            return respond(404, ABSENT)
        name = "/inspect/index.html" if request.path == PAGE else request.path
        return await send_file(msgspec.structs.replace(request, path=name))

    async def answer(self, request: HttpRequest) -> Response:
        """Returns what was asked for, if it is there and may be seen."""
        if not await self._server.may_operate(request, self._at_home(request)):
            return respond(404, ABSENT)
        what = request.path.removeprefix(DATA).removeprefix("/")
        try:
            if not what:
                return respond_json(self._overview())
            if what == "connections":
                return respond_json(self._connections())
            query = read_query(request)
            if what == "conversations":
                return respond_json(await self._conversations(query))
            if what == "conversation":
                return await self._conversation(query)
            return respond(404, ABSENT)
        except InvalidName:
            return respond(404, ABSENT)
        except BadQuery as error:
            return respond(400, f"{error}\n")

    def _at_home(self, request: HttpRequest) -> bool:
        """Says that a request needs nobody's leave: there are no hooks, and it comes from this machine."""
        return self._server.access.open_to_all and from_this_machine(request)

    # -- what is seen

    def _overview(self) -> dict[str, Any]:
        server, runtime = self._server, self._server.runtime
        now = runtime.statistics()
        counters, reaper, storage = server.counters, server.reaper, runtime.engine.statistics
        return {
            "version": server.version,
            "boot": server.boot,
            "agents": sorted(runtime.agents),
            "server": {
                "draining": server.draining,
                "connections": server.connections - 1,  # who asks is no news
                "pending": server.pending - 1,
                "accepted": counters.accepted,
                "dropped": counters.dropped,
                "refused": counters.refused.total(),
                "closed": {str(code): count for code, count in counters.closed.items()},
                "aborted": reaper.stalled + reaper.silent + reaper.dribbling + reaper.lingering,
                "acks": counters.acks,
                "duplicates": counters.duplicates,
                "errors": dict(counters.errors),
                "loopLagMs": _milliseconds(reaper.lag_s),
            },
            "runtime": {
                "conversations": now.conversations,
                "running": now.running,
                "queued": now.queued,
                "drafts": now.drafts,
                "inFlight": now.in_flight,
                "subscriptions": now.subscriptions,
                "lagging": now.lagging,
                "residents": len(runtime.residency),
                "residentsMax": runtime.residency.limit,
                "evictions": runtime.counters.evictions,
                "released": runtime.counters.released,
                "turns": runtime.counters.turns,
            },
            "storage": {
                "failed": runtime.engine.failed is not None,
                "rows": storage.rows,
                "groups": storage.groups,
                "queued": storage.queued_rows,
                "pinned": storage.pinned,
                "commitP50Ms": _milliseconds(storage.commits.quantile(0.5)),
                "commitP99Ms": _milliseconds(storage.commits.quantile(0.99)),
            },
        }

    def _connections(self) -> dict[str, Any]:
        server = self._server
        sockets = [
            {
                "id": str(one.id),
                "principal": None if one.principal is None else one.principal.name,
                "peer": one.peer,
                "open": len(one.session.opened),
                "inflight": one.session.inflight,
                "writable": one.writable,
                "waiting": one.waiting_bytes(),
            }
            for one in islice(server.sockets, SHOWN_MAX)
        ]
        return {"connections": sockets, "total": server.connections}

    async def _conversations(self, query: Query) -> dict[str, Any]:
        runtime = self._server.runtime
        found = await list_active(runtime.engine, after=query.after, limit=query.limit + 1, search=query.search)
        page = found[: query.limit]
        items = []
        for one in page:
            record = runtime.resident(one.name)
            now = None if record is None else _now(record.picture(), one.head)
            items.append({**await described(runtime.engine, one), "now": now})
        return {"conversations": items, "next": page[-1].cursor if len(found) > len(page) else None}

    async def _conversation(self, query: Query) -> Response:
        runtime, name = self._server.runtime, query.name
        partition = await runtime.engine.partition(name)
        record = runtime.resident(name)
        if partition.key is None and record is None:
            return respond(404, ABSENT)
        before = partition.head + 1 if query.before is None else query.before
        rows = await partition.read(before=before, limit=query.limit, max_bytes=ROWS_BYTES, newest=True)
        return respond_json({
            "conversation": name,
            "epoch": partition.epoch,
            "floor": partition.floor,
            "head": partition.head,
            "rows": [_row(name, row) for row in rows],
            "more": bool(rows) and rows[0].seq > partition.floor + 1,
            "now": None if record is None else _now(record.picture(), partition.head, whole=True),
        })  # fmt: skip


def _now(picture: ConversationPicture, head: int, *, whole: bool = False) -> dict[str, Any]:
    """Returns what goes on in a conversation, with its draft and its subscribers if the whole is asked for."""
    draft, subscribers = picture.draft, picture.subscribers
    now: dict[str, Any] = {
        "resident": picture.resident,
        "state": picture.state,
        "turn": picture.turn,
        "attempt": picture.attempt,
        "queued": picture.queued,
        "mailbox": picture.mailbox.waiting + picture.mailbox.blocked,
        "inFlight": picture.in_flight,
        "writing": draft is not None,
        "subscribers": len(subscribers),
        "lagging": sum(not one.live for one in subscribers),
    }
    if whole:
        now["draft"] = draft and draft._asdict()
        now["subscriptions"] = [
            {
                "principal": one.principal,
                "connection": str(one.sink.id) if isinstance(one.sink, Connection) else None,
                "position": one.position,
                "lag": max(0, head - one.position),
                "live": one.live,
            }
            for one in subscribers[:SHOWN_MAX]
        ]
    return now


def _row(conversation: str, row: Row) -> msgspec.Raw | dict[str, Any]:
    """Returns a row as clients see it; of a corrupt one, what is wrong with it."""
    try:
        row.check(conversation)
    except CorruptRow as error:
        return {"seq": row.seq, "at": instant_text(row.at), "by": row.by, "fault": str(error)}
    return msgspec.Raw(row.json())


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
