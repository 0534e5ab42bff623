"""The message log for models: windows that page back, prompts, and the three whole histories."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from parlatory.storage import (
    Engine,
    Message,
    MessageLog,
    MissingResult,
    Row,
    StoredMessage,
    assistant_message,
    system_message,
    user_message,
)
from parlatory.storage.convert.windows import LOOK_BACK_ROWS, Window
from parlatory.storage.messages import Image, Text

from ..prompts.said import asks, gives


@pytest.fixture
def engine_kind() -> str:
    return "memory"


@pytest.fixture
async def log(engine: Engine) -> MessageLog:
    return MessageLog(await engine.partition("bot/a"))


def talk(turns: int) -> list[Message]:
    said: list[Message] = []
    for turn in range(turns):
        said += [user_message(f"q{turn}"), assistant_message(f"a{turn}")]
    return said


def seqs(rows: list[StoredMessage]) -> list[int]:
    return [row.seq for row in rows]


async def test_without_a_limit_it_is_all(log: MessageLog) -> None:
    assert await log.context() == await log.context(5) == []
    await log.append_many([system_message("s"), *talk(2)])
    assert seqs(await log.context()) == [1, 2, 3, 4, 5]


async def test_leading_system_rows_stand_before_it(log: MessageLog) -> None:
    await log.append_many(
        [*(system_message(str(n)) for n in range(40)), *talk(100), system_message("late"), user_message("x")]
    )
    assert seqs(await log.context(3)) == [*range(1, 41), 239, 240, 241, 242]
    assert seqs(await log.context(max_chars=80)) == [*range(1, 41), 242], "70 of them for the rules"
    assert len(await log.context(1000)) == 242


async def test_nothing_but_system_rows(log: MessageLog) -> None:
    await log.append_many([system_message("a"), system_message("b")])
    assert seqs(await log.context(1)) == [1, 2]


async def test_it_pages_back_until_it_knows(log: MessageLog) -> None:
    await log.append_many([*talk(50), *(assistant_message("note") for _ in range(300))])
    assert seqs(await log.context(4)) == list(range(99, 401))
    many = [assistant_message("note") for _ in range(LOOK_BACK_ROWS)]
    await log.append_many([*many, *talk(1), assistant_message("b")])
    assert seqs(await log.context(4)) == [901, 902, 903], "too far back, so forward"


async def test_a_window_is_as_the_whole_log_says(log: MessageLog) -> None:
    """Paging changes nothing: each window is the one that is cut out of all rows at once."""
    messages: list[Message] = []
    for turn in range(120):
        messages += [user_message(f"q{turn}"), asks(f"c{turn}", "x"), gives(x="X")]
        messages += [assistant_message("hm")] * (turn % 5) + [gives(**{f"c{turn}": "late"})]
    await log.append_many(messages)
    rows = await log.all()
    for n in (1, 2, 3, 7, 31, 33, 64, 200, 500, 719):
        start = Window(n).start(rows, final=True)
        assert seqs(await log.context(n)) == seqs(rows[start:])
        start = Window(max_chars=n * 4).start(rows, final=True)
        assert seqs(await log.context(max_tokens=n * 4, count=len)) == seqs(rows[start:])


async def test_a_short_window_reads_little(engine: Engine) -> None:
    partition = await engine.partition("bot/a")
    read: list[int] = []

    class Counted:
        name, head, commit, media = partition.name, 0, partition.commit, partition.media

        async def read(self, **options: Any) -> list[Row]:
            rows = await partition.read(**options)
            read.append(len(rows))
            return rows

    await MessageLog(partition).append_many(talk(1000))
    assert len(await MessageLog(Counted()).context(20)) == 20
    assert sum(read) < 100


@pytest.mark.parametrize("limits", [{"n": 0}, {"n": 1, "max_chars": 2}, {"max_tokens": 5}], ids=str)
async def test_limits_that_are_none(log: MessageLog, limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="window|go together"):
        await log.context(**limits)


async def test_a_prompt(log: MessageLog) -> None:
    await log.append_many([system_message("s"), *talk(2), asks("c"), user_message("and?")])
    whole = await log.prompt("anthropic")
    assert (len(whole["system"]), len(whole["messages"])) == (1, 5)
    assert [(note.code, note.seq) for note in whole.notes] == [("result_synthesized", 6)]
    assert [message["content"] for message in (await log.prompt("openai", window=1))["messages"]] == ["s", "and?"]
    exact = await log.prompt("anthropic", window=await log.last(2), missing="drop")
    assert exact["messages"] == [{"role": "user", "content": "and?"}]
    developer = await log.prompt("openai", window=2, system_role="developer")
    assert developer["messages"][0]["role"] == "developer"
    with pytest.raises(MissingResult):
        await log.prompt("google", missing="raise")
    with pytest.raises(ValueError, match="no provider"):
        await log.prompt("claude")  # type: ignore[arg-type]
    assert (await log.prompt("ag-ui", window=1))["messages"][0]["id"] == "bot/a:1"


@pytest.mark.parametrize("window", ["3", b"3", 2.5, True, {"last": 3}, [1, 2]], ids=repr)
async def test_a_window_is_a_number_of_rows_or_rows(log: MessageLog, window: Any) -> None:
    await log.append(user_message("hi"))
    with pytest.raises(TypeError, match=r"window is a number of rows, or rows such as await log.last\(5\), not"):
        await log.prompt("anthropic", window=window)


async def test_missing_is_refused_before_a_call_is_missing(log: MessageLog) -> None:
    with pytest.raises(ValueError, match="missing='foo': it is one of synthesize, drop, raise"):
        await log.prompt("openai", missing="foo")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="system_role='boss': it is one of system, developer"):
        await log.prompt("openai", system_role="boss")  # type: ignore[arg-type]


async def test_whole_histories_are_paired(log: MessageLog) -> None:
    await log.append_many(
        [system_message("s"), user_message("u"), asks("c"), system_message("t"), gives(c="C"), gives(z="Z")]
    )
    assert [turn["role"] for turn in await log.to_openai()] == ["system", "user", "assistant", "tool", "system"]
    assert [turn["role"] for turn in await log.to_anthropic()] == ["user", "assistant", "user"]
    assert "t" not in str((await log.to_anthropic())[2]["content"][1:]), "system messages are not in it"
    assert [turn["role"] for turn in await log.to_langchain()] == ["system", "user", "assistant", "tool", "system"]


async def test_media_are_put_in_and_named_where_they_are_gone(log: MessageLog) -> None:
    here = await log.put_media(b"\x89PNG\r\n\x1a\n", "image/png")
    await log.append(user_message([Text(text="look"), Image(ref=here, media_type="image/png", filename="a.png")]))
    url = (await log.prompt("openai"))["messages"][0]["content"][1]["image_url"]["url"]
    assert url == "data:image/png;base64,iVBORw0KGgo="
    gone = Image(ref={"parlatory": "sha256:" + "0f" * 32}, media_type="image/png", filename="a.png")
    last = await log.last()
    assert last is not None
    row = replace(last, message=user_message([Text(text="look"), gone]))
    prompt = await log.prompt("openai", window=[row])
    assert prompt["messages"][0]["content"][1] == {"type": "text", "text": "[a.png]"}
    assert [note.code for note in prompt.notes] == ["media_as_text"]


async def test_a_prompt_holds_so_many_bytes_of_media(log: MessageLog) -> None:
    ref = await log.put_media(b"\x89PNG\r\n\x1a\n", "image/png")
    await log.append(user_message([Image(ref=ref, media_type="image/png", filename="a.png")] * 3))
    prompt = await log.prompt("openai", max_media_bytes=16)
    assert [part["type"] for part in prompt["messages"][0]["content"]] == ["image_url", "image_url", "text"]
    assert [note.code for note in prompt.notes] == ["media_as_text"]
    none = await log.prompt("openai", max_media_bytes=7)
    assert [part["type"] for part in none["messages"][0]["content"]] == ["text"] * 3
