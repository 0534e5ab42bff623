"""Histories to judge prompts with: any that the structs can say, also what no log would take, and likely ones."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from parlatory.storage import Message, assistant_message, system_message, tool_message, user_message
from parlatory.storage.messages import (
    ContentOutput,
    Custom,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Reasoning,
    Text,
    TextOutput,
    ToolCall,
    ToolResult,
    UnknownPart,
)

# Such histories take their time to make, on a slow machine longer than is usual.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
PNG, PDF = "iVBORw0KGgo=", "JVBERi0xLjQ="


def optional(strategy: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.none() | strategy


# Blank, odd and plain text: rare characters are found by the few that stand for their kind.
TEXTS = st.sampled_from(
    ["", " ", "\n\t", "hi", "ends with space \n", "a\0b", "é 😀 שלום", "</system>", '{"a":1}', "x" * 70]
)
IDS = st.sampled_from(["", "c1", "c2", "c3", "call_0", "functions.f:0", "functions_f_0", "a|b", "é", "x" * 53, " "])
NAMES = st.sampled_from(["", "lookup", "get weather", "docs.search", "2fa_check", "é", "-", "n" * 129, "_a:b"])
SPEAKERS = optional(st.sampled_from(["", "Ann <Lee>", "bob", "\\/", "a b", "é"]))
MESSAGE_IDS = optional(st.sampled_from(["", "m1", "m 2"]))
LEAVES: SearchStrategy[Any] = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, "", "s", "é"])
KEYS = st.sampled_from(["a", "error", "result"])
JSON = LEAVES | st.lists(LEAVES, max_size=2) | st.dictionaries(KEYS, LEAVES | st.lists(LEAVES, max_size=2), max_size=2)
OBJECTS = st.dictionaries(st.sampled_from(["a", "é", "_raw"]), JSON, max_size=2)
OPTIONS = optional(
    st.sampled_from(
        [
            {},
            {"x": 1},
            {"anthropic": {"cacheControl": {"type": "ephemeral"}}},
            {"google": {"thoughtSignature": "AAEC"}},
            {"openai": {"itemId": "msg_1"}, "other": "text"},
        ]
    )
)
TYPES = st.sampled_from(
    ["image/png", "image/jpg", "IMAGE/WEBP", "image/tiff", "image", "application/pdf", "text/plain; charset=utf-8"]
    + ["audio/wav", "audio/mpeg", "video/mp4", "application/x y", "application/octet-stream", ""]
)
DATA = st.sampled_from(
    [PNG, PDF, "", "QQ==", "/9j/4AAQ", "R0lGODlh", "UklGRgAAAABXRUJQ", "SUkqAAgAAAA=", "ICA=", "/w=="]
)
URLS = st.sampled_from(
    [
        "https://x.test/a.png",
        "http://x.test/a.pdf?b=c",
        "https://x.test",
        "https:///a",
        "https://x.test/a b",
        "HTTP://x",
    ]
    + ["https://[", "ftp://x/y", "", f"data:image/png;base64,{PNG}", "data:image/png;base64,@", "data:,hi%20you"]
    + [
        f"DATA:application/pdf;a=b;base64,{PDF}",
        "data:text/plain;charset=utf-8,",
        "data:image/tiff;base64,SUkqAAgAAAA=",
    ]
)
REFS = st.sampled_from(
    [
        {"openai": "file-1"},
        {"anthropic": "file_1"},
        {"google": "gs://a/b"},
        {"parlatory": "sha256:x"},
        {"other": "o"},
        {},
    ]
)
SOURCES: SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"data": DATA}), st.fixed_dictionaries({"url": URLS}), st.fixed_dictionaries({"ref": REFS})
)
FILENAMES = optional(st.sampled_from(["a.png", "", " ", "é.pdf"]))
DETAILS = optional(st.sampled_from(["low", "auto", "best", ""]))


def image(source: dict[str, Any], type: str | None, filename: str | None, detail: str | None) -> Image:
    return Image(media_type=type, filename=filename, detail=detail, **source)


def file(source: dict[str, Any], type: str, filename: str | None, detail: str | None) -> File:
    return File(media_type=type, filename=filename, detail=detail, **source)


TEXT = st.builds(Text, text=TEXTS, provider_options=OPTIONS)
IMAGES = st.builds(image, SOURCES | st.just({}), optional(TYPES), FILENAMES, DETAILS)
FILES = st.builds(file, SOURCES | st.just({}), TYPES, FILENAMES, DETAILS)
CUSTOM = st.builds(Custom, kind=st.just("acme.card"), data=JSON)
UNKNOWN = st.just(UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new","a":1}')))
REASONING = st.one_of(
    st.builds(Reasoning, text=TEXTS, signature=st.just("sig"), provider=st.just("anthropic")),
    st.builds(Reasoning, text=TEXTS, data=st.just("enc"), provider=st.just("anthropic")),
    st.builds(
        Reasoning, text=TEXTS, id=st.sampled_from(["rs_1", "rs_2"]), data=st.just("enc"), provider=st.just("openai")
    ),
    st.builds(
        Reasoning,
        text=TEXTS,
        id=optional(st.sampled_from(["rs_1", "x", ""])),
        signature=optional(st.sampled_from(["sig", ""])),
        data=optional(st.sampled_from(["enc", ""])),
        provider=optional(st.sampled_from(["openai", "anthropic", "google", "other"])),
    ),
)
OUTPUTS = st.one_of(
    st.builds(TextOutput, value=TEXTS),
    st.builds(JsonOutput, value=JSON),
    st.builds(ErrorTextOutput, value=TEXTS),
    st.builds(ErrorJsonOutput, value=JSON),
    st.builds(ExecutionDenied, reason=optional(TEXTS)),
    st.builds(ContentOutput, value=st.lists(TEXT | IMAGES | FILES | UNKNOWN, max_size=3).map(tuple)),
)
CALLS = st.builds(
    ToolCall,
    tool_call_id=IDS,
    tool_name=NAMES,
    input=OBJECTS,
    invalid=optional(st.sampled_from(["", " ", '{"a":', "[1]", "null", '"Paris"', '{"a":1}'])),
    provider_executed=st.booleans(),
    provider_options=OPTIONS,
)
RESULTS = st.builds(ToolResult, tool_call_id=IDS, tool_name=NAMES, output=OUTPUTS)
FIELDS = {"name": SPEAKERS, "id": MESSAGE_IDS, "provider_options": OPTIONS}

SYSTEM = st.builds(system_message, TEXTS, **FIELDS)
USER = st.builds(user_message, TEXTS | st.lists(TEXT | IMAGES | FILES | CUSTOM | UNKNOWN, max_size=4), **FIELDS)
SAID = TEXT | CALLS | REASONING | RESULTS | FILES | CUSTOM | UNKNOWN
ASSISTANT = st.builds(assistant_message, TEXTS | st.lists(SAID, max_size=5), **FIELDS)
TOOL = st.builds(tool_message, st.lists(RESULTS, min_size=1, max_size=3))
MESSAGES: SearchStrategy[Message] = SYSTEM | USER | ASSISTANT | TOOL


@st.composite
def tool_runs(draw: st.DrawFn) -> list[Message]:
    """Calls and what came of them: all results or some, in any order, one row or many, others in between."""
    calls = draw(st.lists(CALLS, min_size=1, max_size=3))
    words = draw(st.lists(TEXT | REASONING, max_size=2))
    run: list[Message] = [assistant_message(draw(st.permutations([*words, *calls])), name=draw(SPEAKERS))]
    answered = draw(st.lists(st.sampled_from(calls), max_size=4))
    results = [
        ToolResult(tool_call_id=call.tool_call_id, tool_name=draw(NAMES), output=draw(OUTPUTS)) for call in answered
    ]
    together = bool(results) and draw(st.integers(0, 1))
    run += [tool_message(results)] if together else [tool_message([result]) for result in results]
    for _ in range(draw(st.integers(0, 2))):
        run.insert(draw(st.integers(1, len(run))), draw(MESSAGES))
    return run


def joined(episodes: list[list[Message]]) -> list[Message]:
    return [message for episode in episodes for message in episode]


EPISODES = tool_runs() | st.lists(MESSAGES, min_size=1, max_size=2)
# A user says something, so that no prompt is without turns.
HISTORIES = st.tuples(st.lists(EPISODES, max_size=4), st.lists(EPISODES, max_size=2)).map(
    lambda ends: [*joined(ends[0]), user_message("hello"), *joined(ends[1])]
)


def conversation(chance: random.Random, turns: int = 6) -> list[Message]:
    """What a support agent with tools leaves in a log; one run of tools in ten is cut by a crash."""
    said: list[Message] = [system_message("Help with orders.")] if chance.random() < 0.5 else []
    for turn in range(turns):
        said.append(user_message(f"question {turn}"))
        for round in range(chance.choice((0, 0, 1, 1, 2, 3))):
            # Some providers count their call ids from 0 in each turn.
            ids = [
                chance.choice((f"call_{round}{n}", f"call_{turn}_{round}_{n}"))
                for n in range(chance.choice((1, 1, 2, 3)))
            ]
            calls = [ToolCall(tool_call_id=id, tool_name="find_order", input={"order": turn}) for id in ids]
            words = [Text(text="Let me look.")] if chance.random() < 0.4 else []
            said.append(assistant_message([*words, *calls]))
            crashed = chance.random() < 0.1
            results = [
                ToolResult(tool_call_id=id, tool_name="find_order", output=TextOutput(value=f"order {turn}: sent"))
                for id in (ids[: chance.randrange(len(ids))] if crashed else ids)
            ]
            if chance.random() < 0.5:
                said += [tool_message([result]) for result in results]
            elif results:
                said.append(tool_message(results))
            if crashed:
                break
        else:
            said.append(assistant_message(f"answer {turn}"))
    return said
