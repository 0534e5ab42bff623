from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from parlatory.actors import Draft
from parlatory.actors.turn_log import in_turn_order
from parlatory.storage import (
    Batch,
    Engine,
    Message,
    NewRow,
    StoredMessage,
    assistant_message,
    encode_message,
    tool_message,
    user_message,
)
from parlatory.storage.convert.windows import Window

from ..prompts.said import asks, gives
from .bots import Stage
from .play import NAME, Play
from .writers import Writer, writer

AT = datetime(2026, 11, 30, tzinfo=UTC)


def row(seq: int, text: str, turn: int | str | None = None, finish: str | None = None) -> StoredMessage:
    message = user_message(text) if text.startswith("Q") else assistant_message(text)
    return StoredMessage(seq=seq, at=AT, by="x", turn=turn, finish=finish, message=message)


def texts(rows: list[StoredMessage], turn: int) -> list[str]:
    return [one.text for one in in_turn_order(rows, turn)]


def test_t01_a_reply_stands_behind_what_it_answers_and_what_waits_is_not_there() -> None:
    rows = [row(1, "Q1"), row(2, "Q2"), row(3, "A1", 1), row(4, "Q3"), row(5, "A2", 2)]
    assert texts(rows, 2) == ["Q1", "A1", "Q2", "A2"]
    assert texts(rows, 4) == ["Q1", "A1", "Q2", "A2", "Q3"]


def test_rows_of_no_turn_or_of_a_call_stand_where_they_are() -> None:
    rows = [row(1, "Q1"), row(2, "news"), row(3, "A1", 1), row(4, "from a call", "call:7")]
    assert texts(rows, 1) == ["Q1", "A1", "news", "from a call"]


def test_what_an_interrupted_attempt_left_is_not_there_once_the_turn_is_attempted_again() -> None:
    rows = [row(1, "Q1"), row(2, "half", 1, "interrupted"), row(3, "Q2"), row(4, "half too", 3, "interrupted")]
    assert texts(rows[:2], 1) == ["Q1"]
    assert texts(rows, 3) == ["Q1", "half", "Q2"]
    answered = [*rows, row(5, "A1", 1)]
    assert texts(answered, 3) == ["Q1", "A1", "Q2"]


def test_t35_what_a_stop_or_an_error_left_is_there() -> None:
    rows = [row(1, "Q1"), row(2, "half", 1, "stopped"), row(3, "Q2"), row(4, "part", 3, "error"), row(5, "Q3")]
    assert texts(rows, 5) == ["Q1", "half", "Q2", "part", "Q3"]


def test_tool_rows_stay_behind_their_call() -> None:
    result = StoredMessage(seq=4, at=AT, by="agent", turn=1, message=tool_message(()))
    rows = [row(1, "Q1"), row(2, "call", 1), row(3, "Q2"), result]
    assert [one.seq for one in in_turn_order(rows, 3)] == [1, 2, 4, 3]


# -- windows and prompts inside a turn


def scattered(chance: random.Random, count: int) -> list[NewRow]:
    """A log in which replies come late, attempts are interrupted, and results wait for somebody."""
    rows: list[NewRow] = []
    asked: list[int] = []
    waiting: list[tuple[int, str]] = []
    while len(rows) < count:
        seq = len(rows) + 1
        kind = chance.choice(["ask", "ask", "answer", "answer", "call", "result", "half"])
        if kind == "ask" or not asked:
            asked.append(seq)
            rows.append(NewRow(body=encode_message(user_message(f"Q{seq}")), by="ann"))
            continue
        turn = chance.choice(asked[-40:])
        message: Message = assistant_message(f"A{seq}")
        if kind == "call":
            message = asks(f"c{seq}")
            waiting.append((turn, f"c{seq}"))
        elif kind == "result" and waiting:
            turn, id = waiting.pop(chance.randrange(len(waiting)))
            message = gives(**{id: "found"})
        finish = "interrupted" if kind == "half" else None
        rows.append(NewRow(body=encode_message(message), by="agent", turn=turn, finish=finish))
    return rows


@pytest.mark.parametrize("seed", range(4))
async def test_a_window_in_a_turn_is_cut_out_of_the_turn_order(engine: Engine, seed: int) -> None:
    """However the log is paged, the window is the one of all rows in turn order."""
    found: list[tuple[list[int], list[int]]] = []

    async def windows(agent: Writer, draft: Draft) -> None:
        rows = await agent.messages.context()
        assert rows == in_turn_order(await agent.messages.all(), agent.turn.id)
        for n in (1, 2, 5, 20, 33, 64, 150, 299, 400):
            start = Window(n).start(rows, final=True)
            window = await agent.messages.context(n)
            found.append(([row.seq for row in window], [row.seq for row in rows[start:]]))

    rows = scattered(random.Random(seed), 300)
    await (await engine.partition(NAME)).commit(Batch(rows=tuple(rows), puts={"turn.handled": b"300"}))
    play = await Play.begin(engine, agent=writer(Stage(), windows))
    await play.send("now", "later")
    await play.record.lane.join()
    await play.runtime.close()
    assert len(found) == 18
    for window, wanted in found:
        assert window == wanted


async def test_a_prompt_in_a_turn_holds_what_has_begun(engine: Engine) -> None:
    prompts: list[list[str]] = []

    async def prompt(agent: Writer, draft: Draft) -> None:
        found = await agent.messages.prompt("openai", window=3)
        prompts.append([message["content"] for message in found["messages"]])
        await draft.write(f"re {agent.turn.trigger.text}")

    play = await Play.begin(engine, agent=writer(Stage(), prompt))
    await play.send("Q1", "Q2", "Q3")
    await play.record.lane.join()
    assert prompts == [["Q1"], ["Q1", "re Q1", "Q2"], ["Q2", "re Q2", "Q3"]]
    await play.runtime.close()
