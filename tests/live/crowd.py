"""A crowd: many bare sockets in a process of their own, which subscribe to one conversation and read what comes.

    python crowd.py HOST PORT CONVERSATION SOCKETS

Prints `ready` once every socket is live; at the end of its input, how many rows each socket had, as `least most`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import resource
import sys
from typing import Any

__all__ = ["main"]


def masked(text: str) -> bytes:
    """Returns a text as a client's frame; a mask of zeros changes nothing."""
    data = text.encode()
    size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + len(data).to_bytes(2)
    return b"\x81" + size + b"\0\0\0\0" + data


class Member:
    """Is one socket of the crowd."""

    def __init__(self) -> None:
        self.rows = 0
        self.live = asyncio.Event()
        self.told = asyncio.Event()

    async def join(self, host: str, port: int, conversation: str) -> None:
        """Connects, subscribes, and starts to read."""
        self.reader, self.writer = await asyncio.open_connection(host, port)
        key = base64.b64encode(os.urandom(16)).decode()
        self.writer.write(
            f"GET /v1 HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: parlatory.v1\r\n\r\n".encode()
        )
        await self.reader.readuntil(b"\r\n\r\n")
        client = base64.urlsafe_b64encode(os.urandom(18)).decode()
        self.writer.write(masked(json.dumps({"type": "hello", "client": client})))
        self.writer.write(masked(json.dumps({"type": "open", "conversation": conversation})))
        self.task = asyncio.create_task(self.read())
        await self.live.wait()

    async def reach(self, seq: int) -> None:
        """Returns once the row has been read."""
        while self.rows < seq:
            self.told.clear()
            await self.told.wait()

    async def read(self) -> None:
        """Reads frames until the connection ends."""
        try:
            while True:
                size = (await self.reader.readexactly(2))[1]
                if size >= 126:
                    size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8))
                frame: dict[str, Any] = json.loads(await self.reader.readexactly(size))
                if frame["type"] == "rows":
                    assert frame["rows"][0]["seq"] == self.rows + 1, f"row {frame['rows'][0]['seq']} at {self.rows}"
                    self.rows = frame["rows"][-1]["seq"]
                    self.told.set()
                elif frame["type"] == "live":
                    self.live.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass


async def main(host: str, port: int, conversation: str, sockets: int) -> None:
    """Is the crowd."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    members = [Member() for _ in range(sockets)]
    for start in range(0, sockets, 50):
        await asyncio.gather(*(one.join(host, port, conversation) for one in members[start : start + 50]))
    say("ready")
    wanted = int(await asyncio.to_thread(sys.stdin.readline))
    await asyncio.gather(*(one.reach(wanted) for one in members))
    say(f"{min(one.rows for one in members)} {max(one.rows for one in members)}")


def say(text: str) -> None:
    """Says something to the test, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
