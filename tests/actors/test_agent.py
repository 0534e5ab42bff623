from __future__ import annotations

import types
from typing import Any

import pytest

from parlatory.actors import Agent, Runtime
from parlatory.actors.agent import kebab_case, wire_name_of
from parlatory.storage import Engine, StoredMessage, UserMessage

from .fakes import Recorder


def made(class_name: str, **members: object) -> type[Agent]:
    return types.new_class(class_name, (Agent,), exec_body=lambda body: body.update(members))


@pytest.mark.parametrize(
    ("name", "kebab"),
    [
        ("Bot", "bot"),
        ("SupportDesk", "support-desk"),
        ("HTTPBot", "http-bot"),
        ("BotForHTTP", "bot-for-http"),
        ("Gpt4Bot", "gpt4-bot"),
        ("my_bot", "my-bot"),
        ("_Hidden", "hidden"),
        ("bot", "bot"),
    ],
)
def test_wire_names(name: str, kebab: str) -> None:
    assert kebab_case(name) == kebab
    assert wire_name_of(made(name)) == kebab


def test_a_class_may_say_its_name() -> None:
    class Bot(Agent):
        name = "helper"

    class BetterBot(Bot):
        pass

    assert (Bot.wire_name, wire_name_of(Bot)) == ("helper", "helper")
    assert BetterBot.wire_name == "better-bot"
    assert wire_name_of("any") == "any"


def test_what_is_no_text_is_no_name() -> None:
    assert wire_name_of(made("Bot", name=property(lambda self: "x"))) == "bot"


@pytest.mark.parametrize("members", [{"name": "Großer Bot"}, {"name": ""}, {"name": "a" * 33}])
def test_a_name_that_cannot_be_one_is_refused_with_a_way_out(members: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="set name = '...' of a-z, 0-9 and -"):
        made("Bot", **members)
    with pytest.raises(ValueError, match="agent Ä:"):
        made("Ä")


class Polite(Agent):
    """Says hello when it is made, goodbye when it goes, and answers with metadata."""

    async def on_start(self) -> None:
        await self.say("hello")

    async def on_message(self, row: StoredMessage) -> None:
        last = await self.messages.last()
        assert last is not None
        seq = await self.say(f"{self.name}: {row.text}", metadata={"after": last.seq})
        assert seq == await self.messages.count()

    async def on_stop(self) -> None:
        await self.say("goodbye")


async def test_the_life_of_an_agent(engine: Engine) -> None:
    async with Runtime(engine, [Polite]) as runtime:
        ref = runtime.get(Polite, "ann")
        log = await ref.log()
        await ref.append(UserMessage(content="one"))
        record = await runtime.conversation(ref.name)
        await record.lane.join()
        record.lane.dismiss()
        await record.lane.join()
        rows = await log.all()
    assert [(row.by, row.text, row.turn) for row in rows] == [
        ("user", "one", None),
        ("agent", "hello", 1),
        ("agent", "ann: one", 1),
        ("agent", "goodbye", None),
    ]


async def test_the_bare_base_has_hooks_that_do_nothing(engine: Engine) -> None:
    class Bare(Agent):
        pass

    async with Runtime(engine, [Bare]) as runtime:
        record = await runtime.conversation("bare/ann")
        agent = Bare("ann", record.turn_storage())
        await agent.on_start()
        await agent.on_message(StoredMessage(seq=1, at=None, by="ann", message=UserMessage(content="one")))  # type: ignore[arg-type]
        await agent.on_stop()
        assert await agent.messages.all() == []


async def test_an_agent_that_does_not_answer_is_never_made(engine: Engine) -> None:
    class Deaf(Agent):
        async def on_start(self) -> None:
            raise AssertionError("it was made")

    async with Runtime(engine, [Deaf]) as runtime:
        sink = Recorder()
        await sink.open(await runtime.conversation("deaf/ann"))
        for text in ("one", "two"):
            await runtime.get(Deaf, "ann").append(UserMessage(content=text))
        await sink.until_live(2)
        assert len(runtime.residency) == 0
        assert sink.turns == []
        assert await engine.due(now=0) in ([], ())


def test_what_could_never_be_called_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match=r"Sync.on_message is called with await: write `async def on_message"):

        class Sync(Agent):
            def on_message(self, row: Any) -> None: ...  # type: ignore[override]

    with pytest.raises(TypeError, match="Few.on_message takes 1 beside self: too many positional arguments"):

        class Few(Agent):
            async def on_message(self) -> None: ...  # type: ignore[override]

    with pytest.raises(TypeError, match="Init.__init__ takes .self, name, storage., and passes them on"):

        class Init(Agent):
            def __init__(self, x: int) -> None: ...


def test_a_misspelt_hook_is_refused_when_the_class_is_made() -> None:
    with pytest.raises(TypeError, match="Typo.on_mesage would never be called: write on_message, or give"):

        class Typo(Agent):
            async def on_mesage(self, row: Any) -> None: ...

    class Own(Agent):
        on_busy = "latest"

        async def on_stopped(self) -> None: ...

        async def on_order(self) -> None: ...

    class Base(Agent):
        async def on_message(self, row: Any) -> None: ...

    class Derived(Base):
        async def on_message(self, row: Any) -> None: ...

    assert (Own.wire_name, Derived.wire_name) == ("own", "derived")


@pytest.mark.parametrize(
    ("setting", "meant"),
    [
        ("turn_timeout", "turn_timeout_s"),
        ("turn_timeout_ms", "turn_timeout_s"),
        ("method_timeout", "method_timeout_s"),
        ("onbusy", "on_busy"),
        ("on_bussy", "on_busy"),
        ("max_attempt", "max_attempts"),
        ("cancel_when_empty", "cancel_when_empty_s"),
    ],
)
def test_a_misspelt_setting_is_refused_when_the_class_is_made(setting: str, meant: str) -> None:
    with pytest.raises(TypeError, match=f"Typo.{setting} would never be read: write {meant}, or give it another name"):
        made("Typo", **{setting: 1})


def test_what_is_like_no_setting_is_the_agent_s_own() -> None:
    made("Own", timeout_s=1, attempts=2, turns=3, on_busy_text="wait", _turn_timeout=4)


@pytest.mark.parametrize("on_busy", ["quue", "", None, 3])
def test_on_busy_is_one_of_four(on_busy: object) -> None:
    with pytest.raises(ValueError, match=r"Bot.on_busy is .*: write 'queue', 'latest', 'reject' or 'preempt'"):
        made("Bot", on_busy=on_busy)
    for allowed in ("queue", "latest", "reject", "preempt"):
        made("Bot", on_busy=allowed)


@pytest.mark.parametrize("setting", ["turn_timeout_s", "method_timeout_s", "cancel_when_empty_s"])
def test_times_are_numbers_above_zero_or_none(setting: str) -> None:
    for refused in (0, -1, "30", True, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"Bot.{setting} is .*: write a number of seconds above 0, or None"):
            made("Bot", **{setting: refused})
    for allowed in (None, 0.5, 30):
        made("Bot", **{setting: allowed})


def test_max_attempts_is_a_number_above_zero() -> None:
    for refused in (0, -1, 2.5, None, True):
        with pytest.raises(ValueError, match=r"Bot.max_attempts is .*: write a whole number above 0"):
            made("Bot", max_attempts=refused)
    made("Bot", max_attempts=1)
