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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .one_turn import measure as measure_one
from .taps import Tap, Taps
from .wire import Served, hear, percentile, served

AGENTS = Path(__file__).with_name("streamers.py")
PATIENCE_S = 30.0
SETTLE_S = 2.0
LIVE = b'{"type":"live"'
DONE = b'"state":"done"'


class Load:
    """Is so many rooms of so many clients, each on a socket of its own."""

    def __init__(self, server: Served, rooms: int, clients: int, seconds: float, per_s: int) -> None:
        self.server = server
        self._seconds = seconds
        self._per_s = per_s
        self._rooms = [[_opened(server, f"stream/room-{number}") for _ in range(clients)] for number in range(rooms)]
        self._taps = Taps(tap for room in self._rooms for tap in room)

    def run(self) -> dict[str, Any]:
        """Streams, and returns what was seen."""
        idle = self._probed(self._seconds)
        text = f"{int(self._seconds * self._per_s)} {self._per_s}"
        for number, room in enumerate(self._rooms):
            message = {"role": "user", "content": text}
            room[-1].send(type="send", conversation=f"stream/room-{number}", clientId="begin", message=message)
        self._taps.read(SETTLE_S)
        memory, cpu = self.server.resident(), self.server.cpu_s()
        self._taps.read(self._seconds / 3)  # by themselves: the probe's appends cost processor time as well
        per_delta = self._seconds / 3 * len(self._taps.taps) * self._per_s
        own, kernel = ((now - before) / per_delta for now, before in zip(self.server.cpu_s(), cpu, strict=True))
        loaded = self._probed(self._seconds * 2 / 3 - SETTLE_S - 1)
        seen: dict[str, Any] = {"processor us per delta told": {"own": own * 1e6, "kernel": kernel * 1e6}}
        seen["of one core"] = (own + kernel) * len(self._taps.taps) * self._per_s
        seen["memory growth MiB"] = self.server.resident() - memory
        if not self._taps.read(self._seconds + PATIENCE_S, self._all_done):
            raise TimeoutError("not every answer came to its end")
        self._taps.close()
        return seen | self._judged() | {"idle append": idle, "append": loaded}

    def _probed(self, seconds: float) -> dict[str, float]:
        """Runs the probe, and reads meanwhile."""
        command = [sys.executable, "-m", "tests.bench.probe", str(self.server.port), str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            self._taps.read(seconds + PATIENCE_S, lambda: process.poll() is not None)
            assert process.stdout is not None
            figures: dict[str, float] = json.loads(process.stdout.read())
        return figures

    def _all_done(self) -> bool:
        return all(any(DONE in chunk for chunk in tap.chunks[-3:]) for tap in self._taps.taps)

    def _judged(self) -> dict[str, Any]:
        """Compares what was told with the rows, and takes the times."""
        parsed: dict[bytes, tuple[str, list[float]]] = {}
        delays: list[float] = []
        rates: list[float] = []
        gaps: list[float] = []
        unequal = 0
        for tap in self._taps.taps:
            heard = Heard(tap)
            texts = []
            for now, delta in heard.deltas:
                if delta not in parsed:
                    parsed[delta] = read(delta)
                text, instants = parsed[delta]
                texts.append(text)
                delays += [now - instant for instant in instants]
            unequal += "".join(texts) != heard.text or not heard.text
            first, last = heard.deltas[0][0], heard.deltas[-1][0]
            rates.append((len(heard.deltas) - 1) / (last - first))
            times = [*heard.beats, last]
            gaps.append(max(after - before for before, after in zip(times, times[1:], strict=False)))
        delays.sort()
        return {
            "clients": len(self._taps.taps),
            "deltas": len(delays),
            "unequal texts": unequal,
            "frames/s": {"min": min(rates), "mean": sum(rates) / len(rates)},
            "delay ms": {str(p): percentile(delays, p) * 1000 for p in (50, 99, 99.9)},
            "longest without a beat s": max(gaps),
        }


class Heard:
    """Is what one client was told.

    Attributes:
        deltas: the delta frames, each with its instant.
        beats: when a beat came, and when the first one was due to be waited for.
        text: of the row that the draft became.
    """

    def __init__(self, tap: Tap) -> None:
        self.deltas: list[tuple[float, bytes]] = []
        self.beats = [tap.at[0]]
        self.text = ""
        for now, payload in tap.texts():
            if payload.startswith(b'{"type":"delta"'):
                self.deltas.append((now, payload))
            elif payload.startswith(b'{"type":"beat"'):
                self.beats.append(now)
            elif payload.startswith(b'{"type":"rows"'):
                row = json.loads(payload)["rows"][-1]
                if row["message"]["role"] == "assistant":
                    self.text = row["message"]["content"]


def _opened(server: Served, conversation: str) -> Tap:
    """Returns a client that is live in a conversation."""
    tap = Tap(server.port)
    tap.send(type="open", conversation=conversation)
    while not tap.chunks or LIVE not in b"".join(tap.chunks):
        tap.chunks.append(hear(tap.sock))
        tap.at.append(time.monotonic())
    return tap


def read(frame: bytes) -> tuple[str, list[float]]:
    """Returns the text in a delta frame, and the instants in it."""
    text = "".join(op["add"] for op in json.loads(frame)["ops"])
    return text, [float(part.rpartition(" ")[2]) for part in text.split("|")[:-1]]


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
                figures = Load(server, *load).run()
    figures["load average"] = os.getloadavg()[0]
    for name, value in figures.items():
        print(f"{name}: {_shown(value)}")  # noqa: T201


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(one)}" for name, one in value.items())
    return f"{value:.2f}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    main()
