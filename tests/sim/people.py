"""The clients of a world: real ones, and what their users do with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from parlatory.server import Chat, Client
from parlatory.server.client_errors import ClientClosed, SendTimeout
from parlatory.server.client_subscription import Position
from parlatory.storage import ParlatoryError, StoredMessage, check_message, encode_message, user_message

from .world import PORT

if TYPE_CHECKING:
    from .world import World

__all__ = ["Person", "Reading", "Sent"]

KINDS = ("say", "say", "say", "twice", "read", "quiet", "fail")


class Sent(NamedTuple):
    """Is one message that somebody wanted to append; `seq` is the answer, `certain` says that it is not in the log."""

    conversation: str
    client_id: str
    text: str
    seq: int | None
    certain: bool


class Reading:
    """Is one iteration over a conversation, from its opening to its end: the rows that the application got.

    `after` is the seq behind which it began, None where the server was to say.
    """

    def __init__(self, number: int, conversation: str, chat: Chat, after: int | None) -> None:
        self.number = number
        self.conversation = conversation
        self.chat = chat
        self.after = after
        self.rows: list[StoredMessage] = []
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
        self._client = Client(
            f"ws://127.0.0.1:{PORT}/v1",
            client=f"installation-{number:02}-of-the-world",
            rows_max=world.random.choice((2, 10, 1000)),
        )

    # -- life

    async def live(self) -> None:
        """Does one thing after the other as long as there is trouble."""
        random = self._world.random
        pause_s = random.choice((0.04, 0.3, 1.0))
        eager = random.choice((0.0, 0.8, 1.0))
        for conversation in self._world.conversations:
            if random.random() < eager:
                await self._open(conversation)
        while self._world.trouble:
            await asyncio.sleep(pause_s * random.random())
            action = random.choices(
                (self._send, self._burst, self._page, self._signal, self._reopen, self._hold), (6, 2, 1, 1, 2, 1)
            )[0]
            await action(random.choice(self._world.conversations))

    async def settle(self) -> None:
        """Takes all rows from now on, and waits for the answers to what is under way."""
        for conversation in self._world.conversations:
            if conversation not in self.readings:
                await self._open(conversation)
        for reading in self.readings.values():
            reading.held.set()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

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
        chat = await self._client.open(conversation, tail=tail, position=position)
        self._count += 1
        after = position.seq if position is not None else 0 if tail is None else None
        reading = self.readings[conversation] = Reading(self._count, conversation, chat, after)
        self._history.add("open", self.number, reading.number, conversation, position and position.seq, tail)
        reading.task = asyncio.get_running_loop().create_task(self._read(reading), name=f"reading {conversation}")

    async def _read(self, reading: Reading) -> None:
        where = reading.conversation
        async for row in reading.chat:
            self._history.add("row", self.number, reading.number, where, row.seq)
            last = reading.rows[-1].seq if reading.rows else reading.after
            if last is not None and row.seq != last + 1:
                kind = "duplicated or reordered" if row.seq <= last else "lost"
                self._history.problem(f"{kind}: person {self.number} got row {row.seq} of {where} behind row {last}")
            durable = self._world.truth.row(where, row.seq)
            if durable is None or (durable.author, durable.client_id, durable.body) != (
                row.by,
                row.client_id,
                bytes(encode_message(row.message)),
            ):
                self._history.problem(f"person {self.number} got {row} of {where}, the file has {durable}")
            if reading.chat.resets:
                self._history.problem(f"person {self.number} met a reset of {where}")
            reading.rows.append(row)
            await reading.held.wait()

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
        """Sends a message, also to a conversation that is not open here."""
        random = self._world.random
        self._count += 1
        client_id = f"p{self.number}-{self._count}"
        text = f"{random.choice(KINDS)} {client_id}" + "." * random.choice((0, 0, 0, 400))
        timeout_s = random.choice((None, None, None, 0.3))
        again = random.random() < 0.2
        self._start(self._send_one(conversation, client_id, text, timeout_s, again), f"send {client_id}")

    async def _burst(self, conversation: str) -> None:
        for _ in range(self._world.random.randint(2, 6)):
            await self._send(conversation)

    async def _send_one(
        self, conversation: str, client_id: str, text: str, timeout_s: float | None, again: bool
    ) -> None:
        self._history.add("send", self.number, conversation, client_id)
        seq = None
        certain = False
        try:
            seq = await self._append(conversation, client_id, text, timeout_s)
        except SendTimeout as error:
            certain = not error.sent
        except ClientClosed:
            pass  # the chat was closed meanwhile
        self._history.add("sent", self.number, conversation, client_id, seq, certain)
        self.sent.append(Sent(conversation, client_id, text, seq, certain))
        if seq is not None and again:
            with contextlib.suppress(ClientClosed):
                repeated = await self._append(conversation, client_id, text, None)
                if repeated != seq:
                    self._history.problem(f"two seqs for client id {client_id}: {seq}, then {repeated}")

    async def _append(self, conversation: str, client_id: str, text: str, timeout_s: float | None) -> int:
        """Sends through the chat, or without one, as the protocol allows and the client's chats do not."""
        reading = self.readings.get(conversation)
        if reading is not None:
            return await reading.chat.send(text, client_id=client_id, timeout_s=timeout_s)
        body = check_message(user_message(text))
        self._client._link.start()
        return await self._client._link.send(conversation, client_id, body, timeout_s)

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
        except ClientClosed:
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
            if error.code not in ("draining", "internal", "closed"):
                self._history.problem(f"a signal is refused: {error!r}")
