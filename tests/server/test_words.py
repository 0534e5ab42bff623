"""Words for people."""

from __future__ import annotations

from parlatory.server.words import counted


def test_counted() -> None:
    assert [counted(number, "row") for number in (0, 1, 2)] == ["no rows", "1 row", "2 rows"]
