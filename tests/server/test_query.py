from __future__ import annotations

import pytest

from parlatory.server.http import HttpRequest
from parlatory.server.query import BadQuery, list_active, read_query
from parlatory.storage import open_engine


def asked(query: str) -> HttpRequest:
    return HttpRequest("/", query, {}, "127.0.0.1")


def test_what_is_not_said_is_a_default() -> None:
    query = read_query(asked(""))
    assert (query.name, query.after, query.limit, query.search, query.before) == ("", "", 50, "", None)


def test_what_is_said_is_decoded_and_the_last_one_counts() -> None:
    query = read_query(asked("name=a%2Fb%20c&search=%C3%A9+x&limit=7&limit=500&before=12&after=3&other=1"))
    assert (query.name, query.after, query.limit, query.search, query.before) == ("a/b c", "3", 200, "\u00e9 x", 12)


@pytest.mark.parametrize("query", ["limit=x", "before=-1", "limit=\u0661", "before=" + "9" * 17])
def test_a_number_is_one(query: str) -> None:
    with pytest.raises(BadQuery, match="is a number"):
        read_query(asked(query))


async def test_a_cursor_that_is_none_is_a_bad_query() -> None:
    engine = await open_engine("memory:")
    with pytest.raises(BadQuery, match="'x' is no cursor"):
        await list_active(engine, after="x", limit=1)
    assert list(await list_active(engine, after="", limit=1)) == []
    await engine.close()
