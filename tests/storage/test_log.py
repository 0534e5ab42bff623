"""The message log of one conversation, on both engines where they could differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from parlatory.storage import (
    Batch,
    Blob,
    ClientIdConflict,
    CodecError,
    Committed,
    Conflict,
    Engine,
    HookError,
    MessageLog,
    ReentrancyError,
    Row,
    StoredMessage,
    Told,
    TooLarge,
    assistant_message,
    encode_message,
    message_digest,
    new_row,
    tool_message,
    user_message,
)
from parlatory.storage.messages import Text, TextOutput, ToolCall, ToolResult


@pytest.fixture
async def log(engine: Engine) -> MessageLog:
    return MessageLog(await engine.partition("bot/a"))


def texts(rows: Sequence[StoredMessage]) -> list[str]:
    return [row.text for row in rows]


# -- new_row


def test_a_new_row() -> None:
    message = user_message("hi")
    checked, row = new_row(message, by="user:ann", client_id="c-1", turn=7, finish="stopped")
    assert checked is message
    assert (row.body, row.digest) == (encode_message(message), message_digest(message))
    assert (row.by, row.client_id, row.turn, row.finish) == ("user:ann", "c-1", 7, "stopped")
    plain = new_row({"role": "assistant", "content": "yo"})
    assert (plain[0], plain[1].by, plain[1].digest) == (assistant_message("yo"), "agent", None)
    assert new_row(message)[1].by == "user"


@pytest.mark.parametrize("label", ["", "a\0", "a\n", "\x85", "\ud83d"])
def test_labels_that_are_none(label: str) -> None:
    message = user_message("hi")
    with pytest.raises(CodecError) as caught:
        new_row(message, by=label)
    assert caught.value.path == "$by"
    with pytest.raises(CodecError) as caught:
        new_row(message, client_id=label)
    assert caught.value.path == "$clientId"


def test_labels_that_are_too_long() -> None:
    message = user_message("hi")
    new_row(message, by="x" * 512, client_id="x" * 64)
    with pytest.raises(CodecError, match="1 to 512"):
        new_row(message, by="x" * 513)
    with pytest.raises(CodecError, match="1 to 64"):
        new_row(message, client_id="x" * 65)


@pytest.mark.parametrize("wrong", [None, "hi", 7, ["role", "user"], {"role": "user"}, {"content": "hi"}, {}])
async def test_what_is_no_message(wrong: Any, log: MessageLog) -> None:
    with pytest.raises(CodecError):
        await log.append(wrong)
    assert await log.count() == 0


# -- appending


async def test_appending(log: MessageLog) -> None:
    assert log.name == "bot/a"
    assert await log.add("system", "be brief") == 1
    assert await log.append(user_message("hi")) == 2
    assert await log.append({"role": "user", "content": "there"}, by="user:ann") == 3
    assert await log.append_many([assistant_message("1"), {"role": "assistant", "content": "2"}]) == 5
    assert await log.append_many([user_message("x")], by="bridge", expected_seq=5) == 6
    assert await log.append_many([]) == 6
    rows = await log.all()
    assert [(row.seq, row.role, row.by, row.text) for row in rows] == [
        (1, "system", "agent", "be brief"),
        (2, "user", "user", "hi"),
        (3, "user", "user:ann", "there"),
        (4, "assistant", "agent", "1"),
        (5, "assistant", "agent", "2"),
        (6, "user", "bridge", "x"),
    ]
    assert [row.at for row in rows] == sorted(row.at for row in rows)


async def test_add_takes_the_fields_of_a_message(log: MessageLog) -> None:
    await log.add("user", "hi", name="ann", metadata={"k": 1})
    stored = await log.last()
    assert stored is not None
    assert (stored.message.name, stored.message.metadata) == ("ann", {"k": 1})


async def test_t02_a_hundred_tasks(log: MessageLog) -> None:
    acks = await asyncio.gather(*(log.append(user_message(str(number))) for number in range(100)))
    assert sorted(acks) == list(range(1, 101))
    rows = {row.seq: row.text for row in await log.all()}
    assert [rows[seq] for seq in acks] == [str(number) for number in range(100)]


async def test_expected_seq(log: MessageLog) -> None:
    assert await log.append(user_message("a"), expected_seq=0) == 1
    with pytest.raises(Conflict) as caught:
        await log.append(user_message("b"), expected_seq=0)
    assert (caught.value.expected, caught.value.head) == (0, 1)
    with pytest.raises(Conflict):
        await log.append_many([user_message("b")], expected_seq=2)
    assert await log.count() == 1


async def test_t47_a_repeat_is_the_first(log: MessageLog) -> None:
    message = user_message("pay")
    seqs = await asyncio.gather(*(log.append(message, client_id="k") for _ in range(3)))
    await log.append(user_message("more"))
    assert seqs == [1, 1, 1]
    assert await log.append({"content": "pay", "role": "user"}, client_id="k", expected_seq=0) == 1
    assert await log.append(message, client_id="k", by="user:ann") == 3
    assert await log.count() == 3


async def test_t48_another_message_under_the_same_id(log: MessageLog) -> None:
    await log.append(user_message("pay 5"), client_id="k")
    with pytest.raises(ClientIdConflict) as caught:
        await log.append(user_message("pay 6"), client_id="k")
    assert (caught.value.client_id, caught.value.seq, caught.value.code) == ("k", 1, "client_id_conflict")
    assert texts(await log.all()) == ["pay 5"]


async def test_a_batch_with_one_bad_message(log: MessageLog) -> None:
    with pytest.raises(CodecError) as caught:
        await log.append_many([user_message("a"), user_message("b"), {"role": "user", "content": "x\ud83d"}])
    assert caught.value.path == "$[2].content"
    assert str(caught.value).startswith("$[2].content: ")
    assert await log.count() == 0


async def test_t53_sizes(log: MessageLog) -> None:
    overhead = len(encode_message(user_message("")))
    assert await log.append(user_message("x" * ((1 << 20) - overhead))) == 1
    for size in ((1 << 20) - overhead + 1, 8 << 20):
        with pytest.raises(TooLarge) as caught:
            await log.append(user_message("x" * size))
        assert (caught.value.limit, caught.value.size) == (1 << 20, size + overhead)
    with pytest.raises(TooLarge) as caught:
        await log.append_many([user_message("x" * 900_000)] * 5)
    assert caught.value.limit == 4 << 20
    with pytest.raises(TooLarge) as caught:
        await log.append_many([user_message("x")] * 2001)
    assert (caught.value.limit, caught.value.unit) == (2000, "rows")
    assert await log.count() == 1


async def test_t50_t51_text_comes_back_or_is_refused(log: MessageLog) -> None:
    odd = "a\0b \x7f \u0085 \u2028 \ufffe \U0001f600 e\u0301"
    call = ToolCall(tool_call_id="c", tool_name="f", input={"k\0": odd, "n": [odd, 1.5, None, -(1 << 60)]})
    await log.append(user_message(odd, metadata={odd: odd}))
    await log.append(assistant_message([Text(text=odd), call]))
    await log.append(tool_message([ToolResult(tool_call_id="c", tool_name="f", output=TextOutput(value=odd))]))
    first, second, third = await log.all()
    assert first.message == user_message(odd, metadata={odd: odd})
    assert second.message == assistant_message([Text(text=odd), call])
    assert third.text == "" or odd in third.text
    for wrong, path in (
        (user_message("x\ud83d"), "$.content"),
        (user_message("x", metadata={"k": ["\ud83d"]}), "$.metadata.k[0]"),
        (assistant_message([Text(text="\udc00")]), "$.content[0].text"),
    ):
        with pytest.raises(CodecError) as caught:
            await log.append(wrong)
        assert caught.value.path == path
    assert await log.count() == 3


async def test_strict(log: MessageLog) -> None:
    call = assistant_message([ToolCall(tool_call_id="c", tool_name="f", input={})])
    result = tool_message([ToolResult(tool_call_id="c", tool_name="f", output=TextOutput(value="1"))])
    with pytest.raises(CodecError, match="not open") as caught:
        await log.append(result, strict=True)
    assert caught.value.path == "$.content[0]"
    await log.append(call, strict=True)
    assert await log.append(result, strict=True, client_id="r", by="agent") == 2
    with pytest.raises(CodecError, match="has a result already"):
        await log.append(result, strict=True)
    assert await log.append(result, strict=True, client_id="r", by="agent") == 2  # a repeat stays one
    with pytest.raises(Conflict):
        await log.append(call, strict=True, expected_seq=1)
    with pytest.raises(CodecError):
        await log.append(result, strict=True, expected_seq=2)
    assert await log.append(result) == 3  # noted by whoever renders, not refused


async def test_strict_decides_on_what_it_is_behind(log: MessageLog) -> None:
    """Two results of one call at once: the second reads again, and is refused."""
    await log.append(assistant_message([ToolCall(tool_call_id="c", tool_name="f", input={})]))
    result = tool_message([ToolResult(tool_call_id="c", tool_name="f", output=TextOutput(value="1"))])
    outcomes = await asyncio.gather(*(log.append(result, strict=True) for _ in range(2)), return_exceptions=True)
    assert sorted(map(str, outcomes)) == ["$.content[0]: call 'c' has a result already", "2"]


async def test_append_takes_a_list(log: MessageLog) -> None:
    assert await log.append([user_message("a"), {"role": "assistant", "content": "b"}], by="bridge") == 2
    assert await log.append((user_message("c"),), expected_seq=2) == 3
    assert await log.append([]) == 3
    assert [(row.text, row.by) for row in await log.all()] == [("a", "bridge"), ("b", "bridge"), ("c", "user")]
    with pytest.raises(ValueError, match="client id"):
        await log.append([user_message("a")], client_id="k")
    with pytest.raises(CodecError) as caught:
        await log.append([user_message("a"), user_message("x\ud83d")])
    assert caught.value.path == "$[1].content"
    for messages in ([], [user_message("d")]):
        with pytest.raises(Conflict) as conflict:
            await log.append(messages, expected_seq=2)
        assert (conflict.value.expected, conflict.value.head) == (2, 3)
    assert await log.count() == 3


async def test_a_strict_list_fits_in_itself(log: MessageLog) -> None:
    call = assistant_message([ToolCall(tool_call_id="c", tool_name="f", input={})])
    result = tool_message([ToolResult(tool_call_id="c", tool_name="f", output=TextOutput(value="1"))])
    with pytest.raises(CodecError, match="has a result already") as caught:
        await log.append([call, result, result], strict=True)
    assert caught.value.path == "$[2].content[0]"
    assert await log.append([call, result], strict=True) == 2


# -- telling


async def test_the_hook_is_told_in_order_before_the_append_returns(engine: Engine) -> None:
    told: list[list[int]] = []

    def hook(rows: Sequence[StoredMessage]) -> None:
        told.append([row.seq for row in rows])

    partition = await engine.partition("bot/a")
    log = MessageLog(partition, hook)

    async def append(number: int) -> None:
        seq = await log.append(user_message(str(number)))
        assert [seq] in told

    await asyncio.gather(*(append(number) for number in range(20)))
    assert await log.append_many([user_message("x"), user_message("y")]) == 22
    assert told == [*([seq] for seq in range(1, 21)), [21, 22]]
    await log.append(user_message("0"), client_id="k")
    await log.append(user_message("0"), client_id="k")
    with pytest.raises(Conflict):
        await log.append(user_message("0"), expected_seq=0)
    assert told[21:] == [[23]]


async def test_the_hook_gets_what_a_reader_gets(engine: Engine) -> None:
    told: list[StoredMessage] = []
    log = MessageLog(await engine.partition("bot/a"), told.extend)
    await log.append({"role": "user", "content": "hi"}, by="user:ann", client_id="k")
    await log.append_many([assistant_message("a"), assistant_message("b")])
    assert told == await log.all()


async def test_a_hook_that_raises(engine: Engine) -> None:
    told: list[int] = []

    def hook(rows: Sequence[StoredMessage]) -> None:
        told.append(rows[-1].seq)
        if rows[0].text == "bad":
            raise KeyError("hook")

    log = MessageLog(await engine.partition("bot/a"), hook)
    outcomes = await asyncio.gather(
        log.append(user_message("good")),
        log.append_many([user_message("bad"), user_message("x")]),
        log.append(user_message("good")),
        return_exceptions=True,
    )
    first, error, third = outcomes
    assert (first, third, told) == (1, 4, [1, 3, 4])
    assert isinstance(error, HookError)
    assert isinstance(error.__cause__, KeyError)
    assert [row.seq for row in error.rows] == [2, 3]
    assert await log.count() == 4


async def test_a_hook_that_raises_for_a_cancelled_appender(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is there to get the HookError, so it is logged; the row stays."""
    task: asyncio.Task[int]

    def hook(rows: Sequence[StoredMessage]) -> None:
        task.cancel()
        raise KeyError("hook")

    log = MessageLog(await engine.partition("bot/a"), hook)
    task = asyncio.create_task(log.append(user_message("hi")))
    await asyncio.wait({task})
    assert task.cancelled()
    assert texts(await log.all()) == ["hi"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], HookError)


async def test_appending_from_inside_the_hook(engine: Engine) -> None:
    def hook(rows: Sequence[StoredMessage]) -> None:
        if rows[0].text == "again":
            with pytest.raises(ReentrancyError):
                _ = own.append_many([user_message("x")])
            _ = own.append(user_message("x"))

    own: MessageLog = MessageLog(await engine.partition("bot/a"), hook)
    with pytest.raises(HookError) as caught:
        await own.append(user_message("again"))
    assert isinstance(caught.value.__cause__, ReentrancyError)
    assert await own.append(user_message("outside")) == 2


# -- reading


async def test_an_empty_log(log: MessageLog) -> None:
    assert await log.count() == 0
    assert await log.last() is None
    assert await log.last(5) == await log.all() == await log.read() == []
    assert await log.get(1) is None


async def test_last(log: MessageLog) -> None:
    await log.append_many([user_message(str(number)) for number in range(1, 1301)])
    last = await log.last()
    assert last is not None
    assert last.text == "1300"
    for count in (0, 1, 2, 499, 500, 501, 1000, 1299, 1300, 1301, 5000):
        rows = await log.last(count)
        assert [row.seq for row in rows] == list(range(max(1, 1301 - count), 1301))
    with pytest.raises(ValueError, match="negative"):
        await log.last(-1)


async def test_last_of_big_messages(log: MessageLog) -> None:
    """A page ends after 4 MiB; what is asked for comes all the same."""
    for number in range(7):
        await log.append(user_message(str(number) + "x" * 1_000_000))
    assert [row.text[0] for row in await log.last(6)] == list("123456")
    assert [row.text[0] for row in await log.all()] == list("0123456")
    assert [row.seq for row in await log.read()] == [1, 2, 3, 4]
    assert [row.seq for row in await log.read(before=7)] == [3, 4, 5, 6]


async def test_read(log: MessageLog) -> None:
    await log.append_many([user_message(str(number)) for number in range(1, 601)])

    async def seqs(**arguments: int) -> list[int]:
        return [row.seq for row in await log.read(**arguments)]

    assert await seqs() == list(range(1, 101))
    assert await seqs(limit=10_000) == list(range(1, 501))
    assert await seqs(after=590) == list(range(591, 601))
    assert await seqs(after=600) == await seqs(after=10_000) == await seqs(limit=0) == []
    assert await seqs(before=600, limit=3) == [597, 598, 599]
    assert await seqs(before=1) == await seqs(before=0) == []
    assert await seqs(after=10, before=20, limit=3) == [11, 12, 13]
    for wrong in ({"after": -1}, {"before": -1}, {"limit": -1}):
        with pytest.raises(ValueError, match="not negative"):
            await log.read(**wrong)


async def test_get(log: MessageLog) -> None:
    await log.append_many([user_message("a"), user_message("b")])
    found = await log.get(2)
    assert found is not None
    assert (found.seq, found.text) == (2, "b")
    for seq in (-1, 0, 3, 1 << 60):
        assert await log.get(seq) is None


async def test_iteration_includes_what_comes_meanwhile(log: MessageLog) -> None:
    await log.append_many([user_message(str(number)) for number in range(500)])
    seen = []
    async for row in log:
        seen.append(row.seq)
        if row.seq == 500:
            await log.append(user_message("late"))
    assert seen == list(range(1, 502))


async def test_models_get_the_whole_history(log: MessageLog) -> None:
    await log.append_many([{"role": "system", "content": "s"}, user_message("u"), assistant_message("a")])
    assert [message["role"] for message in await log.to_openai()] == ["system", "user", "assistant"]
    assert [message["role"] for message in await log.to_anthropic()] == ["user", "assistant"]
    assert len(await log.to_langchain()) == 3


class Front:
    """Stands in front of a partition, as an actor does, and counts what passes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = "bot/front"
        self.head = 0
        self.batches: list[Batch] = []

    async def commit(self, batch: Batch, told: Told | None = None) -> Committed:
        self.batches.append(batch)
        committed = await (await self.engine.partition(self.name)).commit(batch, told)
        self.head = committed.seq
        return committed

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> list[Row]:
        partition = await self.engine.partition(self.name)
        return await partition.read(after=after, before=before, limit=limit, max_bytes=max_bytes, newest=newest)

    async def media(self, hash: str, start: int = 0) -> Blob | None:
        return await (await self.engine.partition(self.name)).media(hash, start)


async def test_a_log_needs_no_more_than_its_protocol(engine: Engine) -> None:
    front = Front(engine)
    log = MessageLog(front)
    assert await log.append(user_message("hi")) == await log.count() == 1
    assert (log.name, texts(await log.all()), len(front.batches)) == ("bot/front", ["hi"], 1)
