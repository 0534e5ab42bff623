"""A seeded world of event loops: one loop per simulated process, one virtual clock, one random number generator.

What asyncio promises is kept: callbacks run in the order of `call_soon`, a timer never early. What it does not
promise comes from the generator: when a timer, a disk or a network delivers, how much time a turn of a loop
costs, and which of two processes runs first. Nothing blocks and nothing is threaded, so that a seed repeats a
run to the last step.

A callback that raises, a future whose exception nobody retrieved, an error that had to be ignored, and a task
that is left when its process has ended are problems, which fail the run. So is a world in which nothing will
ever happen again.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import sys
import warnings
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .net import Network

__all__ = ["SimLoop", "SimulatedFailure", "Simulation"]

BURIAL_ROUNDS = 50
BURIAL_STEPS = 200
# Of a world; a busy one takes a tenth of them. Where clients come back at once, for ever, it would take hours and,
# because nothing is collected meanwhile, gigabytes.
STEPS_MAX = 300_000


class SimulatedFailure(Exception):
    """Says that the run went wrong; `problems` of the simulation say how."""


class SimLoop(asyncio.BaseEventLoop):
    """Is the event loop of one simulated process. Unrealistic: `to_thread` runs its function in the loop."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        super().__init__()
        self.simulation = simulation
        self.name = name
        self.network: Network
        # The process was killed: what its remains do has no effect and is no problem.
        self.dead = False
        self._ready: Any
        self._scheduled: Any
        self.set_exception_handler(self._report)

    def time(self) -> float:
        return self.simulation.now

    def next_timer(self) -> float | None:
        """Returns when the next timer is due."""
        while self._scheduled and self._scheduled[0]._cancelled:
            heapq.heappop(self._scheduled)._scheduled = False
        return self._scheduled[0]._when if self._scheduled else None

    def fire_timers(self, now: float) -> None:
        """Makes the timers ready that are due."""
        timers = self._scheduled
        while timers and timers[0]._when <= now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)

    def step(self) -> None:
        """Runs what is ready now, as one iteration of asyncio does."""
        around = self.simulation.enter(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            self.simulation.leave(around)

    def leftovers(self) -> list[str]:
        """Returns what a process that has ended has left behind: tasks, and timers that are not cancelled."""
        tasks = [f"task {task.get_name()}" for task in asyncio.all_tasks(self)]
        timers = [timer._callback for timer in self._scheduled if not timer.cancelled()]
        ours = __name__.rpartition(".")[0]  # what is under way on the network and the disk
        left = [f"timer {callback!r}" for callback in timers if not callback.__module__.startswith(ours)]
        return sorted(tasks + left)

    def bury(self) -> None:
        """Ends what is left of a killed process, without any effect outside of it."""
        self.dead = True
        with self.simulation.set_aside(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a coroutine that had not begun, a connection that is not closed
            for _ in range(BURIAL_ROUNDS):
                self._scheduled.clear()
                tasks = asyncio.all_tasks(self)
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                for _ in range(BURIAL_STEPS):
                    if self._ready:
                        self.step()
            for task in asyncio.all_tasks(
                self
            ):  # one that was cancelled before it began, and whom somebody waits for in a loop
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(Exception):
                    task.get_coro().close()
        self.simulation.leave(self.simulation.enter(None))
        self.simulation.remove(self)

    def _report(self, _loop: object, context: dict[str, Any]) -> None:
        if not self.dead:
            error = context.get("exception")
            self.simulation.problem(f"{self.name}: {context['message']}: {error!r}", error)

    # -- what BaseEventLoop leaves to its subclasses

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future = self.create_future()
        delay = self.simulation.random.uniform(0, 0.001)

        def run() -> None:
            # In the loop, but later: whoever waits must not rely on its being done at once.
            if future.done():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(delay, run)
        return future

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(self, protocol_factory, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(self, protocol_factory, port)

    def _write_to_self(self) -> None:
        """Wakes nobody: nothing sleeps."""


class Simulation:
    """Is the clock, the chance and the processes.

    Attributes:
        random: the only source of randomness.
        now: seconds since the start.
        problems: what went wrong.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.problems: list[str] = []
        self.steps = 0
        # What an iteration of a loop takes at most. With 0 whatever is ready runs before anything else arrives.
        self.iteration_s = self.random.choice((0.0, 0.00005, 0.002))
        self._loops: list[SimLoop] = []
        # The loop whose step runs, or ran last, and within how many others: one kills a process and buries it.
        self._current: SimLoop | None = None
        self._depth = 0

    def enter(self, loop: SimLoop | None) -> SimLoop | None:
        """Makes a loop the running one; returns the one before. Costs nothing where that is the same."""
        before = self._current
        self._depth += 1
        if loop is not before:
            asyncio._set_running_loop(loop)
            self._current = loop
        return before

    def leave(self, before: SimLoop | None) -> None:
        """Ends a step. Only one within another gives way to that: otherwise who comes next sets itself."""
        self._depth -= 1
        if self._depth and before is not self._current:
            asyncio._set_running_loop(before)
            self._current = before

    def loop(self, name: str, network: Network) -> SimLoop:
        """Starts a process."""
        loop = SimLoop(self, name)
        loop.network = network
        self._loops.append(loop)
        return loop

    def remove(self, loop: SimLoop) -> None:
        """Ends a process."""
        if loop in self._loops:
            self._loops.remove(loop)
        loop.close()

    def problem(self, text: str, error: BaseException | None = None) -> None:
        """Takes note of something that is wrong; the run ends."""
        note = f"[{self.now - 1000:.6f}] {text}"
        if error is not None and error.__traceback__ is not None:
            import traceback

            note += "\n" + "".join(traceback.format_exception(error))
        self.problems.append(note)

    def run(self, main: Coroutine[Any, Any, None], loop: SimLoop, limit_s: float) -> None:
        """Runs the world until `main` is done.

        Raises:
            SimulatedFailure: something went wrong.
        """
        task = loop.create_task(main, name="main")
        end = self.now + limit_s
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(_first_iteration, _finalized)
        try:
            self._run(task, end)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            self.leave(self.enter(None))
        task.result()

    def _run(self, task: asyncio.Task[None], end: float) -> None:
        while not task.done():
            self._turn()
            if self.now > end:
                self.problem("the run does not come to its end, though its time is over")
            if self.steps > STEPS_MAX:
                self.problem(f"{STEPS_MAX} steps: something spins")
            if self.problems:
                raise SimulatedFailure

    def _turn(self) -> None:
        ready = [loop for loop in self._loops if loop._ready]
        if not ready:
            times = [when for loop in self._loops if (when := loop.next_timer()) is not None]
            if not times:
                self.problem("deadlock: nothing is ready and no timer runs")
                return
            self.now = max(self.now, min(times))
        else:
            loop = ready[0] if len(ready) == 1 else self.random.choice(ready)
            loop.step()
            self.steps += 1
            if self.iteration_s:
                self.now += self.random.random() * self.iteration_s
        now = self.now
        for loop in self._loops:
            if loop._scheduled and loop._scheduled[0]._when <= now:
                loop.fire_timers(now)

    @contextlib.contextmanager
    def set_aside(self) -> Any:
        """Keeps what happens inside from moving the chance, which must not depend on it."""
        kept, ours = self.random, random.getstate()
        self.random = random.Random(0)
        try:
            yield
        finally:
            self.random = kept
            random.setstate(ours)


def _first_iteration(generator: Any) -> None:
    asyncio.get_running_loop()._asyncgen_firstiter_hook(generator)  # type: ignore[attr-defined]


def _finalized(generator: Any) -> None:
    loop = asyncio._get_running_loop()
    if loop is not None:
        loop._asyncgen_finalizer_hook(generator)  # type: ignore[attr-defined]
