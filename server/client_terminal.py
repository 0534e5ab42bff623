"""What `chat` and `tail` share: text that cannot steer a terminal, Ctrl-C, and a chat whose loss is told."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TextIO

import msgspec

from ..storage import Custom, File, Image, StoredMessage, ToolCall
from .client import Chat, connect
from .client_errors import ConnectionRefused
from .client_frames import TurnState
from .client_subscription import Status

__all__ = [
    "OPEN_S",
    "ROWS_MAX",
    "first_of",
    "interrupts",
    "line_of",
    "name_of",
    "open_chat",
    "printable",
    "said",
    "tell",
    "write",
]

ROWS_MAX = 100
"""Rows in one write."""
OPEN_S = 30.0
"""How long the server may refuse to open the conversation for now, where nobody is there to lose patience."""
INPUT_CHARACTERS = 200
APPROVAL = "parlatory.approval"
NOTED = Image | File | ToolCall | Custom
SLOW_S = 1.0
"""After this time it is told why the conversation is not open yet."""

# Controls of both ranges, what changes the direction of text, separators of lines, and halves of characters, which
# cannot be written at all.
_STEERING = r"\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
_ANY = re.compile(r"[\x00-\x1f" + _STEERING)
_ANY_BUT_LINE_ENDS = re.compile(r"[\x00-\x09\x0b-\x1f" + _STEERING)
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT.get(character) or (f"\\x{ord(character):02x}" if character < "\xa0" else f"\\u{ord(character):04x}")


def printable(text: str, *, lines: bool = False) -> str:
    """Returns the text with everything escaped that could steer a terminal; `lines` leaves line ends as they are."""
    return (_ANY_BUT_LINE_ENDS if lines else _ANY).sub(_escaped, text)


def said(row: StoredMessage) -> str:
    """Returns the text of a row, with a note for each part that text does not show, and how it ended."""
    text = row.text
    if not isinstance(row.content, str):
        notes = [_note(part) for part in row.content if not text or isinstance(part, NOTED)]
        text = " ".join([text, *notes] if text else notes)
    return text if row.finish is None else f"{text} [{row.finish}]"


def _shorten(text: str) -> str:
    """Returns a text that fits beside others on a line or two."""
    return text if len(text) <= INPUT_CHARACTERS else f"{text[:INPUT_CHARACTERS]}..."


def _note(part: Any) -> str:
    """Returns what stands for a part that is no text: `[image photo.png, image/png]`."""
    if isinstance(part, ToolCall):
        given = msgspec.json.encode(part.input).decode() if part.invalid is None else part.invalid
        return f"[calls {part.tool_name} {_shorten(given)}]"
    if isinstance(part, Custom) and part.kind == APPROVAL and isinstance(part.data, dict):
        return f"[{'approved' if part.data.get('approved') is True else 'denied'} {part.data.get('toolCallId')}]"
    known = [part.filename, part.media_type] if isinstance(part, Image | File) else []
    about = ", ".join(word for word in known if word)
    return f"[{part.type} {about}]" if about else f"[{part.type}]"


def name_of(row: StoredMessage, principal: str | None) -> str:
    """Returns who a row is from, for the principal that reads it."""
    if row.role == "tool":
        return "tool"
    if row.by == principal:
        return "you"
    kind, _, name = row.by.partition(":")
    return f"anonymous {name[:6]}".rstrip() if kind == "anonymous" else row.by


def line_of(row: StoredMessage, principal: str | None = None) -> str:
    """Returns a row as one line, `by: text`."""
    return printable(f"{name_of(row, principal)}: {said(row)}")


def tell(text: str) -> None:
    """Prints a sentence for people, not among the rows."""
    print(f"parlatory: {printable(text)}", file=sys.stderr, flush=True)


async def write(output: TextIO, text: str) -> None:
    """Writes text and flushes it, in a thread: a pipe may be full for as long as its reader likes.

    Raises:
        BrokenPipeError: nobody reads it any more.
    """

    def do() -> None:
        output.write(text)
        output.flush()

    await asyncio.to_thread(do)


@asynccontextmanager
async def interrupts(on_ctrl_c: Callable[[asyncio.Event], None] | None = None) -> AsyncIterator[asyncio.Event]:
    """Gives an event that Ctrl-C and SIGTERM set; outside of the main thread it never is.

    With `on_ctrl_c` Ctrl-C calls that with the event instead.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    with suppress(ValueError, RuntimeError):
        for number in numbers:
            loop.add_signal_handler(number, stopped.set)
        if on_ctrl_c is not None:
            loop.add_signal_handler(signal.SIGINT, on_ctrl_c, stopped)
    try:
        yield stopped
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def first_of(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Runs all until the first is done; raises what it raises."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def open_chat(
    url: str,
    conversation: str,
    token: str | None,
    *,
    tail: int,
    patience_s: float | None = OPEN_S,
    tell: Callable[[str], None] = tell,
    on_status: Callable[[Status], None] | None = None,
    on_turn: Callable[[TurnState], None] | None = None,
) -> AsyncIterator[Chat]:
    """Opens the conversation and waits for the first connection; from then on its loss and return are told.

    A server that refuses to open it for now is told once, and given up after `patience_s`; never if that is None.

    Raises:
        ParlatoryError: the conversation cannot be had, or the server cannot be reached at first.
    """
    chat: Chat | None = None
    away = False

    def status_changed(status: Status) -> None:
        nonlocal away
        if chat is not None and status == "offline" and not away:
            away = True
            tell(f"{chat.problem}; trying again")
        elif status == "live" and away:
            away = False
            tell("connected again")
        if on_status is not None:
            on_status(status)

    def was_reset(chat: Chat) -> None:
        tell("the conversation is another one than before; it begins anew")

    async with connect(
        url, conversation, token=token, tail=tail, on_reset=was_reset, on_status=status_changed, on_turn=on_turn
    ) as opened:
        if await _first_status(opened, patience_s, tell) == "offline":
            raise ConnectionRefused(opened.problem or "the server cannot be reached")
        if opened.status == "closed":
            await anext(opened)  # raises why
        chat = opened
        yield opened


async def _first_status(chat: Chat, patience_s: float | None, tell: Callable[[str], None]) -> Status:
    opened: tuple[Status, ...] = ("live", "replaying", "offline")
    with suppress(TimeoutError):
        async with asyncio.timeout(SLOW_S):
            return await chat.wait_status(*opened)
    if chat.problem is not None:
        tell(f"{chat.problem}, trying again")
    try:
        async with asyncio.timeout(patience_s):
            return await chat.wait_status(*opened)
    except TimeoutError:
        raise ConnectionRefused(chat.problem or "the server does not open the conversation") from None
