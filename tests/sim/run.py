"""Running worlds: one seed, or many. `python -m tests.sim.run SEED` repeats one and shows its history."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from .checker import judge
from .history import History
from .loop import SimulatedFailure
from .people import Person
from .trouble import Trouble
from .world import World

__all__ = ["Outcome", "failures", "run_seed"]

RUN_LIMIT_S = 1500.0
REST_LIMIT_S = 400.0


class Outcome(NamedTuple):
    """Is how a run ended: what was wrong, and what a repetition has in common with it. Holds nothing of the world."""

    seed: int
    problems: list[str]
    history: History
    rows: int
    steps: int


def run_seed(seed: int) -> Outcome:
    """Runs the world of a seed."""
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None  # the disk is simulated: its real one may be fast
    with tempfile.TemporaryDirectory(prefix="parlatory-sim-", dir=place) as directory:
        return _run(seed, Path(directory))


def _run(seed: int, directory: Path) -> Outcome:
    world = World(seed, directory / "1")
    problems = world.simulation.problems
    collecting = gc.isenabled()
    gc.disable()  # what a collection finds must not depend on when it comes
    hook, sys.unraisablehook = (
        sys.unraisablehook,
        lambda found: world.simulation.problem(f"ignored: {found.exc_value!r}"),
    )
    try:
        with world.laws():
            people: list[Person] = []
            try:
                world.simulation.run(_live(world, people), world.outside, RUN_LIMIT_S)
                problems += judge(world, people)
            except SimulatedFailure:
                pass
            except Exception as error:
                world.simulation.problem("the world broke down", error)
            finally:
                _tear_down(world)
        with warnings.catch_warnings():
            # A killed process leaves coroutines that had not begun; from any other they are problems.
            warnings.simplefilter("ignore" if world.kills else "error")
            gc.collect()
    finally:
        sys.unraisablehook = hook
        if collecting:
            gc.enable()
    world.history.release()
    rows = sum(map(len, world.truth.rows.values()))
    return Outcome(seed, problems, world.history, rows, world.simulation.steps)


def _tear_down(world: World) -> None:
    """Ends what is left, so that nothing of a run that failed is met in the next one."""
    problems = list(world.simulation.problems)
    if world.host is not None and world.host.loop in world.simulation._loops:
        world.host.kill()
    world.outside.bury()
    world.simulation.problems[:] = problems


async def _live(world: World, people: list[Person]) -> None:
    """Is a run: trouble, rest, the end."""
    random = world.random
    trouble = Trouble(world)
    world.start()
    people += [Person(world, number) for number in range(random.randint(2, 4))]
    lives = [asyncio.ensure_future(person.live()) for person in people]
    await trouble.run(random.choice((0.8, 2.0, 5.0)))
    world.trouble = False
    world.history.add("heal")
    await trouble.heal()
    await asyncio.gather(*lives)
    await _come_to_rest(world, people)
    world.history.add("end")
    for person in people:
        await person.leave()
    await trouble.end()
    world.host = None
    await asyncio.sleep(1)
    me = asyncio.current_task()
    left = [task.get_name() for task in asyncio.all_tasks() if task is not me]
    if left or world.network.connections:
        world.history.problem(f"left behind outside: {sorted(left)}, {len(world.network.connections)} connections")


async def _come_to_rest(world: World, people: list[Person]) -> None:
    """Waits until everything is answered and everybody is at the head."""
    loop = asyncio.get_running_loop()
    until = loop.time() + REST_LIMIT_S
    settled = [asyncio.ensure_future(person.settle()) for person in people]
    calm = 0
    while calm < 3:
        await asyncio.sleep(0.5)
        assert world.host is not None and world.host.runtime is not None
        for person in people:
            await person.look()
        waiting = [one for person in people for one in person.waiting_for()]
        waiting += [f"the lane of {name}" for name in world.host.busy()]
        calm = 0 if waiting or not all(task.done() for task in settled) else calm + 1
        if loop.time() > until:
            world.history.problem(f"no rest after {REST_LIMIT_S:g} s without trouble: {waiting}")
            return
    await asyncio.gather(*settled)


def failures(seeds: Iterable[int]) -> Iterable[Outcome]:
    """Yields the runs that fail."""
    gc.collect()
    gc.freeze()
    for seed in seeds:
        outcome = run_seed(seed)
        if outcome.problems:
            yield outcome


def main(arguments: list[str]) -> int:
    """Runs `SEED`, showing its history; or `FIRST:LAST` or `SEED,SEED`, stopping at the first failure with `-x`."""
    say: Any = print
    first, colon, last = arguments[0].partition(":")
    seeds = range(int(first), int(last)) if colon else [int(seed) for seed in first.split(",")]
    if len(seeds) == 1 and not colon:
        outcome = run_seed(seeds[0])
        say(*outcome.history.lines(), sep="\n")
        say(*outcome.problems, sep="\n")
        say(f"seed {outcome.seed}: {outcome.rows} rows, {outcome.steps} steps, digest {outcome.history.digest()}")
        return bool(outcome.problems)
    started, failed, done = time.perf_counter(), 0, len(seeds)
    for outcome in failures(seeds):
        failed += 1
        say(f"seed {outcome.seed}:", outcome.problems[0], sep="\n", flush=True)
        if "-x" in arguments:
            done = seeds.index(outcome.seed) + 1
            break
    seconds = time.perf_counter() - started
    say(f"{failed} failed; {seconds:.1f} s, {done / seconds:.1f} schedules/s")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
