"""What a client has to send and what is not answered yet, over all conversations of a socket. Pure.

A message is *unsent*, or *sent* on the socket of now, until it is answered. One that was sent on a socket that was
lost is unsent again, but *uncertain*: it may be in the log. Its client id makes the repeat harmless, so everything
unanswered is sent again, in order. A message that nobody waits for any more goes away as soon as it is certain that
it was not appended.

A retryable refusal puts the message back and holds its conversation, so that nothing unsent overtakes it.
"""

from __future__ import annotations

from heapq import heappop, heappush

import msgspec

__all__ = ["Outbox", "Outgoing"]

_text = msgspec.json.Encoder().encode


class Outgoing:
    """Is one message until it is answered; `body` is its JSON, `request` counts up over all conversations."""

    __slots__ = ("body", "client_id", "conversation", "request", "sent", "uncertain", "wanted")

    def __init__(self, request: int, conversation: str, client_id: str, body: bytes) -> None:
        self.request = request
        self.conversation = conversation
        self.client_id = client_id
        self.body = body
        # On the socket of now, and not answered.
        self.sent = False
        # Was sent on a socket that was lost before the answer.
        self.uncertain = False
        # Somebody waits for the answer.
        self.wanted = True

    def frame(self) -> bytes:
        """Returns the frame that sends it."""
        conversation, client_id = _text(self.conversation), _text(self.client_id)
        return b'{"type":"send","conversation":%b,"clientId":%b,"message":%b}' % (conversation, client_id, self.body)


class Outbox:
    """Holds every message that is not answered, and says which is to be sent next."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Outgoing] = {}
        # Per conversation a heap by request; what is no longer in `_entries` is skipped.
        self._unsent: dict[str, list[tuple[int, Outgoing]]] = {}
        # Per conversation the monotonic time until which a refusal holds it.
        self._held: dict[str, float] = {}
        # Sent on this socket and not answered by `ack` or `error`. A row alone frees none: the server counts until
        # its ack.
        self._slots: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def inflight(self) -> int:
        """Is how many sends the server has not answered on this socket."""
        return len(self._slots)

    def __contains__(self, key: tuple[str, str]) -> bool:
        return key in self._entries

    def add(self, entry: Outgoing) -> None:
        """Takes a message whose (conversation, client id) is not in here yet."""
        self._entries[entry.conversation, entry.client_id] = entry
        self._put_back(entry)

    def next(self, now: float) -> Outgoing | None:
        """Returns the oldest message that may be sent, and counts it as sent; None if there is none."""
        best: list[tuple[int, Outgoing]] | None = None
        for conversation, heap in list(self._unsent.items()):
            while heap and self._entries.get((conversation, heap[0][1].client_id)) is not heap[0][1]:
                heappop(heap)
            if not heap:
                del self._unsent[conversation]
                self._held.pop(conversation, None)
            elif self._held.get(conversation, now) <= now and (best is None or heap[0][0] < best[0][0]):
                best = heap
        if best is None:
            return None
        _, entry = heappop(best)
        entry.sent = True
        self._slots.add((entry.conversation, entry.client_id))
        return entry

    def release(self, now: float) -> None:
        """Lets go of the holds that have ended: their messages wait for a slot, not for a time."""
        for conversation in [conversation for conversation, until in self._held.items() if until <= now]:
            del self._held[conversation]

    def deadline(self) -> float | None:
        """Returns the monotonic time at which the next hold ends; None if nothing waits for one."""
        return min((until for conversation, until in self._held.items() if conversation in self._unsent), default=None)

    def answered(self, conversation: str, client_id: str) -> Outgoing | None:
        """Takes out the message that the server accepted, or refused for good."""
        self._slots.discard((conversation, client_id))
        return self._entries.pop((conversation, client_id), None)

    def seen(self, conversation: str, client_id: str) -> Outgoing | None:
        """Takes out the message that was met as a row; its slot stays taken until the ack."""
        return self._entries.pop((conversation, client_id), None)

    def refused(self, conversation: str, client_id: str, until: float, uncertain: bool = False) -> None:
        """Puts back a message that was refused for now, and holds its conversation."""
        key = conversation, client_id
        self._slots.discard(key)
        entry = self._entries.get(key)
        if entry is None or not entry.sent:
            return
        self._held[conversation] = max(until, self._held.get(conversation, until))
        entry.sent = False
        entry.uncertain |= uncertain
        if entry.wanted or entry.uncertain:
            self._put_back(entry)
        else:
            del self._entries[key]

    def forget(self, entry: Outgoing) -> bool:
        """Nobody waits any more. Returns whether it is certain that the message was not, and will not be, appended."""
        entry.wanted = False
        if entry.sent or entry.uncertain:
            return False
        self._entries.pop((entry.conversation, entry.client_id), None)
        return True

    def lost(self) -> None:
        """The socket is gone: all that was sent on it is to be sent again."""
        self._slots.clear()
        for entry in self._entries.values():
            if entry.sent:
                entry.sent = False
                entry.uncertain = True
                self._put_back(entry)

    def largest_sent(self) -> Outgoing | None:
        """Returns the longest message on this socket that is not answered."""
        sent = (entry for entry in self._entries.values() if entry.sent)
        return max(sent, key=lambda entry: len(entry.body), default=None)

    def of(self, conversation: str) -> list[Outgoing]:
        """Returns the messages of a conversation."""
        return [entry for entry in self._entries.values() if entry.conversation == conversation]

    def all(self) -> list[Outgoing]:
        """Returns all messages."""
        return list(self._entries.values())

    def _put_back(self, entry: Outgoing) -> None:
        heappush(self._unsent.setdefault(entry.conversation, []), (entry.request, entry))
