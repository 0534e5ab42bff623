"""A draft: the answer that a turn is writing. Live while it is written, one row at its end.

    async with self.reply() as draft:
        await draft.write("Hello")

Writes are told in flushes, every 25 ms or 256 characters, to whoever is live; nobody waits for a slow client. The
partial is checkpointed every second or 4 KiB, so that a crash costs no more. At the end the row, the removal of the
checkpoint and the mark that the message is handled are one batch.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ..storage import Batch, NewRow, ParlatoryError, TooLarge, new_row
from .draft_message import DraftMessage
from .events import DeltaTold, DraftEnded, DraftTold

if TYPE_CHECKING:
    from .turns import TurnLane

__all__ = ["CHECKPOINT", "Checkpoint", "Draft"]

CHECKPOINT = "turn.draft"
FLUSH_S = 0.025
FLUSH_CHARACTERS = 256
CHECKPOINT_S = 1.0
CHECKPOINT_CHARACTERS = 4096
DRAFT_CHARACTERS_MAX = 900_000
WRITES_PER_STEP = 32

logger = logging.getLogger("parlatory.actors")
_encode = msgspec.json.Encoder().encode


class Checkpoint(msgspec.Struct):
    """Is what storage holds of a draft that is being written."""

    id: str
    turn: int
    message: dict[str, Any]


class Draft:
    """Is the answer that a turn is writing. Made by `Agent.reply`; used as an async context manager.

    Attributes:
        id: names the draft on the wire.
        seq: the row that it became, once it is over and left one.
        ending: set once its end is being committed; nothing stops it then.
    """

    def __init__(self, lane: TurnLane, turn: int, *, more: bool = False) -> None:
        self.id = secrets.token_urlsafe(9)
        self.seq: int | None = None
        self._lane = lane
        self._turn = turn
        self._more = more
        self._message = DraftMessage()
        self._told_index = 0
        self._flushed_size = 0
        self._flush_timer: asyncio.TimerHandle | None = None
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._checkpointed_size = 0
        self._checkpointing = False
        self._has_checkpoint = False
        self.ending = False

    # -- writing

    async def write(self, text: str) -> None:
        """Appends text to the answer.

        Raises:
            TooLarge: the answer would be over what a message may hold.
        """
        self._check_room(len(text))
        self._message.add(text)
        await self._wrote()

    async def reasoning(self, text: str) -> None:
        """Appends text to the reasoning that stands in front of, or between, parts of the answer."""
        self._check_room(len(text))
        self._message.reason(text)
        await self._wrote()

    async def tool_call(self, tool_call_id: str, tool_name: str, input: Mapping[str, Any]) -> None:
        """Appends a tool call; `input` is a JSON object."""
        await self.attach(
            {"type": "tool-call", "toolCallId": tool_call_id, "toolName": tool_name, "input": dict(input)}
        )

    async def attach(self, part: Mapping[str, Any]) -> None:
        """Appends a part of an assistant message, in JSON terms, such as a file."""
        self._check_room(len(_encode(part)))
        self._message.put(part)
        await self._wrote()

    def _check_room(self, size: int) -> None:
        if self.ending:
            raise RuntimeError("the draft is over")
        if self._message.size + size > DRAFT_CHARACTERS_MAX:
            raise TooLarge("a draft", self._message.size + size, DRAFT_CHARACTERS_MAX, "characters")

    async def _wrote(self) -> None:
        loop = asyncio.get_running_loop()
        if self._message.size - self._flushed_size >= FLUSH_CHARACTERS:
            self.flush()
        elif self._flush_timer is None:
            self._flush_timer = loop.call_later(FLUSH_S, self.flush)
        if self._message.size - self._checkpointed_size >= CHECKPOINT_CHARACTERS:
            self._checkpoint()
        elif self._checkpoint_timer is None:
            self._checkpoint_timer = loop.call_later(CHECKPOINT_S, self._checkpoint)
        if self._message.index % WRITES_PER_STEP == 0:
            await asyncio.sleep(0)  # an agent that writes without waiting is not alone in the process

    # -- telling, as `HubDraft`

    def flush(self) -> None:
        """Tells what was written since the last flush."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        delta = self._message.flush()
        self._flushed_size = self._message.size
        if delta is not None:
            self._told_index = delta.end
            conversation = self._lane.conversation
            event = DeltaTold(conversation.name, self.id, delta.start, delta.end, delta.ops)
            conversation.hub.tell_delta(event)

    def snapshot(self) -> DraftTold:
        """Returns the draft as it was told so far."""
        name = self._lane.conversation.name
        return DraftTold(name, self.id, self._turn, self._told_index, self._message.message())

    # -- storing

    def _checkpoint(self) -> None:
        """Stores the partial, unless the last one is still on its way."""
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
            self._checkpoint_timer = None
        if self._checkpointing or self.ending or not self._message:
            return
        self._checkpointing = self._has_checkpoint = True
        self._checkpointed_size = self._message.size
        partial = _encode(Checkpoint(self.id, self._turn, self._message.message()))
        try:
            future = self._lane.conversation.submit(Batch(puts={CHECKPOINT: partial}))
        except ParlatoryError as error:  # the next write tries again; a crash now would cost what was written since
            self._checkpointing = False
            logger.warning("a draft of %r was not checkpointed: %s", self._lane.conversation.name, error)
            return
        future.add_done_callback(self._checkpoint_done)

    def _checkpoint_done(self, future: asyncio.Future[Any]) -> None:
        self._checkpointing = False
        if not future.cancelled() and (error := future.exception()) is not None:
            logger.warning("a draft of %r was not checkpointed: %s", self._lane.conversation.name, error)

    # -- life

    async def __aenter__(self) -> Self:
        """Begins the draft; it is told at once, empty."""
        self._lane.begin_draft(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the draft: one row, or none if nothing was written."""
        finish = "done"
        if error is not None:
            finish = "stopped" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "error"
        # The end is not cancelled by halves: who stops the turn now finds it over.
        ending = asyncio.ensure_future(self._end(finish))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait({ending})
            if error is None:
                raise

    async def _end(self, finish: str) -> None:
        self.ending = True
        self._message.finish()
        self.flush()
        for timer in (self._flush_timer, self._checkpoint_timer):
            if timer is not None:
                timer.cancel()
        try:
            if self._lane.interrupted:
                await self._leave_for_redelivery()
            else:
                await self._commit(finish)
        finally:
            self._lane.end_draft(DraftEnded(self._lane.conversation.name, self.id, self.seq, finish))

    async def _commit(self, finish: str) -> None:
        deletes = (CHECKPOINT,) if self._has_checkpoint else ()
        if not self._message:
            if deletes:
                await self._lane.conversation.commit(Batch(deletes=deletes))
            return
        row = self._row(finish)
        answers = finish != "done" or not (self._more or self._lane.has_open_calls(row))
        committed = await self._lane.commit_draft(Batch(rows=(row,), deletes=deletes), final=answers)
        self.seq = committed.seq

    def _row(self, finish: str) -> NewRow:
        _, row = new_row(
            self._message.message(), by="agent", turn=self._turn, finish=None if finish == "done" else finish
        )
        return row

    async def _leave_for_redelivery(self) -> None:
        """Leaves the partial as a crash would; the next process makes an interrupted row of it."""
        if self._message:
            partial = _encode(Checkpoint(self.id, self._turn, self._message.message()))
            await self._lane.conversation.commit(Batch(puts={CHECKPOINT: partial}))
