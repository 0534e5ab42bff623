"""Real clients and a real server with a bad network between them: every row and send once, in order (P3, P4)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from parlatory import Client, connect
from parlatory.server import Limits, Server, client_link, client_retry
from parlatory.server.client import Chat
from parlatory.storage import StoredMessage

from ..server.peers import DEADLINE_S, Echo, Peer, history, on_disk, serving, until
from .proxy import FAULTS, FaultName, Proxy

C = "relay/c"
SEND_S = 40.0
# A silent socket is found within a second on either side.
LIMITS = Limits(beat_ms=200, silence_s=0.4, stall_s=0.5, close_s=0.5)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients come back sooner than they do by default."""
    monkeypatch.setattr(client_retry, "FIRST_S", 0.02)
    monkeypatch.setattr(client_retry, "LONGEST_S", 0.5)
    monkeypatch.setattr(client_link, "WELCOME_S", 1.0)
    monkeypatch.setattr(client_link, "CLOSE_S", 0.2)


# -- two clients and trouble at seeded places


class Person:
    """Is a client that says 500 things and reads what both say."""

    def __init__(self, number: int, sends: int) -> None:
        self.number = number
        self.said = [f"p{number}-{n}" for n in range(sends)]
        self.seqs: list[int] = []
        self.rows: list[tuple[int, str]] = []
        self.resets = 0

    async def live(self, url: str, rows: int) -> None:
        async with Client(url, client=f"{self.number}" * 22, rows_max=50) as client:
            chat = await client.open(C)
            reading = asyncio.create_task(self._read(chat, rows))
            # All at once: the client has its window, and keeps their order.
            sends = [chat.send(text, client_id=text, timeout_s=SEND_S) for text in self.said]
            self.seqs = await asyncio.gather(*sends)
            async with asyncio.timeout(SEND_S):
                await reading
            self.resets = chat.resets

    async def _read(self, chat: Chat, rows: int) -> None:
        async for row in chat:
            self.rows.append((row.seq, row.text))
            if len(self.rows) == rows:
                return


SEEDS = [
    (1, FAULTS),
    (3, ("cut", "split", "delay")),
    (4, ("half", "close", "delay")),
]  # fmt: skip


@pytest.mark.parametrize(("seed", "names"), SEEDS)
async def test_every_row_and_every_send_comes_once_and_in_order(
    seed: int, names: Sequence[FaultName], tmp_path: Path
) -> None:
    sends = 500
    people = [Person(number, sends) for number in (1, 2)]
    async with on_disk(tmp_path, limits=LIMITS) as server:
        async with Proxy.to(server.port, seed=seed, names=names, every_bytes=20_000) as proxy:
            await asyncio.gather(*(person.live(proxy.url, 2 * sends) for person in people))
            assert len(proxy.links) >= 6 and len(proxy.done) >= 10, f"seed {seed}: too little trouble, {proxy.done}"
        rows = await history(server, C)
        for person in people:
            assert person.rows == [(row["seq"], row["message"]["content"]) for row in rows], f"seed {seed}"
            assert person.seqs == [row["seq"] for row in rows if row["clientId"] in set(person.said)]
            assert [row["clientId"] for row in rows if row["clientId"] in set(person.said)] == person.said
            assert person.resets == 0
        assert [row["seq"] for row in rows] == list(range(1, 2 * sends + 1))
        await until(lambda: server.connections == 0)
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("parlatory")]
    assert not left


# -- half of a connection


async def test_a_fin_of_the_client_alone_ends_the_socket_and_loses_no_send() -> None:
    """The proxy says FIN to the server while the client still listens, in the middle of what it sends."""
    async with serving(limits=LIMITS) as server, Proxy.to(server.port) as proxy:
        async with connect(proxy.url, C) as chat:
            assert await chat.send("first") == 1
            proxy.links[0].up.finish()
            assert await chat.send("second", timeout_s=DEADLINE_S) == 2
            assert len(proxy.links) == 2
            assert [(await anext(chat)).text for _ in range(2)] == ["first", "second"]
            await until(lambda: server.connections == 1)


async def test_a_fin_to_the_client_alone_ends_the_socket_and_loses_no_row() -> None:
    """The client hears FIN; what it sent before is committed, and what the server said behind is told again."""
    async with serving(limits=LIMITS) as server, Proxy.to(server.port) as proxy, Peer.admitted(server) as other:
        async with connect(proxy.url, C) as chat:
            assert await chat.send("first") == 1
            proxy.links[0].down.finish()
            await other.say(C, "missed")
            assert await chat.send("third", timeout_s=DEADLINE_S) == 3
            assert [(await anext(chat)).text for _ in range(3)] == ["first", "missed", "third"]
            await until(lambda: server.connections == 2)


# -- a path that passes nothing, in one direction


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_path_that_passes_nothing_any_more_is_left(way: str) -> None:
    """Up: the server pings in vain, and resets. Down: the client misses the beats. Neither loses anything."""
    async with serving(limits=LIMITS) as server, Proxy.to(server.port) as proxy, Peer.admitted(server) as other:
        async with connect(proxy.url, C) as chat:
            assert await chat.send("first") == 1
            getattr(proxy.links[0], way).open.clear()
            posting = asyncio.ensure_future(chat.send("mine", timeout_s=DEADLINE_S))
            await other.say(C, "theirs")
            seq = await posting
            texts = [(await anext(chat)).text for _ in range(3)]
            assert texts[0] == "first" and sorted(texts[1:]) == ["mine", "theirs"] and texts[seq - 1] == "mine"
            assert len(proxy.links) == 2
        assert len(await history(server, C)) == 3


# -- acks that come late


class Counting(Echo):
    """Answers, and counts how often it was asked."""

    turns: list[int]

    async def on_message(self, row: StoredMessage) -> None:
        self.turns.append(row.seq)
        await super().on_message(row)


async def test_T47_an_ack_that_comes_behind_the_repeat_makes_no_second_row_and_no_second_turn() -> None:
    """The first ack is held back until the client has given up that socket, come back, and sent again."""
    Counting.turns = []
    where = "counting/c"
    async with serving(Counting, limits=LIMITS) as server, Proxy.to(server.port) as proxy:
        async with connect(proxy.url, where) as chat:
            await chat.wait_status("live")
            slow = proxy.links[0].down
            slow.open.clear()
            sends = [chat.send(f"{n}", client_id=f"c{n}", timeout_s=DEADLINE_S) for n in range(20)]
            seqs = await asyncio.gather(*sends)
            assert seqs == [row["seq"] for row in await history(server, where) if row["by"] != "agent"]
            assert len(proxy.links) == 2
            slow.open.set()  # now the first acks come, to a socket that nobody reads
            await proxy.links[0].wait_ended()
            await until(lambda: len(Counting.turns) == 20)
            assert await chat.send("last", timeout_s=DEADLINE_S) > 20
        rows = await history(server, where)
        mine = [row["message"]["content"] for row in rows if row["by"] != "agent"]
        assert mine == [*map(str, range(20)), "last"]
        await until(lambda: len(Counting.turns) == 21)
        assert Counting.turns == sorted(set(Counting.turns))


@pytest.mark.parametrize("seed", range(5))
async def test_T47_of_two_acks_of_one_send_one_is_the_first(seed: int) -> None:
    """Each send is repeated on a second connection, in any order, while the first answers are still on their way."""
    rng = random.Random(seed)
    async with serving() as server, Proxy.to(server.port) as proxy:
        async with Peer.admitted(proxy.url) as first:
            await first.open(C)
            await first.get("live")
            proxy.links[0].down.open.clear()
            ids = [await first.post(C, str(n), f"c{n}") for n in range(20)]
            async with Peer.admitted(server) as second:
                again = rng.sample(range(20), 20)
                seqs = {n: (await second.say(C, str(n), f"c{n}")) for n in again}
            proxy.links[0].down.open.set()
            for n, client_id in enumerate(ids):
                ack = await first.get("ack", clientId=client_id)
                assert ack["seq"] == seqs[n]["seq"]
                assert ack.get("duplicate", False) != seqs[n].get("duplicate", False), "one of them was the first"
        assert sorted(row["clientId"] for row in await history(server, C)) == sorted(ids)


# -- a server that goes away behind the proxy


async def test_clients_come_back_to_the_next_process_through_the_proxy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is replaced twice in mid-stream; nobody needs to know."""
    caplog.set_level(logging.CRITICAL)
    people = [Person(number, 200) for number in (1, 2)]

    async def replaced(server: Server, at: int) -> None:
        await until(lambda: len(people[0].rows) >= at)
        await server.close(0)

    tasks: list[asyncio.Task[None]] = []
    async with Proxy.to(0) as proxy:
        for at in (100, 250, 400):
            async with on_disk(tmp_path, limits=LIMITS) as server:
                proxy.onward = server.port
                tasks = tasks or [asyncio.create_task(person.live(proxy.url, 400)) for person in people]
                if at < 400:
                    await replaced(server, at)
                else:
                    await asyncio.gather(*tasks)
                    rows = await history(server, C)
    for person in people:
        assert person.rows == [(row["seq"], row["message"]["content"]) for row in rows]
        assert person.resets == 0
    assert sorted(row["clientId"] for row in rows) == sorted(people[0].said + people[1].said)
