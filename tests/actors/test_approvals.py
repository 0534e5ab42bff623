from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parlatory.actors.approvals import APPROVAL, approval, approvals_in, in_words, is_approval
from parlatory.actors.tools import key_of, tool
from parlatory.storage import (
    Batch,
    Engine,
    Message,
    NewRow,
    Partition,
    StoredMessage,
    assistant_message,
    encode_message,
    new_row,
    open_engine,
    parse_message,
    user_message,
)

from .fakes import Recorder, until
from .play import NAME, Play
from .test_tools import SINCE, STARTED, Model, asking, call, left, looping, running


class Kit:
    """Tools that need approval, one that does not, and what ran."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.begun = asyncio.Event()
        self.leave = asyncio.Event()
        self.leave.set()

    def all(self) -> Mapping[str, Callable[..., Any]]:
        return {"delete": self.delete, "again": self.again, "look": self.look}

    @tool(needs_approval=True)
    async def delete(self, path: str = "/") -> str:
        self.runs.append(f"delete {path}")
        self.begun.set()
        await self.leave.wait()
        return "deleted"

    @tool(needs_approval=True, idempotent=True)
    async def again(self) -> str:
        self.runs.append("again")
        self.begun.set()
        await self.leave.wait()
        return "again"

    async def look(self) -> str:
        self.runs.append("look")
        return "seen"


async def decide(play: Play, id: str, approved: bool = True, reason: str | None = None, by: str = "bob") -> int:
    _, row = new_row(approval(id, approved, reason), by=by)
    committed = await play.record.post(row)
    await play.record.lane.join()
    return committed.seq


async def asked(engine: Engine, kit: Kit, *answers: Any) -> tuple[Play, Model, Recorder]:
    """A conversation whose first turn asked for what the first answer says."""
    model = Model(*answers)
    play = await Play.begin(engine, agent=looping(model, kit.all()))
    sink = Recorder()
    await sink.open(play.record)
    await play.send("go")
    await play.record.lane.join()
    return play, model, sink


def values(row: StoredMessage) -> list[str]:
    return [getattr(result.output, "value", result.output.type) for result in row.message.tool_results]


# -- asking, approving, denying


async def test_asking_ends_the_turn_and_an_approval_runs_the_tool_once(engine: Engine) -> None:
    kit = Kit()
    play, model, sink = await asked(engine, kit, [("c1", "delete", {"path": "/x"})], "Done.")
    assert sink.turns[-1] == (1, "waiting")
    assert play.record.lane.idle or play.record.lane.quiet
    assert not await play.marked()
    assert kit.runs == []
    assert await play.texts() == ["go", ""]
    assert list(await play.record.keys("tool.")) == [key_of(1, "c1")]

    assert await decide(play, "c1") == 3
    assert kit.runs == ["delete /x"]
    assert await play.texts() == ["go", "", "", "deleted", "Done."]
    assert [row.turn for row in await play.record.read()] == [None, 1, None, 3, 3]
    assert sink.turns[-1] == (3, "done")
    assert await play.record.keys("tool.") == {}

    await decide(play, "c1")  # a second approval, and one of an unknown call
    await decide(play, "c9")
    assert kit.runs == ["delete /x"]
    assert len(model.prompts) == 2
    assert (await play.texts())[5:] == ["", ""]
    await play.runtime.close()


@pytest.mark.parametrize("reason", [None, "not on a Friday"])
async def test_a_denial_is_the_result(engine: Engine, reason: str | None) -> None:
    kit = Kit()
    play, _, _ = await asked(engine, kit, asking("delete"), "As you like.")
    await decide(play, "delete", False, reason)
    (result,) = (await play.record.read())[3].stored(NAME).message.tool_results
    assert (result.output.type, getattr(result.output, "reason", 0)) == ("execution-denied", reason)
    assert (await play.texts())[-1] == "As you like."
    await decide(play, "delete", True)
    assert kit.runs == []
    await play.runtime.close()


async def test_other_messages_run_meanwhile_and_see_the_call_as_pending(engine: Engine) -> None:
    kit = Kit()
    play, model, sink = await asked(engine, kit, asking("delete"), "It waits.", "Done.")
    await play.send("and now?")
    await play.record.lane.join()
    assert (await play.texts())[-1] == "It waits."
    assert sink.turns[-1] == (3, "done")
    assert [row.role for row in model.prompts[1]] == ["user", "assistant", "tool", "user"]
    assert values(model.prompts[1][2])[0].startswith("pending: ")
    await decide(play, "delete")
    assert [row.text for row in model.prompts[2]] == [
        "go",
        "",
        "deleted",
        "and now?",
        "It waits.",
        "[approved: tool call delete]",
    ]
    assert kit.runs == ["delete /"]
    await play.runtime.close()


async def test_the_others_of_a_group_run_and_the_model_is_asked_when_all_are_decided(engine: Engine) -> None:
    kit = Kit()
    group = [("b", "delete", {"path": "b"}), ("look", "look", {}), ("a", "delete", {"path": "a"})]
    play, model, sink = await asked(engine, kit, group, "Done.")
    assert kit.runs == ["look"]
    assert sink.turns[-1] == (1, "waiting")
    await decide(play, "a")
    assert kit.runs == ["look", "delete a"]
    assert sink.turns[-1] == (4, "waiting")
    assert len(model.prompts) == 1
    await decide(play, "b", False)
    assert len(model.prompts) == 2
    assert values(model.prompts[1][2]) == ["execution-denied", "seen", "deleted"]
    await play.runtime.close()


async def test_one_message_decides_several_calls(engine: Engine) -> None:
    kit = Kit()
    group = [("b", "delete", {"path": "b"}), ("a", "delete", {"path": "a"})]
    play, _, _ = await asked(engine, kit, group, "Done.")
    parts: Any = [*approval("a").content, *approval("b", False).content]
    _, row = new_row(user_message(parts), by="bob")
    await play.record.post(row)
    await play.record.lane.join()
    assert kit.runs == ["delete a"]
    assert values((await play.record.read())[3].stored(NAME)) == ["execution-denied", "deleted"]
    await play.runtime.close()


async def test_a_call_that_cannot_run_is_not_asked_for(engine: Engine) -> None:
    kit = Kit()
    play, _, _ = await asked(engine, kit, [("c1", "delete", {"path": 7})], "Oh.")
    assert (await play.texts())[2:] == ["wrong arguments of delete: $.path: Expected `str`, got `int`", "Oh."]
    await play.runtime.close()


async def test_a_call_whose_id_waits_already_is_refused(engine: Engine) -> None:
    kit = Kit()
    play, _, _ = await asked(engine, kit, [("c1", "delete", {"path": "a"})], [("c1", "delete", {"path": "b"})], "Oh.")
    await play.send("more")
    await play.record.lane.join()
    assert (await play.texts())[-2:] == ["not run: another call of the same id waits for approval", "Oh."]
    await play.runtime.close()


async def test_an_approval_does_not_reach_a_call_that_came_later(engine: Engine) -> None:
    kit = Kit()
    play, _, sink = await asked(engine, kit, asking("delete"), asking("delete"))
    await decide(play, "delete")
    assert sink.turns[-1] == (3, "waiting"), "the next answer asks for the same id again"
    assert kit.runs == ["delete /"]
    mark = msgspec.json.decode((await play.record.keys("tool."))[key_of(3, "delete")])
    assert (mark["state"], mark["row"]) == ("waiting", 5)
    await play.runtime.close()


async def test_a_call_that_is_in_no_row_cannot_be_asked_for(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    play = await Play.begin(engine, agent=running(Model(), [call("delete")], Kit().all()))
    await play.send("go")
    await play.record.lane.join()
    assert "call 'c1' needs approval, and is in no row of this turn" in caplog.text
    await play.runtime.close()


async def test_a_stop_of_the_turn_that_runs_an_approved_call(engine: Engine) -> None:
    kit = Kit()
    kit.leave.clear()
    play, _, sink = await asked(engine, kit, [("a", "delete", {}), ("b", "delete", {})])
    _, row = new_row(approval("a"), by="bob")
    await play.record.post(row)
    await kit.begun.wait()
    play.record.lane.cancel(3)
    await play.record.lane.join()
    assert sink.turns[-1] == (3, "stopped")
    assert all(value.startswith("interrupted: ") for value in values((await play.record.read())[-1].stored(NAME)))
    assert await play.record.keys("tool.") == {}
    await decide(play, "b")
    assert kit.runs == ["delete /"]
    await play.runtime.close()


async def test_a_stop_while_the_question_is_committed_answers_the_call(engine: Engine) -> None:
    submit = engine.submit

    def stopping(partition: Partition, batch: Batch, told: Any = None) -> Any:
        if key_of(1, "delete") in batch.puts:
            asyncio.get_running_loop().call_soon(play.record.lane.cancel, 1)
        return submit(partition, batch, told)

    kit = Kit()
    play = await Play.begin(engine, agent=looping(Model(asking("delete")), kit.all()))
    engine.submit = stopping  # type: ignore[method-assign]
    await play.send("go")
    await play.record.lane.join()
    assert (await play.texts())[2:] == ["interrupted: the turn was stopped before the tool ran"]
    assert await play.record.keys("tool.") == {}
    await decide(play, "delete")
    assert kit.runs == []
    await play.runtime.close()


# -- processes that end


async def test_a_pending_call_survives_a_restart_and_runs_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'data'}"
    kit = Kit()
    play, _, _ = await asked(await open_engine(url), kit, asking("delete"))
    await play.runtime.close()

    model = Model("Done.")
    play = await Play.begin(await open_engine(url), agent=looping(model, kit.all()))
    assert not await play.marked()
    await decide(play, "delete", by="B")
    assert kit.runs == ["delete /"]
    assert await play.texts() == ["go", "", "", "deleted", "Done."]
    await play.runtime.close()

    play = await Play.begin(await open_engine(url), agent=looping(model, kit.all()))
    await decide(play, "delete", by="B")
    assert kit.runs == ["delete /"]
    await play.runtime.close()


async def test_a_crash_between_asking_and_the_end_of_the_turn_does_not_ask_again(engine: Engine) -> None:
    kit = Kit()
    waits = {"type": "tool-call", **call("delete", "delete")}
    mark = msgspec.json.encode({"state": "waiting", "call": waits, "row": 2})
    await left(engine, *asking("delete"), puts={key_of(1, "delete"): mark})
    model = Model("Done.")
    play = await Play.begin(engine, agent=looping(model, kit.all()))
    sink = Recorder()
    await sink.open(play.record)
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert sink.turns[-1] == (1, "waiting")
    assert model.prompts == []
    await decide(play, "delete")
    assert kit.runs == ["delete /"]
    await play.runtime.close()


async def crashed(engine: Engine, kit: Kit, name: str, *answers: Any) -> tuple[Play, Model]:
    """A conversation that was drained while the approved tool ran, in a new runtime."""
    kit.leave.clear()
    play, model, _ = await asked(engine, kit, asking(name), *answers)
    _, row = new_row(approval(name), by="bob")
    await play.record.post(row)
    await kit.begun.wait()
    await play.runtime.drain(0)
    kit.leave.set()
    play = await Play.begin(engine, agent=looping(model, kit.all()))
    play.record.lane.redeliver()
    await play.record.lane.join()
    return play, model


async def test_a_crash_while_the_approved_tool_runs_gives_an_error_and_no_second_run(engine: Engine) -> None:
    kit = Kit()
    play, model = await crashed(engine, kit, "delete", "Well.")
    assert kit.runs == ["delete /"]
    assert model.attempts == [1, 1, 2]
    assert (await play.texts())[3].startswith("interrupted: the process ended")
    await decide(play, "delete")
    assert kit.runs == ["delete /"]
    assert await play.record.keys("tool.") == {}
    await play.runtime.close()


async def test_an_approved_idempotent_tool_runs_again(engine: Engine) -> None:
    kit = Kit()
    play, _ = await crashed(engine, kit, "again", "Well.")
    assert kit.runs == ["again", "again"]
    assert (await play.texts())[3:] == ["again", "Well."]
    await play.runtime.close()


async def test_a_crash_behind_the_result_goes_on_with_the_model(engine: Engine) -> None:
    """The approved tool has run, and the answer to it was lost: the approval is not a second one."""
    kit = Kit()
    result = {"type": "tool-result", "toolCallId": "a", "toolName": "delete", "output": {"type": "text", "value": "x"}}
    rows = [
        NewRow(body=encode_message(approval("a")), by="bob"),
        NewRow(body=msgspec.json.encode({"role": "tool", "content": [result]}), by="agent", turn=1),
    ]
    await (await engine.partition(NAME)).commit(Batch(rows=rows, puts=SINCE, work=True))
    model = Model("Well.")
    play = await Play.begin(engine, agent=looping(model, kit.all()))
    play.record.lane.redeliver()
    await play.record.lane.join()
    assert (await play.texts())[-1] == "Well."
    await play.runtime.close()


async def test_what_was_never_asked_for_cannot_be_approved(engine: Engine) -> None:
    """A call that a crash left without a result, in a turn that was given up, is not to be run by an approval."""
    kit = Kit()
    await left(engine, *asking("delete"), puts={key_of(1, "delete"): STARTED, "turn.handled": b"2"})
    play = await Play.begin(engine, agent=looping(Model(), kit.all()))
    await decide(play, "delete")
    assert kit.runs == []
    await until(lambda: play.record.lane.quiet)
    assert len(await play.texts()) == 3
    await play.runtime.close()


# -- what is an approval


def stored(seq: int, message: Message, turn: int | None = None) -> StoredMessage:
    return StoredMessage(seq=seq, at=datetime(2026, 1, 1, tzinfo=UTC), by="x", message=message, turn=turn)


def parsed(**fields: Any) -> Message:
    return parse_message(msgspec.json.encode(fields))


def test_what_a_message_decides() -> None:
    row = stored(1, approval("c1", False, "no"))
    (decision,) = approvals_in(row).values()
    assert (decision.tool_call_id, decision.approved, decision.reason) == ("c1", False, "no")
    assert is_approval(row)
    assert row.message.role == "user"
    assert encode_message(row.message) == (
        b'{"role":"user","content":[{"type":"custom","kind":"parlatory.approval",'
        b'"data":{"toolCallId":"c1","approved":false,"reason":"no"}}]}'
    )


@pytest.mark.parametrize(
    "message",
    [
        user_message("yes"),
        user_message(""),
        user_message(()),
        parsed(role="user", content=[{"type": "custom", "kind": "a.b", "data": {"toolCallId": "c", "approved": True}}]),
        assistant_message("yes"),
        assistant_message(()),
    ],
)
def test_other_messages_decide_nothing(message: Message) -> None:
    assert approvals_in(stored(1, message)) == {}
    assert not is_approval(stored(1, message))


@pytest.mark.parametrize("data", [None, {}, {"toolCallId": "c1"}, {"toolCallId": 1, "approved": True}, {"approved": 1}])
def test_an_approval_that_is_none_is_ignored(data: Any) -> None:
    row = stored(1, parsed(role="user", content=[{"type": "custom", "kind": APPROVAL, "data": data}]))
    assert approvals_in(row) == {}
    assert is_approval(row), "and there is nothing else in it to answer"


# -- prompts


def test_an_approval_is_words_in_a_prompt() -> None:
    parts: Any = [
        *approval("a").content,
        *approval("b", False).content,
        *parsed(
            role="user",
            content=[
                {"type": "text", "text": "go on"},
                {"type": "custom", "kind": "x.y", "data": 1},
            ],
        ).content,
    ]
    row = in_words(stored(1, user_message(parts, name="ann")))
    assert row.text == "[approved: tool call a]\n[denied: tool call b]go on"
    assert [part.type for part in row.content] == ["text", "text", "custom"]
    assert row.message.name == "ann"
    plain = stored(1, user_message("go"))
    assert in_words(plain) is plain
