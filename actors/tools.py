r"""The tool loop: runs what a model asks for, each call once, and appends the results.

A call goes through these states. All but the first and the last are a key, `tool.<turn>.<call>`, where the turn is the
one whose answer holds the call:

    new ------------> started ----> (finished) ----> answered: its result is in the log, and its key is gone
     \-> waiting --/

- `started` is durable before the tool runs. Who finds it without a result knows that a process died in between: the
  call gets an error, and no second run. An idempotent tool has no such mark.
- `finished` holds the output of a tool while others of its group still run, so that a crash does not cost it.
- `waiting` is durable before the turn ends; a message of a user that approves the call makes it `started`.

The keys go in the batch that appends the results.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from ..storage import Batch, MessageLog, ParlatoryError, StoredMessage, ToolCall, check_message, kind_of, new_row
from .approvals import Approval, approvals_in, is_approval, tool_results
from .tool_schema import ArgumentsError, ToolOptions, arguments_of, convert, options_of, tool, tool_schemas

if TYPE_CHECKING:
    from .conversation import Conversation, TurnStorage
    from .turn import Turn

__all__ = ["Call", "Tools", "tool", "tool_schemas", "waiting_calls"]

KEYS = "tool."
PARALLEL_MAX = 8
ROUNDS_MAX = 32
OUTPUT_CHARACTERS_MAX = 100_000
ERROR_CHARACTERS_MAX = 500
GROUP_BYTES_MAX = 1_000_000  # of the 1 MiB of a message
RESULT_BYTES = 512  # what a result takes beside its output, without id and name
PAGE_ROWS = 500

STOPPED = "interrupted: the turn was stopped before there was a result; the tool may have had an effect"
NOT_BEGUN = "interrupted: the turn was stopped before the tool ran"
CRASHED = "interrupted: the process ended before there was a result; the tool may have had an effect"
TOO_MANY_ROUNDS = "not run: this turn has asked for tools too often"
ID_TAKEN = "not run: another call of the same id waits for approval"

Output: TypeAlias = dict[str, Any]
Call: TypeAlias = ToolCall | Mapping[str, Any]
Plan = Literal["run", "ask", "wait", "answer", "answered"]

logger = logging.getLogger("parlatory.actors")
_plain = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_encode = msgspec.json.Encoder().encode
_json = msgspec.json.Decoder()
# Tools that hold on to their cancellation, until they end: the loop itself does not hold a task.
_stubborn: set[asyncio.Task[None]] = set()


class Mark(msgspec.Struct, omit_defaults=True):
    """Is what storage holds of a call without a result; `row` and `place` are where a call that waits stands."""

    state: Literal["started", "finished", "waiting"]
    call: ToolCall | None = None
    row: int = 0
    place: int = 0
    output: Output | None = None


_mark = msgspec.json.Decoder(Mark)


class Job:
    """Is one call on its way to a result.

    Attributes:
        key: of its mark.
        mark: what storage held of it at the beginning.
        plan: what is to be done with it.
        begun: its tool was called, or may have been.
        output: what came of it, once something did.
    """

    __slots__ = ("arguments", "begun", "call", "function", "key", "mark", "output", "plan")

    def __init__(self, call: ToolCall, key: str, mark: Mark | None, function: Callable[..., Any] | None) -> None:
        self.call = call
        self.key = key
        self.mark = mark
        self.function = function
        self.arguments: dict[str, Any] = {}
        self.plan: Plan = "run"
        self.begun = False
        self.output: Output | None = None

    @property
    def options(self) -> ToolOptions:
        """Is what `tool()` says about the function."""
        return ToolOptions() if self.function is None else options_of(self.function)

    def answer(self, output: Output, plan: Plan = "answer") -> None:
        """Settles the call without a run."""
        self.output, self.plan = output, plan


def key_of(turn: int | str, call_id: str) -> str:
    """Returns the key of a call's mark; an id that is no plain word goes in as its digest."""
    if not _plain.fullmatch(call_id):
        call_id = "~" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{KEYS}{turn}.{call_id}"


async def read_marks(conversation: Conversation) -> dict[str, Mark]:
    """Returns the marks of all calls of a conversation that have one."""
    return {key: _mark.decode(value) for key, value in (await conversation.keys(KEYS)).items()}


async def waiting_calls(conversation: Conversation) -> set[tuple[int, str]]:
    """Returns the calls that wait for an approval, by the seq of their row and their id."""
    marks = (await read_marks(conversation)).values()
    return {(mark.row, mark.call.tool_call_id) for mark in marks if mark.call and mark.state == "waiting"}


class Tools:
    """Runs the tools of the running turn. `Agent` makes one for each use: what is to be kept is in storage."""

    def __init__(self, storage: TurnStorage, log: MessageLog, turn: Turn) -> None:
        self._storage = storage
        self._log = log
        self._turn = turn
        self._decisions = approvals_in(turn.trigger)
        # What an output may take: a text in characters, anything in bytes of its JSON.
        self._characters_max = OUTPUT_CHARACTERS_MAX
        self._bytes_max = GROUP_BYTES_MAX
        self._stopping = False
        # Results are decided: what a tool that would not stop returns is no result any more.
        self._over = False

    # -- what there is to do

    async def open_calls(self) -> list[ToolCall]:
        """Returns the calls that this turn has to see to; see `Agent.open_calls`."""
        calls = []
        if self._decisions:
            marks = [mark for mark in (await read_marks(self._storage.lane.conversation)).values() if mark.call]
            decided = {mark.row for mark in marks if self._decision(mark) is not None}
            marks = [mark for mark in marks if mark.row in decided]
            calls = [mark.call for mark in sorted(marks, key=lambda mark: (mark.row, mark.place)) if mark.call]
        known = {call.tool_call_id for call in calls}
        own = self._latest(await self._rows()).values()
        return calls + [call for _, call, result in own if result is None and call.tool_call_id not in known]

    def _decision(self, mark: Mark) -> Approval | None:
        """Returns what this turn's message says of a call; of one that did not exist when it was sent, nothing."""
        if mark.call is None or mark.row >= self._turn.id:
            return None
        return self._decisions.get(mark.call.tool_call_id)

    async def rounds(self, tools: Mapping[str, Callable[..., Any]], rounds_max: int) -> AsyncIterator[int]:
        """Yields while the model is to be asked; see `Agent.tool_rounds`."""
        calls = await self.open_calls()
        # A second approval, or one of an unknown call: nothing follows from it, now or in an earlier attempt.
        if not calls and is_approval(self._turn.trigger) and not any(row.role == "tool" for row in self._turn.rows):
            return
        for number in range(1, rounds_max + 1):
            await self.run(calls, tools)
            if self._turn.waiting:
                return
            yield number
            calls = await self.open_calls()
            if not calls:
                return
        logger.warning("turn %s of %r has used its %d rounds of tools", self._turn.id, self._storage.name, rounds_max)
        jobs = [Job(call, key_of(self._turn.id, call.tool_call_id), None, None) for call in calls]
        for job in jobs:
            job.answer(_error(TOO_MANY_ROUNDS))
        await self._append(jobs)

    async def _rows(self) -> list[StoredMessage]:
        """Returns the rows that this turn appended, without those of drafts that were not finished."""
        found = []
        after = self._turn.id
        while page := await self._log.read(after=after, limit=PAGE_ROWS):
            found += [row for row in page if row.turn == self._turn.id and row.finish is None]
            after = page[-1].seq
        return found

    @staticmethod
    def _latest(rows: Sequence[StoredMessage]) -> dict[str, tuple[int, ToolCall, Any]]:
        """Returns the latest call of each id: its row, itself, and its result or None."""
        calls: dict[str, tuple[int, ToolCall, Any]] = {}
        for row in rows:
            for call in row.message.tool_calls:
                if not call.provider_executed:
                    calls[call.tool_call_id] = (row.seq, call, None)
            for result in row.message.tool_results if row.role == "tool" else ():
                seq, asked, answer = calls.get(result.tool_call_id, (0, None, None))
                if asked is not None and answer is None:
                    calls[result.tool_call_id] = (seq, asked, result)
        return calls

    # -- running

    async def run(
        self,
        calls: Sequence[Call],
        tools: Mapping[str, Callable[..., Any]],
        parallel_max: int = PARALLEL_MAX,
        output_characters_max: int = OUTPUT_CHARACTERS_MAX,
    ) -> list[Any]:
        """Runs calls and appends their results; see `Agent.run_tools`."""
        wanted = [call for call in map(_as_call, calls) if not call.provider_executed]
        if len({call.tool_call_id for call in wanted}) < len(wanted):
            raise ValueError("run_tools: two calls of the same id")
        if not wanted:
            return []
        if self._storage.lane.writing:
            raise RuntimeError("run_tools: end the draft first, so that the calls are in the log before their results")
        labels = sum(len(f"{call.tool_call_id}{call.tool_name}".encode()) for call in wanted)
        self._characters_max = output_characters_max
        self._bytes_max = (GROUP_BYTES_MAX - labels) // len(wanted) - RESULT_BYTES
        jobs = await self._planned(wanted, tools)
        places = asyncio.Semaphore(parallel_max)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._ask([job for job in jobs if job.plan == "ask"])
            runs = [job for job in jobs if job.plan == "run"]
            for job in runs:
                work = self._perform(job, places, runs)
                tasks.append(asyncio.get_running_loop().create_task(work, name=f"parlatory tool {job.call.tool_name}"))
            if tasks:
                await asyncio.wait(tasks)
            for task in tasks:
                task.result()
        except asyncio.CancelledError:
            await self._stop(tasks)
            if self._storage.lane.cause != "interrupt":  # that is a crash: what is left belongs to the next attempt
                for job in jobs:
                    if job.output is None:
                        job.answer(_error(STOPPED if job.begun else NOT_BEGUN))
            if all(job.output is not None for job in jobs):
                await self._append(jobs)
            raise
        if any(job.plan == "wait" for job in jobs):
            self._turn.waiting = True
        return await self._append(jobs)

    async def _planned(self, calls: Sequence[ToolCall], tools: Mapping[str, Callable[..., Any]]) -> list[Job]:
        """Decides what is to be done with each call; reads what was done before only where there may be something."""
        again = self._turn.attempt > 1
        asks = any(options_of(tools[call.tool_name]).needs_approval for call in calls if call.tool_name in tools)
        marks = await read_marks(self._storage.lane.conversation) if again or asks or self._decisions else {}
        latest = self._latest(await self._rows()) if again or asks else {}
        elsewhere = {
            mark.call.tool_call_id: key for key, mark in marks.items() if mark.call and mark.row < self._turn.id
        }
        jobs: list[Job] = []
        for call in calls:
            id = call.tool_call_id
            key = key_of(self._turn.id, id)
            if key not in marks and id in elsewhere and marks[elsewhere[id]].call == call:
                key = elsewhere[id]
            job = Job(call, key, marks.get(key), tools.get(call.tool_name))
            row, _, result = latest.get(id, (0, call, None))
            if again and result is not None:
                job.answer({}, "answered")
                job.output = msgspec.to_builtins(result.output)
            elif job.mark is not None and self._resumed(job, job.mark):
                pass
            elif self._fits(job, tools) and job.mark is None and job.options.needs_approval:
                self._asking(job, row, len(jobs), id in elsewhere)
            jobs.append(job)
        return jobs

    def _resumed(self, job: Job, mark: Mark) -> bool:
        """Goes on with a call that has a mark; says whether that is all there is to do before it runs."""
        if mark.state == "finished":
            job.answer(mark.output or {})
        elif mark.state == "started":
            if job.options.idempotent:
                return False
            job.answer(_error(CRASHED))
        else:
            decision = self._decision(mark)
            if decision is not None and decision.approved:
                return False
            if decision is None:
                job.plan = "wait"
            else:
                reason = {"reason": decision.reason[:ERROR_CHARACTERS_MAX]} if decision.reason else {}
                job.answer({"type": "execution-denied", **reason})
        return True

    @staticmethod
    def _fits(job: Job, tools: Mapping[str, Callable[..., Any]]) -> bool:
        """Converts the arguments of a call; says whether it can run."""
        name = job.call.tool_name
        if job.function is None:
            job.answer(_error(f"there is no tool {name!r}; there are: {', '.join(tools) or 'none'}"))
        elif job.call.invalid is not None:
            job.answer(_error(f"the arguments of {name} are no JSON object: {job.call.invalid}"))
        else:
            try:
                job.arguments = convert(arguments_of(name, job.function), job.call.input)
                return True
            except ArgumentsError as error:
                job.answer(_error(f"wrong arguments of {name}: {error}"))
        return False

    @staticmethod
    def _asking(job: Job, row: int, place: int, taken: bool) -> None:
        if not row:
            raise ValueError(f"run_tools: call {job.call.tool_call_id!r} needs approval, and is in no row of this turn")
        if taken:  # an approval names a call by its id alone
            job.answer(_error(ID_TAKEN))
            return
        job.plan = "ask"
        job.mark = Mark("waiting", job.call, row, place)

    async def _ask(self, jobs: Sequence[Job]) -> None:
        """Makes it durable that calls wait for somebody."""
        if jobs:
            await self._storage.commit(Batch(puts={job.key: _encode(job.mark) for job in jobs}))
        for job in jobs:
            job.plan = "wait"

    async def _perform(self, job: Job, places: asyncio.Semaphore, group: Sequence[Job]) -> None:
        """Runs the tool of a call, in a task of its own."""
        async with places:
            if not job.options.idempotent:
                started = msgspec.structs.replace(job.mark or Mark("started"), state="started")
                try:
                    await self._storage.commit(Batch(puts={job.key: _encode(started)}))
                except ParlatoryError as error:
                    logger.error("tool %r of %r is not run", job.call.tool_name, self._storage.name, exc_info=error)
                    job.answer(_error("not run: the start could not be noted"))
                    return
            job.begun = True
            output = await self._called(job)
            if self._over:
                return
            job.output = output
        if any(other.output is None for other in group):
            finished = msgspec.structs.replace(job.mark or Mark("started"), state="finished", output=output)
            try:
                await self._storage.commit(Batch(puts={job.key: _encode(finished)}))
            except ParlatoryError as error:  # a crash now would cost this result
                logger.warning("a result of %r is not kept meanwhile: %s", self._storage.name, error)

    async def _called(self, job: Job) -> Output:
        assert job.function is not None
        name = job.call.tool_name
        try:
            output = _output(await _call(job.function, job.arguments), name)
            return _storable(_fitting(output, self._characters_max, self._bytes_max))
        except asyncio.CancelledError:
            if self._stopping:
                raise
            return _error(f"{name} was cancelled")
        except (Exception, SystemExit) as error:  # whatever a tool does is an answer to the model
            logger.warning("tool %r of %r failed", name, self._storage.name, exc_info=error)
            return _error(f"{type(error).__name__}: {error}")

    async def _stop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Cancels tools and waits for their end, until it is cancelled itself."""
        self._stopping = True
        for task in tasks:
            task.cancel()
        try:
            if tasks:
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                if not task.done():
                    logger.error("%s of %r swallows its cancellation", task.get_name(), self._storage.name)
                    _stubborn.add(task)
                    task.add_done_callback(_stubborn.discard)
        finally:
            self._over = True

    # -- results

    async def _append(self, jobs: Sequence[Job]) -> list[Any]:
        """Appends what has a result, in one message, without the marks; returns all results, in the order of calls."""
        results = [(job.call.tool_call_id, job.call.tool_name, job.output) for job in jobs if job.output is not None]
        fresh = [job for job in jobs if job.output is not None and job.plan != "answered"]
        if fresh:
            answers = [(job.call.tool_call_id, job.call.tool_name, job.output or {}) for job in fresh]
            _, row = new_row(tool_results(answers), by="agent")
            batch = Batch(rows=(row,), deletes=tuple(job.key for job in fresh))
            # It is not cancelled by halves: who is told of the stop finds the results in the log.
            appending = asyncio.ensure_future(self._storage.commit(batch))
            try:
                await asyncio.shield(appending)
            except asyncio.CancelledError:
                await asyncio.wait({appending})
                appending.result()
                raise
        return list(tool_results(results).tool_results) if results else []


def _as_call(call: Call) -> ToolCall:
    return call if isinstance(call, ToolCall) else msgspec.convert({**call, "type": "tool-call"}, ToolCall)


async def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Calls a tool: a coroutine function on the loop, any other in a thread."""
    if inspect.iscoroutinefunction(inspect.unwrap(function)):
        return await function(**arguments)
    value, error = await asyncio.to_thread(_caught, function, arguments)
    if error is not None:
        raise error
    return await value if inspect.isawaitable(value) else value


def _caught(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(**arguments), None
    except StopIteration as error:  # no future takes it
        return None, RuntimeError(f"StopIteration: {error}")
    except (Exception, SystemExit) as error:
        return None, error


def _error(text: str) -> Output:
    """Makes the output of a failure: short, and text that can be stored."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) > ERROR_CHARACTERS_MAX:
        text = text[:ERROR_CHARACTERS_MAX] + " ..."
    return {"type": "error-text", "value": text}


def _is_part(value: object) -> bool:
    return isinstance(value, msgspec.Struct) and getattr(value, "type", None) in ("text", "image", "file")


def _output(value: object, name: str) -> Output:
    """Returns what a tool returned as an output: text, parts of a message, or JSON."""
    if isinstance(value, str):
        return {"type": "text", "value": value}
    parts = value if isinstance(value, list | tuple) else (value,)
    if parts and all(map(_is_part, parts)):
        return {"type": "content", "value": [msgspec.to_builtins(part) for part in parts]}
    try:
        return {"type": "json", "value": _json.decode(_encode(value))}
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        return _error(f"{name} returned {kind_of(value)}, which is no JSON: {error}")


def _fitting(output: Output, characters_max: int, bytes_max: int) -> Output:
    """Returns an output that a message has room for: text is cut and says so, anything else becomes an error."""
    if output["type"] != "text":
        size = len(_encode(output))
        limit = bytes_max if output["type"] == "content" else min(characters_max, bytes_max)
        if output["type"] in ("json", "content") and size > limit:
            return _error(f"the result is too large: {size} bytes, and {limit} are taken")
        return output
    text = output["value"]
    keep = min(len(text), characters_max)
    while keep and len(_encode(text[:keep].encode("utf-8", "replace").decode())) > bytes_max:
        keep //= 2
    if keep == len(text):
        return output
    return {"type": "text", "value": f"{text[:keep]}\n[cut: {keep} of {len(text)} characters are shown]"}


def _storable(output: Output) -> Output:
    """Returns an output that can be stored and read back equal, or the error that says why it cannot."""
    try:
        check_message(tool_results([("c", "t", output)]))
    except (ParlatoryError, UnicodeError) as error:
        return _error(f"the result cannot be stored: {error}")
    return output
