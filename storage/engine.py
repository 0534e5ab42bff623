"""The engine port: what a conversation needs from storage, and what it may rely on.

An engine keeps many partitions, one per conversation. It is asked for one thing at a time per partition, a **batch**:
messages with their media, key puts and deletes, timer changes and a work mark that become true together or not at all.
Engines merge batches of many conversations into one transaction and resolve each after the one flush (group commit).

Fault model. These hold for every engine, and `EngineContract` tests them:

- A batch whose future has a result is durable. One whose future has an error was not written, except after
  `StorageFailed`, where nobody knows.
- Batches of one partition are committed in the order of their `submit` and `commit` calls. The committer assigns
  `seq` when it builds a group and again when it retries one, so that a refused batch leaves no gap. Nothing in a batch
  holds a seq.
- An error inside a group is borne by the guilty batch alone; the others are committed.
- `told` is called once for each committed batch, in seq order, on the event loop, after the flush and before the future
  is resolved; never for a refused batch or a repeat. If it raises, the batch stays committed and the future gets the
  error.
- Whoever awaits a batch may be cancelled: it commits all the same, and `told` is called; or it never does.
- A client id is unique for ever per conversation and author. A repeat is answered with the first seq, wherever the log
  ends by then (`expected_seq`); another message under the same id is refused.
- Media are held by their conversation alone, each once, however many rows refer to them. A row that refers to media
  which are not there whole is refused. They go with the last row that refers to them; those that no row has taken up go
  at the first commit a day after they were last put.
- Opening a partition writes nothing, whatever its name. Its epoch is durable before the first open returns it.
- A disk that is full, or refuses a write, gives `StorageFull`: nothing was written and the engine goes on. A file held
  by another program gives `StorageBusy` after a bounded wait. A failed flush gives `StorageFailed` for ever: reading
  back would show rows from the page cache that the disk does not have.
- A process that dies at any point loses nothing that was resolved, and leaves no part of a batch.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeAlias
from weakref import WeakValueDictionary

import msgspec

from .media import PIECE_BYTES, Blob
from .names import CONTROL, check_name
from .rows import Row
from .statistics import StorageStatistics

__all__ = [
    "Batch",
    "Committed",
    "Due",
    "LISTED_BYTES_MAX",
    "LISTED_ROWS_MAX",
    "Engine",
    "LastRow",
    "Listing",
    "NewRow",
    "Order",
    "Partition",
    "Rows",
    "Told",
    "check_batch",
    "check_listing",
]

KEY_MAX_BYTES = 2048
LISTED_BYTES_MAX = 64 << 10
LISTED_ROWS_MAX = 16
PLACE_MAX = (1 << 63) - 1

Order = Literal["name", "activity"]
"""In which order conversations are listed; see `Engine.list`."""


class NewRow(msgspec.Struct, frozen=True, kw_only=True):
    """Is a message on its way into the log: its JSON, and what the envelope says beside seq and instant.

    Attributes:
        media: the media that the row brings, in pieces.
        refs: the hashes of the media that must be there already, each with the path that names it.
    """

    body: bytes
    by: str
    client_id: str | None = None
    digest: int | None = None
    turn: int | str | None = None
    finish: str | None = None
    media: Sequence[Blob] = ()
    refs: Mapping[str, str] = {}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Is what becomes true together in one partition.

    Attributes:
        rows: messages, in order; at most one of them has a client id, and it is then the only row.
        uploads: pieces of media that rows will refer to, perhaps; more of the same may follow in other batches.
        puts: key to value (JSON text); a later put of the same key wins.
        deletes: keys that go, after the puts.
        timers: name to the instant (microseconds UTC) it is due; None cancels it.
        work: True marks the conversation as having unfinished work, False says it has none, None leaves the mark.
        expected_seq: the head the log must have just before; otherwise the batch is refused with `Conflict`.
        lazy: it goes with what others commit, in the next 50 ms; only then is it worth a write and a flush of its own.
            What is submitted to the partition after it still becomes true after it.
    """

    rows: Sequence[NewRow] = ()
    uploads: Sequence[Blob] = ()
    puts: Mapping[str, bytes] = {}
    deletes: Sequence[str] = ()
    timers: Mapping[str, int | None] = {}
    work: bool | None = None
    expected_seq: int | None = None
    lazy: bool = False


class Committed(msgspec.Struct, frozen=True):
    """Is the outcome of a batch: the head behind it and its rows; for a repeat the first seq, no rows, `duplicate`."""

    seq: int
    rows: tuple[Row, ...] = ()
    duplicate: bool = False


class LastRow(msgspec.Struct, frozen=True, kw_only=True):
    """Is where a partition stands when it is opened; `key` is None where nothing was ever written."""

    key: int | None = None
    floor: int = 0
    seq: int = 0
    at: int = 0


class Listing(msgspec.Struct, frozen=True):
    """Is a conversation in a list.

    Attributes:
        name: the conversation.
        head: the seq of its last row; 0 without rows.
        at: that row's instant; 0 without rows.
        cursor: of the last one goes into the next call of `Engine.list`, as `after`.
        last: in a list by activity its last row, if that is no longer than `LISTED_BYTES_MAX`.
        first: in a list by activity the first row of a user that is no longer, if it is one of the first
            `LISTED_ROWS_MAX`.
    """

    name: str
    head: int
    at: int
    cursor: str
    last: Row | None = None
    first: Row | None = None


class Due(msgspec.Struct, frozen=True):
    """Is work that waits: unfinished work (`timer` None, `at` since when) or a timer that is due (`at` when).

    `cursor` of the last one goes into the next call of `Engine.due`.
    """

    name: str
    timer: str | None
    at: int
    cursor: int


Told: TypeAlias = Callable[[Committed], object]
Rows: TypeAlias = list[Row]


class Partition:
    """Is one conversation's place in an engine; there is one object per conversation and engine while anybody holds it.

    `head` is the seq of the last committed row and `at` its instant; the engine moves both just before it tells.
    """

    __slots__ = ("__weakref__", "at", "engine", "epoch", "floor", "head", "key", "name")

    def __init__(self, engine: Engine, name: str, epoch: str, last: LastRow) -> None:
        self.engine = engine
        self.name = name
        self.epoch = epoch
        self.key = last.key
        self.floor = last.floor
        self.head = last.seq
        self.at = last.at

    def submit(self, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
        """Hands a batch to the committer at once; raises StorageBusy where its queue is full."""
        return self.engine.submit(self, batch, told)

    async def commit(self, batch: Batch, told: Told | None = None) -> Committed:
        """Commits a batch; waits where the committer's queue is full."""
        return await self.engine.commit(self, batch, told)

    def after_telling(self, call: Callable[[], object]) -> None:
        """Calls once all that is being told is told; see `Engine.after_telling`."""
        self.engine.after_telling(call)

    def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> Coroutine[Any, Any, Rows]:
        """Returns rows with `after` < seq < `before`, ascending; see `Engine.read`."""
        return self.engine.read(self, after=after, before=before, limit=limit, max_bytes=max_bytes, newest=newest)

    def keys(self, prefix: str = "") -> Coroutine[Any, Any, dict[str, bytes]]:
        """Returns the keys that start with `prefix`, in order, with their values."""
        return self.engine.keys(self, prefix)

    def media(self, hash: str, start: int = 0) -> Coroutine[Any, Any, Blob | None]:
        """Returns the piece of media that holds their byte `start`, or None; see `Engine.media`."""
        return self.engine.media(self, hash, start)

    def __repr__(self) -> str:
        return f"<Partition {self.name!r} head={self.head}>"


class Engine(ABC):
    """Is the port to storage. The seven async methods are all that parlatory asks of one; the module has its faults."""

    def __init__(self) -> None:
        self._partitions: WeakValueDictionary[str, Partition] = WeakValueDictionary()
        self._opening: dict[str, asyncio.Task[Partition]] = {}

    async def partition(self, name: str) -> Partition:
        """Opens the partition of a conversation; writes nothing.

        Args:
            name: `<agent>/<name>` as PROTOCOL section 1 defines it.

        Raises:
            InvalidName: the name is not of that form.
            StorageError: the engine cannot read.
        """
        found = self._partitions.get(check_name(name))
        if found is not None:
            return found
        opening = self._opening.get(name)
        if opening is None:
            # One reading per name: a second one could be overtaken by an append through the first, and be stale.
            opening = asyncio.get_running_loop().create_task(self._opened(name), name=f"parlatory open {name!r}")
            self._opening[name] = opening
        return await asyncio.shield(opening)

    async def _opened(self, name: str) -> Partition:
        try:
            epoch, last = await self._open(name)
        finally:
            del self._opening[name]
        partition = self._partitions[name] = Partition(self, name, epoch, last)
        return partition

    @abstractmethod
    async def _open(self, name: str) -> tuple[str, LastRow]:
        """Reads the epoch of a partition and where it stands."""

    @abstractmethod
    def submit(self, partition: Partition, batch: Batch, told: Told | None = None) -> asyncio.Future[Committed]:
        """Queues a batch and returns the future of its outcome.

        Raises:
            StorageBusy: the queue is full; nothing was queued.
            StorageClosed, StorageFailed: the engine takes no more.
        """

    @abstractmethod
    def commit(self, partition: Partition, batch: Batch, told: Told | None = None) -> Awaitable[Committed]:
        """Commits a batch, waiting for room in the queue first; nothing happens until it is awaited.

        Raises:
            Conflict: `expected_seq` is not the head.
            ClientIdConflict: the client id belongs to another message of this author.
            UnknownMedia: a row refers to media that the partition does not hold.
            TooLarge: the batch is over the caps of the engine.
            StorageError: it was not written; see the module.
        """

    def begin(self) -> None:  # noqa: B027 - a hint may be ignored
        """Begins to write what was submitted in this step of the loop, if the engine would wait for the step's end.

        A hint, for who knows that nothing more will come in this step.
        """

    def after_telling(self, call: Callable[[], object]) -> None:
        """Calls, later in this step of the loop, what is to be done once for all that is told in it.

        Where `told` of some batches is being called, behind the last of them; else, or where an engine knows of no
        such moment, in the next step.
        """
        asyncio.get_running_loop().call_soon(call)

    @abstractmethod
    async def read(
        self, partition: Partition, *, after: int, before: int | None, limit: int, max_bytes: int, newest: bool
    ) -> Rows:
        """Returns committed rows with `after` < seq < `before`, ascending.

        At most `limit` rows and `max_bytes` of bodies, but at least one row if there is one; the first ones of the
        range, or the last ones where `newest`.
        """

    @abstractmethod
    async def keys(self, partition: Partition, prefix: str) -> dict[str, bytes]:
        """Returns the keys that start with `prefix`, in code point order, with their values."""

    @abstractmethod
    async def media(self, partition: Partition, hash: str, start: int) -> Blob | None:
        """Returns the piece of media that holds their byte `start`; None where they are not there whole, or end before.

        Empty media are one empty piece.
        """

    @abstractmethod
    async def list(
        self,
        *,
        order: Order = "name",
        agent: str | None = None,
        by: str | None = None,
        search: str = "",
        after: str = "",
        limit: int = 100,
    ) -> Sequence[Listing]:
        """Returns conversations.

        Args:
            order: `name`: in code point order of their names, which are unique. `activity`: those that have rows, the
                one whose last row was committed last comes first.
            agent: those of one agent.
            by: by activity only: those in which this author has a row.
            search: by activity only: those whose names hold this, whatever the case of its ASCII letters.
            after: those behind a cursor (by name: any text); "" begins.
            limit: how many at most.

        Raises:
            ValueError: `by` or `search` in another order, an order that is none, or a cursor that is none.
        """

    @abstractmethod
    async def due(self, *, now: int, after: int = 0, limit: int = 100) -> Sequence[Due]:
        """Returns what waits: unfinished work, and timers due at `now` (microseconds UTC).

        By conversation, its work first, then its timers by name; at most `limit` conversations, each of them whole,
        behind the cursor `after`.
        """

    @abstractmethod
    async def close(self) -> None:
        """Commits what is queued, then closes; idempotent."""

    @property
    @abstractmethod
    def failed(self) -> BaseException | None:
        """Is the error that stopped the engine for good, or None while it works."""

    @property
    @abstractmethod
    def statistics(self) -> StorageStatistics:
        """Is what the engine has done since it was opened, and what waits."""


def check_listing(order: Order, by: str | None, search: str, after: str) -> int:
    """Returns the place that a cursor of a list by activity stands for; refuses what `Engine.list` does not take."""
    if order == "name":
        if by is not None or search:
            raise ValueError("a list by name is not narrowed by author or text: give order='activity'")
        return 0
    if order != "activity":
        raise ValueError(f"no order {order!r}: there are name and activity")
    if not after:
        return PLACE_MAX
    if not (after.isascii() and after.isdecimal() and len(after) < len(str(PLACE_MAX))):
        raise ValueError(f"{after[:40]!r} is no cursor of a list by activity")
    return int(after)


def check_batch(batch: Batch) -> None:
    """Refuses a batch that breaks the port's rules: a programming error, hence ValueError."""
    if len(batch.rows) > 1 and any(row.client_id is not None for row in batch.rows):
        raise ValueError("a row with a client id is the only row of its batch")
    for key in (*batch.puts, *batch.deletes, *batch.timers):
        try:
            size = len(key.encode())
        except UnicodeEncodeError:
            raise ValueError(f"key {key!r} holds a lone surrogate") from None
        if not 1 <= size <= KEY_MAX_BYTES or CONTROL.search(key):
            raise ValueError(f"key {key!r}: 1 to {KEY_MAX_BYTES} bytes without control characters")
    for row in batch.rows:
        if row.media:
            _check_pieces(row.media)
    if batch.uploads:
        _check_pieces(batch.uploads)


def _check_pieces(blobs: Sequence[Blob]) -> None:
    for blob in blobs:
        if blob.start % PIECE_BYTES or len(blob.data) != max(0, min(PIECE_BYTES, blob.size - blob.start)):
            raise ValueError(f"media are cut into pieces of {PIECE_BYTES} bytes, the last one is what is left")
