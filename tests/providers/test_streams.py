"""The real SDKs against a server of ours that speaks their dialects."""

from __future__ import annotations

import asyncio

import pytest

from parlatory.actors import DeltaTold
from parlatory.actors.consume_ops import ModelFailed
from parlatory.storage import Engine

from ..actors.fakes import Clock
from .dialects import Chat, Dialect, Messages, MessageStream, Responses
from .scene import Scene
from .server import Answer, Provider, Step

CALL = {"type": "tool-call", "toolCallId": "c1", "toolName": "weather", "input": {"city": "Ulm"}}


async def test_text(provider: Provider, dialect: Dialect, engine: Engine) -> None:
    provider.answer([*dialect.begin(), *dialect.say("Hel", "lo ", "🙂"), *dialect.end("stop")])
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    assert await scene.content() == scene.told() == "Hello 🙂"
    assert (await scene.row()).finish is None
    assert scene.calls == []
    assert scene.draft.stop_reason in ("stop", "completed", "end_turn")
    assert scene.draft.usage is not None
    assert {3, 5} <= set(scene.draft.usage.values())
    assert [request.body["stream"] for request in provider.requests] == [True]


async def test_reasoning_and_tool_calls(provider: Provider, dialect: Dialect, engine: Engine) -> None:
    provider.answer(
        [
            *dialect.begin(),
            *dialect.think("Weather", " is wanted."),
            *dialect.say("I look", " it up."),
            *dialect.call("c1", "weather", '{"ci', 'ty": "Ulm"}'),
            *dialect.call("c2", "now"),
            *dialect.end("tool_calls"),
        ]
    )
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    content = await scene.content()
    assert content == scene.told()
    reasoning = {"type": "reasoning", "text": "Weather is wanted."}
    if isinstance(dialect, Responses):
        reasoning |= {"id": "rs_1", "data": "c2VjcmV0", "provider": "openai"}
    elif isinstance(dialect, Messages):
        reasoning |= {"signature": "c2VjcmV0", "provider": "anthropic"}
    now = {"type": "tool-call", "toolCallId": "c2", "toolName": "now", "input": {}}
    assert content == [reasoning, {"type": "text", "text": "I look it up."}, CALL, now]
    assert scene.calls == list((await scene.row()).message.tool_calls)
    assert scene.draft.stop_reason in ("tool_calls", "completed", "tool_use")


async def test_the_signature_comes_back_as_it_was(provider: Provider, engine: Engine) -> None:
    """What follows a tool call is refused by Anthropic unless the thinking in front of it is verbatim."""
    dialect = Messages(provider.url)
    redacted = dialect.block({"type": "redacted_thinking", "data": "aGlkZGVu"})
    provider.answer(
        [*dialect.begin(), *dialect.think("Hm."), *redacted, *dialect.think(), *dialect.say("Yes."), *dialect.end("")]
    )
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    (answer,) = [turn for turn in await (await scene.log()).to_anthropic() if turn["role"] == "assistant"]
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2VjcmV0"},
        {"type": "redacted_thinking", "data": "aGlkZGVu"},
        {"type": "thinking", "thinking": "", "signature": "c2VjcmV0"},
        {"type": "text", "text": "Yes."},
    ]
    await dialect.close()


@pytest.mark.parametrize("raw", ['{"city": Ulm}', '["Ulm"]', '{"city": "Ul'])
async def test_broken_arguments(provider: Provider, dialect: Dialect, engine: Engine, raw: str) -> None:
    stream = [
        *dialect.begin(),
        *dialect.say("I look."),
        *dialect.call("c1", "weather", raw),
        *dialect.end("tool_calls"),
    ]
    provider.answer(stream)
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    text = {"type": "text", "text": "I look."}
    if isinstance(dialect, MessageStream) and raw == '{"city": Ulm}':  # it reads the arguments itself, and fails
        assert isinstance(scene.error, ValueError)
        assert await scene.content() == scene.told() == "I look."
        assert (await scene.row()).finish == "error"
        return
    assert await scene.content() == scene.told() == [text, {**CALL, "input": {}, "invalid": raw}]
    assert [call.invalid for call in scene.calls] == [raw]


async def test_a_cut_in_mid_stream(provider: Provider, dialect: Dialect, engine: Engine) -> None:
    """The SDK's own error comes through; what came until then stays, without the call that was not whole."""
    stream = [*dialect.begin(), *dialect.say("Half an ans"), *dialect.call("c1", "weather", '{"city"')]
    provider.answer([*stream[:-1], Step.CUT])
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    assert type(scene.error).__module__.split(".")[0] in {"openai", "anthropic", "httpx2"}
    assert await scene.content() == scene.told() == "Half an ans"
    assert (await scene.row()).finish == "error"
    assert scene.sink.turns[-1] == (1, "error")


async def test_a_cut_that_looks_like_an_end(provider: Provider, dialect: Dialect, engine: Engine) -> None:
    """A proxy that ends the body properly: no SDK notices, and the answer must not pass for a whole one."""
    provider.answer([*dialect.begin(), *dialect.say("Half an ans")])
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    assert isinstance(scene.error, ModelFailed)
    assert await scene.content() == "Half an ans"
    assert (await scene.row()).finish == "error"


async def test_a_provider_that_is_busy_is_asked_again(provider: Provider, dialect: Dialect, engine: Engine) -> None:
    provider.answers.append(Answer(status=429, headers=("retry-after: 0.01",), body=b'{"error": {"message": "busy"}}'))
    provider.answer([*dialect.begin(), *dialect.say("Hello"), *dialect.end("stop")])
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    assert await scene.content() == "Hello"
    assert len(provider.requests) == 2


async def test_a_provider_that_stays_busy(provider: Provider, dialect: Dialect, engine: Engine) -> None:
    """No row, no half of one: the turn ends in error, and the next one is answered."""
    busy = Answer(status=429, headers=("retry-after: 0.01", "x-should-retry: false"))
    provider.answers.append(busy)
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    assert type(scene.error).__name__ == "RateLimitError"
    assert scene.draft.seq is None
    assert scene.sink.turns[-1] == (1, "error")
    provider.answer([*dialect.begin(), *dialect.say("Hello"), *dialect.end("stop")])
    await scene.send("again")
    assert await scene.content() == "Hello"


async def begun(scene: Scene, provider: Provider, text: str) -> asyncio.Task[None]:
    """Sends a message; returns once the stream is held and the client was told all that came."""
    sending = asyncio.create_task(scene.send())
    await provider.held.wait()
    await scene.sink.until(lambda sink: any(isinstance(event, DeltaTold) for event in sink.events))
    await scene.sink.until(lambda sink: scene.told() == text)
    return sending


async def test_a_stalled_stream(provider: Provider, dialect: Dialect, engine: Engine, clock: Clock) -> None:
    provider.answer([*dialect.begin(), *dialect.say("Half an ans"), Step.HOLD])
    scene = await Scene.begin(engine, dialect.ask, stall_s=60)
    sending = await begun(scene, provider, "Half an ans")
    await clock.advance(59)
    assert scene.error is None
    await clock.advance(1)
    await sending
    await provider.gone.wait()
    assert isinstance(scene.error, TimeoutError)
    assert str(scene.error) == "nothing came from the model for 60 s"
    assert await scene.content() == "Half an ans"
    assert (await scene.row()).finish == "error"


async def test_a_stop_in_mid_stream(provider: Provider, dialect: Dialect, engine: Engine) -> None:
    """The provider sees its connection closed, so it stops computing what nobody will read."""
    provider.answer([*dialect.begin(), *dialect.say("Half an ans"), Step.HOLD])
    scene = await Scene.begin(engine, dialect.ask)
    sending = await begun(scene, provider, "Half an ans")
    scene.play.record.lane.cancel(1)
    await sending
    await provider.gone.wait()
    assert await scene.content() == "Half an ans"
    assert (await scene.row()).finish == "stopped"
    assert scene.sink.turns[-1] == (1, "stopped")


async def test_an_answer_that_is_too_long_closes_the_stream(
    provider: Provider, dialect: Dialect, engine: Engine
) -> None:
    provider.answer([*dialect.begin(), *dialect.say("x" * 600_000, "y" * 600_000), Step.HOLD])
    scene = await Scene.begin(engine, dialect.ask)
    await scene.send()
    await provider.gone.wait()
    assert type(scene.error).__name__ == "TooLarge"
    assert await scene.content() == "x" * 600_000


async def test_the_helper_of_openai_for_chat_streams(provider: Provider, engine: Engine) -> None:
    """`chat.completions.stream` wraps the chunks, and adds its own events."""
    chat = Chat(provider.url)
    provider.answer([*chat.begin(), *chat.say("Hel", "lo"), *chat.call("c1", "weather", "{}"), *chat.end("tool_calls")])

    async def ask(text: str) -> object:
        return chat.client.chat.completions.stream(model="m", messages=[{"role": "user", "content": text}])

    scene = await Scene.begin(engine, ask)
    await scene.send()
    assert (await scene.row()).text == "Hello"
    assert [call.tool_name for call in scene.calls] == ["weather"]
    await chat.close()


async def test_text_alone(provider: Provider, engine: Engine) -> None:
    messages = MessageStream(provider.url)
    provider.answer([*messages.begin(), *messages.say("Hel", "lo"), *messages.end("stop")])
    manager = await messages.ask("hi")
    async with manager as stream:

        async def ask(text: str) -> object:
            return stream.text_stream

        scene = await Scene.begin(engine, ask)
        await scene.send()
    assert await scene.content() == "Hello"
    await messages.close()
