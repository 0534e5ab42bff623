"""A witness of a server that is killed: bare clients in this process, which note what they were told.

The server runs in a process group of its own; what the witness knows survives the kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

__all__ = ["Server", "Witness"]

ECHO = Path(__file__).parents[2] / "examples" / "echo.py"
WINDOW = 30
START_S = 20.0
CLIENT = "witness-of-the-crash-0001"


class Server:
    """Is `parlatory serve` in a process group of its own, on a data directory that outlives it."""

    def __init__(self, data: Path, agents: Path = ECHO, *options: str) -> None:
        self.data = data
        self._agents = agents
        self._options = options
        self.said: list[str] = []
        self.url = ""
        self.child: subprocess.Popen[str] | None = None

    async def start(self) -> None:
        """Starts it and reads the address it listens on."""
        cli = [sys.executable, "-m", "parlatory.server.cli"]
        serve = [*cli, "serve", str(self._agents), "--data", str(self.data), "--port", "0", *self._options]
        null, pipe = subprocess.DEVNULL, subprocess.PIPE
        self.child = subprocess.Popen(serve, stdin=null, stdout=null, stderr=pipe, text=True, start_new_session=True)
        async with asyncio.timeout(START_S):
            await asyncio.to_thread(self._read_address)
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def _read_address(self) -> None:
        assert self.child is not None and self.child.stderr is not None
        for line in self.child.stderr:
            self.said.append(line)
            if line.startswith("listening on "):
                self.url = line.split()[2]
                return
        raise AssertionError(f"the server did not start:\n{''.join(self.said)}")

    def _listen(self) -> None:
        """Keeps the pipe empty."""
        assert self.child is not None and self.child.stderr is not None
        with self.child.stderr as pipe:
            self.said.extend(pipe)

    def kill(self) -> None:
        """Kills the whole group with SIGKILL and waits until it is gone."""
        assert self.child is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait(10)
        self._listener.join()

    def stop(self) -> int:
        """Stops it with SIGTERM and returns the exit code."""
        assert self.child is not None
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(25)


class Witness:
    """Sends to many conversations and keeps every ack and every row that it was told.

    Attributes:
        acks: per conversation, client id to seq.
        rows: per conversation, seq to row, as first told.
        faults: what it saw that may not be.
    """

    def __init__(self, conversations: int, rng: random.Random) -> None:
        self.names = [f"relay/{index}" for index in range(conversations)]
        self.acks: dict[str, dict[str, int]] = {name: {} for name in self.names}
        self.rows: dict[str, dict[int, Any]] = {name: {} for name in self.names}
        self.faults: list[str] = []
        self.acked = 0
        self._rng = rng
        self._sent = 0
        self._goal = 0
        self._reached = asyncio.Event()

    async def load(self, url: str, sockets: int, goal: int) -> None:
        """Loads the server through some sockets until `goal` more acks have come; leaves the sockets to be cut."""
        self._goal = self.acked + goal
        self._reached = asyncio.Event()
        shares = [self.names[index::sockets] for index in range(sockets)]
        self._tasks = [asyncio.create_task(self._load_one(url, share)) for share in shares]
        reached = asyncio.create_task(self._reached.wait())
        await asyncio.wait([reached, *self._tasks], return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert self._reached.is_set(), f"only {self.acked} acks; {self.faults}"

    async def settle(self) -> None:
        """Reads what the dead server's sockets still hold."""
        await asyncio.gather(*self._tasks)

    async def _load_one(self, url: str, names: list[str]) -> None:
        with contextlib.suppress(ConnectionClosed, OSError, WebSocketException):
            async with _dial(url) as socket:
                waiting: set[str] = set()
                for name in names:
                    await socket.send(json.dumps({"type": "open", "conversation": name, "tail": 0}))
                while True:
                    while len(waiting) < WINDOW:
                        waiting.add(await self._send(socket, self._rng.choice(names)))
                    for _ in range(WINDOW // 2):
                        self._take(json.loads(await socket.recv()), waiting)

    async def _send(self, socket: ClientConnection, name: str) -> str:
        self._sent += 1
        client_id = f"c{self._sent}"
        message = {"role": "user", "content": f"{client_id} " + "x" * self._rng.randrange(200)}
        await socket.send(json.dumps({"type": "send", "conversation": name, "clientId": client_id, "message": message}))
        return client_id

    def _take(self, frame: dict[str, Any], waiting: set[str]) -> None:
        kind = frame["type"]
        if kind == "ack":
            waiting.discard(frame["clientId"])
            self.acks[frame["conversation"]][frame["clientId"]] = frame["seq"]
            self.acked += 1
            if self.acked >= self._goal:
                self._reached.set()
        elif kind == "rows":
            for row in frame["rows"]:
                self.note(frame["conversation"], row)
        elif kind == "error":
            self.faults.append(f"refused: {frame}")

    def note(self, name: str, row: dict[str, Any]) -> None:
        """Notes a row that was told; it must be the same every time."""
        known = self.rows[name].setdefault(row["seq"], row)
        if known != row:
            self.faults.append(f"row {row['seq']} of {name} was {known} and is {row}")

    async def verify(self, url: str) -> None:
        """Reads every log from the restarted server and compares it with what was told and acknowledged before."""
        async with _dial(url) as socket:
            for name in self.names:
                rows = await self._history(socket, name)
                if [row["seq"] for row in rows] != list(range(1, len(rows) + 1)):
                    self.faults.append(f"{name} has a gap")
                    continue
                for row in rows:
                    self.note(name, row)
                if len(rows) < max(self.rows[name], default=0):
                    self.faults.append(f"row {max(self.rows[name])} of {name} was told and is gone")
                for client_id, seq in self.acks[name].items():
                    if seq > len(rows) or rows[seq - 1]["clientId"] != client_id:
                        self.faults.append(f"{client_id} was acknowledged as row {seq} of {name} and is gone")

    async def _history(self, socket: ClientConnection, name: str) -> list[dict[str, Any]]:
        await socket.send(json.dumps({"type": "open", "conversation": name}))
        rows: list[dict[str, Any]] = []
        while True:
            frame = json.loads(await socket.recv())
            if frame.get("conversation") != name:
                continue
            if frame["type"] == "rows":
                rows += frame["rows"]
            elif frame["type"] == "live":
                await socket.send(json.dumps({"type": "close", "conversation": name}))
                return rows


@contextlib.asynccontextmanager
async def _dial(url: str) -> Any:
    options: dict[str, Any] = {"subprotocols": [Subprotocol("parlatory.v1")], "compression": None, "proxy": None}
    async with connect(url, max_size=None, ping_interval=None, close_timeout=1, **options) as socket:
        await socket.send(json.dumps({"type": "hello", "client": CLIENT}))
        while json.loads(await socket.recv())["type"] != "welcome":
            pass
        yield socket
