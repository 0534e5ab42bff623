from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from parlatory.actors import Agent, Runtime
from parlatory.storage import open_engine, user_message

PATH = Path(__file__).parents[2] / "examples" / "eliza.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("eliza_under_test", PATH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


eliza = load()
answer = cast(Callable[[str, Sequence[str]], str], eliza.answer)
Eliza = cast(type[Agent], eliza.Eliza)


@pytest.mark.parametrize(
    ("text", "reflected"),
    [
        ("I lost my keys", "you lost your keys"),
        ("angry with you!", "angry with me"),
        ("I know that you lie", "you know that I lie"),
        ("sure that you're right.", "sure that I'm right"),
        ("", ""),
    ],
)
def test_pronouns_are_reflected(text: str, reflected: str) -> None:
    assert eliza.reflect(text) == reflected


@pytest.mark.parametrize(
    ("remark", "said"),
    [
        ("Hello", "Hello. What would you like to talk about?"),
        ("I feel happy today.", "What makes you feel happy today?"),
        ("I’m tired of my job", "How long have you been tired of your job?"),
        ("I need a holiday", "Why do you need a holiday?"),
        ("My name is Ann", "Good to meet you, Ann. What brings you here?"),
        ("It is about my mother", "Tell me more about your mother."),
        ("Why is that?", "What do you think yourself?"),
        ("   ", "You are very quiet. Take your time."),
        ("Well {0} {}", "Please go on."),
        ("I feel {0}", "What makes you feel {0}?"),
    ],
)
def test_a_first_remark(remark: str, said: str) -> None:
    assert answer(remark, []) == said


def test_answers_of_a_pattern_take_turns() -> None:
    assert answer("I feel old", ["I feel happy"]) == "Do you often feel old?"


def test_a_repetition_is_noticed() -> None:
    assert answer("i FEEL happy!", ["I feel happy."]).startswith("You said that before")
    assert answer("I feel happy", ["I feel happy."] * 2).startswith("You keep saying that")


def test_an_earlier_remark_is_remembered() -> None:
    assert (
        answer("Hm", ["It is my work.", "Well"]) == "Earlier you said: “It is my work.”. Does this have to do with it?"
    )


def test_a_remark_without_a_pattern_and_without_a_memory() -> None:
    assert answer("Hm", ["Well", "So"]) == "How does that make you feel?"


async def test_a_dialogue_goes_on_after_a_restart_as_if_there_had_been_none(tmp_path: Path) -> None:
    remarks = ["Hello", "I feel lonely.", "Because my brother moved away", "Hm", "I feel lonely."]
    dialogues = []
    for restarts in (1, len(remarks)):
        address = f"sqlite:///{tmp_path / str(restarts)}"
        size = len(remarks) // restarts
        for start in range(0, len(remarks), size):
            async with Runtime(await open_engine(address), [Eliza]) as runtime:
                ref = runtime.get("eliza", "you")
                log = await ref.log()
                for remark in remarks[start : start + size]:
                    await ref.append(user_message(remark), by="you")
                    await (await runtime.conversation(ref.name)).lane.join()
                lines = [row.text for row in await log.all()]
        dialogues.append(lines)
    assert (
        dialogues[0]
        == dialogues[1]
        == [
            "Hello",
            "I am Eliza, and I have time. Hello. What would you like to talk about?",
            "I feel lonely.",
            "What makes you feel lonely?",
            "Because my brother moved away",
            "Is that the real reason?",
            "Hm",
            "Say more about that.",
            "I feel lonely.",
            "You said that before. What keeps you coming back to it?",
        ]
    )


async def test_each_speaker_has_his_own_thread(tmp_path: Path) -> None:
    async with Runtime(await open_engine("memory:"), [Eliza]) as runtime:
        ref = runtime.get("eliza", "room")
        for by in ("ann", "bob"):
            await ref.append(user_message("I need a holiday"), by=by)
            await (await runtime.conversation(ref.name)).lane.join()
        texts = [row.text for row in await (await ref.log()).all()]
    assert texts[1] == texts[3] == "I am Eliza, and I have time. Why do you need a holiday?"
