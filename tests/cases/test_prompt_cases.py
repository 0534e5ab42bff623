"""Cases from the field that live in messages and prompts, and what must be shown of them.

Each test carries the id of its case. T62 is in `tests/golden/test_golden.py`, with the files it is about.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parlatory.actors import Draft
from parlatory.storage import (
    Batch,
    CodecError,
    Engine,
    Message,
    MessageLog,
    NewRow,
    assistant_message,
    encode_message,
    user_message,
)
from parlatory.storage.convert.prompt import PROVIDERS
from parlatory.storage.messages import Image, Text

from ..actors.bots import Stage
from ..actors.play import Play
from ..actors.writers import Writer, writer
from ..prompts.said import asks, call, gives

NAME = "bot/ann"


@pytest.fixture
async def log(engine: Engine) -> MessageLog:
    return MessageLog(await engine.partition(NAME))


def results(turn: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for block in turn["content"] if block["type"] == "tool_result"]


async def test_t42_a_call_that_a_crash_left_without_result_does_not_end_the_conversation(engine: Engine) -> None:
    """The process died while the tool ran; the person writes again, and the turn asks the model with a good prompt."""
    asked: list[tuple[list[Any], list[Any]]] = []

    async def answer(agent: Writer, draft: Draft) -> None:
        chat, claude = await agent.messages.prompt("openai"), await agent.messages.prompt("anthropic")
        asked.append((chat["messages"], claude["messages"]))
        assert {note.code for note in chat.notes} == {note.code for note in claude.notes} == {"result_synthesized"}
        await draft.write("I am back.")

    rows = (
        NewRow(body=encode_message(user_message("go")), by="ann"),
        NewRow(body=encode_message(asks("c1", "c2")), by="agent", turn=1),
        NewRow(body=encode_message(gives(c2="found")), by="agent", turn=1),
    )
    await (await engine.partition(NAME)).commit(Batch(rows=rows, puts={"turn.handled": b"3"}))
    play = await Play.begin(engine, agent=writer(Stage(), answer))
    await play.send("are you there?")
    await play.record.lane.join()
    assert (await play.texts())[-1] == "I am back."
    await play.runtime.close()

    ((chat, claude),) = asked
    assert [turn["role"] for turn in chat] == ["user", "assistant", "tool", "tool", "user"]
    assert (
        [call["id"] for call in chat[1]["tool_calls"]] == [turn["tool_call_id"] for turn in chat[2:4]] == ["c1", "c2"]
    )
    assert chat[2]["content"].startswith("interrupted: ") and chat[3]["content"] == "found"
    assert [turn["role"] for turn in claude] == ["user", "assistant", "user"]
    assert [block["id"] for block in claude[1]["content"]] == [block["tool_use_id"] for block in results(claude[2])]
    assert [block.get("is_error", False) for block in results(claude[2])] == [True, False]


async def test_t43_a_result_without_its_call_is_kept_and_never_sent(log: MessageLog) -> None:
    await log.append_many([user_message("q1"), asks("c1"), gives(c1="one"), assistant_message("a1")])
    with pytest.raises(CodecError, match="call 'c9' is not open"):
        await log.append(gives(c9="stray"), strict=True)
    assert await log.append(gives(c9="stray")) == 5
    await log.append(user_message("q2"))
    for provider in PROVIDERS:
        whole = await log.prompt(provider)
        assert "stray" not in str(dict(whole))
        assert [(note.code, note.seq) for note in whole.notes] == [("result_dropped", 5)]
        for cut in range(1, 7):  # a window of the caller's own, cut anywhere
            prompt = await log.prompt(provider, window=await log.last(cut))
            assert "stray" not in str(dict(prompt))
            assert ("one" in str(dict(prompt))) == (cut >= 5), "the result goes where its call goes"


async def test_t43_no_window_begins_inside_of_a_pair(log: MessageLog) -> None:
    turns: list[Message] = []
    for turn in range(8):
        turns += [user_message(f"q{turn}"), asks(f"a{turn}", f"b{turn}"), gives(**{f"b{turn}": "b"})]
        turns += [user_message("wait"), gives(**{f"a{turn}": "a"}), assistant_message("done")]
    await log.append_many(turns)
    for n in range(1, 49):
        first = (await log.context(n))[0]
        assert first.text.startswith("q")


async def test_t50_nul_comes_back_and_goes_on(log: MessageLog) -> None:
    said = user_message("a\0b", metadata={"k\0": "v\0"})
    asked = assistant_message([call("c1", input={"q\0": "\0"})])
    await log.append_many([said, asked, gives(c1="r\0")])
    rows = await log.all()
    assert [row.message for row in rows] == [said, asked, gives(c1="r\0")]
    assert [encode_message(row.message) for row in rows] == [
        encode_message(said),
        encode_message(asked),
        encode_message(gives(c1="r\0")),
    ]
    chat = (await log.prompt("openai"))["messages"]
    assert chat[0]["content"] == "a\0b"
    assert msgspec.json.decode(chat[1]["tool_calls"][0]["function"]["arguments"]) == {"q\0": "\0"}
    assert chat[2]["content"] == "r\0"


async def test_t51_half_a_character_is_refused_and_two_halves_are_one(engine: Engine, log: MessageLog) -> None:
    with pytest.raises(CodecError, match="holds a lone surrogate") as refused:
        await log.append(user_message([Text(text="ok"), Text(text="x\ud83d")]))
    assert refused.value.path == "$.content[1].text"
    assert await log.count() == 0

    async def emoji(agent: Writer, draft: Draft) -> None:
        for piece in ("a \ud83d", "\ude00 b"):
            await draft.write(piece)

    play = await Play.begin(engine, agent=writer(Stage(), emoji))
    await play.send("go")
    await play.record.lane.join()
    assert await play.texts() == ["go", "a \U0001f600 b"]
    await play.runtime.close()


async def test_t54_pictures_count_nothing_in_a_budget_of_text(log: MessageLog) -> None:
    picture = Image(data="QUJD" * 10_000, media_type="image/png")
    await log.append_many([user_message([Text(text="look"), picture]) for _ in range(50)])
    assert len(await log.context(max_chars=80)) == 20
    assert len(await log.context(max_tokens=80, count=len)) == 20


async def test_t63_a_part_of_a_newer_version_stays_and_is_not_sent(engine: Engine) -> None:
    body = b'{"role":"user","content":[{"type":"x-new","a":1.50},{"type":"text","text":"hi"}],"xNew":[1]}'
    partition = await engine.partition(NAME)
    await partition.commit(Batch(rows=(NewRow(body=body, by="ann"),)))
    assert [row.body for row in await partition.read()] == [body]
    for provider in PROVIDERS:
        prompt = await MessageLog(partition).prompt(provider)
        assert "hi" in str(dict(prompt)) and "x-new" not in str(dict(prompt))
        assert [(note.code, note.seq, note.index) for note in prompt.notes] == [("part_dropped", 1, 0)]
    assert [row.body for row in await partition.read()] == [body]
