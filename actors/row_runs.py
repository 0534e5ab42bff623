"""Runs of rows, as long as one frame holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..storage import CorruptRow, Row

__all__ = ["RUN_BYTES_MAX", "RUN_ROWS_MAX", "runs", "sound"]

RUN_ROWS_MAX = 200
RUN_BYTES_MAX = 1 << 20


def sound(rows: list[Row], conversation: str) -> list[Row]:
    """Returns the rows in front of the first corrupt one, which would spoil a frame; raises CorruptRow if none is."""
    for index, row in enumerate(rows):
        try:
            row.check(conversation)
        except CorruptRow:
            if not index:
                raise
            return rows[:index]
    return rows


def runs(rows: Sequence[Row], rows_max: int = RUN_ROWS_MAX, bytes_max: int = RUN_BYTES_MAX) -> Iterator[Sequence[Row]]:
    """Cuts rows into runs that one frame may hold: at most `rows_max` rows and `bytes_max` bytes, at least one row."""
    if len(rows) == 1:
        yield rows
        return
    start = size = 0
    for index, row in enumerate(rows):
        length = len(row.json()) + 1  # and its comma
        size += length
        if index > start and (size > bytes_max or index - start == rows_max):
            yield rows[start:index]
            start, size = index, length
    if start < len(rows):
        yield rows[start:]
