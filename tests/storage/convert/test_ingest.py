"""What the readers share: objects in JSON terms, where a medium is, ids of calls, outputs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlatory import storage
from parlatory.storage import CodecError, Message, check_message
from parlatory.storage.convert.ingest import Calls, assistant, failure, label, options, output_of, plain, source
from parlatory.storage.messages import (
    ContentOutput,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Text,
    TextOutput,
)

READERS: list[Callable[[object], list[Message]]] = [
    getattr(storage, name) for name in storage.__all__ if name.startswith("from_")
]


@dataclass
class Thing:
    when: object


def test_objects_in_json_terms() -> None:
    def some() -> Iterator[int]:
        yield 1

    assert plain('{"a": 1}') == plain(b'{"a": 1}') == plain(MappingProxyType({"a": 1})) == {"a": 1}
    assert plain(Thing((some(), b"\xff"))) == {"when": [[1], "/w=="]}
    for bad in ("{", object(), {"a": object()}):
        with pytest.raises(CodecError):
            plain(bad)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("https://x.test/a", {"url": "https://x.test/a"}),
        ("HTTP://x.test/a", {"url": "HTTP://x.test/a"}),
        ("data:text/plain,a", {"url": "data:text/plain,a"}),
        ("data:a/b;x=y;base64,QQ==", {"media_type": "a/b", "data": "QQ=="}),
        ("gs://b/a", {"ref": {"vendor": "gs://b/a"}}),
        ("_-8", {"data": "/+8="}),
        ("", None),
        (None, None),
        (5, None),
    ],
)
def test_where_a_medium_is(value: object, found: object) -> None:
    assert source(value, "vendor") == found


def test_its_type_as_said_beside_it_goes_first() -> None:
    assert source("data:a/b;base64,QQ==", "vendor", "c/d") == {"media_type": "c/d", "data": "QQ=="}
    assert source("QQ==", "vendor", "") == {"data": "QQ=="}


def test_options_and_labels() -> None:
    assert options("vendor", {"a": None, "b": []}) == {}
    assert options("vendor", {"a": 0}) == {"provider_options": {"vendor": {"a": 0}}}
    assert [label(id) for id in ("a", "", None, "a" * 129)] == ["a", "", None, None]


def test_calls_have_ids() -> None:
    calls = Calls()
    ids = [calls.call(id, "f", {}).tool_call_id for id in ("a", "a", None, "", "b")]
    assert ids == ["a", "a_1", "call_2", "call_3", "b"]
    calls.begin()
    assert calls.call("a", None, {}).tool_name == "unknown"  # providers use ids again
    assert [calls.call(None, "f", {}).tool_call_id for _ in range(2)] == ["call_5", "call_6"]


def test_results_find_their_calls() -> None:
    calls = Calls()
    calls.call("a", "f", {})
    calls.call("b", "f", {})
    output = TextOutput(value="x")
    assert calls.result("b", None, output).tool_name == "f"
    assert calls.result(None, "f", output).tool_call_id == "a"
    assert calls.result(None, "f", output).tool_call_id == "call_2"
    assert calls.result("c", "", output).tool_name == "tool"


@given(st.lists(st.tuples(st.sampled_from(["", "a", "call_0", "call_1", "a_1", None]), st.booleans())))
def test_ids_are_unique_in_a_message(given_ids: list[tuple[str | None, bool]]) -> None:
    calls, here = Calls(), list[str]()
    for id, new in given_ids:
        if new:
            calls.begin()
            here = []
        here.append(calls.call(id, "f", {}).tool_call_id)
        assert len(set(here)) == len(here)


def test_outputs() -> None:
    def read(block: Any) -> object:
        return Text(text=block["text"]) if block["type"] == "text" else None

    assert output_of([{"type": "text", "text": "a"}], read) == TextOutput(value="a")
    assert output_of([{"no": "type"}], read) == JsonOutput(value=[{"no": "type"}])
    assert output_of({"a": 1}, read, failed=True) == ErrorJsonOutput(value={"a": 1})
    content = ContentOutput(value=(Text(text="a"),))
    assert failure(content) == ErrorJsonOutput(value=[{"type": "text", "text": "a"}])
    assert failure(TextOutput(value="a")) == ErrorTextOutput(value="a")
    assert failure(JsonOutput(value=1)) == ErrorJsonOutput(value=1)
    assert failure(ExecutionDenied()) == ExecutionDenied()


def test_a_picture_that_a_model_said_is_a_file() -> None:
    said = assistant([Image(data="QQ==", media_type="image/png", filename="n")])
    assert said.content == (File(data="QQ==", media_type="image/png", filename="n"),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
WORDS = ["role", "type", "content", "parts", "text", "tool_calls", "function", "name", "arguments", "id", "kind"]
WORDS += ["data", "source", "output", "call_id", "input", "user", "assistant", "model", "tool", "system", "response"]
WORDS += ["function_call", "tool-call", "tool_result", "image", "image_url", "url", "thinking", "reasoning", "summary"]
WORDS += ["tool-result", "tool_use", "part_kind", "request", "user-prompt", "args", "human", "ai", "messages", "file"]
SHAPED = st.recursive(
    st.sampled_from(WORDS) | st.none() | st.just(5) | st.just("https://x.test/a"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=5),
    max_leaves=20,
)


@given(st.sampled_from(READERS), JSON | SHAPED)
def test_nothing_but_a_codec_error(read: Callable[[object], list[Message]], obj: object) -> None:
    """Whatever it is given, a reader returns messages or says what is wrong and where."""
    try:
        messages = read(obj)
    except CodecError as error:
        assert error.path.startswith("$")
        return
    for message in messages:
        try:
            check_message(message)
        except CodecError as error:
            assert error.path.startswith("$")


def test_no_reader_imports_an_sdk() -> None:
    names = ", ".join(read.__name__ for read in READERS)
    script = f"import sys; from parlatory.storage import {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert "msgspec" in loaded
    assert not loaded & {"openai", "anthropic", "google", "langchain_core", "pydantic", "pydantic_ai"}
