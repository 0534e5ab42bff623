"""What was observed in a run, in order, and what the file holds at each moment: the two things that the checker
compares."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["History", "Truth", "TruthRow"]


class TruthRow(NamedTuple):
    """Is a row as it lies in the file."""

    conversation: str
    seq: int
    at: int
    author: str
    client_id: str | None
    turn: int | str | None
    finish: str | None
    body: bytes

    @property
    def identity(self) -> tuple[str, str | None, bytes]:
        """Is what a client can compare."""
        return self.author, self.client_id, self.body


class History:
    """Is every observable event of a run: when, what, and about what.

    `problem` is where the run learns that something is wrong at once.
    """

    def __init__(self, clock: Callable[[], float], problem: Callable[[str], None]) -> None:
        self.events: list[tuple[float, str, tuple[Any, ...]]] = []
        self.problem = problem
        self._clock = clock
        self._awaited: tuple[str, Callable[[], None]] | None = None

    def add(self, kind: str, *about: Any) -> None:
        """Notes an event."""
        self.events.append((self._clock(), kind, about))
        self.passed(kind)

    def wait_for(self, kind: str, spring: Callable[[], None]) -> None:
        """Calls `spring` in the step of the next event of a kind."""
        self._awaited = kind, spring

    def passed(self, kind: str) -> None:
        """Takes note that something happened, of whose kind there may be too much to note each."""
        if self._awaited is not None and self._awaited[0] == kind:
            _, spring = self._awaited
            self._awaited = None
            spring()

    def release(self) -> None:
        """Lets the world go: what was observed in it is kept."""
        self._awaited = None
        del self.problem, self._clock

    def digest(self) -> str:
        """Returns what two runs of the same seed have in common."""
        digest = hashlib.blake2b(digest_size=8)
        for event in self.events:
            digest.update(repr(event).encode())
        return digest.hexdigest()

    def lines(self) -> list[str]:
        """Returns the events for people."""
        return [f"{when - 1000:12.6f}  {kind:10} {' '.join(map(str, about))}" for when, kind, about in self.events]


class Truth:
    """Is what is durable now: per conversation its rows, and how far they are handled.

    Attributes:
        era: how often another log took the place of this one: a backup was restored.
        epoch: names the file, once its first conversation was opened.
        judge: is told of each row.
        stored: reads a key of a conversation in the file of the process that runs.
    """

    def __init__(self, history: History) -> None:
        self.rows: dict[str, list[TruthRow]] = defaultdict(list)
        self.handled: dict[str, int] = {}
        self.era = 0
        self.epoch = ""
        self.judge: Callable[[TruthRow], None]
        self.stored: Callable[[str, str], bytes | None]
        self._history = history
        self._past: dict[str, dict[str, list[TruthRow]]] = {}

    def head(self, conversation: str) -> int:
        """Returns the seq of the last durable row."""
        return len(self.rows.get(conversation, ()))

    def row(self, conversation: str, seq: int, epoch: str | None = None) -> TruthRow | None:
        """Returns a durable row, or one that was so in the log of an earlier epoch."""
        log = self.rows if epoch is None else self._past.get(epoch.partition(".")[0], self.rows)
        rows = log.get(conversation, [])
        return rows[seq - 1] if 1 <= seq <= len(rows) else None

    def key(self, conversation: str, key: str) -> bytes | None:
        """Returns the durable value of a key."""
        return self.stored(conversation, key)

    def is_handled(self, conversation: str, seq: int) -> bool:
        """Says whether it is durable that a message has had its turn, or gets none."""
        handled, skipped = self.stored(conversation, "turn.handled"), self.stored(conversation, "turn.skipped")
        return int(handled or 0) >= seq or seq in json.loads(skipped or b"[]")

    def committed(self, row: TruthRow) -> None:
        """Notes that a row is durable."""
        rows = self.rows[row.conversation]
        self._history.add("commit", row.conversation, row.seq, row.author, row.client_id, row.turn, row.body.decode())
        if row.seq != len(rows) + 1:
            self._history.problem(f"seq gap: {row.conversation} has row {row.seq} behind row {len(rows)}")
        elif rows and row.at < rows[-1].at:
            self._history.problem(f"instants run backwards: {row.conversation} row {row.seq}")
        elif any(row.client_id and other.client_id == row.client_id and other.author == row.author for other in rows):
            self._history.problem(f"two rows of one client id: {row.conversation} row {row.seq}, {row.client_id}")
        rows.append(row)
        self.judge(row)

    def reopened(self, rows: Sequence[TruthRow], handled: dict[str, int]) -> None:
        """Compares a file with what was known; rows whose flush failed may have become known only now."""
        before = self._take(rows, handled)
        for conversation, known in before.items():
            if self.rows.get(conversation, [])[: len(known)] != known:
                self._history.problem(f"lost: durable rows of {conversation} are not in the file any more")
        for conversation, found in self.rows.items():
            if [row.seq for row in found] != list(range(1, len(found) + 1)):
                self._history.problem(f"seq gap: {conversation} has rows {[row.seq for row in found]}")

    def restored(self, rows: Sequence[TruthRow], handled: dict[str, int]) -> None:
        """Begins another log, with what a backup held."""
        self._past[self.epoch] = self._take(rows, handled)
        self.era += 1
        self.epoch = ""

    def _take(self, rows: Sequence[TruthRow], handled: dict[str, int]) -> dict[str, list[TruthRow]]:
        before, self.rows = self.rows, defaultdict(list)
        for row in rows:
            self.rows[row.conversation].append(row)
        self.handled = handled
        return before

    def marked(self, handled: bool) -> None:
        """Notes that something is durable that is no row: how far messages are handled, or something else."""
        self._history.passed("handled" if handled else "mark")

    def note(self, text: str) -> None:
        """Passes on a problem."""
        self._history.problem(text)
