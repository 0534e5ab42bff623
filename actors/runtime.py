"""The runtime: agents over an engine, one record per conversation in use, and what keeps their number down."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Collection, Iterable
from types import TracebackType
from typing import Self

import anyio

from ..storage import Engine, StorageClosed, StorageError, StorageFailed, check_name, split_name
from .agenda import Agenda
from .agent import Agent, wire_name_of
from .conversation import Conversation
from .errors import Draining, UnknownAgent
from .picture import Counters, RuntimeStatistics, take_stock
from .ref import Ref
from .residency import Residency
from .turns import TurnLane
from .watchdog import Watchdog

__all__ = ["Runtime"]

DUE_PAGE = 256
NEVER = 0
FLUSH_GRAIN_S = 0.002
CHECKPOINT_GRAIN_S = 0.008  # with 125 ms a group of hundreds took 20 ms, for which what clients send had to wait
REDELIVERY_RETRY_S = 1.0
REDELIVERY_PATIENCE_S = 30.0

logger = logging.getLogger("parlatory.actors")


class Runtime:
    """Runs agents, one actor per conversation. Use it as `async with Runtime(engine, [Bot]) as runtime:`.

    It owns the engine: leaving the block ends running turns, stops the agents and closes the engine.

    Args:
        engine: where the conversations lie: `await open_engine("sqlite:///data")`.
        agents: the agent classes, each under its own wire name.
        idle_timeout_s: after how many seconds without use an agent instance, and then the record of a conversation
            that nobody watches, is let go.
        max_resident: how many agent instances there are at once; an activation beyond it waits for an idle one.
        mailbox_max: how many messages of one conversation may be on their way to the disk; more are refused as busy.
        redeliveries_max: how many conversations with unfinished work are taken up at a time when the runtime starts;
            one that takes long (30 s) makes room for the next.
        stop_grace_s: how long a cancelled handler has for its `finally`.
        threads_max: how many functions run in threads at once (`Agent.run_sync`); more wait.
        watchdog_s: for how long user code may block the event loop before the log names it; None: nobody watches.
    """

    def __init__(
        self,
        engine: Engine,
        agents: Iterable[type[Agent]],
        *,
        idle_timeout_s: float = 60,
        max_resident: int = 10_000,
        mailbox_max: int = 1_000,
        redeliveries_max: int = 16,
        stop_grace_s: float = 5,
        threads_max: int = 40,
        watchdog_s: float | None = 1.0,
    ) -> None:
        self.engine = engine
        self.agents: dict[str, type[Agent]] = {}
        for agent in () if isinstance(agents, type) else agents:
            if not (isinstance(agent, type) and issubclass(agent, Agent)):
                raise TypeError(f"{agent!r} is no agent: give classes derived from Agent")
            if self.agents.setdefault(agent.wire_name, agent) is not agent:
                raise ValueError(f"two agents are named {agent.wire_name!r}; give one of them another name = '...'")
        if not self.agents:
            raise ValueError("a runtime needs a list of at least one agent class")
        if min(idle_timeout_s, mailbox_max, redeliveries_max, threads_max) <= 0 or (
            watchdog_s is not None and watchdog_s <= 0
        ):
            raise ValueError("idle_timeout_s, mailbox_max, redeliveries_max, threads_max and watchdog_s are positive")
        self.idle_timeout_s = idle_timeout_s
        self.mailbox_max = mailbox_max
        self.stop_grace_s = stop_grace_s
        self.residency = Residency(max_resident)
        self.counters = Counters()
        self.flushes = Agenda(FLUSH_GRAIN_S)
        self.checkpoints = Agenda(CHECKPOINT_GRAIN_S)
        self.draining = False
        self.threads_max = threads_max
        self._redeliveries_max = redeliveries_max
        self._watchdog_s = watchdog_s
        self._watchdog: Watchdog | None = None
        self._threads: anyio.CapacityLimiter | None = None
        self._records: dict[str, Conversation] = {}
        self._loading: dict[str, asyncio.Task[Conversation]] = {}
        self._redelivery: asyncio.Task[None] | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    @property
    def watchdog(self) -> Watchdog | None:
        """Is who watches that user code does not block the loop."""
        if self._watchdog is None and self._watchdog_s is not None:
            self._watchdog = Watchdog(self._watchdog_s)
        return self._watchdog

    @property
    def threads(self) -> anyio.CapacityLimiter:
        """Limits the threads of user code."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self.threads_max)
        return self._threads

    # -- conversations

    def get(self, agent: type[Agent] | str, name: str) -> Ref:
        """Returns a reference to one conversation; it reads and writes nothing.

        Args:
            agent: the class, or its wire name.
            name: the second half of the conversation's name, 1 to 512 bytes of UTF-8.

        Raises:
            UnknownAgent: the runtime has no such agent, or another class under this name.
            InvalidName: the name cannot be one.
        """
        wire_name = wire_name_of(agent)
        if wire_name not in self.agents or (isinstance(agent, type) and agent is not self.agents[wire_name]):
            raise UnknownAgent(wire_name, tuple(self.agents))
        return Ref(self, check_name(f"{wire_name}/{name}"))

    @property
    def conversations(self) -> int:
        """Is how many conversations have a record now."""
        return len(self._records)

    def statistics(self) -> RuntimeStatistics:
        """Returns how much there is of everything now; it looks at every record."""
        return take_stock(self._records.values())

    def resident(self, name: str) -> Conversation | None:
        """Returns the record of a conversation if there is one now."""
        return self._records.get(name)

    async def conversation(self, name: str) -> Conversation:
        """Returns the record of a conversation, loading it first if need be.

        Raises:
            UnknownAgent, InvalidName: there can be no such conversation.
            StorageError: its partition cannot be opened.
        """
        record = self._records.get(name)
        if record is not None:
            record.touch()
            return record
        loading = self._loading.get(name)
        if loading is None:
            agent_name, _ = split_name(name)
            agent = self.agents.get(agent_name)
            if agent is None:
                raise UnknownAgent(agent_name, tuple(self.agents))
            # One loading per name: who comes meanwhile waits for the same record.
            loading = asyncio.get_running_loop().create_task(self._load(name, agent), name=f"parlatory load {name!r}")
            loading.add_done_callback(_retrieved)
            self._loading[name] = loading
        return await asyncio.shield(loading)

    async def _load(self, name: str, agent: type[Agent]) -> Conversation:
        try:
            partition = await self.engine.partition(name)
            if name not in self._records:
                # What a crash left is made good before anybody sees the conversation.
                record = Conversation(self, agent, partition)
                await record.lane.recover()
                self._publish(record)
            return self._records[name]
        finally:
            del self._loading[name]

    def successor(self, record: Conversation) -> Conversation:
        """Returns the record in use in place of one that was let go; there is never a second one in use."""
        if record.name not in self._records:
            self._publish(Conversation(self, record.lane.agent, record.partition, record))
        return self._records[record.name]

    def _publish(self, record: Conversation) -> None:
        """Makes a record the one in use, unless there is one: who let go of the one before may have been faster."""
        if record.name not in self._records:
            self._records[record.name] = record
            if self._sweeper is None and self._closing is None:
                self._schedule_sweep()
        else:
            record.close()

    # -- idleness

    def _schedule_sweep(self) -> None:
        interval = min(15.0, self.idle_timeout_s / 4)
        self._sweeper = asyncio.get_running_loop().call_later(interval, self._sweep)

    def _sweep(self) -> None:
        """Lets go what has been idle for long; sleeps itself once nothing is left."""
        self._sweeper = None
        since = asyncio.get_running_loop().time() - self.idle_timeout_s
        gone = []
        for record in self._records.values():
            if record.touched > since or record.in_flight:
                continue
            if record.idle:
                gone.append(record)
                continue
            record.hub.forget_tail()
            if record.lane.quiet:
                record.lane.dismiss()
        for record in gone:
            del self._records[record.name]
            self.counters.released += 1
            record.close()
        if self._records:
            self._schedule_sweep()

    # -- starting and stopping

    async def __aenter__(self) -> Self:
        """Starts the runtime: takes up what an earlier process left unfinished."""
        if self._redelivery is not None or self._closing is not None:
            raise RuntimeError("a runtime is entered once; make another one, on a new engine")
        task = asyncio.get_running_loop().create_task(self._redeliver(), name="parlatory redelivery")
        self._redelivery = task
        if self.watchdog is not None:
            self.watchdog.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the runtime; see `close`."""
        await self.close()

    def __del__(self) -> None:
        if getattr(self, "_redelivery", None) is not None and self._closing is None:
            warnings.warn("a runtime was entered and never closed", ResourceWarning, stacklevel=1, source=self)

    async def _redeliver(self) -> None:
        """Goes through the conversations with unfinished work, a few at a time."""
        places = asyncio.Semaphore(self._redeliveries_max)
        after = 0
        async with asyncio.TaskGroup() as group:
            while not self.draining:
                try:
                    page = await self.engine.due(now=NEVER, after=after, limit=DUE_PAGE)
                except StorageError as error:
                    logger.error("unfinished work cannot be read", exc_info=error)
                    if isinstance(error, StorageFailed | StorageClosed):
                        return
                    await asyncio.sleep(REDELIVERY_RETRY_S)
                    continue
                if not page:
                    return
                for due in page:
                    after = due.cursor
                    await places.acquire()
                    group.create_task(self._redeliver_one(due.name, places), name=f"parlatory redeliver {due.name!r}")

    async def _redeliver_one(self, name: str, places: asyncio.Semaphore) -> None:
        try:
            record = await self.conversation(name)
            record.lane.redeliver()
            await _join([record.lane], REDELIVERY_PATIENCE_S)
        except UnknownAgent:
            logger.warning("%r has unfinished work, but its agent is not registered", name)
        except Exception as error:  # one conversation that cannot be loaded does not hold up the others
            logger.error("the unfinished work of %r is left for the next start", name, exc_info=error)
        finally:
            places.release()

    async def drain(self, timeout_s: float) -> None:
        """Starts no turn any more and waits for those that run, `timeout_s` at most; what is left is redelivered later.

        Clients' sends, and `Ref.append`, raise Draining from now on; reading goes on.
        """
        self.draining = True
        lanes = [record.lane for record in self._records.values()]
        await self._ended([lane for lane in lanes if not lane.quiet and not lane.leaving], timeout_s)

    async def _ended(self, lanes: Collection[TurnLane], timeout_s: float) -> None:
        """Returns once lanes are quiet; interrupts those that are not in time."""
        await _join(lanes, timeout_s)
        await asyncio.gather(*(lane.interrupt() for lane in lanes if not lane.quiet))

    async def close(self) -> None:
        """Ends running turns, stops the agents, commits what is queued, and closes the engine.

        Idempotent: who calls it again waits for the same end. It goes through though its caller is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name="parlatory close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self.drain(0)
            if self._redelivery is not None:
                self._redelivery.cancel()
                await asyncio.wait({self._redelivery})
            lanes = [record.lane for record in self._records.values() if not record.lane.idle]
            for lane in lanes:
                if lane.quiet:
                    lane.dismiss()
            await self._ended([lane for lane in lanes if lane.leaving], self.stop_grace_s)
            if cancels := [task for record in self._records.values() for task in record.lane.cancelling]:
                await asyncio.wait(cancels, timeout=self.stop_grace_s)
        finally:
            if self._sweeper is not None:
                self._sweeper.cancel()
            for record in self._records.values():
                record.close()
            self._records.clear()
            self.flushes.close()
            self.checkpoints.close()
            if self._watchdog is not None:
                await self._watchdog.stop()
            await self.engine.close()

    def check_accepting(self) -> None:
        """Raises Draining once the runtime is stopping."""
        if self.draining:
            raise Draining


def _retrieved(task: asyncio.Task[Conversation]) -> None:
    """Takes note of how a loading ended, though everybody who waited for it has been cancelled."""
    if not task.cancelled():
        task.exception()


async def _join(lanes: Collection[TurnLane], timeout_s: float) -> None:
    """Waits until lanes are quiet, for `timeout_s` at most."""
    joins = [asyncio.ensure_future(lane.join()) for lane in lanes]
    try:
        if joins:
            await asyncio.wait(joins, timeout=timeout_s)
    finally:
        for join in joins:
            join.cancel()
