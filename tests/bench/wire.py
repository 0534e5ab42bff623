"""A server in a process of its own, and bare sockets of it."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["Served", "frame", "greet", "hear", "percentile", "served"]

HANDSHAKE = (
    b"GET /v1 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: parlatory.v1\r\n\r\n"
)
HELLO = {"type": "hello"}
TIMEOUT_S = 20.0


class Served:
    """Is a server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def resident(self) -> float:
        """Returns how much memory it has, in MiB; 0 where /proc does not say."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        except OSError:
            return 0.0
        return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024

    def cpu_s(self) -> tuple[float, float]:
        """Returns how much processor time it has used, by itself and in the kernel; 0 where /proc does not say."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        except OSError:
            return 0.0, 0.0
        return int(fields[11]) / 100, int(fields[12]) / 100


@contextmanager
def served(agents: Path, data: Path) -> Iterator[Served]:
    """Runs `parlatory serve` on a file of agents."""
    command = [sys.executable, "-m", "parlatory.server.cli", "serve", str(agents), "--data", str(data), "--port", "0"]
    process = subprocess.Popen([*command, "--drain", "0"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        while line and not line.startswith("listening on "):
            sys.stderr.write(line)
            line = process.stderr.readline()
        yield Served(process, int(re.findall(r":(\d+)/", line)[0]))
    finally:
        process.terminate()
        _, said = process.communicate()
        sys.stderr.write("".join(one for one in said.splitlines(keepends=True) if "stopping" not in one))


def frame(**fields: Any) -> bytes:
    """Makes a masked text frame of a client; the mask is zero, which costs nothing."""
    payload = json.dumps(fields).encode()
    size = len(payload)
    head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
    return head + bytes(4) + payload


def greet(port: int) -> socket.socket:
    """Returns a blocking socket behind the handshake and the welcome."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.sendall(HANDSHAKE + frame(**HELLO))
    heard = b""
    while b'"boot":"' not in heard or not heard.endswith(b"}"):
        heard += hear(sock)
    return sock


def hear(sock: socket.socket) -> bytes:
    """Returns what a blocking socket has to say, at least something."""
    heard = sock.recv(1 << 16)
    if not heard:
        raise ConnectionError("the server has closed the socket")
    return heard


def percentile(values: list[float], percent: float) -> float:
    """Returns a percentile of sorted values."""
    return values[min(len(values) - 1, int(len(values) * percent / 100))] if values else float("nan")
