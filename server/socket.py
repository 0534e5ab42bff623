"""A WebSocket of the server: texts in, in their order, and frames out, without waiting.

Reading. A text is served in the step of the loop that brought it, unless it has to stand behind one that is still being
served; then the reader serves it. One that leaves something to wait for holds back those behind it.

Writing. What websockets does not give (measured with a peer that does not read): its keepalive never fires, `close`
hangs, and a write after an await needs a look at the state. Hence frames are written whole, in the step that checks the
state; the transport's own callbacks say when it takes no more; whose peer makes no progress is aborted by the reaper
(`reaper.py`); and closing has a deadline after which the transport is aborted.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State

from .text_frames import framed, text_at
from .transport import Gone

__all__ = ["Socket"]

WRITE_LIMIT_BYTES = 64 << 10
# How many frames may wait for the reader before the transport is not read, and at how few it is read again.
READ_QUEUE = (4, 1)
# How much is read of one socket before the others have their turn; asyncio alone reads 256 KiB, which is a flood's
# thousands of frames in one step of the loop.
READ_BYTES = 16 << 10
WHOLE_BYTES = 64 << 10
logger = logging.getLogger("parlatory.server")

# What ends the head of a request.
HEAD_END = b"\r\n\r\n"
OPEN = State.OPEN  # to look it up in its class takes longer than all else that a write does before the system call
MESSAGE = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


class Socket(Gone, ServerConnection):
    """Is a WebSocket of the server; `Connection` says what its texts mean."""

    def __init__(self, *args: Any, answers_bytes: int = WRITE_LIMIT_BYTES, **options: Any) -> None:
        options.update(ping_interval=None, write_limit=WRITE_LIMIT_BYTES, max_queue=READ_QUEUE)
        super().__init__(*args, **options)
        # The transport takes more; False from the moment its buffer is over 64 KiB until it is low again.
        self.writable = True
        # Loop time at which the peer last sent anything.
        self.heard_at = self.loop.time()
        # Loop time of a ping of ours that nothing has come behind, or None.
        self.pinged_at: float | None = None
        # Loop time at which a frame began that has not come to its end, or None.
        self.half_since: float | None = None
        # The reader is there: the handshake is over. What comes behind the request is kept for it, unread: an answer
        # that is none of WebSocket has nothing behind it. None until the request is whole; then `_head` has no use.
        self._greeted = False
        self._early: bytearray | None = None
        self._head = b""
        # How many bytes websockets was given since the end of the last frame that it has told of.
        self._unparsed = 0
        # A message has come in part: more fragments of it follow, and control frames may lie between them.
        self._fragmented = False
        # Loop time at which the reaper found it closing, or None.
        self.closing_since: float | None = None
        # Frames of this step of the loop, which go out in one write at its end.
        self._corked: list[bytes] = []
        # How many bytes of what is written while `writable` is False may wait, and how many do.
        self._answers_bytes = answers_bytes
        self._unread = 0
        # An HTTP answer is being sent in pieces.
        self.streaming = False
        # Set while the peer is not read, because it does not read: done when it may be read again.
        self._held: asyncio.Future[None] | None = None
        # Texts that must be served before a new one may be: those that wait for the reader, and the one being served.
        self._queued = 0
        # Serves a text that was taken in the step that brought it and has something to wait for.
        self._slow: asyncio.Task[None] | None = None
        # All bytes ever given to the transport; how many of them the peer had taken when it last took any, and when.
        self._handed = 0
        self._progress = (0, 0.0)

    # -- for subclasses

    def receive(self, data: str | bytes) -> Awaitable[None] | None:
        """Serves a text or a binary message; returns what is left to wait for before the next one is served."""
        raise NotImplementedError

    def failed(self, error: Exception) -> None:
        """Is told of an error that escaped from serving a message."""
        raise NotImplementedError

    def on_writable(self) -> None:
        """Is called when the transport takes more again."""

    def at_end_of_step(self, call: Callable[[], object]) -> None:
        """Calls at the end of this step of the loop, or in the next one."""
        self.loop.call_soon(call)

    # -- reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sees to it that no peer has the loop for long."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # asyncio's own transports; others read as much as they like
            transport.max_size = READ_BYTES

    def data_received(self, data: bytes) -> None:
        """Takes bytes of the peer."""
        self.heard_at = self.loop.time()
        self.pinged_at = None
        if self.half_since is None:
            self.half_since = self.heard_at
        if not self._greeted and not self.protocol.eof_sent:
            data = self._of_request(data)
        elif not self._unparsed:
            data = data[self._serve_whole(data) :]
            if not data:
                return
            if self.half_since is None:
                self.half_since = self.heard_at
        self._unparsed += len(data)
        super().data_received(data)

    def _serve_whole(self, data: bytes) -> int:
        """Serves the whole texts that data starts with, while none has to wait; returns where they end.

        A message that has come in part is one that waits, and what is behind a close is no message.
        """
        most = self.protocol.max_message_size
        end = 0
        while self.protocol.state is OPEN and not self._queued and self._held is None:
            found = text_at(data, end, WHOLE_BYTES if most is None else most)
            if found is None:
                break
            text, end = found
            self.half_since = None
            self._receive_now(text)
        return end

    def _of_request(self, data: bytes) -> bytes:
        """Returns what belongs to the request, and keeps what does not."""
        if self._early is not None:
            self._early += data
            if len(self._early) > self._answers_bytes:
                self.transport.pause_reading()
            return b""
        seen = self._head + data
        self._head = seen[1 - len(HEAD_END) :]
        end = seen.find(HEAD_END)
        if end < 0:
            return data
        end += len(HEAD_END) - (len(seen) - len(data))
        self._early = bytearray(data[end:])
        return data[:end]

    def process_event(self, event: Event) -> None:
        """Serves a text at once where nothing stands in front of it; else the reader does."""
        if not isinstance(event, Frame):  # the request of the handshake
            self.half_since = None
            self._unparsed = 0
            super().process_event(event)
            return
        # In the shortest head that there is: who sends another one is never taken to be between frames again.
        size = len(event.data)
        self._unparsed -= size + (6 if size < 126 else 8 if size < 65_536 else 14)
        if event.opcode in MESSAGE:
            self._fragmented = not event.fin
        if not self._fragmented:
            self.half_since = None
        if event.opcode is Opcode.TEXT or event.opcode is Opcode.BINARY:
            if not self._queued and event.opcode is Opcode.TEXT and event.fin and self._held is None:
                try:
                    text = str(event.data, "utf-8")
                except UnicodeDecodeError:
                    pass  # the reader closes with 1007
                else:
                    self._receive_now(text)
                    return
            self._queued += 1
        super().process_event(event)

    def _receive_now(self, text: str) -> None:
        try:
            waiting = self.receive(text)
        except Exception as error:  # a fault of ours ends this socket, not the transport's callback
            self.failed(error)
            return
        if waiting is not None:
            self._queued += 1
            self._slow = self.loop.create_task(self._finish(waiting), name=f"parlatory serve {self.id}")

    async def _finish(self, waiting: Awaitable[None]) -> None:
        try:
            await waiting
        except Exception as error:  # as above
            self.failed(error)
        finally:
            self._queued -= 1
            self._slow = None

    async def read(self) -> None:
        """Serves what could not be served in the step that brought it; returns when the socket is closed.

        What came before the end is served all the same.
        """
        self._greeted = True
        early, self._early = self._early, None
        if early and self.protocol.state is State.OPEN:
            Socket.data_received(self, bytes(early))
            if not self.recv_messages.paused and self._held is None:
                self.transport.resume_reading()
        try:
            while True:
                data = await self.recv()
                if self._slow is not None:
                    await asyncio.wait({self._slow})
                if self._held is not None:
                    await self._held
                try:
                    waiting = self.receive(data)
                    if waiting is not None:
                        await waiting
                        self.uncork()  # or page upon page of a log that answers at once would be made in one step
                except Exception as error:  # as above
                    self.failed(error)
                self._queued -= 1
        except ConnectionClosed:
            if self._slow is not None:
                await asyncio.wait({self._slow})

    def _hold(self) -> None:
        """Stops reading the peer, because too much waits for it to read."""
        if self._held is None:
            self._held = self.loop.create_future()
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None and not held.done():
            held.set_result(None)

    # -- writing

    def write(self, wire: bytes) -> None:
        """Writes a frame of the wire at once, or behind what is corked."""
        if self._corked:
            self._corked.append(wire)
        elif self.protocol.state is OPEN:
            self._count(len(wire))
            self.transport.write(wire)

    def answer(self, payload: bytes) -> None:
        """Writes an answer at the end of this step of the loop, together with what else is told to this socket."""
        if not self._corked:
            self.at_end_of_step(self.uncork)
        self._corked.append(framed(payload))

    def uncork(self) -> None:
        """Writes what is corked."""
        if self._corked:
            wire, self._corked = b"".join(self._corked), []
            self.write(wire)

    def send_data(self) -> None:
        """Writes what websockets has to say by itself, such as pongs, which are answers too."""
        if self.protocol.writes:
            self._count(sum(map(len, self.protocol.writes)))
        super().send_data()

    def _count(self, size: int) -> None:
        self._handed += size
        if not self.writable:
            self._unread += size
            if self._unread > self._answers_bytes:
                self._hold()

    async def stream(self, head: bytes, pieces: AsyncGenerator[bytes, None]) -> None:
        """Sends an HTTP answer in pieces, each when the peer has taken most of what came before.

        Returns when the peer has it all, or is gone. Where the pieces end in an error the connection does too: its
        length has been promised.
        """
        self.streaming = True
        self.transport.pause_reading()  # what it sends behind its request would only wait in memory
        try:
            async with aclosing(pieces):
                self._give(head)
                async for piece in pieces:
                    self._give(piece)
                    await self.drain()
                    if self.transport.is_closing():
                        return
            self.transport.set_write_buffer_limits(0)
            await self.drain()
            self.transport.resume_reading()
        except OSError:
            return  # the peer is gone
        except Exception as error:
            logger.error("connection %s: an answer breaks off", self.id, exc_info=error)
            self.transport.abort()
        finally:
            self.streaming = False

    def _give(self, data: bytes) -> None:
        self._handed += len(data)
        self.transport.write(data)

    def pause_writing(self) -> None:
        """Notes that the transport takes no more."""
        super().pause_writing()
        self.writable = False

    def resume_writing(self) -> None:
        """Notes that the transport takes more again."""
        super().resume_writing()
        self.writable = True
        self._unread = 0
        if self._held is not None:
            self._release()
            if not self.recv_messages.paused:
                self.transport.resume_reading()
        self.on_writable()

    # -- progress and the end

    def waiting_bytes(self) -> int:
        """Returns how many bytes the peer has not taken: in the transport's buffer and, on Linux, in the kernel's.

        Linux wakes a writer only at about a third of the send buffer, so that the transport's buffer alone may stand
        still for long while a slow peer reads.
        """
        waiting = self.transport.get_write_buffer_size()
        sock = self.transport.get_extra_info("socket")
        if waiting and sock is not None and sock.fileno() >= 0:
            try:
                packed = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
            except OSError:
                return waiting
            waiting += int(struct.unpack("i", packed)[0])
        return waiting

    def stalled_for(self, now: float) -> float:
        """Returns for how many seconds data has waited without any progress; 0 if none waits or some went."""
        waiting = self.waiting_bytes()
        taken = self._handed - waiting
        last, since = self._progress
        if not waiting or taken > last or not since:
            self._progress = (taken, now)
            return 0.0
        return now - since

    async def shut(self, code: int, timeout_s: float, reason: str = "") -> None:
        """Closes with a code, within a deadline; aborts what has not closed by then."""
        self.uncork()
        closing = self.loop.create_task(self.close(code, reason), name=f"parlatory close {self.id}")
        try:
            await asyncio.wait({closing}, timeout=timeout_s)
        finally:
            if not closing.done():
                self.transport.abort()
                closing.cancel()
            else:
                closing.exception()  # it is closed, however that went

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes the end of the connection."""
        self._corked.clear()
        self.writable = False
        self._release()
        super().connection_lost(exc)
        # websockets ties its protocol to itself in three ways; what is over need not wait for the garbage collector.
        self.protocol.parser.close()
        if self.protocol.parser_exc is not None:
            self.protocol.parser_exc.__traceback__ = None
        vars(self.protocol).pop("select_subprotocol", None)
