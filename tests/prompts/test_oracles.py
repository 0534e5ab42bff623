"""What the oracles for prompts say: they lie beside some checkouts only, and `.ci/oracles` runs this."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from hypothesis import given, settings

from parlatory.storage import Message, MessageLog, encode_message, open_engine
from parlatory.storage.convert.prompt import render as render_rows

from .adapter import PROVIDER, as_judged, codec, render, rows_of
from .histories import HISTORIES, PATIENT, conversation

oracle = pytest.importorskip("oracles.check")
run = pytest.importorskip("oracles.run")
AG_UI: Any = pytest.importorskip("pydantic").TypeAdapter(list[pytest.importorskip("ag_ui.core").Message])  # type: ignore[misc]

HISTORIES_MAX = int(os.environ.get("PARLATORY_HISTORIES", "500"))
WINDOWS = 300
OFFLINE = tuple(target for target in PROVIDER if target != "ai_sdk")
MANY = settings(PATIENT, max_examples=HISTORIES_MAX, database=None)


def wire(messages: list[Message]) -> list[dict[str, Any]]:
    return [json.loads(encode_message(message)) for message in messages]


def refused_by_node(prompts: list[Any]) -> list[str]:
    """What the AI SDK says of prompts; the first few of them it refuses, as they are."""
    judged = zip(prompts, oracle.check_ai_sdk_batch(prompts), strict=True)
    return [f"{violations} in {json.dumps(prompt)}" for prompt, violations in judged if violations][:5]


def check_ag_ui(messages: list[Message]) -> None:
    """The protocol's own types read the messages, and lose nothing of them."""
    found = render_rows("ag-ui", rows_of(messages), conversation="bot/ann")["messages"]
    read = AG_UI.validate_python(found)
    assert AG_UI.dump_python(read, mode="json", by_alias=True, exclude_unset=True) == found


@pytest.mark.timeout(300)
def test_the_cases() -> None:
    judged, failures = run.judge_cases(run.CASES, render, codec)
    assert failures == []
    assert judged >= 283, "some were skipped"


@pytest.mark.timeout(7200)
def test_generated_histories() -> None:
    for_node: list[Any] = []

    @MANY
    @given(HISTORIES)
    def judged(messages: list[Message]) -> None:
        for target in OFFLINE:
            assert oracle.check(target, render(target, wire(messages))) == [], target
        check_ag_ui(messages)
        for_node.append(render("ai_sdk", wire(messages)))

    judged()
    assert len(for_node) >= HISTORIES_MAX
    assert refused_by_node(for_node) == []


@pytest.mark.timeout(300)
async def test_windows_of_likely_conversations() -> None:
    """Cut anywhere, after any crash: no provider refuses one."""
    engine = await open_engine("memory:")
    refused: list[str] = []
    for_node: list[Any] = []
    for seed in range(WINDOWS):
        chance = random.Random(seed)
        log = MessageLog(await engine.partition(f"bot/{seed}"))
        await log.append_many(conversation(chance))
        for rows in (await log.last(chance.randint(3, 14)), await log.context(chance.randint(3, 14))):
            for target, provider in PROVIDER.items():
                prompt = as_judged(target, await log.prompt(provider, window=rows))
                if target == "ai_sdk":
                    for_node.append(prompt)
                elif violations := oracle.check(target, prompt):
                    refused.append(f"{seed} {target}: {violations}")
    await engine.close()
    assert refused + refused_by_node(for_node) == []
