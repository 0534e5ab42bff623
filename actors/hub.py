"""The hub: committed rows to subscribers, with one integer per subscriber and no queue of rows.

The log is the send buffer. Each subscription has a position, the last row handed to its sink, and is live or lagging.

- A commit hands the shared event to every live subscription that is writable and at the row before, in one step of the
  loop without await. All others become lagging.
- A lagging subscription is pumped: it gets runs of rows from the tail ring or the log, each behind its position, until
  it is at the head. It becomes live in the very step that finds it there, so that nothing falls between.

Only committed rows are ever read, each write moves the position by exactly the rows written, and one side alone writes:
the commit where the subscription is live, the pump where it is not. A subscription whose sink takes no more is not
pumped until the sink says so; it costs its integer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from ..storage import Row
from .events import Closed, DeltaTold, DraftEnded, DraftTold, Event, Live, Presence, RowsTold, Signal, TurnTold
from .row_runs import RUN_ROWS_MAX, runs, sound

__all__ = ["Hub", "HubDraft", "HubLog", "Sink", "Subscription"]

FAN_OUT_MAX = 128
PUMP_BYTES_MAX = 64 << 10
TAIL_ROWS_MAX = 256
TAIL_BYTES_MAX = 4 << 20
PUMPS_PER_STEP = 32
PENDING_MAX = 32
PENDING_BYTES_MAX = 64 << 10
# At most once a second, also as seen by a client that was starved, or had to catch up, when it got the one before.
PRESENCE_INTERVAL_S = 2.0
PRESENCE_NAMES_MAX = 100

logger = logging.getLogger("parlatory.actors")


class Sink(Protocol):
    """Is where a subscriber's events go, such as a socket."""

    @property
    def writable(self) -> bool:
        """Says that it takes more now. When it becomes so again it calls `Subscription.resume`."""

    def tell(self, event: Event) -> None:
        """Takes an event; never waits, never raises, and calls nothing of the hub."""


class HubLog(Protocol):
    """Is what the hub needs of a log."""

    @property
    def name(self) -> str:
        """Is the conversation."""

    @property
    def epoch(self) -> str:
        """Is the epoch of the log."""

    @property
    def head(self) -> int:
        """Is the seq of the last committed row."""

    def after_telling(self, call: Callable[[], object]) -> None:
        """Calls once all that is committed together is told; else in the next step of the loop."""

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> list[Row]:
        """Returns rows."""


class HubDraft(Protocol):
    """Is what the hub needs of the message that a turn is writing."""

    @property
    def id(self) -> str:
        """Names the draft."""

    def flush(self) -> None:
        """Tells what was written since the last flush."""

    def snapshot(self) -> DraftTold:
        """Returns the draft as it was told so far."""


class Subscription:
    """Is one sink's place in a conversation.

    Attributes:
        position: the last row handed to the sink.
        live: whether commits write to it; otherwise the pump does.
    """

    __slots__ = (
        "_draft",
        "_draft_end",
        "_draft_index",
        "_hub",
        "_pending",
        "_queued",
        "_turn_seen",
        "live",
        "position",
        "principal",
        "sink",
    )

    def __init__(self, hub: Hub, sink: Sink, principal: str, position: int) -> None:
        self.sink = sink
        self.principal = principal
        self.position = position
        self.live = False
        self._hub = hub
        self._queued = False
        self._turn_seen = hub._turns_told
        # The draft that the sink knows, up to which write, and its end if it came while the subscription lagged.
        self._draft: str | None = None
        self._draft_index = 0
        self._draft_end: DraftEnded | None = None
        # What is ephemeral and could not be told: the latest per kind and author.
        self._pending: dict[tuple[str, str], Event] = {}

    def resume(self) -> None:
        """Is called by the sink when it has become writable."""
        while self._pending and self.sink.writable:
            self._hub._hand(self, self._pending.pop(next(iter(self._pending))))
        if not self.live:
            self._hub._enqueue(self)

    def unsubscribe(self) -> None:
        """Takes the subscription out of its hub; idempotent."""
        self._hub.unsubscribe(self)

    def end(self, code: str) -> None:
        """Ends the subscription from the server's side, and says why."""
        self._hub.end(self, code)

    def _moves(self, event: DraftTold | DeltaTold | DraftEnded) -> bool | None:
        """Moves what the sink knows of the draft by an event that it is to be told then.

        Returns None where it knows this already, or need not; False where it takes no more, or lacks what is before.
        """
        known = self._draft == event.id
        if isinstance(event, DeltaTold):
            if not known or self._draft_index >= event.end:  # of a draft that it does not know: that one is over
                return None
            if self._draft_index != event.start or not self.sink.writable:
                return False
            self._draft_index = event.end
            return True
        if known is isinstance(event, DraftTold):
            return None
        if not self.sink.writable:
            return False
        if isinstance(event, DraftTold):
            self._draft, self._draft_index = event.id, event.index
        else:
            self._draft = None
        return True

    def tell(self, event: Event, key: tuple[str, str]) -> None:
        """Tells something ephemeral, now or, coalesced by `key`, when the sink is writable; the oldest is dropped."""
        pending = self._pending
        if not pending and self.sink.writable:
            self._hub._hand(self, event)
            return
        pending.pop(key, None)
        pending[key] = event
        while len(pending) > PENDING_MAX or sum(map(_weight, pending.values())) > PENDING_BYTES_MAX:
            del pending[next(iter(pending))]


def _weight(event: Event) -> int:
    return len(event.data) if isinstance(event, Signal) and event.data is not None else 0


class Hub:
    """Tells one conversation's subscribers what was committed, and what is ephemeral.

    Args:
        log: the conversation.
        watched: is told that somebody subscribes, and that nobody does any more.
    """

    def __init__(self, log: HubLog, watched: Callable[[bool], object] | None = None) -> None:
        self._log = log
        self._watched = watched
        self._subscriptions: dict[Subscription, None] = {}
        self._live: dict[Subscription, None] = {}
        self._ready: deque[Subscription] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._pumped: RowsTold | None = None
        # What was committed, and told of turns and drafts, in this step of the loop; at its end the rows go first.
        self._fresh: list[Row] = []
        self._fresh_events: list[tuple[int, TurnTold | DraftTold | DeltaTold | DraftEnded]] = []
        self._scheduled = False
        # What is told of a draft in several steps, and who is still to be told; all that is fresh stands behind it.
        self._spread: tuple[DraftTold | DeltaTold | DraftEnded, Sequence[Subscription]] | None = None
        self._draft: HubDraft | None = None
        self._tail: deque[Row] = deque()
        self._tail_bytes = 0
        # States of turns are numbered. Who was lagging learns the last one of each kind: of turns that queue, of those
        # that end without having begun, and of that which runs or ran last.
        self._turns_told = 0
        self._last_turns: dict[str, tuple[int, TurnTold]] = {}
        self._begun: int | str | None = None
        self._presence_timer: asyncio.TimerHandle | None = None
        self._presence_at = float("-inf")

    # -- subscribing

    @property
    def idle(self) -> bool:
        """Says that nobody subscribes and nothing runs."""
        return not self._subscriptions and self._pump is None

    @property
    def subscriptions(self) -> Sequence[Subscription]:
        """Are all subscriptions, oldest first."""
        return tuple(self._subscriptions)

    @property
    def count(self) -> int:
        """Is how many subscriptions there are."""
        return len(self._subscriptions)

    @property
    def lagging(self) -> int:
        """Is how many of them are not live."""
        return len(self._subscriptions) - len(self._live)

    def subscribe(self, sink: Sink, principal: str, position: int) -> Subscription:
        """Adds a subscription behind a position, which is at most the head; rows, then `Live`, follow."""
        subscription = Subscription(self, sink, principal, position)
        self._subscriptions[subscription] = None
        if len(self._subscriptions) == 1 and self._watched is not None:
            self._watched(True)
        self._enqueue(subscription)
        self._schedule_presence()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Takes a subscription out; idempotent. Nothing is told to it any more."""
        if subscription in self._subscriptions:
            del self._subscriptions[subscription]
            self._live.pop(subscription, None)
            subscription.live = False
            subscription._pending.clear()
            if not self._subscriptions and self._watched is not None:
                self._watched(False)
            self._schedule_presence()

    # -- telling rows, and the turns they belong to

    def committed(self, rows: Sequence[Row]) -> None:
        """Tells rows that have just been committed; called once per commit, in seq order.

        What is committed in one step of the loop is told together, at the end of that step: one frame for a group.
        """
        self._remember(rows)
        if self._live:
            self._schedule_telling()
            self._fresh += rows

    def tell_turn(self, event: TurnTold) -> None:
        """Tells the state of a turn, behind the rows committed before; who lags learns the last one when it is live."""
        self._turns_told += 1
        self._keep_turn(event)
        if self._live:
            self._schedule_telling()
            self._fresh_events.append((self._turns_told, event))

    def _keep_turn(self, event: TurnTold) -> None:
        """Keeps a state for those who lag, in place of what it says as well."""
        last = self._last_turns
        kind = "queued" if event.state == "queued" else "skipped"
        if event.state == "running":
            kind, self._begun = "running", event.id
            last.pop("ended", None)
        elif event.id == self._begun:
            kind = "ended"
            if event.state != "stopped":  # which alone does not say that it ran
                last.pop("running", None)
        if kind != "queued" and "queued" in last and last["queued"][1].id == event.id:
            del last["queued"]
        last[kind] = self._turns_told, event

    def open_draft(self, draft: HubDraft) -> None:
        """Tells that a turn has begun to write."""
        assert self._draft is None
        self._draft = draft
        self._tell_draft(draft.snapshot())

    def tell_delta(self, event: DeltaTold) -> None:
        """Tells what was written, at once where nothing has to be told before.

        Who lags gets the whole draft when it is live again.
        """
        if self._scheduled:
            self._fresh_events.append((0, event))
        elif self._live:
            self._tell_draft_to(event, tuple(self._live))
            if self._spread is not None:
                self._schedule_telling()

    def close_draft(self, event: DraftEnded) -> None:
        """Tells that the draft is over, behind the row that it became."""
        self._draft = None
        self._keep_end(event)
        self._tell_draft(event)

    def _tell_draft(self, event: DraftTold | DeltaTold | DraftEnded) -> None:
        if self._subscriptions:
            self._schedule_telling()
            self._fresh_events.append((0, event))

    def _keep_end(self, event: DraftEnded) -> None:
        """Keeps the end of a draft for those who know it and lag: they are told behind the row that it became."""
        for subscription in self._subscriptions:
            if not subscription.live and subscription._draft == event.id:
                subscription._draft, subscription._draft_end = None, event

    def _schedule_telling(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._log.after_telling(self._tell_fresh)

    def _tell_fresh(self) -> None:
        self._scheduled = False
        if self._spread is not None:
            event, subscriptions = self._spread
            self._spread = None
            self._tell_draft_to(event, subscriptions)
        if self._spread is None:
            self._tell_rows_and_events()
        if self._spread is not None:
            self._schedule_telling()

    def _tell_rows_and_events(self) -> None:
        rows, self._fresh = self._fresh, []
        events, self._fresh_events = self._fresh_events, []
        for run in runs(rows):
            event = RowsTold(self._log.name, self._log.epoch, run)
            before, last = run[0].seq - 1, run[-1].seq
            told = 0
            late: list[Subscription] = []
            for subscription in tuple(self._live):
                if subscription.position == before and told < FAN_OUT_MAX and subscription.sink.writable:
                    subscription.position = last
                    told += 1
                    self._hand(subscription, event)
                elif subscription.position < last:
                    late.append(subscription)
            self._lag(late)
        for index, (number, ephemeral) in enumerate(events):
            if isinstance(ephemeral, TurnTold):
                self._tell_state(number, ephemeral)
            else:
                self._tell_draft_to(ephemeral, tuple(self._live))
            if self._spread is not None:
                self._fresh_events[:0] = events[index + 1 :]
                break

    def _tell_state(self, number: int, event: TurnTold) -> None:
        """Tells a state to the live subscriptions that lack it; who is not told now lags, and learns the last one."""
        told = 0
        late: list[Subscription] = []
        for subscription in tuple(self._live):
            if subscription._turn_seen >= number:
                continue
            if told < FAN_OUT_MAX and subscription.sink.writable:
                subscription._turn_seen = number
                told += 1
                self._hand(subscription, event)
            else:
                late.append(subscription)
        self._lag(late)

    def _tell_draft_to(
        self, event: DraftTold | DeltaTold | DraftEnded, subscriptions: Sequence[Subscription]
    ) -> None:
        """Tells something of a draft to those that are live and lack it; behind many of them, the rest in later steps.

        Whose sink takes no more lags, and is told the whole draft, or its end, when it is live again.
        """
        if isinstance(event, DraftEnded):
            self._keep_end(event)  # for those that have begun to lag since
        if len(subscriptions) > FAN_OUT_MAX:
            self._spread = event, subscriptions[FAN_OUT_MAX:]
            subscriptions = subscriptions[:FAN_OUT_MAX]
        late: list[Subscription] = []
        for subscription in subscriptions:
            moves = subscription._moves(event) if subscription.live else None
            if moves:
                self._hand(subscription, event)
            elif moves is False:
                late.append(subscription)
                if isinstance(event, DraftEnded):
                    subscription._draft, subscription._draft_end = None, event
        if late:
            self._lag(late)

    def _lag(self, subscriptions: Sequence[Subscription]) -> None:
        for subscription in subscriptions:
            del self._live[subscription]
            subscription.live = False
            self._enqueue(subscription)

    def _hand(self, subscription: Subscription, event: Event) -> None:
        """Tells one sink. One that breaks its promise and raises is taken out; the others are served all the same."""
        try:
            subscription.sink.tell(event)
        except Exception:  # whatever a sink may do
            logger.exception("a subscriber of %r failed, its subscription is ended", self._log.name)
            self.unsubscribe(subscription)

    def _remember(self, rows: Sequence[Row]) -> None:
        tail = self._tail
        if tail and tail[-1].seq + 1 != rows[0].seq:
            self.forget_tail()
        for row in rows:
            tail.append(row)
            self._tail_bytes += len(row.body)
        while tail and (len(tail) > TAIL_ROWS_MAX or self._tail_bytes > TAIL_BYTES_MAX):
            self._tail_bytes -= len(tail.popleft().body)

    def forget_tail(self) -> None:
        """Lets the tail ring go, where nothing is committed for long: who comes back then is served from the log."""
        self._tail.clear()
        self._tail_bytes = 0

    def recall(self, after: int) -> list[Row] | None:
        """Returns the rows behind `after` from the tail ring, as many as one pump step takes; None if it lacks them."""
        tail = self._tail
        if not tail or not tail[0].seq <= after + 1 <= tail[-1].seq:
            return None
        rows: list[Row] = []
        size = 0
        for row in islice(tail, after + 1 - tail[0].seq, None):
            size += len(row.body)
            if rows and (size > PUMP_BYTES_MAX or len(rows) == RUN_ROWS_MAX):
                break
            rows.append(row)
        return rows

    # -- the pump

    def _enqueue(self, subscription: Subscription) -> None:
        if subscription._queued or subscription not in self._subscriptions or not subscription.sink.writable:
            return
        subscription._queued = True
        self._ready.append(subscription)
        if self._pump is None:
            loop = asyncio.get_running_loop()
            self._pump = loop.create_task(self._run_pump(), name=f"parlatory pump {self._log.name!r}")

    async def _run_pump(self) -> None:
        """Serves lagging subscriptions in turn, each a run of rows at a time."""
        steps = 0
        try:
            while self._ready:
                subscription = self._ready.popleft()
                subscription._queued = False
                if self._lags(subscription) and subscription.sink.writable:
                    await self._serve(subscription)
                steps += 1
                if steps % PUMPS_PER_STEP == 0:
                    await asyncio.sleep(0)
        finally:
            self._pump = self._pumped = None

    def _lags(self, subscription: Subscription) -> bool:
        return not subscription.live and subscription in self._subscriptions

    async def _serve(self, subscription: Subscription) -> None:
        """Hands a lagging subscription the next run of rows, or makes it live."""
        if subscription.position < self._log.head:
            rows = self.recall(subscription.position) or await self._read(subscription)
            if not rows:
                return
            event = self._pumped
            # Many lag at the same place: they share one event.
            if event is None or (event.rows[0].seq, event.rows[-1].seq) != (rows[0].seq, rows[-1].seq):
                event = self._pumped = RowsTold(self._log.name, self._log.epoch, rows)
            subscription.position = rows[-1].seq
            self._hand(subscription, event)
        if subscription.position == self._log.head and subscription.sink.writable and self._lags(subscription):
            self._go_live(subscription)
        else:
            self._enqueue(subscription)

    async def _read(self, subscription: Subscription) -> list[Row]:
        """Reads the rows behind a position; none if the subscription has ended, now or meanwhile."""
        position = subscription.position
        try:
            rows = await self._log.read(after=position, limit=RUN_ROWS_MAX, max_bytes=PUMP_BYTES_MAX)
            rows = sound(rows, self._log.name)
        except Exception as error:  # whatever it is, the pump goes on, and the subscriber is not left waiting
            if self._lags(subscription):
                logger.error("the rows of %r behind %d cannot be read", self._log.name, position, exc_info=error)
                self.end(subscription, "internal")
            return []
        if not self._lags(subscription):
            return []
        if not rows or rows[0].seq != position + 1:
            logger.error("%r has no row %d below its head", self._log.name, position + 1)
            self.end(subscription, "internal")
            return []
        return rows

    def _go_live(self, subscription: Subscription) -> None:
        """Makes a subscription live: it is at the head, and nothing can be committed before this step ends."""
        if self._draft is not None:
            self._draft.flush()  # to the others, so that this one has as much as they
        subscription.live = True
        self._live[subscription] = None
        if subscription._draft_end is not None:
            self._hand(subscription, subscription._draft_end)
            subscription._draft_end = None
        if self._draft is not None:
            snapshot = self._draft.snapshot()
            if (subscription._draft, subscription._draft_index) != (snapshot.id, snapshot.index):
                subscription._draft, subscription._draft_index = snapshot.id, snapshot.index
                self._hand(subscription, snapshot)
        self._hand(subscription, Live(self._log.name, subscription.position))
        for number, event in sorted(self._last_turns.values()):
            if subscription._turn_seen < number:
                self._hand(subscription, event)
        subscription._turn_seen = self._turns_told

    # -- what is ephemeral

    def signal(self, event: Signal, sender: Sink) -> None:
        """Relays a signal to every subscription but the sender's own."""
        for subscription in tuple(self._subscriptions):
            if subscription.sink is not sender:
                subscription.tell(event, (event.name, event.by))

    def end(self, subscription: Subscription, code: str) -> None:
        """Ends a subscription from this side, and says why."""
        if subscription in self._subscriptions:
            self.unsubscribe(subscription)
            self._hand(subscription, Closed(self._log.name, code))

    def close(self) -> None:
        """Ends what subscriptions there are, the pump and the presence timer."""
        for subscription in tuple(self._subscriptions):
            self.end(subscription, "draining")
        if self._pump is not None:
            self._pump.cancel()
        if self._presence_timer is not None:
            self._presence_timer.cancel()
            self._presence_timer = None

    def _schedule_presence(self) -> None:
        """Tells presence soon, at most once a second."""
        if self._presence_timer is None:
            loop = asyncio.get_running_loop()
            self._presence_timer = loop.call_at(
                max(loop.time(), self._presence_at + PRESENCE_INTERVAL_S), self._tell_presence
            )

    def _tell_presence(self) -> None:
        self._presence_timer = None
        if not self._subscriptions:
            return
        self._presence_at = asyncio.get_running_loop().time()
        names = sorted({subscription.principal for subscription in self._subscriptions})
        event = Presence(self._log.name, len(names), names if len(names) <= PRESENCE_NAMES_MAX else None)
        self._tell_presence_to(event, tuple(self._subscriptions))

    def _tell_presence_to(self, event: Presence, subscriptions: Sequence[Subscription]) -> None:
        """Tells presence to some subscriptions in this step of the loop, to the rest in later ones."""
        for subscription in subscriptions[:FAN_OUT_MAX]:
            if subscription in self._subscriptions:
                subscription.tell(event, ("", ""))
        if rest := subscriptions[FAN_OUT_MAX:]:
            asyncio.get_running_loop().call_soon(self._tell_presence_to, event, rest)
