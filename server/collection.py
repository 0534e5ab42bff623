"""Garbage collection in a process that serves: seldom, and without what was there before the first socket.

Almost nothing here lies in a cycle; reference counts free it. What Python's collector looks at again and again is what
lives for a second, such as a delta on its way to storage, and it stops the loop meanwhile: with 1,000 drafts for 60 ms
every three seconds.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collected_seldom"]

# So many objects more than before, then the young ones are looked at: 2 to 5 ms. Python's own number is 700, or 2,000.
YOUNG_MAX = 10_000


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Has the collector work seldom; whoever sets its thresholds inside has the last word."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_MAX, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
