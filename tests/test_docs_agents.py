"""The agents of docs/agents.md, as they stand there: they run, and the example logs are what comes of them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from parlatory.actors import Agent, TurnBusy, TurnTold
from parlatory.actors.approvals import approval
from parlatory.actors.turn_marks import ATTEMPT
from parlatory.storage import Batch, Engine, assistant_message, new_row

from .actors.fakes import Recorder, new_user_row, until
from .actors.play import NAME, Play
from .actors.test_turns_recovery import left, restarted
from .providers.dialects import Chat
from .providers.server import provider
from .server.peers import serving

PAGE = (Path(__file__).parent.parent / "docs" / "agents.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.M | re.S)
LOGS = {kind: text for kind, text in BLOCKS if kind in ("queue", "latest", "preempt", "reject")}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """All Python of the page, as one module."""
    module = ModuleType("page_under_test")
    module.__file__ = str(tmp_path / "page.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile("\n".join(text for kind, text in BLOCKS if kind == "python"), module.__file__, "exec"), vars(module))
    return module


@pytest.fixture
def engine_kind() -> str:
    return "memory"


def bot(agent: type[Agent], **attributes: Any) -> type[Agent]:
    """The agent under the name that the harness uses."""
    return type("Bot", (agent,), {"name": "bot", **attributes})


async def answered(engine: Engine, agent: type[Agent], *texts: str) -> Play:
    play = await Play.begin(engine, agent=bot(agent))
    for text in texts:
        await play.send(text)
        await play.record.lane.join()
    return play


@pytest.mark.parametrize("on_busy", LOGS)
async def test_the_example_logs(page: ModuleType, engine: Engine, on_busy: str) -> None:
    leave = asyncio.Event()

    async def think(text: str) -> AsyncIterator[str]:
        await leave.wait()
        yield text

    page.think = think  # type: ignore[attr-defined]
    play = await Play.begin(engine, agent=bot(page.Patient, on_busy=on_busy))
    sink = Recorder()
    await sink.open(play.record)
    await play.send("one")
    await until(lambda: play.record.lane.writing)
    if on_busy == "reject":
        with pytest.raises(TurnBusy):
            play.record.post(new_user_row("two"))
    else:
        await play.send("two", "three")
    leave.set()
    await play.record.lane.join()
    assert await shown(play, sink) == LOGS[on_busy]
    await play.runtime.close()


async def shown(play: Play, sink: Recorder) -> str:
    """Writes a log as the page does."""
    lines = []
    for row in [row.stored(NAME) for row in await play.record.read()]:
        turn = "" if row.turn is None else f"turn {row.turn}"
        lines.append(f"{row.seq} {row.by:<5} {row.text:<8}  {turn} {row.finish or ''}".rstrip())
    told = [f"{event.id} {event.state}" for event in sink.events if isinstance(event, TurnTold)]
    return "\n".join([*lines, "told: " + ", ".join(told), ""])


async def test_the_first_agent(page: ModuleType, engine: Engine) -> None:
    play = await answered(engine, page.Bot, "hi")
    assert await play.texts() == ["hi", "You said hi. "]
    await play.runtime.close()


async def test_the_bounded_agent(page: ModuleType, engine: Engine) -> None:
    play = await answered(engine, page.Bounded, "hello")
    assert await play.texts() == ["hello", "5 characters"]
    await play.runtime.close()


async def test_the_essay(page: ModuleType, engine: Engine) -> None:
    play = await answered(engine, page.Essay, "hi")
    first, second = [row.stored(NAME) for row in await play.record.read(after=1)]
    assert [part.type for part in first.content] == ["reasoning", "text", "file"]
    assert (second.text, second.turn) == ("You said hi. ", 1)
    await play.runtime.close()


async def test_steps_are_not_taken_twice(page: ModuleType, engine: Engine) -> None:
    partition = await left(engine, "hi")
    await partition.commit(Batch(rows=(new_row(assistant_message("looking it up"), by="agent", turn=1)[1],)))
    runtime = await restarted(engine, bot(page.Steps))
    record = await runtime.conversation(NAME)
    await record.lane.join()
    assert [row.stored(NAME).text for row in await record.read()] == ["hi", "looking it up", "found it"]
    await runtime.close()


async def test_a_message_that_is_given_up(page: ModuleType, engine: Engine) -> None:
    await left(engine, "hi", attempt=b'{"seq":1,"number":3}')
    runtime = await restarted(engine, bot(page.Steps))
    record = await runtime.conversation(NAME)
    await record.lane.join()
    assert [row.finish for row in await record.read()] == [None, "error"]
    assert (await record.keys(ATTEMPT))[ATTEMPT] == b'{"seq":1,"number":4}'
    await runtime.close()


@pytest.mark.parametrize("agent", ["Shop", "OwnLoop"])
async def test_the_tools(page: ModuleType, engine: Engine, agent: str) -> None:
    """A tool runs; one that needs approval waits, and runs once it is approved."""
    async with provider() as model:
        dialect = Chat(model.url)
        for round_ in (
            dialect.call("c1", "weather", '{"city": "Rome"}'),
            dialect.call("c2", "cancel_order", '{"order": 7}'),
            dialect.say("It is done."),
        ):
            model.answer([*dialect.begin(), *round_, *dialect.end("stop")])

        async def ask(self: Agent) -> Any:
            return await dialect.ask("")

        play = await answered(engine, type("Bot", (getattr(page, agent),), {"ask": ask}), "go")
        await play.record.post(new_row(approval("c2"), by="ann")[1])
        await play.record.lane.join()
        await dialect.close()
    rows = [row.stored(NAME) for row in await play.record.read()]
    results = [getattr(result.output, "value", None) for row in rows for result in row.message.tool_results]
    assert results == ["Rain in Rome for 1 days.", "Order 7 is cancelled."]
    assert rows[-1].text == "It is done." and page.SCHEMAS[0]["function"]["name"] == "weather"
    await play.runtime.close()


async def test_what_clients_see(page: ModuleType) -> None:
    lines: list[tuple[Any, ...]] = []
    async with serving(page.Bot) as server, asyncio.timeout(10):
        await page.watch(server.url, lambda *said: lines.append(said))
    assert ("row", 2, "You said hello. ") in lines
    assert ("writes", "You said hello. ", "done") in lines
    assert lines[-1] == ("turn", 1, "done")


async def test_the_embedded_server_drains(page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    running = asyncio.ensure_future(page.main(port=0))
    await until(lambda: (tmp_path / "data" / "parlatory.sqlite").exists())
    await until(lambda: any("parlatory recheck" in task.get_name() for task in asyncio.all_tasks()))
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(20):
        await running
    asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
