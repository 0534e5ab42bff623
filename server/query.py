"""What a request for a page of something asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

import msgspec

from ..storage import Engine, Listing
from .http import HttpRequest

__all__ = ["BadQuery", "Query", "list_active", "read_query"]

PAGE = 50
PAGE_MAX = 200


class BadQuery(ValueError):
    """Says that a query is not understood; the text is for whoever wrote it."""


class Query(msgspec.Struct, frozen=True):
    """Is what a request for a page asks for."""

    name: str
    after: str
    limit: int
    search: str
    before: int | None


def read_query(request: HttpRequest) -> Query:
    """Returns what a query says; a limit over 200 is 200.

    Raises:
        BadQuery: a number is none.
    """
    values = {name: found[-1] for name, found in parse_qs(request.query, keep_blank_values=True).items()}
    limit = _number(values, "limit")
    return Query(
        values.get("name", ""),
        values.get("after", ""),
        PAGE if limit is None else min(max(1, limit), PAGE_MAX),
        values.get("search", ""),
        _number(values, "before"),
    )


def _number(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 16):
        raise BadQuery(f"{name} is a number")
    return int(text)


async def list_active(
    engine: Engine, *, after: str, limit: int, by: str | None = None, search: str = ""
) -> Sequence[Listing]:
    """Returns conversations by activity; see `Engine.list`.

    Raises:
        BadQuery: the cursor is none.
    """
    try:
        return await engine.list(order="activity", by=by, search=search, after=after, limit=limit)
    except ValueError as error:
        raise BadQuery(str(error)) from error
