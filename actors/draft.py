"""A draft: the answer that a turn is writing. Live while it is written, one row at its end.

    async with self.reply() as draft:
        await draft.write("Hello")

Writes are told to whoever is live, at most 25 ms or 256 characters later; nobody waits for a slow client. The partial
is checkpointed every second or 4 KiB, so that a crash costs no more. At the end the row, the removal of the checkpoint
and the mark that the message is handled are one batch, and the end is told in the step that tells the row.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ..storage import Batch, CodecError, ParlatoryError, TooLarge, ToolCall, new_row
from .checkpoints import Checkpoints
from .consume import STALL_S, consume
from .draft_message import DraftMessage, weight_of
from .events import DeltaTold, DraftTold
from .picture import DraftPicture

if TYPE_CHECKING:
    from .turns import TurnLane

__all__ = ["Draft"]

FLUSH_S = 0.025
FLUSH_CHARACTERS = 256
# With what storage lets pass before it writes what is lazy, a crash costs less than a second. Drafts that began
# together are not checkpointed together.
CHECKPOINT_S = 0.9
FIRST_CHECKPOINT_SPREAD = 0.8
CHECKPOINT_SPREAD = 0.1
CHECKPOINT_CHARACTERS = 4096
DRAFT_BYTES_MAX = 1_000_000  # of its message as JSON; a row takes a little more
CHARACTER_BYTES_MAX = 6  # of one character in JSON
WRITES_PER_STEP = 32

logger = logging.getLogger("parlatory.actors")
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Draft:
    """Is the answer that a turn is writing. Made by `Agent.reply`; used as an async context manager, once.

    Attributes:
        id: names the draft on the wire.
        turn: the turn it belongs to.
        seq: the row that it became, once it is over and left one.
        ending: set once its end is being committed; nothing is written then.
        final: set once it is ending as the answer of its turn, which nothing stops then.
        finish: how it ends: `done`, `stopped`, `error` or `interrupted`.
        usage: what the provider counted for the stream consumed last, as it says it; None if it said nothing.
        stop_reason: why the model of that stream stopped, in the provider's word.
    """

    def __init__(self, lane: TurnLane, turn: int, *, more: bool = False) -> None:
        self.id = secrets.token_urlsafe(9)
        self.turn = turn
        self.seq: int | None = None
        self.ending = self.final = False
        self.finish = "done"
        self.usage: dict[str, Any] | None = None
        self.stop_reason: str | None = None
        self._lane = lane
        self._conversation = lane.conversation
        self._flushes = lane.conversation.runtime.flushes
        self._more = more
        self._message = DraftMessage()
        self._snapshot: DraftTold | None = None
        self._end_task: asyncio.Task[None] | None = None
        # How much was told, and how much is stored.
        self._told_index = 0
        self._told_size = 0
        self._loop = asyncio.get_running_loop()
        self._flush_at = 0.0  # the loop time before which no flush is due, unless much was written
        self._flush_waits = False
        self._checkpoints = Checkpoints(self.id, turn)
        self._stored_size = self._durable_size = 0  # the first also of what is not to be tried again before long
        self._storing_size: int | None = None
        self._checkpoint_waits = False

    @property
    def empty(self) -> bool:
        """Says that nothing was written; it leaves no row then."""
        return not self._message

    def picture(self) -> DraftPicture:
        """Returns what is written so far, told or not."""
        return DraftPicture(self.id, self.turn, self._message.message())

    # -- writing

    async def write(self, text: str) -> None:
        """Appends text to the answer. Half a character at its end waits for the other half.

        Raises:
            TooLarge: the answer would be over what a message may hold.
        """
        self._check_room(text)
        self._message.add(text)
        if self._wrote():
            await asyncio.sleep(0)

    async def reasoning(self, text: str) -> None:
        """Appends text to the reasoning that stands in front of, or between, parts of the answer."""
        self._check_room(text)
        self._message.reason(text)
        if self._wrote():
            await asyncio.sleep(0)

    async def tool_call(self, tool_call_id: str, tool_name: str, input: Mapping[str, Any]) -> None:
        """Appends a tool call; `input` is a JSON object."""
        await self.attach(
            {"type": "tool-call", "toolCallId": tool_call_id, "toolName": tool_name, "input": dict(input)}
        )

    async def attach(self, part: Mapping[str, Any]) -> int:
        """Appends a part of an assistant message, in JSON terms, such as a file; returns its place.

        Raises:
            CodecError: no assistant message holds such a part; or a tool call has the id of an earlier one.
            TooLarge: the answer would be over what a message may hold.
        """
        stored = self._storable(part)
        if stored.get("toolCallId") in self.tool_call_ids and stored["type"] == "tool-call":
            raise CodecError("$.toolCallId", "an earlier tool call of this message has it")
        place = self._message.put(stored)
        if self._wrote():
            await asyncio.sleep(0)
        return place

    async def amend(self, place: int, fields: Mapping[str, Any]) -> None:
        """Sets fields of the part at a place, such as the signature of a reasoning.

        Raises:
            IndexError: there is no part at this place.
            CodecError, TooLarge: as `attach`.
        """
        self._message.finish()  # half a character at its end will not become whole any more
        self._message.replace(place, self._storable({**self._message.parts[place], **fields}))
        if self._wrote():
            await asyncio.sleep(0)

    @property
    def tool_call_ids(self) -> set[str]:
        """Lists the ids of the tool calls so far."""
        return {part["toolCallId"] for part in self._message.parts if part["type"] == "tool-call"}

    async def consume(self, stream: object, *, stall_s: float | None = STALL_S) -> list[ToolCall]:
        """Writes the answer of a model as it streams, and returns the tool calls in it.

        Tool calls are in the draft once their arguments are whole; arguments that are no JSON object are kept as text
        in `invalid`. The stream is closed whatever happens, so that a stop reaches the provider. If it fails, what
        came until then is in the draft, and leaving the draft with the error commits it with finish `error`.

        Args:
            stream: what `chat.completions.create(stream=True)` or `responses.create(stream=True)` of the `openai` SDK
                returns; `messages.create(stream=True)` or `messages.stream(...)` of the `anthropic` SDK; or any
                asynchronous iterator of `str`. `messages.stream` itself fails at arguments that are no JSON.
            stall_s: for how long nothing may come.

        Raises:
            TimeoutError: nothing came for `stall_s` seconds.
            ModelFailed: the provider ended the answer without finishing it.
            TooLarge: the answer would be over what a message may hold.
            TypeError: the stream is none of the above.
            Exception: what the SDK raises, such as for a connection that broke.
        """
        return await consume(self, stream, stall_s)

    def _storable(self, part: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a part as it will be stored: what the end would refuse is refused here, where it costs one part."""
        _, row = new_row({"role": "assistant", "content": [part]})
        stored: dict[str, Any] = _decode(row.body)["content"][0]
        if stored["type"] == "reasoning":
            stored.setdefault("text", "")  # it may grow
        self._check_room("", len(row.body))
        return stored

    def _check_room(self, text: str, size: int = 0) -> None:
        if self.ending:
            raise RuntimeError("the draft is over")
        weight = self._message.weight + size
        if weight + len(text) * CHARACTER_BYTES_MAX > DRAFT_BYTES_MAX:
            weight += weight_of(text)
            if weight > DRAFT_BYTES_MAX:
                raise TooLarge("a draft", weight, DRAFT_BYTES_MAX)

    def _wrote(self) -> bool:
        """Sees to it that what was written is told and stored; says that the writer is to let others have their turn.

        An agent that writes without waiting is not alone in the process.
        """
        message = self._message
        if message.size - self._told_size >= FLUSH_CHARACTERS:
            self.flush()
            self._flush_at = self._loop.time() + FLUSH_S
        elif not self._flush_waits:
            # What comes after a pause is told at once; the rest in a steady beat, which a late step does not slow down.
            self._flush_waits = True
            self._flush_at = max(self._flush_at, self._loop.time())
            self._flushes.add(self._flush_at, self._flush_due)
        if message.size - self._stored_size >= CHECKPOINT_CHARACTERS:
            self._checkpoint()
        elif not self._checkpoint_waits:
            self._checkpoint_later()
        return message.index % WRITES_PER_STEP == 0

    # -- telling, as `HubDraft`

    def _flush_due(self) -> None:
        self._flush_waits = False
        self._flush_at += FLUSH_S
        self.flush()

    def flush(self) -> None:
        """Tells what was written since the last flush."""
        delta = self._message.flush()
        self._told_size = self._message.size
        if delta is not None:
            self._told_index = delta.end
            message = self._message
            self._checkpoints.add(delta.ops, more=message.size - self._durable_size > message.weight)
            conversation = self._conversation
            event = DeltaTold(conversation.name, self.id, delta.start, delta.end, delta.ops)
            conversation.hub.tell_delta(event)

    def snapshot(self) -> DraftTold:
        """Returns the draft as it was told so far, which is all of it just behind a flush; many share one."""
        if self._snapshot is None or self._snapshot.index != self._told_index:
            name = self._conversation.name
            self._snapshot = DraftTold(name, self.id, self.turn, self._told_index, self._message.message())
        return self._snapshot

    # -- storing

    def _checkpoint(self, *, lazy: bool = False) -> None:
        """Stores what was written since the last one, unless that is still on its way: then it follows that one."""
        message = self._message
        if self._storing_size is not None or self.ending or not message or message.size == self._durable_size:
            return
        try:
            future = self._conversation.submit(self._partial(lazy=lazy))
        except ParlatoryError as error:  # a crash now would cost what was written since the last one
            self._checkpoint_failed(error)
            return
        self._storing_size = message.size
        future.add_done_callback(self._checkpoint_done)

    def _checkpoint_due(self) -> None:
        self._checkpoint_waits = False
        self._checkpoint(lazy=True)

    def _checkpoint_done(self, future: asyncio.Future[Any]) -> None:
        size, self._storing_size = self._storing_size, None
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._checkpoint_failed(error)
            return
        self._checkpoints.stored()
        self._stored_size = self._durable_size = size or 0
        if self._message.size > self._stored_size:
            self._checkpoint_later()

    def _checkpoint_failed(self, error: BaseException) -> None:
        logger.warning("a draft of %r was not checkpointed: %s", self._conversation.name, error)
        self._stored_size = self._message.size  # not at each of the next writes, but in a second
        self._checkpoint_later()

    def _checkpoint_later(self) -> None:
        if not self._checkpoint_waits and not self.ending:
            self._checkpoint_waits = True
            spread = CHECKPOINT_SPREAD if self._stored_size else FIRST_CHECKPOINT_SPREAD
            after = CHECKPOINT_S * random.uniform(1 - spread, 1)
            self._conversation.runtime.checkpoints.add(self._loop.time() + after, self._checkpoint_due)

    def _partial(self, *, lazy: bool = False) -> Batch:
        self.flush()
        marks = self._lane.marks
        batch = self._checkpoints.next(self._message.message(), marks.checkpoints, lazy=lazy)
        marks.checkpoints = max(marks.checkpoints, self._checkpoints.keys)
        return batch

    # -- life

    async def __aenter__(self) -> Self:
        """Begins the draft; it is told at once, empty.

        Raises:
            StorageError: the row of an earlier draft was refused, and is refused again.
        """
        if self.ending:
            raise RuntimeError("the draft is over")
        await self._lane.save_refused()
        self._lane.begin_draft(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the draft: one row, or none if nothing was written.

        Raises:
            StorageError: its row could not be committed.
        """
        stopped = isinstance(error, asyncio.CancelledError | GeneratorExit)
        ending = self.end("done" if error is None else self._lane.finish("stopped" if stopped else "error"))
        # The end is not cancelled by halves: who stops the turn now waits for it.
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait({ending})
            if not stopped:
                raise

    def end(self, finish: str) -> asyncio.Task[None]:
        """Ends the draft, once; from this step on it is clear what it becomes. Returns the task that commits it."""
        if self._end_task is None:
            self.ending = True
            self.finish = finish
            self._message.finish()
            self.flush()
            if finish == "done":
                self.final = not self.empty and not self._more and not self._has_open_calls()
            else:
                self.final = not self.empty and finish != "interrupted"
            name = f"parlatory draft end {self._conversation.name!r}"
            self._end_task = self._loop.create_task(self._end(), name=name)
            self._lane.own_end(self._end_task)
        return self._end_task

    async def _end(self) -> None:
        try:
            if self.finish == "interrupted":
                # As a crash would leave it: the next process makes an interrupted row of it.
                if not self.empty:
                    await self._conversation.commit(self._partial())
            elif self.empty:
                await self._lane.commit_draft(self, None)
            else:
                finish = None if self.finish == "done" else self.finish
                _, row = new_row(self._message.message(), by="agent", turn=self.turn, finish=finish)
                await self._lane.commit_draft(self, row)
        finally:
            self._lane.end_draft(self, None)

    def _has_open_calls(self) -> bool:
        """Says that it asks for tools, so that more of the answer is to come."""
        return any(part["type"] == "tool-call" and not part.get("providerExecuted") for part in self._message.parts)
