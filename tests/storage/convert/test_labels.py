from __future__ import annotations

import re

import pytest

from parlatory.storage import user_message
from parlatory.storage.convert.labels import Labels, portable_labels, speaker
from parlatory.storage.convert.notes import Note

from ...prompts.adapter import rows_of


def test_an_id_stays_where_it_can() -> None:
    notes: list[Note] = []
    labels = portable_labels(notes)
    assert labels.call_id("call_1", 3) == "call_1"
    assert notes == []


def test_other_ids_are_hashed_and_never_meet() -> None:
    notes: list[Note] = []
    labels = portable_labels(notes)
    given = ["functions.f:0", "functions_f_0", "", "x" * 41, "functions.f:0", "functions_f_0"]
    made = [labels.call_id(id, 3) for id in given]
    assert made[1] == "functions_f_0"
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", id) for id in made)
    assert len(notes) == 5
    assert portable_labels([]).call_id("functions.f:0", 3) == made[0], "the same in every window"
    assert labels.call_id(portable_labels([]).call_id("a.b", 4), 5) != labels.call_id("a.b", 4)


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("find", "find"),
        ("get weather", "get_weather"),
        ("2fa", "_2fa"),
        ("", "tool"),
        ("é", "_"),
        ("n" * 70, "n" * 63),
        ("9" * 70, "_" + "9" * 63),
    ],
)
def test_tool_names(name: str, plain: str) -> None:
    notes: list[Note] = []
    labels = portable_labels(notes)
    assert [labels.tool_name(name, 1), labels.tool_name(name, 2)] == [plain, plain]
    assert [note.code for note in notes] == ([] if name == plain else ["tool_name_changed"]), "said once"


def test_labels_may_take_anything() -> None:
    labels = Labels(re.compile(r".+"), re.compile(r".+"), re.compile(r"(?!)"), [])
    assert (labels.call_id("a b", 1), labels.tool_name("a b", 1)) == ("a b", "a b")


@pytest.mark.parametrize(
    ("name", "plain"), [(None, None), ("Bob", "Bob"), ("Ann <Lee>", "Ann_Lee"), ("<|>", None), ("", None), ("é", "é")]
)
def test_speakers(name: str | None, plain: str | None) -> None:
    notes: list[Note] = []
    (row,) = rows_of([user_message("hi", name=name)])
    assert speaker(row, notes) == plain
    assert [note.code for note in notes] == ([] if name == plain else ["name_changed"])
