"""What a client knows of one conversation: its position, the rows it holds, and how it stands on the socket. Pure.

There are two positions. The **applied** one is behind the last row that the application has taken; it survives
sockets, and a new socket resumes from it. The **received** one is behind the last row on this socket; the rows
between the two are the buffer. A new socket drops the buffer and asks for its rows again, so that every row the
application gets was checked against the log of that moment; on the same socket nothing is asked for twice.

Rows reach the application in the order of the log: a row at or below the received position is dropped, and a hole is no
row but a reason to open again. A reset takes its place in that order: it is met between the last row of the old log and
the first of the new one.

The buffer is bounded. When it is full the subscription is closed, and opened again when half of it is taken: the server
keeps a position meanwhile. Not reading the socket instead would hold up the answers to sends, which the application may
be waiting for before it takes the next row.

Drafts, turns and signals move no position. They wait in an `EventQueue`, each at its place among the rows, once the
application asks for events. The draft is dropped at every answer to an `open` and told anew before `live`; one that is
not told anew has ended meanwhile.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET

from ..storage import AssistantMessage, CorruptRow, StoredMessage, instant_of, instant_text
from .client_drafts import Draft, OpenDraft
from .client_errors import ClientError
from .client_events import Ephemeral, EventQueue
from .client_frames import Delta, DraftEnd, DraftSet, Opened, Reset, Rows, Signal, TurnState, decode_row
from .client_turns import Turns
from .frames import Close, Open

__all__ = ["Met", "Position", "Status", "Subscription"]

Status: TypeAlias = Literal["connecting", "replaying", "live", "offline", "closed"]

REOPENS_MAX = 3
"""Opens in a row that brought nothing, after which the socket is given up: its server does not do what it says."""

TURN_ROWS_MAX = 64

# What a row costs beside its message.
ROW_BYTES = 200


class Position(msgspec.Struct, frozen=True):
    """Is a place in a log: behind row `seq` of the log `epoch`. `at` is the instant of that row, if it is known.

    With `at` the server notices that another row stands there now, because a file was restored behind its back.
    """

    epoch: str
    seq: int
    at: datetime | None = None


class Met(msgspec.Struct, frozen=True):
    """Stands in the buffer where a reset was met; the log of before is no longer valid."""

    epoch: str
    start: int


class Subscription:
    """Is one open conversation of a client; the session drives it and sends the frames it returns."""

    def __init__(
        self, conversation: str, tail: int | None, position: Position | None, rows_max: int, bytes_max: int
    ) -> None:
        self.conversation = conversation
        # Behind the last row that the application has taken; None until the first `opened`.
        self.applied = position
        # How often the log turned out to be another one.
        self.resets = 0
        # What the agent does, as far as the server told.
        self.turns = Turns()
        self.events = EventQueue(bytes_max)
        self.status: Status = "connecting"
        # The status that was told last.
        self.told: Status = "connecting"
        # Why it ended; what is raised once the buffer is empty.
        self.error: ClientError | None = None
        # Monotonic time at which to open again after a refusal for now.
        self.retry_at: float | None = None
        # Why it opens again and again, for people; None once the server has opened it.
        self.problem: str | None = None
        self._tail = tail
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._buffer: deque[tuple[StoredMessage | CorruptRow | Met, int]] = deque()
        self._bytes = 0
        # Rows and resets that came into the buffer so far, and that left it.
        self._appended = 0
        self._taken = 0
        # What the agent is writing.
        self._draft: OpenDraft | None = None
        # The draft that could not be followed, however often it was told anew; and how often that was, in a row.
        self._given_up: str | None = None
        self._draft_reopens = 0
        # Rows on this socket of the turn that writes: the end of its draft names one. Where the subscription lagged,
        # rows of others come in between.
        self._turn_rows: deque[StoredMessage] = deque(maxlen=TURN_ROWS_MAX)
        # Behind the last row of this socket.
        self._received = position
        # Opens of this socket that are not answered; while there are any, rows belong to a position that was given up.
        self._opens = 0
        # Subscribed on this socket, as far as the last answer says.
        self._subscribed = False
        self._paused = False
        self._fruitless = 0

    @property
    def ready(self) -> bool:
        """Is whether there is something to take."""
        return bool(self._buffer)

    @property
    def draft(self) -> Draft | None:
        """Is what the agent is writing now, as far as the server told."""
        return None if self._draft is None else self._draft.snapshot()

    @property
    def opening(self) -> bool:
        """Is whether an `open` is not answered yet."""
        return self._opens > 0

    # -- the socket

    def begin(self) -> Open:
        """Returns the `open` of a new socket. What is buffered is dropped: it comes again."""
        self._drop_buffer()
        self.events.drop_ends()
        self._turn_rows.clear()
        self._received = self.applied
        self._paused = False
        self._fruitless = 0
        return self.open()

    def open(self) -> Open:
        """Returns the `open` that goes on behind the last row received."""
        self._opens += 1
        self.retry_at = None
        tail = UNSET if self._tail is None else self._tail
        position = self._received
        if position is None:
            return Open(conversation=self.conversation, tail=tail)
        at = UNSET if position.at is None or not position.seq else instant_text(instant_of(position.at))
        return Open(conversation=self.conversation, epoch=position.epoch, after=position.seq, at=at, tail=tail)

    def lost(self) -> None:
        """The socket is gone. What is buffered can still be taken."""
        self._opens = 0
        self._subscribed = False
        self.retry_at = None

    def opened(self, frame: Opened | Reset) -> bool:
        """Accepts an answer to `open`; returns whether it was the one that counts, and makes sense."""
        self._opens = max(self._opens - 1, 0)
        if self._opens or self._paused:
            return True
        self._drop_draft()
        self._given_up = None
        changed = frame.turn != self.turns.now
        self.turns.opened(frame.turn)
        if changed:
            self.events.turn(frame.turn, self._appended)
        start = Position(frame.epoch, frame.start)
        held = self._received
        if held is None:
            self.applied = self._received = start
        elif isinstance(frame, Reset) or held.epoch != frame.epoch:
            # One that is not taken yet is void as well; the application hears of the last one only.
            self._drop_buffer()
            self._append(Met(frame.epoch, frame.start), ROW_BYTES)
            self._received = start
        elif frame.start > held.seq:
            return False
        self._subscribed = True
        self.problem = None
        self.status = "replaying"
        return True

    def refused(self, retry_at: float | None, code: str) -> None:
        """The server refused an `open`, for now if `retry_at` is given."""
        self._opens = max(self._opens - 1, 0)
        if not self._opens:
            self._subscribed = False
            self.retry_at = retry_at
            self.problem = f"the server cannot open the conversation ({code})"

    def rows(self, frame: Rows) -> Open | Close | None:
        """Takes in a run of rows; returns the frame to send: `close` if the buffer is full, `open` if there is a hole.

        Raises:
            ValueError: it came too often to a hole; the socket is of no use.
        """
        if not self._subscribed or self._opens:
            return None
        assert self._received is not None
        epoch, seq, at = self._received.epoch, self._received.seq, self._received.at
        hole = frame.epoch != epoch
        if not hole:
            for row in frame.rows:
                if row.seq <= seq:
                    continue
                if row.seq != seq + 1:
                    hole = True
                    break
                decoded = decode_row(self.conversation, row)
                self._append(decoded, ROW_BYTES + len(row.message))
                if row.turn is not None and row.turn == self._writes and isinstance(decoded, StoredMessage):
                    self._turn_rows.append(decoded)
                seq, at = row.seq, row.at
                self._fruitless = 0
            self._received = Position(epoch, seq, at)
        if hole:
            return self._again()
        if len(self._buffer) > self._rows_max or self._bytes > self._bytes_max:
            self._paused = True
            self._subscribed = False
            self.status = "replaying"
            return Close(conversation=self.conversation)
        return None

    def live(self, seq: int) -> Open | None:
        """Takes in that everything up to `seq` has been sent; returns the `open` to send if that is not so."""
        if not self._subscribed or self._opens:
            return None
        assert self._received is not None
        if seq > self._received.seq:
            return self._again()
        self._fruitless = 0
        if self.status == "live":
            self.turns.lagged()
        self.status = "live"
        # A subscription that lagged still holds the draft: its end follows.
        self.events.settle(None if self._draft is None else self._draft.id, self._appended)
        return None

    def head(self, seq: int) -> Open | None:
        """Takes in a beat's head; returns the `open` to send if rows are missing."""
        if not self._subscribed or self._opens:
            return None
        assert self._received is not None
        return self._again() if seq > self._received.seq else None

    def draft_set(self, frame: DraftSet) -> None:
        """Takes in a whole draft."""
        if self._subscribed and not self._opens and frame.id != self._given_up:
            self._drop_draft()
            self._draft = OpenDraft(frame)
            self.events.settle(frame.id, self._appended)
            self.events.grew(self._draft, self._appended)

    def delta(self, frame: Delta) -> Open | None:
        """Takes in what was added to a draft; returns the `open` to send if something was missed."""
        if not self._subscribed or self._opens or frame.id == self._given_up:
            return None
        draft = self._draft
        if draft is not None and draft.id == frame.id:
            if frame.to <= draft.index:
                return None
            if draft.apply(frame):
                self._draft_reopens = 0
                self.events.grew(draft, self._appended)
                return None
        self._draft_reopens += 1
        if self._draft_reopens > REOPENS_MAX:
            # Its row will come all the same.
            self._draft_reopens = 0
            self._given_up = frame.id
            self._drop_draft()
            self.events.settle(None, self._appended)
            return None
        self.status = "replaying"
        return self.open()

    def draft_end(self, frame: DraftEnd) -> None:
        """Takes in the end of a draft, whose row is here already."""
        if not self._subscribed or self._opens:
            return
        known = self.events.shown
        size = ROW_BYTES
        if self._draft is not None and self._draft.id == frame.id:
            known, size = self._draft.snapshot(), ROW_BYTES + self._draft.size
            self._draft = None
        if known is None or known.id != frame.id:
            return
        message = known.message
        for row in self._turn_rows:
            if row.seq == frame.seq and isinstance(row.message, AssistantMessage):
                message = row.message  # a subscription that lagged was not told the last deltas
        self._turn_rows.clear()
        self.events.ended(Draft(known.id, known.turn, message, frame.finish, frame.seq), self._appended, size)

    def turn(self, turn: TurnState) -> None:
        """Takes in the state of a turn."""
        self.turns.told(turn)
        self.events.turn(turn, self._appended)

    def signal(self, frame: Signal, size: int) -> None:
        """Takes in a signal."""
        self.events.signal(frame, self._appended, size)

    def ended(self) -> None:
        """The server ended the subscription."""
        self._subscribed = False
        self.status = "replaying"

    def close(self) -> Close | None:
        """The application has enough; returns the frame that says so, if the socket knows of the subscription."""
        self._paused = False
        self._drop_buffer()
        self.events.clear()
        return Close(conversation=self.conversation) if self._subscribed or self._opens else None

    @property
    def _writes(self) -> int | str | None:
        """Is the turn of the draft whose end is to come."""
        draft = self._draft or self.events.shown
        return None if draft is None else draft.turn

    def _again(self) -> Open:
        self._fruitless += 1
        if self._fruitless > REOPENS_MAX:
            raise ValueError(f"rows of {self.conversation!r} are missing, however often they are asked for")
        self.status = "replaying"
        return self.open()

    # -- the application

    def take(self) -> StoredMessage | CorruptRow | Met | None:
        """Returns what comes next, and moves the applied position behind it before anybody sees it."""
        if not self._buffer:
            return None
        item, size = self._buffer.popleft()
        self._bytes -= size
        self._taken += 1
        self.events.skip(self._taken)
        if isinstance(item, Met):
            self.resets += 1
            self.applied = Position(item.epoch, item.start)
            return item
        assert self.applied is not None
        at = item.at if isinstance(item, StoredMessage) else None
        self.applied = Position(self.applied.epoch, item.seq, at)
        return item

    def want_events(self) -> None:
        """The application asks for events: from now on they are kept, beginning with what is going on."""
        events = self.events
        if not events.wanted:
            events.wanted = True
            if self.turns.now.state != "idle":
                events.turn(self.turns.now, self._appended)
        if self._draft is not None:
            events.grew(self._draft, self._appended)

    def take_event(self) -> StoredMessage | CorruptRow | Met | Ephemeral | None:
        """Returns what comes next, an event or a row."""
        return self.events.take(self._taken) or self.take()

    def resume(self) -> Open | None:
        """Returns the `open` that ends a pause, once half of the buffer is taken."""
        if not self._paused or len(self._buffer) > self._rows_max // 2 or self._bytes > self._bytes_max // 2:
            return None
        self._paused = False
        return self.open()

    def _append(self, item: StoredMessage | CorruptRow | Met, size: int) -> None:
        self._buffer.append((item, size))
        self._bytes += size
        self._appended += 1

    def _drop_buffer(self) -> None:
        self._buffer.clear()
        self._bytes = 0
        self._taken = self._appended

    def _drop_draft(self) -> None:
        if self._draft is not None:
            self.events.dropped(self._draft.id)
            self._draft = None
