"""What a process holds beside memory: descriptors and threads, counted so that only a leak changes the count."""

from __future__ import annotations

import gc
import os
import threading

from parlatory.storage.sqlite import SqliteEngine


class Holdings:
    """Counts what is held; what others left behind goes before, and their threads are not counted.

    Neither are those of the event loop's pool: it starts one more where an idle one has not said so yet, up to its cap.
    """

    def __init__(self) -> None:
        gc.collect()
        self._others = set(threading.enumerate())

    def count(self) -> tuple[int, int]:
        """How many descriptors and threads there are; threads of connections end just after they are closed."""
        threads = [each for each in set(threading.enumerate()) - self._others if not each.name.startswith("asyncio_")]
        return len(os.listdir("/proc/self/fd")), len(threads)

    async def quiet(self, engine: SqliteEngine) -> tuple[int, int]:
        """The same once nothing is committed, and the WAL is not open to make room in it."""
        await engine._committer.rest()
        return self.count()
