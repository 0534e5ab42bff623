"""The SQLite engine in processes that are killed or forget to close: what was acknowledged is there afterwards."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parlatory.storage import MessageLog, open_engine
from parlatory.storage.sqlite import SqliteEngine

CHILD = """
import asyncio, sys
from parlatory.storage import MessageLog, open_engine, user_message

async def main():
    engine = await open_engine("sqlite:///" + sys.argv[1], durability=sys.argv[2])

    async def run(log):
        while True:
            seq = await log.append(user_message("x" * 500), client_id=f"c{await log.count() + 1}")
            sys.stdout.write(f"{log.name} {seq}\\n")
            sys.stdout.flush()

    logs = [MessageLog(await engine.partition(f"bot/{number}")) for number in range(8)]
    await asyncio.gather(*(run(log) for log in logs))

asyncio.run(main())
"""


@contextmanager
def killed(directory: Path, acks: int, durability: str = "full") -> Iterator[dict[str, int]]:
    """A server that is killed in mid-append, after some acks; gives the last ack of each conversation."""
    heads: dict[str, int] = {}
    argv = [sys.executable, "-c", CHILD, str(directory), durability]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in itertools.islice(child.stdout, acks):
            name, seq = line.split()
            heads[name] = int(seq)
        child.send_signal(signal.SIGKILL)
        for line in child.stdout:  # acknowledged before it died
            if line.endswith("\n"):
                name, seq = line.split()
                heads[name] = int(seq)
    yield heads


@pytest.mark.parametrize("acks", [1, 57, 400])
async def test_t21_what_was_acknowledged_survives_kill_9(tmp_path: Path, acks: int) -> None:
    with killed(tmp_path, acks) as heads:
        reader = await open_engine(f"sqlite:///{tmp_path}", read_only=True)  # before anybody cleans up
        engine = await SqliteEngine.open(tmp_path)
        assert engine.epoch == getattr(reader, "epoch", None)
        for opened in (reader, engine):
            for name, head in heads.items():
                partition = await opened.partition(name)
                rows = [row async for row in MessageLog(partition)]
                assert [row.seq for row in rows] == list(range(1, partition.head + 1))
                assert [row.client_id for row in rows] == [f"c{row.seq}" for row in rows]
                assert head <= partition.head <= head + 1  # at most the append that was under way
            await opened.close()


async def test_normal_durability_has_an_epoch_per_unclean_end(tmp_path: Path) -> None:
    epochs = []

    async def opened(durability: str) -> None:
        engine = await open_engine(f"sqlite:///{tmp_path}", durability=durability)  # type: ignore[arg-type]
        epochs.append((await engine.partition("bot/0")).epoch)
        await engine.close()

    await opened("normal")
    await opened("normal")
    assert len(set(epochs)) == 1  # both ended cleanly
    with killed(tmp_path, 5, "normal"):
        await opened("full")
        await opened("full")
    assert len(set(epochs)) == 2
    with killed(tmp_path, 5, "full"):
        await opened("normal")
    assert len(set(epochs)) == 2  # what was told at `full` is there
    with killed(tmp_path, 5, "normal"):
        await opened("normal")
    assert len(set(epochs)) == 3


FORGETFUL = """
import asyncio, sys
from parlatory.storage import MessageLog, open_engine, user_message

async def main():
    engine = await open_engine("sqlite:///" + sys.argv[1])
    print(await MessageLog(await engine.partition("bot/a")).append(user_message("hi")))

asyncio.run(main())
"""


def test_an_engine_that_nobody_closed(tmp_path: Path) -> None:
    """It is warned of, and does not keep its process alive."""
    argv = [sys.executable, "-W", "always", "-c", FORGETFUL, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert f"ResourceWarning: the engine of {tmp_path} was not closed" in done.stderr
