"""T26 on the real server: 200 reconnects at random points during 1,000 appends, two sockets at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from parlatory.actors import Agent, Runtime
from parlatory.server import Chat, Server, connect, serve
from parlatory.storage import StoredMessage, open_engine, user_message

CUTS = 200
APPENDS = 1000
INSTALLATION = "i" * 22


class Relay(Agent):
    """Rows in, rows out."""


class Proxy:
    """A TCP proxy that ends each connection after a random number of bytes, in the middle of whatever they are.

    What is unrealistic about it: a connection ends in both directions in the same moment, and nothing is ever slow.
    """

    def __init__(self, target: int, dice: random.Random) -> None:
        self.port = 0
        self.cuts = 0
        self._target = target
        self._dice = dice
        self._open: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        """Ends one connection now."""
        if self._open:
            self._end(self._dice.choice(self._open))

    def _end(self, pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter]) -> None:
        if pair in self._open:
            self._open.remove(pair)
            self.cuts += 1
            for writer in pair:
                writer.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        pair = (writer, far_writer)
        self._open.append(pair)
        left = [int(self._dice.expovariate(1 / 3000)) if self.cuts < CUTS else 10**12]
        try:
            await asyncio.gather(self._pipe(reader, far_writer, pair, left), self._pipe(far_reader, writer, pair, left))
        except OSError:
            pass
        finally:
            if pair in self._open:
                self._open.remove(pair)
            for end in pair:
                end.transport.abort()

    async def _pipe(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        left: list[int],
    ) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data[: max(left[0], 0)])
            left[0] -= len(data)
            if left[0] < 0:
                self._end(pair)
                return
        writer.transport.abort()

    async def drained(self) -> None:
        """Waits for what is left of the connections."""
        for pair in list(self._open):
            for writer in pair:
                writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def proxied(server: Server, dice: random.Random) -> AsyncIterator[Proxy]:
    made = Proxy(server.port, dice)
    async with await asyncio.start_server(made.accept, "127.0.0.1", 0) as listener:
        made.port = listener.sockets[0].getsockname()[1]
        yield made
        await made.drained()


async def collect(chat: Chat, dice: random.Random) -> list[StoredMessage]:
    """Takes every row until all are there, not always at once: rows wait in the buffer when a connection ends."""
    rows: list[StoredMessage] = []
    async for row in chat:
        rows.append(row)
        for _ in range(dice.randrange(8)):
            await asyncio.sleep(0)
        if len(rows) == APPENDS:
            break
    return rows


@pytest.mark.parametrize("seed", [1, 2])
async def test_t26_l13_two_hundred_reconnects(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """T26, L13: each client sees each seq once and in order, and each send is one row."""
    dice = random.Random(seed)
    monkeypatch.setattr(random, "random", lambda: 0.0)  # no delay between the connections
    runtime = Runtime(await open_engine("memory:"), [Relay])
    async with runtime, serve(runtime, port=0) as server, proxied(server, dice) as proxy:
        url = f"ws://127.0.0.1:{proxy.port}/v1"
        async with (
            asyncio.timeout(60),
            connect(url, "relay/x", client=INSTALLATION) as first,
            connect(url, "relay/x", client=INSTALLATION) as second,
        ):
            collecting = [asyncio.ensure_future(collect(chat, dice)) for chat in (first, second)]
            sends: list[asyncio.Task[int]] = []
            ref = runtime.get(Relay, "x")
            for number in range(APPENDS):
                if number % 2:
                    await ref.append(user_message(f"text {number}"), by="service")
                else:
                    chat = (first, second)[number // 2 % 2]
                    sends.append(asyncio.ensure_future(chat.send(f"text {number}", client_id=f"m{number}")))
                if len(sends) > 40:
                    await sends[len(sends) - 40]
                while proxy.cuts * APPENDS < number * CUTS and proxy.cuts < CUTS:
                    proxy.cut()
                    await asyncio.sleep(0)
            seqs = await asyncio.gather(*sends)
            logs = await asyncio.gather(*collecting)
    assert proxy.cuts >= CUTS
    for rows in logs:
        assert [row.seq for row in rows] == list(range(1, APPENDS + 1))
    assert logs[0] == logs[1]
    assert Counter(row.text for row in logs[0]) == Counter(f"text {number}" for number in range(APPENDS))
    assert {row.client_id: row.seq for row in logs[0] if row.client_id} == {
        f"m{2 * place}": seq for place, seq in enumerate(seqs)
    }
    for sender in (0, 2):
        mine = [row.client_id for row in logs[0] if row.client_id and int(row.client_id[1:]) % 4 == sender]
        assert mine == [f"m{number}" for number in range(sender, APPENDS, 4)], "in the order sent"
