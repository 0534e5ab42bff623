from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from parlatory.actors import Agent, Draining, MailboxFull, Runtime
from parlatory.storage import (
    ClientIdConflict,
    CodecError,
    Engine,
    File,
    MessageLog,
    TooLarge,
    UnknownMedia,
    user_message,
)

from .bots import Held, Stage, actor
from .fakes import Clock, Recorder, steps, until


class Relay(Agent):
    pass


@pytest.fixture
def stage() -> Stage:
    return Stage()


@pytest.fixture
async def runtime(engine: Engine, stage: Stage) -> AsyncIterator[Runtime]:
    runtime = Runtime(engine, [actor(stage), Relay], mailbox_max=2)
    yield runtime
    await runtime.close()


async def test_an_append_is_told_and_answered(runtime: Runtime) -> None:
    ref = runtime.get("bot", "ann")
    sink = Recorder()
    await sink.open(await runtime.conversation(ref.name))
    assert await ref.append({"role": "user", "content": "one"}, by="webhook") == 1
    await sink.until(lambda sink: (1, "done") in sink.turns)
    rows = await (await ref.log()).all()
    assert [(row.by, row.text) for row in rows] == [("webhook", "one"), ("agent", "re one")]
    assert sink.seqs == [1, 2]


async def test_an_append_is_deduplicated_by_author(runtime: Runtime) -> None:
    ref = runtime.get(Relay, "ann")
    message = user_message("one")
    assert [await ref.append(message, by="ann", client_id="c1") for _ in range(2)] == [1, 1]
    assert await ref.append(message, by="bob", client_id="c1") == 2
    with pytest.raises(ClientIdConflict):
        await ref.append(user_message("other"), by="ann", client_id="c1")


async def test_what_cannot_be_stored_is_refused_before_anything_is_loaded(runtime: Runtime) -> None:
    with pytest.raises(CodecError):
        await runtime.get(Relay, "ann").append({"role": "user", "content": 7})
    assert runtime.conversations == 0


async def test_a_full_mailbox_refuses(runtime: Runtime, engine: Engine) -> None:
    ref = runtime.get(Relay, "ann")
    await ref.append(user_message("first"))
    with Held(engine):
        sent = [asyncio.ensure_future(ref.append(user_message(text))) for text in "ab"]
        await steps(2)
        with pytest.raises(MailboxFull):
            await ref.append(user_message("c"))
    assert await asyncio.gather(*sent) == [2, 3]


async def test_an_append_whose_caller_gives_up_is_told_and_answered_all_the_same(
    runtime: Runtime, engine: Engine, clock: Clock, stage: Stage
) -> None:
    ref = runtime.get("bot", "ann")
    with Held(engine):
        sent = asyncio.ensure_future(ref.append(user_message("quiet")))
        await until(lambda: runtime.conversations == 1)
        await steps(2)
        sent.cancel()
        await asyncio.wait({sent})
        while runtime.conversations:
            await clock.advance(1000)
    await until(lambda: stage.texts() == ["quiet"])
    record = await runtime.conversation(ref.name)
    await record.lane.join()
    assert record.head == 1
    assert list(await engine.due(now=0)) == []


async def test_a_stopping_runtime_takes_nothing(runtime: Runtime) -> None:
    ref = runtime.get(Relay, "ann")
    log = await ref.log()
    await log.add("user", "one")
    await runtime.drain(0)
    with pytest.raises(Draining):
        await ref.append(user_message("two"))
    with pytest.raises(Draining):
        await log.add("user", "two")
    assert [row.text for row in await log.all()] == ["one"]


async def test_the_log_of_a_ref_needs_no_record_to_read_and_finds_one_to_append(
    runtime: Runtime, clock: Clock, stage: Stage
) -> None:
    ref = runtime.get("bot", "ann")
    log = await ref.log()
    assert log.name == "bot/ann"
    assert (await log.count(), await log.last(3)) == (0, [])
    assert runtime.conversations == 0
    assert await log.append(user_message("quiet"), client_id="c1") == 1
    await until(lambda: stage.texts() == ["quiet"])
    while runtime.conversations:
        await clock.advance(100)
        await steps(20)
    assert await log.append(user_message("quiet"), client_id="c1") == 1
    assert await log.append_many([user_message("quiet"), user_message("quiet")]) == 3
    assert await log.count() == 3
    await until(lambda: len(stage.texts()) == 3)


async def test_a_ref_shows_its_name(runtime: Runtime) -> None:
    assert repr(runtime.get(Relay, "ann")) == "<Ref 'relay/ann'>"


async def test_a_big_file_is_put_and_shown(runtime: Runtime) -> None:
    """What is over the limit of a message goes ahead of it; the agent reads it by the part."""
    ref = runtime.get(Relay, "ann")
    data = bytes(2 << 20)
    part = File(ref=await ref.put_media(data, "application/pdf"), media_type="application/pdf")
    assert await ref.append(user_message([part])) == 1
    log = await ref.log()
    assert (await log.last(1))[0].content == (part,)
    assert (await log.media(part)).data == data
    record = await runtime.conversation(ref.name)
    assert (await MessageLog(record.turn_storage()).media(part)).data == data
    with pytest.raises(TooLarge):
        await ref.put_media(data, "application/pdf", max_bytes=1 << 20)


async def test_a_file_of_another_conversation_is_none_of_this_one(runtime: Runtime) -> None:
    part = File(ref=await runtime.get(Relay, "bob").put_media(b"x", "a/b"), media_type="a/b")
    with pytest.raises(UnknownMedia):
        await runtime.get(Relay, "ann").append(user_message([part]))


async def test_a_stopping_runtime_takes_no_media(runtime: Runtime) -> None:
    await runtime.drain(0)
    with pytest.raises(Draining):
        await runtime.get(Relay, "ann").put_media(b"x", "a/b")
