"""What reads and appends cost where much is stored: `python -m tests.bench.store reads | conversations`.

`reads` takes the last 20 rows of a conversation of 1,000, of 100,000 and of 1,000,000 rows in one file, in turns: what
a read costs drifts with where the machine runs its two threads, by more than the sizes differ. `conversations` makes
1,000,000 conversations of one row by appends, and appends to one of them and to one in an empty file in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from time import perf_counter

from parlatory.storage import Batch, Engine, MessageLog, open_engine, user_message

SIZES = (1_000, 100_000, 1_000_000)
CONVERSATIONS = 1_000_000
AT_ONCE = 1_000
UNFINISHED = 500
MESSAGE = user_message("x" * 200)


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    """Returns how many milliseconds a call takes."""
    start = perf_counter()
    await call()
    return (perf_counter() - start) * 1000


async def in_turns(calls: dict[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, float]:
    """Returns the median of each call, of rounds in which each has its turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(await timed(call))
    return {name: median(found) for name, found in times.items()}


async def reads(folder: Path) -> dict[str, float]:
    """Returns the milliseconds of `last(20)` by the size of the conversation."""
    engine = await open_engine(f"sqlite:///{folder}")
    calls: dict[str, Callable[[], Awaitable[object]]] = {}
    for size in SIZES:
        log = MessageLog(await engine.partition(f"relay/rows-{size}"))
        for _ in range(0, size, 1_000):
            await log.append_many([MESSAGE] * 1_000)
        calls[f"last(20) of {size:,} rows, ms"] = lambda log=log: log.last(20)  # type: ignore[misc]
    try:
        return await in_turns(calls, 1_000)
    finally:
        await engine.close()


async def append(engine: Engine, name: str) -> MessageLog:
    """Appends to a conversation, and returns it."""
    log = MessageLog(await engine.partition(name))
    await log.append(MESSAGE)
    return log


async def conversations(folder: Path) -> dict[str, float]:
    """Returns what is slower, or not, where a file has 1,000,000 conversations."""
    engine = await open_engine(f"sqlite:///{folder / 'many'}")
    for start in range(0, CONVERSATIONS, AT_ONCE):
        await asyncio.gather(*(append(engine, f"relay/{number}") for number in range(start, start + AT_ONCE)))
    for number in range(0, CONVERSATIONS, CONVERSATIONS // UNFINISHED):
        partition = await engine.partition(f"relay/{number}")
        await partition.commit(Batch(work=True))
    await engine.close()
    figures: dict[str, float] = {}
    opened: list[Engine] = []

    async def reopen() -> None:
        opened.append(await open_engine(f"sqlite:///{folder / 'many'}"))

    async with AsyncExitStack() as stack:
        figures["open, ms"] = await timed(reopen)
        stack.push_async_callback(opened[0].close)
        figures["unfinished work, ms"] = await timed(lambda: opened[0].due(now=0))
        empty = await open_engine(f"sqlite:///{folder / 'empty'}")
        stack.push_async_callback(empty.close)
        many, first = await append(opened[0], "relay/77"), await append(empty, "relay/77")
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "append, ms": lambda: many.append(MESSAGE),
            "append to an empty file, ms": lambda: first.append(MESSAGE),
        }
        figures |= await in_turns(calls, 1_000)
    return figures


def main() -> None:
    """Runs one of them, and prints what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=("reads", "conversations"))
    case = {"reads": reads, "conversations": conversations}[parser.parse_args().case]
    with tempfile.TemporaryDirectory() as folder:
        for name, value in asyncio.run(case(Path(folder))).items():
            print(f"{name}: {value:.3f}")  # noqa: T201


if __name__ == "__main__":
    main()
