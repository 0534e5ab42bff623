"""The clients of a world: real ones, and what their users do with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from parlatory.actors import approval
from parlatory.server import Chat, Client
from parlatory.server.client_drafts import Draft
from parlatory.server.client_errors import (
    CancelTimeout,
    ClientClosed,
    ConnectionRefused,
    ConversationRefused,
    Refused,
    SendRefused,
    SendTimeout,
)
from parlatory.server.client_subscription import Position
from parlatory.storage import ParlatoryError, StoredMessage, UserMessage, check_message, encode_message, user_message

from .world import PORT

if TYPE_CHECKING:
    from .world import World

__all__ = ["Person", "Reading", "Sent"]

KINDS = ("say", "twice", "read", "quiet", "fail", "more", "empty", "break", "ask", *("draft", "tools") * 3)
UNANSWERED_MAX = 6
OVER = (ClientClosed, ConversationRefused, ConnectionRefused)
"""What those meet whose chat or client is over: it was closed here, or access was taken away."""


class Sent(NamedTuple):
    """Is one message that somebody wanted to append; `seq` is the answer, `certain` says that it is not in the log.

    `era` says which log was there when they began.
    """

    era: int
    conversation: str
    client_id: str
    text: str
    seq: int | None
    certain: bool


class Reading:
    """Is one iteration over a conversation, from its opening to its end: the rows that the application got.

    `after` is the seq behind which it began, None where the server was to say. `drafts` are those it was shown and not
    told the end of, `ended` those it was.
    """

    def __init__(self, number: int, conversation: str, chat: Chat, after: int | None) -> None:
        self.number = number
        self.conversation = conversation
        self.chat = chat
        self.after = after
        self.rows: list[StoredMessage] = []
        self.drafts: dict[str, Draft] = {}
        self.ended: set[str] = set()
        self.held = asyncio.Event()
        self.held.set()
        self.task: asyncio.Task[None]


class Person:
    """Is a user with a client of their own.

    Attributes:
        sent: what they sent, with the outcome.
        readings: what they have open, by conversation.
    """

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.sent: list[Sent] = []
        self.readings: dict[str, Reading] = {}
        self._world = world
        self._history = world.history
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._positions: dict[str, Position | None] = {}
        self._rows_max = world.random.choice((2, 10, 1000))
        # The first two may be one person at two places.
        self._place = 0 if number == 1 and world.random.random() < 0.3 else number
        self._client = self._new_client()

    def _new_client(self) -> Client:
        client = f"installation-{self._place:02}-of-the-world"
        return Client(f"ws://127.0.0.1:{PORT}/v1", client=client, rows_max=self._rows_max)

    @property
    def principal(self) -> str | None:
        """Names who the server takes them for."""
        return self._client.principal

    # -- life

    async def live(self) -> None:
        """Does one thing after the other as long as there is trouble."""
        random = self._world.random
        pause_s = random.choice((0.06, 0.3, 1.0))
        eager = random.choice((0.0, 0.8, 1.0))
        for conversation in self._world.conversations:
            if random.random() < eager:
                await self._open(conversation)
        while self._world.trouble:
            await asyncio.sleep(pause_s * random.random())
            action = random.choices(
                (self._send, self._burst, self._page, self._signal, self._reopen, self._hold, self._cancel),
                (6, 2, 1, 1, 2, 1, 2),
            )[0]
            await self._see_to_it()
            with contextlib.suppress(*OVER):
                await action(random.choice(self._world.conversations))

    async def settle(self) -> None:
        """Takes all rows from now on, and waits for the answers to what is under way."""
        await self.look()
        for reading in self.readings.values():
            reading.held.set()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _see_to_it(self) -> None:
        """Takes note of chats that the server has ended, and begins anew with a client that it does not talk to."""
        if self._client._session.error is not None:
            await self._client.aclose()
            self._client = self._new_client()
        for conversation, reading in list(self.readings.items()):
            if reading.chat.status == "closed":
                await self._close(conversation)

    async def look(self) -> None:
        """Makes sure that everything is open."""
        await self._see_to_it()
        for conversation in self._world.conversations:
            if conversation not in self.readings:
                await self._open(conversation)

    async def leave(self) -> None:
        """Closes the client."""
        await self._client.aclose()
        for reading in self.readings.values():
            await reading.task

    def waiting_for(self) -> list[str]:
        """Returns what is still to come: sends that have no answer, conversations that are not at their head."""
        found = sorted(f"person {self.number}: {task.get_name()}" for task in self._tasks)
        if len(self._client._session._outbox):
            # Nobody waits for it any more, but what may have been sent is brought to its end.
            found.append(f"person {self.number}: {len(self._client._session._outbox)} messages without an answer")
        for conversation, reading in self.readings.items():
            position = reading.chat.position
            head = self._world.truth.head(conversation)
            if reading.chat.status != "live" or position is None or position.seq != head:
                found.append(
                    f"person {self.number}: {conversation} is {reading.chat.status} at {position}, not live at {head}"
                )
            if reading.chat.draft is not None or reading.drafts:
                found.append(f"person {self.number}: {conversation} has a draft that never ends: {reading.drafts}")
            if reading.chat.turn.state in ("queued", "running"):
                found.append(f"person {self.number}: {conversation} has a turn that never ends: {reading.chat.turn}")
        return found

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- reading

    async def _open(self, conversation: str) -> None:
        random = self._world.random
        position = self._positions.get(conversation)
        tail = random.choice((None, None, 0, 3))
        chat = await self._client.open(conversation, tail=tail, position=position, on_reset=self._reset)
        self._count += 1
        after = position.seq if position is not None else 0 if tail is None else None
        reading = self.readings[conversation] = Reading(self._count, conversation, chat, after)
        self._history.add("open", self.number, reading.number, conversation, position and position.seq, tail)
        reading.task = asyncio.get_running_loop().create_task(self._read(reading), name=f"reading {conversation}")

    def _reset(self, chat: Chat) -> None:
        """Drops the rows of a log that is not there any more."""
        reading = self.readings.get(chat.conversation)
        if reading is not None and reading.chat is chat and chat.position is not None:
            self._history.add("reset", self.number, reading.number, chat.conversation, chat.position)
            reading.rows.clear()
            reading.after = chat.position.seq

    async def _read(self, reading: Reading) -> None:
        events = self._world.random.random() < 0.7
        with contextlib.suppress(ConversationRefused, ConnectionRefused):
            async for event in reading.chat.events() if events else reading.chat:
                if isinstance(event, StoredMessage):
                    self._take(reading, event)
                elif isinstance(event, Draft):
                    self._show(reading, event)
                await reading.held.wait()
        reading.drafts.clear()

    def _take(self, reading: Reading, row: StoredMessage) -> None:
        where = reading.conversation
        self._history.add("row", self.number, reading.number, where, row.seq)
        last = reading.rows[-1].seq if reading.rows else reading.after
        if last is not None and row.seq != last + 1:
            kind = "duplicated or reordered" if row.seq <= last else "lost"
            self._history.problem(f"{kind}: person {self.number} got row {row.seq} of {where} behind row {last}")
        durable = self._world.truth.row(where, row.seq, reading.chat.epoch)
        if durable is None or (durable.author, durable.client_id, durable.body) != (
            row.by,
            row.client_id,
            bytes(encode_message(row.message)),
        ):
            self._history.problem(f"person {self.number} got {row} of {where}, the file has {durable}")
        if reading.chat.resets > self._world.truth.era:
            self._history.problem(f"person {self.number} met a reset of {where}")
        reading.rows.append(row)
        for call in row.message.tool_calls:
            if call.tool_name == "ask" and self._world.random.random() < 0.7:
                self._approve(where, call.tool_call_id)

    def _show(self, reading: Reading, draft: Draft) -> None:
        """Judges what an application sees of a draft: it grows, ends once, and is its row then."""
        who = f"person {self.number}, {reading.conversation}"
        if draft.id in reading.ended:
            self._history.problem(f"{who}: a draft goes on behind its end: {draft}")
        if draft.finish is None:
            known = reading.drafts.get(draft.id)
            if known is not None and len(known.text) > len(draft.text):
                self._history.problem(f"{who}: a draft shrinks: {known.text!r}, then {draft.text!r}")
            reading.drafts[draft.id] = draft
            return
        reading.ended.add(draft.id)
        reading.drafts.pop(draft.id, None)
        if draft.seq is not None:
            rows = [row for row in reading.rows if row.seq == draft.seq]
            if not rows and reading.after is not None and draft.seq > reading.after:
                self._history.problem(f"{who}: draft end before row: {draft}")
            elif rows and encode_message(rows[0].message) != encode_message(draft.message):
                self._history.problem(f"{who}: the draft assembled is not its row: {draft}, {rows[0]}")

    async def _reopen(self, conversation: str) -> None:
        """Closes a chat, and opens it again after a while: behind its position, or anew; also in a hurry."""
        random = self._world.random
        for _ in range(random.choice((1, 1, 3))):
            if conversation in self.readings:
                await self._close(conversation)
            # Also about when the conversation, if nobody else has it open, is let go.
            idle = random.choice((0.0, 0.0, 0.2, 1.0)) * random.random() or random.choice(
                (0.0, random.uniform(1.0, 1.3))
            )
            await asyncio.sleep(idle * self._world.idle_timeout_s)
            await self._open(conversation)
        if random.random() < 0.2:
            await self._close(conversation)

    async def _close(self, conversation: str) -> None:
        reading = self.readings.pop(conversation)
        self._positions[conversation] = reading.chat.position if self._world.random.random() < 0.8 else None
        self._history.add("close", self.number, reading.number, conversation)
        reading.held.set()
        await reading.chat.aclose()
        await reading.task
        reading.drafts.clear()

    async def _hold(self, conversation: str) -> None:
        """Takes no rows for a while."""
        reading = self.readings.get(conversation)
        if reading is not None:
            if reading.held.is_set():
                reading.held.clear()
            else:
                reading.held.set()

    # -- writing

    async def _send(self, conversation: str) -> None:
        """Sends a message, also to a conversation that is not open here; not many before the first is answered."""
        random = self._world.random
        if len(self._tasks) > UNANSWERED_MAX:
            return
        self._count += 1
        client_id = f"p{self.number}-{self._count}"
        text = f"{random.choice(KINDS)} {client_id};" + "." * random.choice((0, 0, 0, 0, 0, 400))
        timeout_s = random.choice((None, None, None, 0.3))
        again = random.random() < 0.2
        self._start(self._send_one(conversation, client_id, text, timeout_s, again), f"send {client_id}")

    async def _burst(self, conversation: str) -> None:
        for _ in range(self._world.random.randint(2, 6)):
            await self._send(conversation)

    def _approve(self, conversation: str, call: str) -> None:
        """Approves a tool call, or denies it, somewhen; others may do so as well."""
        random = self._world.random
        self._count += 1
        message = approval(call, random.random() < 0.8)
        work = self._decide(conversation, f"p{self.number}-{self._count}", message, random.choice((0.0, 0.3)))
        self._start(work, f"approval of {call}")

    async def _decide(self, conversation: str, client_id: str, message: UserMessage, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        with contextlib.suppress(*OVER, SendRefused):
            await self._append(conversation, client_id, message, None)

    async def _send_one(
        self, conversation: str, client_id: str, text: str, timeout_s: float | None, again: bool
    ) -> None:
        era = self._world.truth.era
        self._history.add("send", self.number, conversation, client_id)
        seq = None
        certain = False
        try:
            seq = await self._append(conversation, client_id, user_message(text), timeout_s)
        except SendTimeout as error:
            certain = not error.sent
        except (*OVER, SendRefused):
            pass  # the chat was closed meanwhile, or access was taken away
        self._history.add("sent", self.number, conversation, client_id, seq, certain)
        self.sent.append(Sent(era, conversation, client_id, text, seq, certain))
        if seq is not None and again:
            with contextlib.suppress(*OVER, SendRefused):
                repeated = await self._append(conversation, client_id, user_message(text), None)
                if repeated != seq and era == self._world.truth.era:
                    self._history.problem(f"two seqs for client id {client_id}: {seq}, then {repeated}")

    async def _append(self, conversation: str, client_id: str, message: UserMessage, timeout_s: float | None) -> int:
        """Sends through the chat, or without one, as the protocol allows and the client's chats do not."""
        reading = self.readings.get(conversation)
        if reading is not None:
            return await reading.chat.send(message, client_id=client_id, timeout_s=timeout_s)
        body = check_message(message)
        self._client._link.start()
        return await self._client._link.send(conversation, client_id, body, timeout_s)

    async def _cancel(self, conversation: str) -> None:
        """Stops the turn that runs, or one that may."""
        reading = self.readings.get(conversation)
        if reading is not None:
            random = self._world.random
            head = self._world.truth.head(conversation)
            turn = random.choice((None, max(1, head - random.randint(0, 3))))
            self._start(self._cancel_one(reading.chat, turn, random.choice((None, 0.3))), f"cancel {conversation}")

    async def _cancel_one(self, chat: Chat, turn: int | None, timeout_s: float | None) -> None:
        self._history.add("cancel", self.number, chat.conversation, turn)
        with contextlib.suppress(*OVER, CancelTimeout):
            try:
                await chat.cancel(turn, timeout_s=timeout_s)
            except Refused as error:
                self._allow(error)

    def _allow(self, error: ParlatoryError) -> None:
        """Takes a refusal for a problem, unless the trouble of this world explains it."""
        if error.code not in ("draining", "internal") and not (
            error.code == "forbidden" and self._world.ever_forbidden
        ):
            self._history.problem(f"refused: {error!r}")

    # -- the rest

    async def _page(self, conversation: str) -> None:
        reading = self.readings.get(conversation)
        if reading is not None:
            random = self._world.random
            before = random.choice((None, random.randint(0, 20)))
            self._start(self._page_one(reading.chat, before, random.choice((None, 1, 3))), f"page {conversation}")

    async def _page_one(self, chat: Chat, before: int | None, limit: int | None) -> None:
        try:
            page = await chat.page(before, limit)
        except OVER:
            return
        except Refused as error:
            self._allow(error)
            return
        seqs = [row.seq for row in page.rows]
        if seqs and (before is not None and seqs[-1] != min(before - 1, seqs[-1])):
            self._history.problem(f"a page before {before} ends at {seqs[-1]}")
        if len(seqs) > (limit or 200):
            self._history.problem(f"a page of {len(seqs)} rows, {limit} were asked for")

    async def _signal(self, conversation: str) -> None:
        reading = self.readings.get(conversation)
        if reading is not None:
            self._start(self._signal_one(reading.chat), f"signal {conversation}")

    async def _signal_one(self, chat: Chat) -> None:
        try:
            await chat.signal("typing", {"by": self.number})
        except ParlatoryError as error:
            if not isinstance(error, OVER):
                self._allow(error)
