"""Turns in a real process that is killed, blocked or told to stop (P7, P8)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path

import pytest

from ..server.peers import Json, Peer
from .witness import Server

AGENTS = Path(__file__).with_name("turns_agents.py")
SLACK_S = 0.5  # of a busy machine


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setenv("BOOKED", str(tmp_path / "booked"))
    made = Server(tmp_path / "data", AGENTS, "--drain", "0.5")
    await made.start()
    yield made
    await asyncio.to_thread(made.kill)


@asynccontextmanager
async def watching(server: Server, conversation: str, **position: object) -> AsyncIterator[Peer]:
    async with Peer.admitted(server.url) as peer:
        await peer.open(conversation, **position)
        yield peer


async def killed(server: Server) -> None:
    await asyncio.to_thread(server.kill)
    await server.start()


def kinds(rows: list[Json]) -> list[tuple[str, str | None]]:
    return [(row["message"]["role"], row.get("finish")) for row in rows]


def texts(rows: list[Json]) -> list[str]:
    return [row["message"]["content"] for row in rows]


async def rows_until(peer: Peer, conversation: str, seq: int) -> list[Json]:
    """Returns the rows up to one, as this client was told them."""
    await peer.row(conversation, seq)
    return [row for frame in peer.seen if frame["type"] == "rows" for row in frame["rows"]][:seq]


async def test_two_says_with_a_kill_between_them(server: Server) -> None:
    """What was said is there, once, and told to the next attempt; that says the rest."""
    where = "twice/c"
    async with watching(server, where) as peer:
        await peer.say(where, "hi")
        await peer.row(where, 2)
    await killed(server)
    async with watching(server, where) as peer:
        rows = await rows_until(peer, where, 3)
        assert texts(rows) == ["hi", "one", "two"]
        assert [row.get("turn") for row in rows] == [None, 1, 1]
        await peer.say(where, "again")  # the mark is durable behind the turn: the next one ends behind it
        await peer.row(where, 5)
    await killed(server)
    async with watching(server, where) as peer:
        assert texts(await rows_until(peer, where, 6)) == ["hi", "one", "two", "again", "one", "two"]
        await peer.barrier()
        assert len(peer.seqs(where)) == 6


async def test_T20_L07_a_kill_in_mid_answer_keeps_the_tool_the_partial_and_the_question(
    server: Server, tmp_path: Path
) -> None:
    where = "work/c"
    async with watching(server, where) as peer:
        await peer.say(where, "go")
        written = 0
        while written < 60:
            written = (await peer.get("delta"))["to"]
    await killed(server)
    async with watching(server, where) as peer:
        rows = await rows_until(peer, where, 5)
        assert kinds(rows) == [
            ("user", None), ("assistant", None), ("tool", None), ("assistant", "interrupted"), ("assistant", None),
        ]  # fmt: skip
        whole = "".join(f"w{number} " for number in range(100))
        partial = rows[3]["message"]["content"]
        assert whole.startswith(partial) and partial.startswith("w0 w1 ")
        assert rows[4]["message"]["content"] == whole
        assert rows[2]["message"]["content"][0]["output"] == {"type": "text", "value": "booked"}
        assert {row["turn"] for row in rows[1:]} == {1}
        await peer.get("turn", id=1, state="done")
        begun = {frame["id"] for frame in peer.seen if frame["type"] == "draft"}
        assert [frame["id"] for frame in peer.seen if frame["type"] == "draftEnd"] == list(begun), "none is left open"
    assert (tmp_path / "booked").read_text() == "c\n", "the tool ran once"


async def test_T42_a_kill_in_mid_tool_gives_an_error_and_no_second_run(server: Server, tmp_path: Path) -> None:
    where, booked = "work/c", tmp_path / "booked"
    async with watching(server, where) as peer:
        await peer.say(where, "book")
        async with asyncio.timeout(10):
            while not booked.exists() or not booked.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    await killed(server)
    async with watching(server, where) as peer:
        rows = await rows_until(peer, where, 4)
        assert kinds(rows) == [("user", None), ("assistant", None), ("tool", None), ("assistant", None)]
        output = rows[2]["message"]["content"][0]["output"]
        assert output["type"] == "error-text" and output["value"].startswith("interrupted")
    assert booked.read_text() == "c\n"


async def test_code_that_blocks_the_loop_is_named_and_costs_nobody_anything(server: Server) -> None:
    """Five seconds of `time.sleep` in a handler: named within one, no socket closed, nothing lost or done twice."""
    where, elsewhere = "block/c", "relay/c"
    async with watching(server, where) as a, watching(server, elsewhere) as b:
        await a.get("live")
        await a.post(where, "go", "go")
        assert (await a.get("ack", clientId="go"))["seq"] == 1
        await a.get("turn", state="running")
        ids = [await b.post(elsewhere, str(number)) for number in range(20)]
        for number, client_id in enumerate(ids, 1):
            assert (await b.get("ack", clientId=client_id))["seq"] == number
        await a.get("turn", id=1, state="done")
        rows = await rows_until(a, where, 2)
        assert texts(rows) == ["go", "awake"]
        await b.row(elsewhere, 20)
        assert b.seqs(elsewhere) == list(range(1, 21))
        assert (await a.say(where, "go", "go"))["duplicate"] is True
        await a.barrier()
        assert a.seqs(where) == [1, 2] and not {"error", "bye"} & {frame["type"] for frame in a.seen + b.seen}
    await asyncio.to_thread(server.stop)
    said = "".join(server.said)
    assert "blocked by turn 1 of 'block/c'" in said and "time.sleep(BLOCK_S)" in said
    assert said.count("is blocked by") == 1
    begins, named = (instant(said, what) for what in ("blocks from now on", "is blocked by"))
    assert named - begins < 1.0 + SLACK_S


def instant(said: str, what: str) -> float:
    """Returns when a line of the log was written."""
    (stamp,) = re.findall(rf"^(\S+ \S+) \w+ \S+: .*{what}", said, re.M)
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()


async def test_a_drain_lets_turns_end_in_its_window_and_the_next_process_takes_up_the_others(server: Server) -> None:
    """The window is half a second: one turn needs less, the other one more. Three deploys are no reason to give up."""
    short, long = "slow/short", "slow/long"
    async with watching(server, short) as a, watching(server, long) as b:
        await b.say(long, "1500")
        await b.get("delta")
        await a.say(short, "200")
        await a.get("delta")
        assert await asyncio.to_thread(server.stop) == 0
        bye = await b.get("bye")
        assert bye["code"] == 1012
    for _ in range(2):
        await server.start()
        async with watching(server, long, tail=0) as peer:
            await peer.get("delta")
            assert await asyncio.to_thread(server.stop) == 0
    await server.start()
    async with watching(server, short) as peer:
        rows = await rows_until(peer, short, 2)
        assert kinds(rows) == [("user", None), ("assistant", None)]
    async with watching(server, long) as peer:
        await peer.get("turn", id=1, state="done")
        rows = await rows_until(peer, long, 5)
        assert kinds(rows) == [("user", None), *[("assistant", "interrupted")] * 3, ("assistant", None)]
        assert rows[-1]["message"]["content"] == "".join(f"w{number} " for number in range(75))
