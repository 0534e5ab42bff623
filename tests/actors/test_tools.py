from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import msgspec
import pytest

from parlatory.actors import Agent
from parlatory.actors.tools import ROUNDS_MAX, key_of, tool
from parlatory.storage import Batch, Engine, MessageLog, NewRow, Partition, StorageFull, StoredMessage, ToolCall
from parlatory.storage.convert.repair import repair
from parlatory.storage.messages import File, Image, Text

from .bots import Faults
from .fakes import Recorder, steps, until
from .play import NAME, Play
from .test_tool_schema import Place, weather

Asked = list[tuple[str, str, dict[str, Any]]]


class Model:
    """A model that says what the test wants: text, or calls as (id, tool, input). Unrealistic: it never surprises."""

    def __init__(self, *answers: str | Asked) -> None:
        self.answers = list(answers)
        self.prompts: list[list[StoredMessage]] = []
        self.attempts: list[int] = []
        self.results: list[list[Any]] = []


async def prompted(log: MessageLog) -> list[StoredMessage]:
    """The rows of a prompt, as renderers get them."""
    rows = await log.context()
    return repair(rows, [], pending=await log._pending(rows))


def looping(model: Model, tools: Mapping[str, Callable[..., Any]], rounds_max: int = ROUNDS_MAX) -> type[Agent]:
    """An agent that asks the model until it asks for nothing."""

    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            model.attempts.append(self.turn.attempt)
            async for _ in self.tool_rounds(tools, rounds_max=rounds_max):
                model.prompts.append(await prompted(self.messages))
                async with self.reply() as draft:
                    answer = model.answers.pop(0)
                    if isinstance(answer, str):
                        await draft.write(answer)
                    for id, name, input in answer if isinstance(answer, list) else ():
                        await draft.tool_call(id, name, input)

    return Bot


def running(model: Model, calls: list[Any], tools: Mapping[str, Callable[..., Any]], **options: Any) -> type[Agent]:
    """An agent that runs the same calls in each turn, and keeps what it gets."""

    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            model.attempts.append(self.turn.attempt)
            model.results.append(await self.run_tools(calls, tools, **options))

    return Bot


def call(name: str, id: str = "c1", **input: Any) -> dict[str, Any]:
    return {"toolCallId": id, "toolName": name, "input": input}


async def outputs(engine: Engine, calls: list[Any], tools: Mapping[str, Any], **options: Any) -> list[Any]:
    """Runs calls in a turn, and returns the outputs in the one row they leave."""
    play = await Play.begin(engine, agent=running(Model(), calls, tools, **options))
    await play.send("go")
    await play.record.lane.join()
    rows = [row.stored(NAME) for row in await play.record.read()]
    assert [row.role for row in rows] == ["user", "tool"]
    assert rows[1].turn == 1
    assert await play.record.keys("tool.") == {}
    await play.runtime.close()
    return [result.output for result in rows[1].message.tool_results]


async def failure(engine: Engine, calls: list[Any], tools: Mapping[str, Any], **options: Any) -> str:
    (output,) = await outputs(engine, calls, tools, **options)
    assert output.type == "error-text"
    return str(output.value)


# -- what comes of a call


async def test_results_of_all_kinds_are_one_message_in_the_order_of_the_calls(engine: Engine) -> None:
    text = Text(text="look")
    image = Image(url="https://x.y/z.png")

    async def slow_text() -> str:
        await steps(20)
        return "words"

    tools: dict[str, Any] = {
        "text": slow_text,
        "none": lambda: None,
        "object": lambda: {"a": (1, Place("x"))},
        "empty": list,
        "part": lambda: image,
        "parts": lambda: (text, image),
        "late": lambda: slow_text(),
    }
    calls = [call(name, name) for name in tools if name != "empty"]
    found = await outputs(engine, [*calls, call("empty", "e")], {**tools, "empty": lambda: []})
    assert [output.type for output in found] == ["text", "json", "json", "content", "content", "text", "json"]
    assert [output.value for output in found] == [
        "words",
        None,
        {"a": [1, {"city": "x", "tags": []}]},
        (image,),
        (text, image),
        "words",
        [],
    ]


async def test_a_sync_tool_runs_in_a_thread_and_a_method_gets_its_arguments(engine: Engine) -> None:
    threads: list[threading.Thread] = []

    class Kit:
        def where(self, city: str, days: int = 1) -> str:
            threads.append(threading.current_thread())
            return f"{city} {days}"

    (output,) = await outputs(engine, [call("where", city="Rome")], {"where": Kit().where})
    assert output.value == "Rome 1"
    assert threads[0] is not threading.main_thread()


async def test_at_most_so_many_run_at_a_time(engine: Engine) -> None:
    active: list[int] = [0, 0]

    async def count() -> int:
        active[0] += 1
        active[1] = max(active)
        await steps(5)
        active[0] -= 1
        return 1

    calls = [call("count", f"c{n}") for n in range(7)]
    assert len(await outputs(engine, calls, {"count": count}, parallel_max=3)) == 7
    assert active == [0, 3]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (call("storm"), "there is no tool 'storm'; there are: weather"),
        (call("weather"), "wrong arguments of weather: $.city: is required"),
        ({**call("weather"), "invalid": '{"city": '}, 'the arguments of weather are no JSON object: {"city": '),
    ],
)
async def test_a_call_that_cannot_run_gets_an_error(engine: Engine, asked: Any, says: str) -> None:
    assert await failure(engine, [asked], {"weather": weather}) == says


async def test_without_tools_there_is_none(engine: Engine) -> None:
    assert await failure(engine, [call("x")], {}) == "there is no tool 'x'; there are: none"


def raising(error: BaseException) -> Callable[[], Any]:
    def fail() -> None:
        raise error

    return fail


def raising_soon(error: BaseException) -> Callable[[], Any]:
    async def fail() -> None:
        await asyncio.sleep(0)
        raise error

    return fail


@pytest.mark.parametrize("make", [raising, raising_soon])
async def test_an_exception_is_a_short_error_and_its_traceback_is_logged(
    engine: Engine, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    says = await failure(engine, [call("fail")], {"fail": make(KeyError("lone \ud800" + "x" * 1000))})
    assert says.startswith("KeyError: 'lone ")
    assert len(says) < 520
    assert "Traceback" in caplog.text
    assert "tool 'fail' of 'bot/ann' failed" in caplog.text


@pytest.mark.parametrize(
    ("fail", "says"),
    [
        (raising(StopIteration(7)), "RuntimeError: StopIteration: 7"),
        (raising(SystemExit(2)), "SystemExit: 2"),
        (raising_soon(SystemExit(2)), "SystemExit: 2"),
        (raising_soon(asyncio.CancelledError()), "fail was cancelled"),
    ],
)
async def test_a_tool_takes_nothing_down_with_it(
    engine: Engine, fail: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await failure(engine, [call("fail")], {"fail": fail}) == says


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (object(), "odd returned an object, which is no JSON: "),
        ("lone \ud800", "the result cannot be stored: "),
        (Image(), "the result cannot be stored: "),
        (["x" * 200_000], "the result is too large: 200028 bytes, and 100000 are taken"),
        (File(media_type="text/plain", data="QUJD" * 300_000), "the result is too large: 1200"),
    ],
)
async def test_a_result_that_cannot_be_stored_is_an_error(engine: Engine, value: Any, says: str) -> None:
    assert (await failure(engine, [call("odd")], {"odd": lambda: value})).startswith(says)


async def test_a_long_text_is_cut_and_says_so(engine: Engine) -> None:
    (output,) = await outputs(engine, [call("long")], {"long": lambda: "x" * 50}, output_characters_max=10)
    assert output.value == "x" * 10 + "\n[cut: 10 of 50 characters are shown]"


async def test_many_long_results_fit_into_one_message(engine: Engine) -> None:
    calls = [call("long", f"c{n}") for n in range(40)]
    found = await outputs(engine, calls, {"long": lambda: "\0" * 90_000})
    assert {output.type for output in found} == {"text"}
    assert all("[cut: " in output.value for output in found)


# -- what is no call of ours


async def test_nothing_to_run_leaves_no_row(engine: Engine) -> None:
    model = Model()
    theirs = ToolCall(tool_call_id="c1", tool_name="search", input={}, provider_executed=True)
    play = await Play.begin(engine, agent=running(model, [theirs], {}))
    await play.send("go")
    await play.record.lane.join()
    assert model.results == [[]]
    assert await play.texts() == ["go"]
    await play.runtime.close()


async def test_two_calls_of_one_id_are_refused(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    play = await Play.begin(engine, agent=running(Model(), [call("a"), call("b")], {}))
    await play.send("go")
    await play.record.lane.join()
    assert "two calls of the same id" in caplog.text
    await play.runtime.close()


async def test_tools_run_behind_the_draft_not_in_it(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    class Bot(Agent):
        async def on_message(self, row: StoredMessage) -> None:
            async with self.reply() as draft:
                await draft.tool_call("c1", "weather", {"city": "Rome"})
                await self.run_tools([call("weather", city="Rome")], {"weather": weather})

    play = await Play.begin(engine, agent=Bot)
    await play.send("go")
    await play.record.lane.join()
    assert "end the draft first" in caplog.text
    await play.runtime.close()


# -- the loop


async def test_rounds_go_on_until_no_tool_is_asked_for(engine: Engine) -> None:
    model = Model([("c1", "weather", {"city": "Rome"})], [("c1", "weather", {"city": "Oslo"})], "Rain.")
    play = await Play.begin(engine, agent=looping(model, {"weather": weather}))
    await play.send("go")
    await play.record.lane.join()
    assert await play.texts() == ["go", "", "Rome 3 None", "", "Oslo 3 None", "Rain."]
    assert [[row.seq for row in prompt] for prompt in model.prompts] == [[1], [1, 2, 3], [1, 2, 3, 4, 5]]
    assert not await play.marked()
    await play.runtime.close()


async def test_a_model_that_never_stops_asking_is_refused(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    model = Model(*[[("c1", "weather", {"city": "Rome"})]] * 2)
    play = await Play.begin(engine, agent=looping(model, {"weather": weather}, rounds_max=2))
    await play.send("go")
    await play.record.lane.join()
    assert (await play.texts())[-1] == "not run: this turn has asked for tools too often"
    assert "has used its 2 rounds of tools" in caplog.text
    await play.runtime.close()


async def test_an_answer_with_no_text_ends_the_rounds(engine: Engine) -> None:
    play = await Play.begin(engine, agent=looping(Model([]), {}))
    await play.send("go")
    await play.record.lane.join()
    assert await play.texts() == ["go"]
    await play.runtime.close()


# -- stops


class Tools:
    """Tools of one test: `quick` ends at once, `slow` when the test says, and they count their runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.begun = asyncio.Event()
        self.leave = asyncio.Event()

    def all(self) -> dict[str, Callable[..., Any]]:
        return {"quick": self.quick, "slow": self.slow, "again": self.again, "stubborn": self.stubborn}

    async def quick(self) -> str:
        self.runs.append("quick")
        return "quick is done"

    async def slow(self) -> str:
        self.runs.append("slow")
        self.begun.set()
        await self.leave.wait()
        return "slow is done"

    @tool(idempotent=True)
    async def again(self) -> str:
        self.runs.append("again")
        self.begun.set()
        await self.leave.wait()
        return "again is done"

    async def stubborn(self) -> str:
        self.begun.set()
        while not self.leave.is_set():
            try:
                await self.leave.wait()
            except asyncio.CancelledError:
                self.runs.append("swallowed")
        return "stubborn is done"


@pytest.fixture
async def tools() -> AsyncIterator[Tools]:
    made = Tools()
    yield made
    made.leave.set()
    await steps(3)


def asking(*names: str) -> Asked:
    return [(name, name, {}) for name in names]


async def test_a_stop_in_mid_tool_keeps_what_is_finished_and_answers_the_rest(engine: Engine, tools: Tools) -> None:
    calls = [call(name, name) for name in ("slow", "quick")] + [call("slow", "never begun")]
    play = await Play.begin(engine, agent=running(Model(), calls, tools.all(), parallel_max=2))
    sink = Recorder()
    await sink.open(play.record)
    await play.send("go")
    await tools.begun.wait()
    await until(lambda: tools.runs.count("slow") == 2)
    play.record.lane.cancel(1)
    await sink.until(lambda sink: (1, "stopped") in sink.turns)
    results = (await play.record.read())[-1].stored(NAME).message.tool_results
    assert [result.tool_call_id for result in results] == ["slow", "quick", "never begun"]
    texts = [getattr(result.output, "value", "") for result in results]
    assert texts[1] == "quick is done"
    assert texts[0].startswith("interrupted: ")
    assert await play.record.keys("tool.") == {}
    assert sink.turns[-1] == (1, "stopped")
    await play.runtime.close()


async def test_a_stop_before_a_tool_began_says_so(engine: Engine, tools: Tools) -> None:
    calls = [call("slow", "one"), call("slow", "two")]
    play = await Play.begin(engine, agent=running(Model(), calls, tools.all(), parallel_max=1))
    await play.send("go")
    await tools.begun.wait()
    play.record.lane.cancel(1)
    await play.record.lane.join()
    results = (await play.record.read())[-1].stored(NAME).message.tool_results
    assert [getattr(result.output, "value", "") for result in results] == [
        "interrupted: the turn was stopped before there was a result; the tool may have had an effect",
        "interrupted: the turn was stopped before the tool ran",
    ]
    assert tools.runs == ["slow"]
    await play.runtime.close()


async def test_a_tool_that_swallows_its_cancellation_is_left_at_the_second_one(
    engine: Engine, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    play = await Play.begin(engine, agent=running(Model(), [call("quick", "q"), call("stubborn")], tools.all()))
    await play.send("go")
    await tools.begun.wait()
    play.record.lane.cancel(1)  # the lane cancels again when the grace is over
    await play.record.lane.join()
    assert tools.runs == ["quick", "swallowed"]
    assert (await play.texts())[-1].startswith("quick is doneinterrupted: ")
    assert "parlatory tool stubborn of 'bot/ann' swallows its cancellation" in caplog.text
    tools.leave.set()
    await steps(5)
    assert len(await play.texts()) == 2
    await play.runtime.close()


async def test_a_stop_while_the_results_are_committed_finds_them_in_the_log(engine: Engine, tools: Tools) -> None:
    play = await Play.begin(engine, agent=running(Model(), [call("quick")], tools.all()))
    submit = play.engine.submit

    def stopping(partition: Partition, batch: Batch, told: Any = None) -> Any:
        if batch.rows and batch.rows[0].body.startswith(b'{"role":"tool"'):
            asyncio.get_running_loop().call_soon(play.record.lane.cancel, 1)
        return submit(partition, batch, told)

    play.engine.submit = stopping  # type: ignore[method-assign]
    sink = Recorder()
    await sink.open(play.record)
    await play.send("go")
    await sink.until(lambda sink: bool(sink.turns) and sink.turns[-1][1] != "running")
    assert sink.turns[-1] == (1, "stopped")
    assert (await play.texts())[-1] == "quick is done"
    await play.runtime.close()


# -- crashes


async def left(engine: Engine, *calls: tuple[str, str, dict[str, Any]], puts: Mapping[str, bytes]) -> None:
    """What a process left that died in the turn of message 1, after its answer with these calls."""
    content = [{"type": "tool-call", "toolCallId": id, "toolName": name, "input": input} for id, name, input in calls]
    body = msgspec.json.encode({"role": "assistant", "content": content})
    rows = (NewRow(body=b'{"role":"user","content":"go"}', by="ann"), NewRow(body=body, by="agent", turn=1))
    await (await engine.partition(NAME)).commit(Batch(rows=rows, puts={**SINCE, **puts}, work=True))


SINCE = {"turn.since": b"0"}
STARTED = b'{"state":"started"}'


async def redelivered(engine: Engine, model: Model, tools: Tools) -> Play:
    play = await Play.begin(engine, agent=looping(model, tools.all()))
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert await play.record.keys("tool.") == {}
    return play


async def test_a_tool_that_was_running_in_a_crash_gets_an_error_and_no_second_run(engine: Engine, tools: Tools) -> None:
    await left(engine, *asking("quick"), puts={key_of(1, "quick"): STARTED})
    model = Model("Well.")
    play = await redelivered(engine, model, tools)
    assert tools.runs == []
    assert model.attempts == [2]
    texts = await play.texts()
    assert texts[2].startswith("interrupted: the process ended")
    assert texts[3] == "Well."
    await play.runtime.close()


async def test_a_tool_that_was_not_begun_before_a_crash_runs(engine: Engine, tools: Tools) -> None:
    await left(engine, *asking("quick"), puts={})
    play = await redelivered(engine, Model("Well."), tools)
    assert tools.runs == ["quick"]
    assert (await play.texts())[2:] == ["quick is done", "Well."]
    await play.runtime.close()


async def test_an_idempotent_tool_runs_again(engine: Engine, tools: Tools) -> None:
    await left(engine, *asking("again"), puts={key_of(1, "again"): STARTED})
    tools.leave.set()
    play = await redelivered(engine, Model("Well."), tools)
    assert tools.runs == ["again"]
    assert (await play.texts())[2:] == ["again is done", "Well."]
    await play.runtime.close()


async def test_a_drain_in_mid_tool_leaves_the_marks_and_what_was_finished(engine: Engine, tools: Tools) -> None:
    model = Model(asking("quick", "slow", "again"), "Well.")
    play = await Play.begin(engine, agent=looping(model, tools.all()))
    await play.send("go")
    await until(lambda: len(tools.runs) == 3)
    tools.runs.sort()
    while b"finished" not in b"".join((await play.record.keys("tool.")).values()):  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    assert sorted(await play.record.keys("tool.")) == [key_of(1, "quick"), key_of(1, "slow")]
    await play.runtime.drain(0)
    assert await play.texts() == ["go", ""]
    tools.leave.set()
    play = await redelivered(engine, model, tools)
    assert tools.runs == ["again", "quick", "slow", "again"]
    results = (await play.record.read())[2].stored(NAME).message.tool_results
    values = [getattr(result.output, "value", "") for result in results]
    assert (values[0], values[2]) == ("quick is done", "again is done")
    assert values[1].startswith("interrupted: the process ended")
    assert (await play.texts())[-1] == "Well."
    await play.runtime.close()


async def test_a_drain_when_all_is_finished_keeps_all(engine: Engine) -> None:
    """The drain begins in the step in which the last tool ends."""

    async def last() -> str:
        draining.append(asyncio.ensure_future(play.runtime.drain(0)))
        await steps(1)
        return "last is done"

    draining: list[asyncio.Future[None]] = []
    play = await Play.begin(engine, agent=running(Model(), [call("last")], {"last": last}))
    await play.send("go")
    await until(lambda: bool(draining))
    await draining[0]
    assert await play.texts() == ["go", "last is done"]
    await play.runtime.close()


async def test_what_an_earlier_attempt_answered_is_returned_and_not_run(engine: Engine, tools: Tools) -> None:
    await left(engine, *asking("quick", "slow"), puts={})
    bodies = [
        msgspec.json.encode({"role": "tool", "content": [tool_result("quick", text), tool_result("z", "of nothing")]})
        for text in ("x", "a second one")
    ]
    rows = tuple(NewRow(body=body, by="agent", turn=1) for body in bodies)
    await (await engine.partition(NAME)).commit(Batch(rows=rows))
    model = Model()
    calls = [call("quick", "quick"), call("slow", "slow")]
    play = await Play.begin(engine, agent=running(model, calls, tools.all()))
    tools.leave.set()
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert tools.runs == ["slow"]
    assert [result.output.value for result in model.results[0]] == ["x", "slow is done"]
    last = (await play.record.read())[-1].stored(NAME).message
    assert [result.tool_call_id for result in last.tool_results] == ["slow"]
    await play.runtime.close()


def tool_result(id: str, text: str, name: str = "quick") -> dict[str, Any]:
    return {"type": "tool-result", "toolCallId": id, "toolName": name, "output": {"type": "text", "value": text}}


async def test_calls_of_a_draft_that_was_not_finished_are_not_run(engine: Engine, tools: Tools) -> None:
    body = b'{"role":"assistant","content":[{"type":"tool-call","toolCallId":"a","toolName":"quick","input":{}}]}'
    rows = (
        NewRow(body=b'{"role":"user","content":"go"}', by="ann"),
        NewRow(body=body, by="agent", turn=1, finish="interrupted"),
    )
    await (await engine.partition(NAME)).commit(Batch(rows=rows, puts=SINCE, work=True))
    play = await redelivered(engine, Model("Well."), tools)
    assert tools.runs == []
    assert await play.texts() == ["go", "", "Well."]
    await play.runtime.close()


async def test_a_start_that_cannot_be_noted_is_no_start(
    engine: Engine, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    play = await Play.begin(engine, agent=running(Model(), [call("quick")], tools.all()))
    faults = Faults(play.engine)
    key = key_of(1, "c1")
    faults.submits = lambda partition, batch: StorageFull("no space") if key in batch.puts else None
    await play.send("go")
    await play.record.lane.join()
    assert (await play.texts())[-1] == "not run: the start could not be noted"
    assert tools.runs == []
    assert "no space" in caplog.text
    await play.runtime.close()


async def test_a_result_that_cannot_be_kept_meanwhile_is_appended_in_the_end(
    engine: Engine, tools: Tools, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [call("quick", "a"), call("slow", "b")]
    play = await Play.begin(engine, agent=running(Model(), calls, tools.all()))
    faults = Faults(play.engine)
    faults.submits = lambda partition, batch: (
        StorageFull("no space") if b"finished" in b"".join(batch.puts.values()) else None
    )
    await play.send("go")
    await until(lambda: faults.refused == 1)
    tools.leave.set()
    await play.record.lane.join()
    assert (await play.texts())[-1] == "quick is doneslow is done"
    assert "is not kept meanwhile: no space" in caplog.text
    await play.runtime.close()


def test_ids_that_are_no_words_have_keys_too() -> None:
    assert key_of(1, "call_1.a:b-c") == "tool.1.call_1.a:b-c"
    odd = {key_of(1, id) for id in ("", "a b", "\n", "\ud800", "x" * 129)}
    assert len(odd) == 5
    assert all(len(key) == 40 and key.isascii() for key in odd)
