"""`parlatory tail`: the last rows of a conversation, and what comes."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ..storage import ParlatoryError, Row, StoredMessage, encode_message, instant_of
from .client_terminal import ROWS_MAX, first_of, interrupts, line_of, open_chat, tell, write

__all__ = ["tail"]


async def tail(
    url: str, conversation: str, token: str | None, n: int, json: bool, *, output: TextIO | None = None
) -> int:
    """Prints the last `n` rows and follows, a line each, until Ctrl-C or until the server ends it.

    With `json` each line is the row as the protocol writes it. `output` is stdout if it is not given.

    Returns:
        The exit code: 0, or 2 after one sentence on stderr.

    Raises:
        BrokenPipeError: nobody reads the output any more, and that is noticed by writing only.
    """
    target = sys.stdout if output is None else output
    try:
        async with interrupts() as stopped:
            with _watched(target, stopped.set):
                await first_of(_follow(url, conversation, token, n, json, target), stopped.wait())
    except ParlatoryError as error:
        tell(str(error))
        return 2
    return 0


@contextmanager
def _watched(output: TextIO, gone: Callable[[], None]) -> Iterator[None]:
    """Calls `gone` when nobody reads a pipe any more: `tail | head` ends although no further row comes."""
    loop = asyncio.get_running_loop()
    fd = output.fileno()
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        yield
        return
    loop.add_reader(fd, gone)  # the writing end of a pipe becomes "readable" by its error only
    try:
        yield
    finally:
        loop.remove_reader(fd)


async def _follow(
    url: str, conversation: str, token: str | None, n: int, json: bool, output: TextIO
) -> None:
    async with open_chat(url, conversation, token, tail=n) as chat:
        lines: list[str] = []
        async for row in chat:
            lines.append(f"{_json(row) if json else line_of(row, chat.principal)}\n")
            if len(lines) >= ROWS_MAX or not chat.ready:
                await write(output, "".join(lines))
                lines.clear()


def _json(row: StoredMessage) -> str:
    body = encode_message(row.message)
    return Row(row.seq, instant_of(row.at), row.by, row.client_id, row.turn, row.finish, body).json().decode()
