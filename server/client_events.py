"""What waits beside the rows until an application takes it: drafts, turns, signals. Pure.

Each event has its place among the rows: it is *due* when all the rows before it are taken. It is ephemeral: what an
application does not take in time is replaced by what is newer. One draft has at most its latest snapshot and its end in
here, one turn its last state, one author the last signal of each name; of all that the oldest goes first.
"""

from __future__ import annotations

from typing import TypeAlias

from .client_drafts import LOST, Draft, OpenDraft
from .client_frames import Signal, TurnState

__all__ = ["Ephemeral", "EventQueue"]

Ephemeral: TypeAlias = Draft | TurnState | Signal

EVENTS_MAX = 256

_Key: TypeAlias = tuple[object, ...]


class EventQueue:
    """Holds the events of one conversation; nothing before somebody wants them. `bytes_max` bounds what they hold."""

    def __init__(self, bytes_max: int) -> None:
        self.wanted = False
        # The last snapshot of a draft that the application took without its end.
        self.shown: Draft | None = None
        self._bytes_max = bytes_max
        self._bytes = 0
        # By what a newer one replaces: how many rows come before, the event, what it costs.
        self._entries: dict[_Key, tuple[int, Ephemeral | OpenDraft, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def grew(self, draft: OpenDraft, due: int) -> None:
        """Queues a draft, which is read when it is taken; one that is queued keeps its place."""
        key = "draft", draft.id
        if self.wanted and (key not in self._entries or self._entries[key][1] is not draft):
            self._put(key, due, draft, 0)

    def ended(self, draft: Draft, due: int, size: int) -> None:
        """Queues the end of a draft."""
        self._remove(("draft", draft.id))
        self._put(("end", draft.id), due, draft, size)

    def dropped(self, draft_id: str) -> None:
        """Takes back a draft that is void; it may be told anew."""
        self._remove(("draft", draft_id))

    def settle(self, open_id: str | None, due: int) -> None:
        """Everything open has been told, so a draft shown that is not `open_id` is over."""
        shown = self.shown
        if shown is not None and shown.id != open_id and ("end", shown.id) not in self._entries:
            self._put(("end", shown.id), due, Draft(shown.id, shown.turn, shown.message, LOST), 0)

    def turn(self, turn: TurnState, due: int) -> None:
        """Queues the state of a turn."""
        self._put(("turn", turn.id), due, turn, 0)

    def signal(self, signal: Signal, due: int, size: int) -> None:
        """Queues a signal."""
        self._put(("signal", signal.name, signal.by), due, signal, size)

    def take(self, taken: int) -> Ephemeral | None:
        """Returns the next event that is due when so many rows are taken."""
        while self._entries:
            key = next(iter(self._entries))
            due, event, _ = self._entries[key]
            if due > taken:
                break
            if isinstance(event, OpenDraft) and (missed := self._missed_end(event.id)) is not None:
                return missed
            self._remove(key)
            if isinstance(event, OpenDraft):
                draft = event.snapshot()
                if draft is None:
                    continue
                self.shown = event = draft
            elif isinstance(event, Draft):
                self._forget(event)
            return event
        return None

    def _missed_end(self, next_id: str) -> Draft | None:
        """Returns the end of the draft shown where the next one has begun and its own end went with its socket."""
        shown = self.shown
        if shown is None or shown.id == next_id or ("end", shown.id) in self._entries:
            return None
        self.shown = None
        return Draft(shown.id, shown.turn, shown.message, LOST)

    def skip(self, taken: int) -> None:
        """Drops what comes before the row taken last."""
        while self._entries and self._entries[key := next(iter(self._entries))][0] < taken:
            event = self._entries[key][1]
            if isinstance(event, Draft):
                self._forget(event)
            self._remove(key)

    def drop_ends(self) -> None:
        """Drops the ends of drafts; the rows before them are about to come again."""
        for key in [key for key in self._entries if key[0] == "end"]:
            self._remove(key)

    def clear(self) -> None:
        """Drops everything."""
        self._entries.clear()
        self._bytes = 0

    def _forget(self, draft: Draft) -> None:
        if self.shown is not None and self.shown.id == draft.id:
            self.shown = None

    def _put(self, key: _Key, due: int, event: Ephemeral | OpenDraft, size: int) -> None:
        if not self.wanted:
            return
        self._remove(key)
        self._entries[key] = due, event, size
        self._bytes += size
        while len(self._entries) > 1 and (len(self._entries) > EVENTS_MAX or self._bytes > self._bytes_max):
            self._remove(next(iter(self._entries)))

    def _remove(self, key: _Key) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry[2]
