"""A hot room: a thousand subscribers, and no step of the loop that makes the others wait (P9)."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlatory import Agent, Runtime, open_engine, serve, user_message

CROWD = Path(__file__).with_name("crowd.py")
SOCKETS = 1_000
ROWS = 150
STEP_S = 0.010


class Relay(Agent):
    """Rows in, rows out."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[float, str]]]:
    """Measures each step of the loop by the processor time it takes, which other processes do not change."""
    taken: list[tuple[float, str]] = []
    run = asyncio.events.Handle._run

    def measured(handle: asyncio.events.Handle) -> None:
        what = getattr(handle, "_callback", None)
        start = time.thread_time()
        run(handle)
        taken.append((time.thread_time() - start, repr(what)))

    monkeypatch.setattr(asyncio.events.Handle, "_run", measured)
    # What the tests before this one left in the process is no garbage of this server.
    gc.collect()
    gc.freeze()
    yield taken
    gc.unfreeze()


@pytest.fixture
def files() -> Iterator[None]:
    """Lets this process have a socket for each of the crowd."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("files")
async def test_no_step_of_the_loop_is_long(tmp_path: Path, steps: list[tuple[float, str]]) -> None:
    engine = await open_engine(f"sqlite:///{tmp_path}")
    async with Runtime(engine, [Relay]) as runtime, serve(runtime, port=0) as server:
        arguments = ["127.0.0.1", str(server.port), "relay/hot", str(SOCKETS)]
        pipe = asyncio.subprocess.PIPE
        crowd = await asyncio.create_subprocess_exec(sys.executable, str(CROWD), *arguments, stdin=pipe, stdout=pipe)
        assert crowd.stdin is not None and crowd.stdout is not None
        assert await crowd.stdout.readline() == b"ready\n"
        assert server.connections == SOCKETS
        steps.clear()
        await asyncio.sleep(0)
        steps.clear()  # also of the step that let all of them go, which takes long
        ref = runtime.get(Relay, "hot")
        for seq in range(1, ROWS + 1):
            assert await ref.append(user_message("x" * 200), by="user:a") == seq
        crowd.stdin.write(b"%d\n" % ROWS)
        assert await crowd.stdout.readline() == b"%d %d\n" % (ROWS, ROWS)
        await crowd.wait()
        slow = [step for step in steps if step[0] > STEP_S]
        assert not slow, slow
