"""One data directory and several programs: one owner (P10), and others that read, write and lock its file beside it.

T05 on one machine, T08, T09, T23. Elsewhere: the lock by itself (stale, empty, forked) in storage/test_lock.py, T09 and
T10 at the engine in storage/test_sqlite.py, a second server beside a running one in server/test_cli.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from parlatory import connect
from parlatory.server import Server
from parlatory.storage import DataLocked, open_engine
from parlatory.storage import sqlite as sqlite_module
from parlatory.storage.sqlite import FILE, SqliteEngine

from ..server.peers import DEADLINE_S, Peer, fresh, history, on_disk, until
from .child import child

C = "relay/c"
START_S = 20.0


@asynccontextmanager
async def program(*arguments: str) -> AsyncIterator[Process]:
    """Runs Python with pipes."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


# -- one owner


async def test_T05_a_paused_owner_stays_the_owner(tmp_path: Path) -> None:
    """A second server is refused while the first is stopped; the first goes on as if nothing had been."""
    bots = tmp_path / "bots.py"
    bots.write_text("from parlatory import Agent\nclass Relay(Agent):\n    pass\n", encoding="utf-8")
    data = tmp_path / "data"
    async with child(data) as first, Peer.admitted(first.url) as peer:
        await peer.open(C)
        assert (await peer.say(C, "before"))["seq"] == 1
        first.process.send_signal(signal.SIGSTOP)
        try:
            await peer.post(C, "into a stopped process", "paused")
            arguments = ["serve", str(bots), "--data", str(data), "--port", "0"]
            async with program("-m", "parlatory.server.cli", *arguments) as second:
                async with asyncio.timeout(START_S):
                    said = (await second.communicate())[1].decode()
                assert second.returncode == 2
                assert f"pid {first.process.pid} on " in said and "\n" not in said.strip()
            with pytest.raises(DataLocked, match=f"pid {first.process.pid} on "):
                await open_engine(f"sqlite:///{data}")
            assert (data / "LOCK").read_text(encoding="utf-8").startswith(f"pid {first.process.pid} on ")
            # Beside it one may read.
            engine = await open_engine(f"sqlite:///{data}", read_only=True)
            assert (await engine.partition(C)).head == 1
            await engine.close()
        finally:
            first.process.send_signal(signal.SIGCONT)
        assert (await peer.get("ack", clientId="paused"))["seq"] == 2
        assert (await peer.say(C, "after"))["seq"] == 3
        await peer.row(C, 3)
        assert peer.seqs(C) == [1, 2, 3]
    assert (data / "LOCK").read_bytes() == b""
    async with on_disk(data) as server:
        assert [row["seq"] for row in await history(server, C)] == [1, 2, 3]


OPENER = """
import asyncio, json, os, sys
from parlatory.storage import DataLocked, MessageLog, open_engine, user_message

async def main():
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            engine = await open_engine("sqlite:///" + line.strip())
        except DataLocked as error:
            print(json.dumps({"refused": str(error)}), flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
        except Exception as error:
            print(json.dumps({"failed": repr(error)}), flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
        else:
            seq = await MessageLog(await engine.partition("relay/c")).append(user_message("mine"))
            print(json.dumps({"owner": os.getpid(), "seq": seq}), flush=True)
            await loop.run_in_executor(None, sys.stdin.readline)
            await engine.close()
        print("done", flush=True)

asyncio.run(main())
"""


async def test_T08_of_eight_who_open_a_fresh_directory_at_once_one_owns_it(tmp_path: Path) -> None:
    processes, rounds = 8, 20
    async with contextlib.AsyncExitStack() as stack:
        openers = [await stack.enter_async_context(program("-c", OPENER)) for _ in range(processes)]
        for number in range(rounds):
            data = tmp_path / f"{number}"
            answers = [json.loads(line) for line in await told(openers, f"{data}\n")]
            owners = [answer["owner"] for answer in answers if "owner" in answer]
            assert len(owners) == 1, answers
            refusals = [answer["refused"] for answer in answers if "refused" in answer]
            assert len(refusals) == processes - 1, answers
            assert all(f"pid {owners[0]} on " in refusal and str(data) in refusal for refusal in refusals), answers
            assert await told(openers, "\n") == ["done\n"] * processes
            with contextlib.closing(sqlite3.connect(data / FILE)) as connection:
                assert connection.execute("SELECT count(*) FROM message").fetchone() == (1,)


async def told(processes: list[Process], line: str) -> list[str]:
    """Tells all of them something at once; returns what each answers."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(line.encode())
    async with asyncio.timeout(START_S):
        answers = await asyncio.gather(*(process.stdout.readline() for process in processes if process.stdout))
    return [answer.decode() for answer in answers]


# -- other programs on the file


@contextlib.contextmanager
def outside(data: Path, *statements: str) -> Any:
    """Is another program that holds the file."""
    with contextlib.closing(sqlite3.connect(data / FILE, isolation_level=None, timeout=0)) as connection:
        for statement in statements:
            connection.execute(statement).fetchall()
        yield connection


READS = ("BEGIN", "SELECT count(*) FROM message")
WRITES = ("BEGIN IMMEDIATE",)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> float:
    """Makes the engine wait for other programs for a short time; returns it in seconds."""
    monkeypatch.setattr(sqlite_module, "BUSY_TIMEOUT_MS", 300)
    return 0.3


async def fifty(peer: Peer) -> dict[str, str]:
    """Sends 50 messages, and returns each one's answer by its id."""
    answers: dict[str, str] = {}
    ids = [fresh("m") for _ in range(50)]
    for start in (0, 25):
        for client_id in ids[start : start + 25]:
            await peer.post(C, client_id, client_id)
        for client_id in ids[start : start + 25]:
            answer = await peer.get("ack", "error", clientId=client_id)
            answers[client_id] = answer.get("code", "ack")
    return answers


async def test_T09_an_outside_reader_holds_nothing_up(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as server, Peer.admitted(server) as peer:
        await peer.say(C, "first")
        with outside(tmp_path, *READS) as reader:
            assert set((await fifty(peer)).values()) == {"ack"}
            assert reader.execute("SELECT count(*) FROM message").fetchone() == (1,), "it still sees its moment"
        assert len(await history(server, C)) == 51


@pytest.mark.usefixtures("impatient")
async def test_T09_an_outside_writer_that_ends_in_time_is_waited_for(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as server, Peer.admitted(server) as peer, Peer.admitted(server) as listener:
        await peer.say(C, "first")
        await listener.open(C)
        await listener.live(C)
        with outside(tmp_path, *WRITES, "UPDATE meta SET value = value") as writer:
            sending = asyncio.ensure_future(fifty(peer))
            await until(lambda: _inflight(server))
            await listener.barrier()
            assert listener.seqs(C) == [], "nothing is told before it is committed"
            writer.execute("COMMIT")
        assert set((await sending).values()) == {"ack"}
        await listener.row(C, 51)
        assert listener.seqs(C) == list(range(2, 52))


async def test_T09_behind_an_outside_writer_that_stays_nobody_waits_for_ever(tmp_path: Path, impatient: float) -> None:
    """The wait is bounded, every send is answered, none is in the log; and each may be repeated then."""
    loop = asyncio.get_running_loop()
    async with on_disk(tmp_path) as server, Peer.admitted(server) as peer, Peer.admitted(server) as listener:
        await peer.say(C, "first")
        await listener.open(C)
        await listener.live(C)
        with outside(tmp_path, *WRITES):
            start = loop.time()
            refused = await fifty(peer)
            # Two windows of 25: each may be cut into a first group and what came meanwhile.
            assert loop.time() - start < 6 * impatient + 1
            assert set(refused.values()) == {"busy"}
            await listener.barrier()
            assert listener.seqs(C) == []
        for client_id in refused:
            answer = await peer.say(C, client_id, client_id)
            assert answer["type"] == "ack" and not answer.get("duplicate")
        rows = await history(server, C)
        assert [row.get("clientId") for row in rows][1:] == list(refused)
        await listener.row(C, 51)
        assert listener.seqs(C) == list(range(2, 52))


@pytest.mark.usefixtures("impatient")
async def test_T09_a_client_of_the_library_does_not_notice(tmp_path: Path) -> None:
    async with on_disk(tmp_path) as server, connect(server.url, C) as chat:
        assert await chat.send("first") == 1
        with outside(tmp_path, *WRITES):
            sends = [asyncio.ensure_future(chat.send(str(n))) for n in range(20)]
            assert isinstance(server.runtime.engine, SqliteEngine)
            await until(lambda: _inflight(server))
            await until(lambda: not _inflight(server))  # all were refused
            assert not any(one.done() for one in sends)
        async with asyncio.timeout(DEADLINE_S):
            assert await asyncio.gather(*sends) == list(range(2, 22))
        assert [(await anext(chat)).text for _ in range(21)] == ["first", *map(str, range(20))]


def _inflight(server: Server) -> int:
    return sum(connection.session.inflight for connection in server._connections)


# -- commits that fail


async def test_T23_a_commit_that_fails_tells_nobody_but_its_sender(tmp_path: Path) -> None:
    """The file may not grow any more: SQLite itself refuses, as on a full disk. Then there is room again."""
    async with on_disk(tmp_path) as server, Peer.admitted(server) as sender, Peer.admitted(server) as listener:
        await sender.say(C, "first")
        await listener.open(C)
        await listener.live(C)
        engine = server.runtime.engine
        assert isinstance(engine, SqliteEngine) and engine._disk._writer is not None
        ((pages,),) = await engine._disk._writer.execute_fetchall("PRAGMA page_count")
        await engine._disk._writer.execute_fetchall(f"PRAGMA max_page_count={pages}")
        for _ in range(3):
            answer = await sender.say(C, "x" * 100_000, "large")
            assert answer["code"] == "internal" and answer["retryMs"] > 0
            assert "disk" not in answer["text"]
        await listener.barrier()
        assert listener.seqs(C) == []
        assert [row["seq"] for row in await history(server, C)] == [1]
        await engine._disk._writer.execute_fetchall("PRAGMA max_page_count=1000000")
        answer = await sender.say(C, "x" * 100_000, "large")
        assert (answer["seq"], answer.get("duplicate")) == (2, None)
        await listener.row(C, 2)
        assert listener.seqs(C) == [2]
    async with on_disk(tmp_path) as server:
        assert [row["seq"] for row in await history(server, C)] == [1, 2]


async def test_T23_what_is_told_can_be_seen_by_everybody(tmp_path: Path) -> None:
    """On each row a stranger looks into the file: it is there. A commit that has to wait is told behind it only."""
    async with on_disk(tmp_path) as server, Peer.admitted(server) as sender, Peer.admitted(server) as listener:
        await listener.open(C)
        with outside(tmp_path) as stranger:
            for seq in range(1, 101):
                await sender.post(C, str(seq))
                await listener.row(C, seq)
                assert stranger.execute("SELECT max(seq) FROM message").fetchone() >= (seq,)


async def test_a_killed_owner_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    async with program("-c", OPENER) as owner:
        (answer,) = await told([owner], f"{tmp_path}\n")
        assert json.loads(answer)["owner"] == owner.pid
        os.kill(owner.pid, signal.SIGKILL)
        await owner.wait()
    assert re.match(rf"pid {owner.pid} on ", (tmp_path / "LOCK").read_text(encoding="utf-8"))
    async with on_disk(tmp_path) as server:
        assert [row["seq"] for row in await history(server, C)] == [1]
