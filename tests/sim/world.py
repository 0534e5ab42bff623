"""One simulated world: a server on its disk, clients on a network, and whoever makes trouble.

Fault model, before everything else. In a run there are 1 to 3 conversations and 2 to 4 clients, two of them perhaps
of one principal, that send (also in bursts, with timeouts, and again under the same id), open, page, signal, stop
turns, approve tool calls, stop taking rows, close and open again behind their position, while

- connections are cut, turn deaf in one or both directions, stall, and new ones are refused (`net.py`);
- the disk is slow, full, busy, fails reads, or fails a flush and with it the engine (`disk.py`);
- the process is killed between any two steps of its loop, best behind one that matters, or stops in good order,
  and another one takes over the file;
- a backup of the live server is restored, with an epoch of its own: what came after it never was;
- the clock of the server jumps;
- agents are evicted by idleness and by others, are slow, raise, say several things, read their log, stream drafts
  of one part or several, use tools, some of which need approval, answer under each `on_busy`; a webhook appends
  beside them, and stops turns;
- `authorize` takes its time, and somebody's access is taken away, to a conversation or to everything.

Sizes are drawn as well: buffers, windows, tails, runs, pages, groups, mailboxes and checkpoints that hold
almost nothing, so that what is rare in service happens all the time.

Then the trouble ends. From there on the world has to come to rest: every send answered, every client live and
at the head, every message handled, no draft open, no turn under way. Not here: power loss, calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from websockets.asyncio import client as websockets_client

from parlatory import Runtime
from parlatory.actors import agenda as agenda_module
from parlatory.actors import draft as draft_module
from parlatory.actors import hub as hub_module
from parlatory.actors import runtime as runtime_module
from parlatory.actors import turn_marks as marks_module
from parlatory.server import ConversationName, Principal, Server
from parlatory.server import app as app_module
from parlatory.server.limits import Limits
from parlatory.storage import StorageError
from parlatory.storage import committer as committer_module
from parlatory.storage import sqlite as sqlite_module
from parlatory.storage.sqlite import SqliteEngine

from .cast import Planned, cast
from .disk import FILE, Disk, read_file
from .history import History, Truth
from .loop import SimLoop, Simulation
from .model import Model
from .net import Connection, Network
from .wire import Wire

__all__ = ["PORT", "Host", "World"]

PORT = 8000
PATCHED = (
    (hub_module, "TAIL_ROWS_MAX", (1, 4, 256)),
    (hub_module, "RUN_ROWS_MAX", (1, 3, 200)),
    (hub_module, "FAN_OUT_MAX", (1, 2, 256)),
    (hub_module, "PUMPS_PER_STEP", (1, 32)),
    (marks_module, "PAGE_ROWS", (1, 3, 64)),
    (draft_module, "FLUSH_S", (0.001, 0.025)),
    (draft_module, "FLUSH_CHARACTERS", (1, 20, 256)),
    (draft_module, "CHECKPOINT_S", (0.002, 0.05, 1.0)),
    (draft_module, "CHECKPOINT_CHARACTERS", (1, 50, 4096)),
    (draft_module, "WRITES_PER_STEP", (1, 32)),
    (runtime_module, "FLUSH_GRAIN_S", (0.0, 0.002)),
    (runtime_module, "CHECKPOINT_GRAIN_S", (0.0, 0.125)),
    (agenda_module, "STEP_S", (-1.0, 0.001)),  # one call for each step of the loop; nothing takes time within one
    (sqlite_module, "CHECKPOINT_BYTES", (1, 50_000, 16 << 20)),
)


def chance(source: random.Random) -> list[tuple[Any, str, Any]]:
    """Returns what takes the place of the system's randomness: epochs, masks and ids are drawn from the seed too."""
    return [
        (secrets, "token_hex", lambda size=16: source.randbytes(size).hex()),
        (secrets, "token_bytes", lambda size=16: source.randbytes(size)),
        (uuid, "uuid4", lambda: uuid.UUID(int=source.getrandbits(128), version=4)),
    ]


class World:
    """Is everything in one run."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.simulation = Simulation(seed)
        self.history = History(lambda: self.simulation.now, self.simulation.problem)
        self.truth = Truth(self.history)
        self.model = Model(self)
        self.truth.judge = self.model.committed
        self.wires: dict[int, Wire] = {}
        self.network = Network(self.simulation, tapped_write=self._written, tapped_read=self._read)
        self.outside = self.simulation.loop("outside", self.network)
        self.directory = directory
        choice = self.random.choice
        self.disk_delay_s = choice(((0.0, 0.0002), (0.0001, 0.005), (0.001, 0.1)))
        self.limits = Limits(
            inflight=choice((1, 3, 32)),
            conversations=choice((3, 32)),
            page_rows=choice((2, 200)),
            answers_bytes=choice((200, 64 << 10)),
            hello_timeout_s=5,
            beat_ms=choice((3_000, 10_000) if self.network.slow else (500, 5_000, 10_000, 10_000)),
            stall_s=choice((3, 20)),
            silence_s=choice((3, 20)),
            close_s=2,
            recheck_s=choice((1.5, 60)),
        )
        self.idle_timeout_s = choice((0.2, 1.0, 5.0, 60.0))
        self.max_resident = choice((1, 2, 10_000))
        self.mailbox_max = choice((2, 1_000))
        self.group_rows_max = choice((1, 2, 512))
        self.queue_rows_max = choice((4, 10_000))
        self.slow_access = self.random.random() < 0.3
        self.conversations = [
            f"{choice(('echo', 'echo', 'echo', 'relay', 'latest', 'preempt', 'reject'))}/{name}"
            for name in "abc"[: choice((1, 1, 2, 3))]
        ]
        self.max_attempts = choice((2, 1_000, 1_000))  # worlds kill more often than a message may be given up for
        self.turn_timeout_s = choice((None, None, None, 0.3))
        self.cancel_when_empty_s = choice((None, None, None, 0.2))
        # Who may not use what, and since when: principal and conversation.
        self.forbidden: dict[tuple[str, str], float] = {}
        self.ever_forbidden: set[tuple[str, str]] = set()
        # How far the wall clock of the server is off.
        self.clock_off_s = 0.0
        self.trouble = True
        self.storage_trouble = False
        self.host: Host | None = None
        self.incarnations = 0
        self.kills = 0
        self._constants: list[tuple[Any, str, Any]] = [
            (module, name, choice(values)) for module, name, values in PATCHED
        ]
        self._constants += chance(random.Random(seed))
        # Chance of its own: what is new here leaves the worlds of all seeds as they are.
        more = random.Random(f"{seed} committer")
        self._constants.append((committer_module, "LAZY_S", more.choice((0.0, 0.05))))
        self._constants.append((committer_module, "LAZY_PER_GROUP", more.choice((1, 8))))
        # Nobody is asked for a proxy, at each connection.
        self._constants.append((websockets_client, "get_proxy", lambda _uri: None))

    @property
    def random(self) -> random.Random:
        """Is the chance; another one while a killed process is buried."""
        return self.simulation.random

    def _written(self, connection: Connection, data: bytes) -> None:
        if not connection.server.loop.dead:
            self._wire(connection).written(data)

    def _read(self, connection: Connection, data: bytes) -> None:
        self._wire(connection).read(data)

    def _wire(self, connection: Connection) -> Wire:
        wire = self.wires.get(connection.number)
        if wire is None:
            wire = self.wires[connection.number] = Wire(connection.number, self)
        return wire

    @contextlib.contextmanager
    def laws(self) -> Iterator[None]:
        """Puts the laws of this world into force: its sizes, its chance, and what its log may say."""
        kept = [(module, name, getattr(module, name)) for module, name, _ in self._constants]
        ours = random.getstate()
        watch = LogWatch(self)
        product = logging.getLogger("parlatory")
        propagated, product.propagate = product.propagate, False
        for module, name, value in self._constants:
            setattr(module, name, value)
        random.seed(self.random.getrandbits(64))
        for logger in (product, logging.getLogger("asyncio")):
            logger.addHandler(watch)
        try:
            yield
        finally:
            product.propagate = propagated
            for logger in (product, logging.getLogger("asyncio")):
                logger.removeHandler(watch)
            random.setstate(ours)
            for module, name, value in kept:
                setattr(module, name, value)

    # -- the server

    def start(self) -> Host:
        """Starts a server on what the one before has left."""
        self.incarnations += 1
        self.host = Host(self, self.incarnations, self.directory)
        return self.host

    def restored(self, directory: Path) -> None:
        """Lets the next server start on another directory, which holds an earlier state of the log."""
        self.directory = directory
        self.truth.restored(*read_file(directory / FILE))
        self.history.add("restore", directory.name, self.truth.handled)

    def kill(self) -> None:
        """Kills the server between two steps of its loop."""
        assert self.host is not None
        self.directory = self.host.kill()
        self.host = None


class LogWatch(logging.Handler):
    """Takes an error in the log for a problem, unless the trouble of this world explains it."""

    # What the product says when storage has failed it.
    STORAGE = (
        "batches are not written",
        "storage has failed",
        "storage does not answer",
        "cannot be read",
        "frame failed",
        "was closed without a checkpoint",
    )

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world
        self._planned = [
            *(["is given up"] if world.max_attempts < 10 else []),
            *(["is over its"] if world.turn_timeout_s else []),
        ]

    def emit(self, record: logging.LogRecord) -> None:
        world = self._world
        text = record.getMessage()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if isinstance(loop, SimLoop) and loop.dead:
            return
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, Planned) or any(part in text for part in self._planned):
            return
        if world.storage_trouble and (isinstance(error, StorageError) or any(part in text for part in self.STORAGE)):
            return
        world.simulation.problem(f"logged: {text}", error)


class OrderedSet(set[Any]):
    """Is a set in the order of insertion: the order of a set of objects is their addresses', which no seed repeats."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[Any, None] = {}

    def add(self, item: Any) -> None:
        super().add(item)
        self._order[item] = None

    def discard(self, item: Any) -> None:
        super().discard(item)
        self._order.pop(item, None)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order)


class Host:
    """Is one server process, from its start to its end."""

    def __init__(self, world: World, number: int, directory: Path) -> None:
        self.world = world
        self.number = number
        self.loop = world.simulation.loop(f"server {number}", world.network)
        self.disk = Disk(world.simulation, self.loop, directory, world.truth, world.disk_delay_s)
        self.disk.opened()
        self.runtime: Runtime | None = None
        self.engine: SqliteEngine | None = None
        self.server: Server | None = None
        self.ready = False
        self.stopped = False
        self._stop = asyncio.Event()
        self._drain_s = 0.0
        self._application: set[asyncio.Task[None]] = set()
        world.history.add("start", number)
        self._main = self.loop.create_task(self._run(), name=f"server {number}")

    async def _run(self) -> None:
        world = self.world
        self.engine = await SqliteEngine.open(self.disk.directory, connect=self.disk.connect)
        committer = self.engine._committer
        committer._group_rows_max = world.group_rows_max
        committer._queue_rows_max = world.queue_rows_max
        committer._clock = lambda: int((world.simulation.now + world.clock_off_s) * 1_000_000)
        self.runtime = Runtime(
            self.engine,
            cast(world, self),
            idle_timeout_s=world.idle_timeout_s,
            watchdog_s=None,  # a thread, which looks at another clock
            max_resident=world.max_resident,
            mailbox_max=world.mailbox_max,
            redeliveries_max=2,
            # The row of what was stopped may have to wait for fifteen groups, of 0.2 s each on the slowest disk.
            stop_grace_s=5 if world.disk_delay_s[1] > 0.05 else 1,
        )
        async with self.runtime as runtime:
            serving = app_module.serve(runtime, port=PORT, limits=world.limits, drain_s=1, authorize=self._authorize)
            serving._server._connections = OrderedSet()
            async with serving as server:
                self.server = server
                self.ready = True
                await self._stop.wait()
                self.ready = False
                await server.close(self._drain_s)
        self.stopped = True

    def _authorize(self, principal: Principal, _action: str, conversation: ConversationName) -> Any:
        if self.world.slow_access and self.world.random.random() < 0.5:
            return self._authorized(principal.name, str(conversation))
        return (principal.name, str(conversation)) not in self.world.forbidden

    async def _authorized(self, principal: str, conversation: str) -> bool:
        await asyncio.sleep(self.world.random.uniform(0, 0.05))
        return (principal, conversation) not in self.world.forbidden

    def revoke(self, principal: str, conversation: str | None) -> None:
        """Takes access away at once; to a conversation for longer than this moment."""

        async def revoke() -> None:
            if self.server is not None and self.world.trouble:
                if conversation is not None:
                    self.world.forbidden[principal, conversation] = self.world.simulation.now
                    self.world.ever_forbidden.add((principal, conversation))
                self.world.history.add("revoke", principal, conversation)
                await self.server.revoke(principal, conversation)

        self.loop.call_soon(lambda: self.keep(self.loop.create_task(revoke(), name="revoke")))

    def stop(self, drain_s: float) -> None:
        """Asks the process to stop in good order."""
        self.world.history.add("stop", self.number, drain_s)
        self._drain_s = drain_s
        self.loop.call_soon(self._stop.set)

    def ended(self) -> None:
        """Looks at what a process that has stopped has left behind."""
        world = self.world
        self._main.result()
        world.network.kill(self.loop)
        for leftover in self.loop.leftovers():
            world.simulation.problem(f"left behind by server {self.number}: {leftover}")
        world.simulation.remove(self.loop)
        self.disk.reread()
        world.history.add("stopped", self.number)

    def busy(self) -> list[str]:
        """Returns the conversations whose user code runs or waits."""
        assert self.runtime is not None
        return [name for name, record in self.runtime._records.items() if not record.lane.quiet]

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keeps a task of the application that runs in this process."""
        self._application.add(task)
        task.add_done_callback(self._application.discard)

    @property
    def done(self) -> bool:
        """Says that the process has ended by itself."""
        return self._main.done()

    def kill(self) -> Path:
        """Kills the process; returns the directory that the next one starts on."""
        world = self.world
        world.history.add("kill", self.number)
        world.kills += 1
        copy = self.disk.directory.parent / str(self.number + 1)
        if self.disk.directory.exists():
            self.disk.reread()
            self.disk.copy_to(copy)
        self.loop.dead = True
        world.network.kill(self.loop)
        self.loop.bury()
        self.disk.close()
        if self.engine is not None:
            if self.engine._lock is not None:
                self.engine._lock.release()  # as the kernel does
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)
                self.engine = self.runtime = self.server = None
        return copy
