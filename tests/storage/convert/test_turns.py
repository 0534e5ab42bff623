from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parlatory.storage import Message, assistant_message, system_message, user_message
from parlatory.storage.convert.labels import portable_labels
from parlatory.storage.convert.notes import Note
from parlatory.storage.convert.turns import Call, Turn, arguments, option, shown_behind, turns
from parlatory.storage.messages import ContentOutput, Custom, File, Image, Reasoning, Text, TextOutput, UnknownPart

from ...prompts.adapter import rows_of
from ...prompts.said import asks, call, gives

PICTURE = Image(data="QQ==", media_type="image/png")
CHART = File(data="QQ==", media_type="a/b", filename="f.txt")
HIDDEN = (Custom(kind="a.b", data=1), UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new"}')))


def of(*messages: Message, **options: Any) -> tuple[list[Turn], list[tuple[str, int | None, int | None]]]:
    notes: list[Note] = []
    found = turns(rows_of(messages), portable_labels(notes), notes, **options)
    return found, [(note.code, note.seq, note.index) for note in notes]


def test_calls_hold_their_results() -> None:
    ((said,), notes) = of(asks("a.b", "c"), gives(**{"a.b": "A", "c": "C"}))
    assert [(call.name, call.output) for call in said.calls] == [
        ("find", TextOutput(value="A")),
        ("find", TextOutput(value="C")),
    ]
    assert said.calls[0].id.startswith("call_") and said.calls[1].id == "c"
    assert list(said.content) == said.calls
    assert notes == [("call_id_renamed", 1, None)]


def test_text_stays_text() -> None:
    found, notes = of(system_message("s"), user_message(" u "), assistant_message("a"))
    assert [(turn.role, turn.content) for turn in found] == [("system", "s"), ("user", " u "), ("assistant", "a")]
    assert notes == []


def test_blank_text_is_dropped() -> None:
    messages: list[Message] = [
        user_message(""),
        user_message(" \n"),
        user_message(()),
        assistant_message([Text(text=" ")]),
    ]
    found, notes = of(*messages, user_message([Text(text=""), Text(text="a")]))
    assert [turn.content for turn in found] == [[Text(text="a")]]
    assert [note for note in notes if note[0] == "message_dropped"] == [
        ("message_dropped", seq, None) for seq in (1, 2, 3, 4)
    ]
    assert [note for note in notes if note[0] == "blank_dropped"] == [("blank_dropped", 4, 0), ("blank_dropped", 5, 0)]


def test_t63_what_only_others_know_is_dropped() -> None:
    (asked, said), notes = of(user_message([PICTURE, *HIDDEN]), assistant_message([*HIDDEN, Reasoning(text="t")]))
    assert asked.content == [PICTURE]
    assert said.content == [Reasoning(text="t")]
    assert notes == [("part_dropped", 1, 1), ("part_dropped", 1, 2), ("part_dropped", 2, 0), ("part_dropped", 2, 1)]


def test_a_file_of_the_assistant_is_named_where_it_cannot_be_shown() -> None:
    said, asked = assistant_message([Text(text="see "), CHART]), user_message([CHART])
    (first, second), notes = of(said, asked)
    assert [first.content, second.content] == [[Text(text="see "), Text(text="[f.txt]")], [CHART]]
    assert notes == [("media_as_text", 1, None)]
    assert of(said, said_files=True)[0][0].content == [Text(text="see "), CHART]


@pytest.mark.parametrize(
    ("invalid", "given"),
    [
        (None, {"q": "é"}),
        ("", {}),
        ("null", {}),
        ('{"a":1}', {"a": 1}),
        ("[1]", {"_value": [1]}),
        ('"Paris"', {"_value": "Paris"}),
        ("false", {"_value": False}),
        ('{"a":', {"_raw": '{"a":'}),
        ("[" * 100_000, {"_raw": "[" * 100_000}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_arguments(invalid: str | None, given: dict[str, Any]) -> None:
    notes: list[Note] = []
    assert arguments(Call(call("a", invalid=invalid), "a", "find"), 7, notes) == given
    assert [(note.code, note.seq) for note in notes] == [("arguments_wrapped", 7)] * (
        given.keys() <= {"_raw", "_value"} and bool(given)
    )


def test_what_results_show_is_behind_them() -> None:
    notes: list[Note] = []
    shown = ContentOutput(value=(Text(text="a"), PICTURE))
    (mute, said), _ = of(asks("a"), gives(a="A"), asks("b", "c", "d"), gives(b=shown, c="C", d=shown))
    assert shown_behind(mute, lambda row, part, notes: {}, notes) == []
    assert notes == []
    content = shown_behind(said, lambda row, part, notes: {"seq": row.seq, "is": part is PICTURE}, notes)
    assert content == [{"role": "user", "content": [{"seq": 3, "is": True}, {"seq": 3, "is": True}]}]
    assert [(note.code, note.seq) for note in notes] == [("media_moved", 3)]


def test_options() -> None:
    part = Text(text="a", provider_options={"one": {"x": 1}, "two": 2})
    assert option(part, "one", "x") == 1
    assert option(part, "one", "y") is option(part, "two", "x") is option(Text(text="a"), "one", "x") is None
