"""Prompts of any provider: the arguments, the notes, and that every call is answered."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from parlatory.storage import Custom, Message, MissingResult, Note, Prompt, Text, assistant_message, user_message
from parlatory.storage.convert.prompt import PROVIDERS, Provider, render

from ...prompts.adapter import rows_of
from ...prompts.histories import HISTORIES, PATIENT
from ...prompts.said import asks, codes, gives, prompt

ARGUMENTS = {"openai-responses": "input", "google": "contents", "pydantic-ai": "message_history"}


def splat(**arguments: Any) -> dict[str, Any]:
    return arguments


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_prompt_is_keyword_arguments_and_notes(provider: Provider) -> None:
    found = prompt(provider, user_message("hi"), gives(z="Z"))
    assert isinstance(found, Prompt)
    assert list(splat(**found)) == [ARGUMENTS.get(provider, "messages")]
    assert msgspec.json.decode(msgspec.json.encode(found)) == found
    assert found.notes == (
        Note("result_dropped", "a tool result is dropped: there is no open call of its id", seq=2, index=0),
    )


def test_an_unknown_provider() -> None:
    with pytest.raises(ValueError, match="no provider 'mistral': there are openai, openai-responses, anthropic"):
        render("mistral", [])  # type: ignore[arg-type]


def test_an_unknown_choice() -> None:
    with pytest.raises(ValueError, match="missing='error': it is one of synthesize, drop, raise"):
        render("openai", [], missing="error")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="system_role='user': it is one of system, developer"):
        render("openai", [], system_role="user")  # type: ignore[arg-type]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_rows_are_no_turns(provider: Provider) -> None:
    assert list(render(provider, []).values()) == [[]]


def test_what_is_missing_is_up_to_the_caller() -> None:
    said: list[Message] = [user_message("a"), asks("c")]
    assert codes(prompt("openai", *said)) == ["result_synthesized"]
    assert codes(prompt("openai", *said, missing="drop")) == ["call_dropped", "message_dropped"]
    assert codes(prompt("openai", *said, pending={(2, "c")})) == ["call_pending"]
    with pytest.raises(MissingResult):
        prompt("openai", *said, missing="raise")


def test_notes_are_in_the_order_of_the_log() -> None:
    found = prompt("anthropic", gives(z="Z"), asks("a.b"), user_message(""), asks("c"))
    assert [note.seq for note in found.notes] == [1, 2, 2, 3, 4, None]


OPTIONS = {"anthropic": {"cacheControl": {"type": "?"}}, "google": {"thoughtSignature": "?"}}


@pytest.mark.parametrize("provider", ["anthropic", "google", "ai-sdk"])
@pytest.mark.parametrize(
    "said",
    [
        user_message([Text(text="a", provider_options=OPTIONS), Custom(kind="x.y", data=None)]),
        user_message("a", provider_options=OPTIONS),
    ],
)
def test_a_client_has_no_options_for_providers(provider: Provider, said: Message) -> None:
    (row,) = rows_of([said])
    found = render(provider, [msgspec.structs.replace(row, client_id="c1")])
    assert b"?" not in msgspec.json.encode(found)
    assert "options_dropped" in codes(found)


def test_whom_the_log_belongs_to_has_options() -> None:
    said = [user_message([Text(text="a", provider_options=OPTIONS)]), user_message("b")]
    spoken = assistant_message([Text(text="c", provider_options=OPTIONS)])
    rows = [msgspec.structs.replace(row, client_id=f"c{row.seq}") for row in rows_of([*said, spoken])]
    rows[0] = msgspec.structs.replace(rows[0], client_id=None)
    found = render("google", rows)
    assert [part.get("thought_signature") for turn in found["contents"] for part in turn["parts"]] == ["?", None, "?"]
    assert found.notes == ()


def ids(provider: Provider, found: Prompt) -> tuple[list[str], list[str]]:
    """The ids of the calls and of the results in a prompt, in order."""
    calls: list[str] = []
    results: list[str] = []
    (turns,) = (found[key] for key in ("messages", "input", "contents", "message_history") if key in found)
    for turn in turns:
        blocks = turn.get("parts") or turn.get("content")
        for block in [
            turn,
            *(turn.get("tool_calls") or turn.get("toolCalls") or ()),
            *(blocks if isinstance(blocks, list) else ()),
        ]:
            kind = block.get("type", block.get("part_kind", block.get("role")))
            if call := block.get("function_call"):
                calls.append(call["id"])
            elif answer := block.get("function_response"):
                results.append(answer["id"])
            elif kind in RESULTS or (kind == "tool" and block.keys() & set(RESULT_IDS)):
                results.append(next(value for key, value in block.items() if key in RESULT_IDS))
            elif kind in ("function", "tool_use", "function_call", "tool-call", "tool_call"):
                calls.append(
                    block.get("call_id") or block.get("toolCallId") or block.get("tool_call_id") or block["id"]
                )
    return calls, results


RESULTS = ("tool_result", "function_call_output", "tool-result", "tool-return")
RESULT_IDS = ("tool_use_id", "tool_call_id", "toolCallId", "call_id")


@settings(PATIENT, max_examples=30)
@given(HISTORIES)
def test_t42_t43_every_call_has_its_result_and_every_result_its_call(messages: list[Message]) -> None:
    for provider in PROVIDERS:
        calls, results = ids(provider, render(provider, rows_of(messages)))
        assert sorted(calls) == sorted(results), provider
        assert len(set(calls)) == len(calls), provider


def test_the_check_above_sees_calls() -> None:
    for provider in PROVIDERS:
        assert ids(provider, prompt(provider, user_message("a"), asks("c", "d"), gives(d="D", c="C"))) == (
            ["c", "d"],
            ["c", "d"],
        )
