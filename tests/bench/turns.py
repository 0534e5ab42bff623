"""Measures turns and drafts on a real server: the load comes from this process, the server has one of its own.

    python -m tests.bench.turns rooms     200 deltas/s to 100 clients in each of 5 rooms
    python -m tests.bench.turns streams   1,000 conversations with 20 deltas/s each
    python -m tests.bench.turns one       what a turn that appends one row costs more than a bare append

Beside the first two a third process appends to a conversation of its own: before, and in the last part. Every delta
carries the instant at which it was written; the time to its receipt is taken for every delta at every client. What a
client assembled is compared with the row in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

from .one_turn import measure as measure_one
from .wire import Listener, Served, percentile, served

AGENTS = Path(__file__).with_name("streamers.py")
PATIENCE_S = 30.0
SETTLE_S = 2.0


class Client:
    """Is one client of one conversation: what it was told, and when.

    Attributes:
        frames: the delta frames, as they came; many clients of a room share their bytes.
        at: when each of them came.
        beats: when a beat came, and when the first one was due to be waited for.
    """

    def __init__(self, room: Room) -> None:
        self.room = room
        self.frames: list[bytes] = []
        self.at = array("d")
        self.beats = array("d")
        self.text = ""
        self.done = asyncio.get_running_loop().create_future()

    def hear(self, listener: Listener, payload: bytes, now: float) -> None:
        if payload.startswith(b'{"type":"delta"'):
            self.frames.append(self.room.shared.setdefault(payload, payload))
            self.at.append(now)
        elif payload.startswith(b'{"type":"beat"'):
            self.beats.append(now)
        elif payload.startswith(b'{"type":"live"'):
            self.beats.append(now)
            self.room.live.release()
        elif payload.startswith(b'{"type":"rows"'):
            row = json.loads(payload)["rows"][-1]
            if row["message"]["role"] == "assistant":
                self.text = row["message"]["content"]
        elif payload.startswith(b'{"type":"turn"') and b'"done"' in payload:
            self.done.set_result(None)


class Room:
    """Is one conversation."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.live = asyncio.Semaphore(0)
        self.shared: dict[bytes, bytes] = {}


class Load:
    """Is so many rooms of so many clients, each on a socket of its own."""

    def __init__(self, server: Served, rooms: int, clients: int, seconds: float, per_s: int) -> None:
        self.server = server
        self.rooms = [Room(f"stream/room-{number}") for number in range(rooms)]
        self.clients: list[Client] = []
        self._each = clients
        self._seconds = seconds
        self._per_s = per_s

    async def run(self) -> dict[str, Any]:
        """Streams, and returns what was seen."""
        senders = []
        for room in self.rooms:
            for _ in range(self._each):
                client = Client(room)
                listener = await Listener.to(self.server.port, client.hear)
                listener.send(type="open", conversation=room.name)
                self.clients.append(client)
            senders.append((room, listener))
        for room in self.rooms:
            for _ in range(self._each):
                await room.live.acquire()
        idle = await probed(self.server, self._seconds)
        text = f"{int(self._seconds * self._per_s)} {self._per_s}"
        for room, listener in senders:
            message = {"role": "user", "content": text}
            listener.send(type="send", conversation=room.name, clientId="begin", message=message)
        await asyncio.sleep(SETTLE_S)
        memory, cpu = self.server.resident(), self.server.cpu_s()
        await asyncio.sleep(self._seconds / 3)  # by themselves: the probe's appends cost processor time as well
        per_delta = self._seconds / 3 * len(self.clients) * self._per_s
        own, kernel = ((now - before) / per_delta for now, before in zip(self.server.cpu_s(), cpu, strict=True))
        loaded = await probed(self.server, self._seconds * 2 / 3 - SETTLE_S - 1)
        seen: dict[str, Any] = {"processor us per delta told": {"own": own * 1e6, "kernel": kernel * 1e6}}
        seen["of one core"] = (own + kernel) * len(self.clients) * self._per_s
        seen["memory growth MiB"] = self.server.resident() - memory
        async with asyncio.timeout(self._seconds + PATIENCE_S):
            await asyncio.gather(*(client.done for client in self.clients))
        return seen | self.judged() | {"idle append": idle, "append": loaded}

    def judged(self) -> dict[str, Any]:
        """Compares what was told with the rows, and takes the times."""
        parsed: dict[bytes, tuple[str, list[float]]] = {}
        delays: list[float] = []
        rates: list[float] = []
        gaps: list[float] = []
        unequal = 0
        for client in self.clients:
            texts = []
            for frame, now in zip(client.frames, client.at, strict=True):
                if frame not in parsed:
                    parsed[frame] = read(frame)
                text, instants = parsed[frame]
                texts.append(text)
                delays += [now - instant for instant in instants]
            unequal += "".join(texts) != client.text or not client.text
            rates.append((len(client.frames) - 1) / (client.at[-1] - client.at[0]))
            times = [*client.beats, client.at[-1]]
            gaps.append(max(after - before for before, after in zip(times, times[1:], strict=False)))
        delays.sort()
        return {
            "clients": len(self.clients),
            "deltas": len(delays),
            "unequal texts": unequal,
            "frames/s": {"min": min(rates), "mean": sum(rates) / len(rates)},
            "delay ms": {str(p): percentile(delays, p) * 1000 for p in (50, 99, 99.9)},
            "longest without a beat s": max(gaps),
        }


def read(frame: bytes) -> tuple[str, list[float]]:
    """Returns the text in a delta frame, and the instants in it."""
    text = "".join(op["add"] for op in json.loads(frame)["ops"])
    return text, [float(part.rpartition(" ")[2]) for part in text.split("|")[:-1]]


async def probed(server: Served, seconds: float) -> dict[str, float]:
    """Runs the probe."""
    command = [sys.executable, "-m", "tests.bench.probe", str(server.port), str(seconds)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    figures: dict[str, float] = json.loads(said)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["rooms", "streams", "one"])
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the drafts are (default %(default)g)")
    parser.add_argument("--rooms", type=int, help="how many conversations")
    parser.add_argument("--clients", type=int, help="how many clients in each")
    parser.add_argument("--per-s", type=int, help="how many deltas each writes in a second")
    options = parser.parse_args()
    if options.seconds < 6:
        parser.error("--seconds is at least 6")
    rooms, clients, per_s = (5, 100, 200) if options.case == "rooms" else (1_000, 1, 20)
    with tempfile.TemporaryDirectory() as folder:
        if options.case == "one":
            figures = asyncio.run(measure_one(Path(folder)))
        else:
            with served(AGENTS, Path(folder)) as server:
                load = options.rooms or rooms, options.clients or clients, options.seconds, options.per_s or per_s
                figures = asyncio.run(_load(server, *load))
    figures["load average"] = os.getloadavg()[0]
    for name, value in figures.items():
        print(f"{name}: {_shown(value)}")  # noqa: T201


async def _load(server: Served, *load: Any) -> dict[str, Any]:
    return await Load(server, *load).run()


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    main()
