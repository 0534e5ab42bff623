"""A provider on this machine: HTTP/1.1 and server-sent events, as the real ones send them."""

from __future__ import annotations

import asyncio
import enum
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple


class Step(enum.Enum):
    """What else a stream may do than send an event."""

    HOLD = "says nothing more until the client goes"
    CUT = "closes the connection in mid-stream"


class Answer(NamedTuple):
    """An answer: events and steps of a stream, or a status with a body."""

    steps: tuple[bytes | Step, ...] = ()
    status: int = 200
    headers: tuple[str, ...] = ()
    body: bytes = b"{}"


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Provider:
    """Gives the answers that a test put down, in order, to whoever asks.

    Unrealistic: it reads no key, believes every request, and answers the same whatever is asked; each event comes as a
    chunk of its own and at once; it has no TLS, no HTTP/2 and no pings.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.answers: deque[Answer] = deque()
        self.held = asyncio.Event()  # a stream has sent all it will
        self.gone = asyncio.Event()  # the client of a held stream closed its connection

    def answer(self, *streams: Iterable[bytes | Step]) -> None:
        self.answers.extend(Answer(tuple(steps)) for steps in streams)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._request(reader)) is not None:
                self.requests.append(request)
                if not await self._answer(self.answers.popleft(), reader, writer):
                    break
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> Request | None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except asyncio.IncompleteReadError:
            return None
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        headers = {name.lower(): value for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        return Request(head[0].split()[1], headers, json.loads(body))

    async def _answer(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Says whether the connection can take another request."""
        if answer.status != 200:
            length = f"content-length: {len(answer.body)}"
            writer.write(_head(answer.status, "content-type: application/json", length, *answer.headers) + answer.body)
            return True
        writer.write(_head(200, "content-type: text/event-stream", "transfer-encoding: chunked", *answer.headers))
        for step in answer.steps:
            if step is Step.CUT:
                return False
            if step is Step.HOLD:
                self.held.set()
                with suppress(ConnectionError):  # it did not wait for what was on its way
                    await reader.read(1)
                self.gone.set()
                return False
            writer.write(b"%x\r\n%b\r\n" % (len(step), step))
        writer.write(b"0\r\n\r\n")
        return True


def _head(status: int, *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {status} Status", *headers, "", "")).encode()


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    """Serves on a free port of 127.0.0.1."""
    serving: set[asyncio.Task[None]] = set()
    provider = Provider()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.get_running_loop().create_task(provider.serve(reader, writer)))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    provider.url = f"http://{host}:{port}"
    try:
        yield provider
    finally:
        server.close()
        for task in serving:
            task.cancel()
        ended = await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()
    assert [error for error in ended if isinstance(error, Exception)] == []
