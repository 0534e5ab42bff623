"""Words for people."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Returns how many there are of something: `no rows`, `1 row`, `2 rows`."""
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
