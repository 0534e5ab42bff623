"""`parlatory chat`: talk in a conversation, on a terminal or line by line through pipes."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from typing import TextIO

from ..storage import CorruptRow, ParlatoryError, StoredMessage
from .client import Chat
from .client_drafts import LOST, Draft
from .client_errors import ClientMisuse, ConnectionRefused, ConversationRefused
from .client_frames import TurnState
from .client_subscription import Status
from .client_terminal import (
    OPEN_S,
    ROWS_MAX,
    first_of,
    interrupts,
    line_of,
    name_of,
    open_chat,
    printable,
    said,
    tell,
    write,
)

__all__ = ["chat"]

HISTORY_ROWS = 20
LINE_BYTES_MAX = 4 << 20
PROMPT = "> "
CTRL_C_S = 2.0
"""A second Ctrl-C within this time leaves, although the turn that the first one stops is not over yet."""
LEAVE_S = 5.0
"""How long leaving a terminal chat waits for what is not acknowledged yet."""


async def chat(
    url: str,
    conversation: str,
    token: str | None,
    *,
    quiet_s: float = 2.0,
    input: TextIO | None = None,
    output: TextIO | None = None,
) -> int:
    """Talks in a conversation until the input ends, or Ctrl-C.

    On a terminal it shows the last rows, others' rows as they come, and an answer while it is written; Ctrl-C stops the
    agent's turn, and leaves where none runs or when pressed twice. Otherwise it sends each line of the input in order
    and prints every row from now on as one line `by: text`. At the end of the input it waits until everything
    is acknowledged and answered: an answer is a row of the agent's turn for it, or the end of that turn, or that
    nothing happens for `quiet_s` while the agent is idle.

    Args:
        url: the server.
        conversation: `<agent>/<name>`.
        token: what proves who you are.
        quiet_s: see above.
        input: where the lines come from; stdin.
        output: where the rows go; stdout.

    Returns:
        The exit code: 0, or 2 after one sentence on stderr for what went wrong; through pipes that includes a turn that
        failed to answer one of the lines.

    Raises:
        BrokenPipeError: nobody reads the output any more.
    """
    source = sys.stdin if input is None else input
    target = sys.stdout if output is None else output
    talk: _Talk
    if source.isatty() and target.isatty():
        talk = _Terminal(target)
    else:
        talk = _Pipe(target, quiet_s)
    try:
        async with interrupts(talk.ctrl_c) as stopped, AsyncExitStack() as stack:
            opening = stack.enter_async_context(
                open_chat(
                    url,
                    conversation,
                    token,
                    tail=talk.tail,
                    patience_s=talk.patience_s,
                    tell=talk.tell,
                    on_status=talk.on_status,
                    on_turn=talk.on_turn,
                )
            )
            await first_of(_follow(talk, opening), talk.write(_lines(source.fileno())), stopped.wait())
    except ParlatoryError as error:
        talk.failed(str(error))
    return talk.exit_code


async def _follow(talk: _Talk, opening: Awaitable[Chat]) -> None:
    talk.chat = await opening
    talk.opened.set()
    await talk.read()


async def _lines(fd: int) -> AsyncIterator[str]:
    """Yields the lines of a file descriptor of any kind without blocking the loop.

    A thread reads, because neither files nor terminals can be waited for. It may be left behind in its read when nobody
    wants more; it holds no lock, so it does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(4)
    wanted = True
    own = os.dup(fd)  # whoever closes the other one may get its number for another file

    def read() -> None:
        chunk = b"."
        try:
            while chunk and wanted:
                try:
                    chunk = os.read(own, 1 << 16)
                except OSError:
                    chunk = b""  # a terminal that has gone
                loop.call_soon_threadsafe(chunks.put_nowait, chunk)
                room.acquire()
        except RuntimeError:
            pass  # the loop is closed
        finally:
            os.close(own)

    threading.Thread(target=read, name="parlatory stdin", daemon=True).start()
    rest = b""
    try:
        while chunk := await chunks.get():
            room.release()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield _text(line)
            if len(rest) > LINE_BYTES_MAX:
                raise ClientMisuse(f"a line of the input is longer than {LINE_BYTES_MAX} bytes")
        if rest:
            yield _text(rest)
    finally:
        wanted = False
        room.release()


def _text(line: bytes) -> str:
    # Bytes that are no UTF-8 become halves of characters, with which the message is refused.
    return line.decode("utf-8", "surrogateescape").rstrip("\r")


class _Talk:
    """Is what both ways of talking share."""

    tail = 0
    patience_s: float | None = OPEN_S
    chat: Chat

    def __init__(self, output: TextIO) -> None:
        self.output = output
        # There is a chat.
        self.opened = asyncio.Event()
        self.exit_code = 0

    def tell(self, text: str) -> None:
        """Prints a sentence beside the rows."""
        tell(text)

    def failed(self, text: str) -> None:
        """Prints what went wrong, and remembers it."""
        self.exit_code = 2
        self.tell(text)

    def ctrl_c(self, stopped: asyncio.Event) -> None:
        """Leaves."""
        stopped.set()

    def on_status(self, status: Status) -> None:
        """Hears of a new status."""

    def on_turn(self, turn: TurnState) -> None:
        """Hears of a turn, and says so if it failed or waits for somebody."""
        if turn.state == "error":
            self.tell(f"the agent failed to answer message {turn.id}; the log of the server says why")
        elif turn.state == "waiting":
            self.tell(f"the answer to message {turn.id} waits for an approval")

    async def show(self, row: StoredMessage) -> None:
        """Prints a row."""

    async def read(self) -> None:
        """Prints rows for ever."""
        while True:
            try:
                async for row in self.chat:
                    await self.show(row)
                return
            except CorruptRow as error:
                await self.pass_over(error)

    async def pass_over(self, error: CorruptRow) -> None:
        """Says that a row cannot be read."""
        self.tell(str(error))

    async def write(self, lines: AsyncIterator[str]) -> None:
        """Sends lines until they end."""

    async def send(self, line: str, client_id: str) -> int | None:
        """Sends a line; one that is refused does not end the talk."""
        try:
            return await self.chat.send(line, client_id=client_id)
        except (ConversationRefused, ConnectionRefused):
            raise
        except ParlatoryError as error:
            self.failed(str(error))
            return None


class _Pipe(_Talk):
    """Is a talk through pipes."""

    def __init__(self, output: TextIO, quiet_s: float) -> None:
        super().__init__(output)
        self._quiet_s = quiet_s
        self._changed = asyncio.Event()
        self._rows: list[StoredMessage] = []
        self._printed = 0
        self._sent: set[int] = set()
        # The turns that said something or came to their end, and those that are queued or running.
        self._answered: set[int | str | None] = set()
        self._busy: set[int | str | None] = set()
        self._failed: set[int | str | None] = set()
        # Those of which an interrupted answer is the last word: they are attempted again.
        self._interrupted: set[int | str | None] = set()

    async def show(self, row: StoredMessage) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_MAX or not self.chat.ready:
            await self._print(row.seq)

    async def pass_over(self, error: CorruptRow) -> None:
        await super().pass_over(error)
        await self._print(error.seq)

    async def _print(self, seq: int) -> None:
        await write(self.output, "".join(f"{line_of(row, self.chat.principal)}\n" for row in self._rows))
        # Only what is printed counts, because the talk may be over with it.
        self._printed = seq
        for row in self._rows:
            if row.by == "agent":
                self._note(row.turn, answered=row.finish != "interrupted")
        self._rows.clear()
        self._changed.set()

    def _note(self, turn: int | str | None, *, answered: bool) -> None:
        if answered:
            self._answered.add(turn)
            self._interrupted.discard(turn)
        else:
            self._answered.discard(turn)
            self._interrupted.add(turn)

    def on_turn(self, turn: TurnState) -> None:
        super().on_turn(turn)
        if turn.state == "error":
            self._failed.add(turn.id)
        if turn.state in ("queued", "running"):
            self._busy.add(turn.id)
        else:
            self._busy.discard(turn.id)
            if turn.state != "waiting":
                self._note(turn.id, answered=True)
        self._changed.set()

    def on_status(self, status: Status) -> None:
        if status == "replaying":
            # The ends of turns are not told again. What those said that ran may not have been their last word.
            self._answered -= self._busy
            self._busy.clear()
        self._changed.set()

    async def write(self, lines: AsyncIterator[str]) -> None:
        await self.opened.wait()
        async for line in lines:
            if line.strip():
                seq = await self.send(line, secrets.token_urlsafe(16))
                if seq is not None:
                    self._sent.add(seq)
        await self._wait_for_answers()
        for turn in sorted(self._sent & self._interrupted):
            self.failed(f"the answer to message {turn} was interrupted, and is not taken up again")
        if self._failed & self._sent:
            self.exit_code = 2

    def _runs(self) -> bool:
        """Says whether a turn for one of the lines is queued or runs, told on this connection or at its beginning."""
        now = self.chat.turn
        began = now.state in ("queued", "running") and (now.id is None or now.id in self._sent)
        return began or bool(self._busy & self._sent)

    async def _wait_for_answers(self) -> None:
        if not self._sent:
            return
        last = max(self._sent)
        while True:
            # The end of a turn may be told before its last row is printed.
            taken = self.chat.position.seq if self.chat.position else 0
            printed = self._printed >= max(last, taken) and not self.chat.ready
            shown = self.chat.status == "live" and printed
            idle = not self._runs()
            if shown and idle and self._sent <= self._answered:
                return
            self._changed.clear()
            # An idle agent that says nothing has answered as well, unless it is about to go on; offline, nothing is
            # known.
            quiet_s = OPEN_S if self._interrupted & self._sent else self._quiet_s
            limit_s = quiet_s if shown and idle else None
            try:
                async with asyncio.timeout(limit_s):
                    await self._changed.wait()
            except TimeoutError:
                return


class _Terminal(_Talk):
    """Is a talk on a terminal. The terminal itself edits and echoes the line, so own rows are not shown again.

    A draft is printed as far as it is written, on a line that stays open. What else comes ends that line, and the rest
    of the draft begins another one.
    """

    tail = HISTORY_ROWS
    patience_s = None

    def __init__(self, output: TextIO) -> None:
        super().__init__(output)
        self._colour = "NO_COLOR" not in os.environ
        self._mine: set[str] = set()
        self._outbox: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        # The draft that is printed in part, how much of its text, and whether it has the line.
        self._draft: Draft | None = None
        self._printed = 0
        self._on_line = False
        # When Ctrl-C was pressed last, and that a turn is to be stopped.
        self._pressed = -CTRL_C_S
        self._stop = asyncio.Event()

    def tell(self, text: str) -> None:
        self._leave_line()
        self.output.flush()
        tell(text)
        self._prompt()

    async def show(self, row: StoredMessage) -> None:
        if row.client_id in self._mine:
            self._mine.discard(row.client_id)
            return
        draft = self._draft
        text = said(row)
        if draft is not None and row.turn == draft.turn and text.startswith(draft.text[: self._printed]):
            self._add(text)
            self._end_draft("")
        else:
            self._leave_line()
            self.output.write(f"{self._bold(self._name(row))}{printable(text, lines=True)}\n")
            self._prompt()
        await asyncio.sleep(0)  # rows at hand come without waiting, and would keep the person out

    async def read(self) -> None:
        self._prompt()
        events = self.chat.events()
        while True:
            try:
                async for event in events:
                    if isinstance(event, StoredMessage):
                        await self.show(event)
                    elif isinstance(event, Draft):
                        self._show_draft(event)
                return
            except CorruptRow as error:
                await self.pass_over(error)

    def _show_draft(self, draft: Draft) -> None:
        known = self._draft
        if known is not None and (known.id != draft.id or not draft.text.startswith(known.text[: self._printed])):
            self._end_draft("[...]")
            known = None
        if draft.finish is not None:
            # With a row it is printed as that already.
            if known is not None:
                self._end_draft(f"[{'connection lost' if draft.finish == LOST else draft.finish}]")
        elif draft.text:
            if known is None:
                self._printed = 0
            self._draft = draft
            self._add(draft.text)

    def _add(self, text: str) -> None:
        """Prints what is new in the text of the draft."""
        new = text[self._printed :]
        self._printed = len(text)
        if not new:
            return
        if not self._on_line:
            self.output.write(f"\r\x1b[K{self._bold('agent')}")
            self._on_line = True
        self.output.write(printable(new, lines=True))
        self.output.flush()

    def _end_draft(self, note: str) -> None:
        self._draft = None
        if note and self._on_line:
            self.output.write(f" {note}")
        self._leave_line()
        self._prompt()

    def _leave_line(self) -> None:
        """Begins an empty line: the next one behind a draft, the same one in place of the prompt."""
        self.output.write("\n" if self._on_line else "\r\x1b[K")
        self._on_line = False

    def _bold(self, by: str) -> str:
        name = printable(by)
        return f"\x1b[1m{name}\x1b[0m: " if self._colour else f"{name}: "

    def ctrl_c(self, stopped: asyncio.Event) -> None:
        now = asyncio.get_running_loop().time()
        idle = not self.opened.is_set() or self.chat.turn.state not in ("running", "queued")
        if idle or now - self._pressed < CTRL_C_S:
            stopped.set()
        else:
            self._pressed = now
            self._stop.set()

    async def _stop_turns(self) -> None:
        while True:
            await self._stop.wait()
            self._stop.clear()
            self.tell("stopping the turn; Ctrl-C again leaves")
            try:
                await self.chat.cancel()
            except ParlatoryError as error:
                self.tell(str(error))

    async def write(self, lines: AsyncIterator[str]) -> None:
        sending = asyncio.ensure_future(self._send_all())
        stopping = asyncio.ensure_future(self._stop_turns())
        try:
            async for line in lines:
                if line.strip():
                    client_id = secrets.token_urlsafe(16)
                    self._mine.add(client_id)
                    self._outbox.put_nowait((line, client_id))
                self._prompt()
            self.output.write("\n")
            leaving = asyncio.ensure_future(self._outbox.join())
            await asyncio.wait([sending, leaving], return_when=asyncio.FIRST_COMPLETED, timeout=LEAVE_S)
            if not leaving.done():
                leaving.cancel()
                self.failed("what was typed last is not acknowledged and may be lost")
        finally:
            sending.cancel()
            stopping.cancel()
            await asyncio.gather(sending, stopping, return_exceptions=True)

    async def _send_all(self) -> None:
        await self.opened.wait()
        while True:
            await self.send(*await self._outbox.get())
            self._outbox.task_done()

    def _name(self, row: StoredMessage) -> str:
        name = name_of(row, self.chat.principal)
        return name.partition(":")[2] or name

    def _prompt(self) -> None:
        if not self._on_line and self.opened.is_set():
            self.output.write(f"\r\x1b[K{PROMPT}")
        self.output.flush()
