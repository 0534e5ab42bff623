"""What messages and prompts cost, beside the real packages in one run: `python -m tests.bench.messages`.

Figures are medians of processor time. It says FAIL and exits 1 where one is over its bar. Peers that are not installed
are left out; `.ci/oracles` installs them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from statistics import median
from time import process_time
from typing import Any

from parlatory.storage import (
    Message,
    assistant_message,
    check_message,
    decode_message,
    encode_message,
    tool_message,
    user_message,
)
from parlatory.storage.convert.prompt import PROVIDERS, render
from parlatory.storage.messages import JsonOutput, Text, ToolCall, ToolResult

from ..prompts.adapter import rows_of

RENDER_US_MAX = 500
CHECK_US_MAX = 1.5
PYDANTIC_AI_MIN, LANGCHAIN_MIN = 10, 8

QUESTION = user_message("What is the weather in Paris and in Oslo tomorrow, and do I need an umbrella?")
ASKED = assistant_message(
    [
        Text(text="I will look that up."),
        ToolCall(tool_call_id="call_a1", tool_name="weather", input={"city": "Paris", "days": 1}),
        ToolCall(tool_call_id="call_a2", tool_name="weather", input={"city": "Oslo", "days": 1}),
    ]
)
ANSWERED = tool_message(
    [
        ToolResult(tool_call_id="call_a1", tool_name="weather", output=JsonOutput(value={"sky": "rain", "degrees": 9})),
        ToolResult(
            tool_call_id="call_a2", tool_name="weather", output=JsonOutput(value={"sky": "snow", "degrees": -2})
        ),
    ]
)
THREE: list[Message] = [QUESTION, ASKED, ANSWERED]


def hundred() -> list[Message]:
    """A hundred messages, in which every other turn runs tools; ids are new in each."""
    said: list[Message] = []
    while len(said) < 100:
        said.append(user_message("And how was it at that place last year, at about the same time? " * 2))
        if len(said) % 4 == 1:
            ids = [f"call_{len(said)}_{n}" for n in range(2)]
            calls = [ToolCall(tool_call_id=id, tool_name="weather", input={"city": "Paris"}) for id in ids]
            said.append(assistant_message([Text(text="Let me see."), *calls]))
            output = JsonOutput(value={"sky": "rain", "degrees": 9})
            said.append(tool_message([ToolResult(tool_call_id=id, tool_name="weather", output=output) for id in ids]))
        said.append(assistant_message("It rained, as it mostly does, and was colder than one would like. " * 4))
    return said[:100]


def microseconds(work: Callable[[], object], seconds: float = 0.3) -> float:
    """The median time of one call, of at least 15 samples of about 2 ms."""
    began = process_time()
    work()
    repeats = max(1, int(0.002 / max(process_time() - began, 1e-7)))
    samples: list[float] = []
    end = process_time() + seconds
    while process_time() < end or len(samples) < 15:
        began = process_time()
        for _ in range(repeats):
            work()
        samples.append((process_time() - began) / repeats * 1e6)
    return median(samples)


def peers() -> Iterator[tuple[str, Callable[[], object], Callable[[], object], float]]:
    """The same three messages in the packages of others: name, encode, decode, how much faster we are to be."""
    if importlib.util.find_spec("pydantic_ai") is not None:
        from pydantic_ai.messages import ModelMessagesTypeAdapter as adapter

        history = adapter.validate_python(render("pydantic-ai", rows_of(THREE))["message_history"])
        dumped = adapter.dump_json(history)
        yield "pydantic-ai", lambda: adapter.dump_json(history), lambda: adapter.validate_json(dumped), PYDANTIC_AI_MIN
    if importlib.util.find_spec("langchain_core") is not None:
        import json

        from langchain_core.messages import convert_to_messages, messages_from_dict, messages_to_dict

        chain: Any = convert_to_messages(render("langchain", rows_of(THREE))["messages"])
        text = json.dumps(messages_to_dict(chain))
        encode, decode = lambda: json.dumps(messages_to_dict(chain)), lambda: messages_from_dict(json.loads(text))
        yield "langchain", encode, decode, LANGCHAIN_MIN


def figures() -> Iterator[tuple[str, float, str, bool]]:
    bodies = [encode_message(message) for message in THREE]
    encoding = microseconds(lambda: [encode_message(message) for message in THREE])
    decoding = microseconds(lambda: [decode_message(body) for body in bodies])
    yield "encode three messages", encoding, "us", True
    yield "decode three messages", decoding, "us", True
    for name, encode, decode, least in peers():
        for what, ours, work in (("encode", encoding, encode), ("decode", decoding, decode)):
            ratio = microseconds(work) / ours
            yield f"{what}: times faster than {name}", ratio, f"x, at least {least}", ratio >= least
    check = microseconds(lambda: check_message(QUESTION))
    yield "append check of a text", check, f"us, at most {CHECK_US_MAX}", check <= CHECK_US_MAX
    rows = rows_of(hundred())
    for provider in PROVIDERS:
        cost = microseconds(lambda provider=provider: render(provider, rows))  # type: ignore[misc]
        yield f"render 100 messages for {provider}", cost, f"us, at most {RENDER_US_MAX}", cost <= RENDER_US_MAX


def main() -> int:
    kept = True
    for what, value, unit, ok in figures():
        kept = kept and ok
        print(f"{what:<45} {value:8.2f} {unit}{'' if ok else '  FAIL'}")  # noqa: T201
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
