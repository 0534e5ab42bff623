from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parlatory.storage import Message, assistant_message, system_message, tool_message, user_message
from parlatory.storage.convert.pairing import pair
from parlatory.storage.convert.windows import LOOK_BACK_ROWS, Window, budget_text
from parlatory.storage.messages import (
    ContentOutput,
    ErrorTextOutput,
    ExecutionDenied,
    Image,
    JsonOutput,
    Reasoning,
    Text,
)

from ...prompts.adapter import rows_of
from ...prompts.said import asks, call, gives, result

U, A = user_message("12345"), assistant_message("12345")


def start(window: Window, *messages: Message, final: bool = True, lead: Any = ()) -> int | None:
    return window.start(rows_of(messages), lead, final=final)


@pytest.mark.parametrize(
    ("n", "place"), [(1, 4), (2, 4), (3, 2), (4, 2), (5, 0), (6, 0), (9, 0)], ids=lambda value: str(value)
)
def test_it_moves_back_to_a_user_row(n: int, place: int) -> None:
    assert start(Window(n), U, A, U, A, U, A) == place


def test_it_never_begins_inside_of_a_group() -> None:
    late: list[Message] = [U, asks("a"), U, A, U, gives(a="A"), U, A]
    assert start(Window(1), *late) == 6
    assert start(Window(3), *late) == 0, "2 and 4 are between call and result"
    assert start(Window(4), U, asks("a", "b"), gives(a="A"), U, A) == 0
    assert start(Window(2), U, asks("a", "b"), gives(a="A"), U, A) == 3, "b is open; that cuts nothing"


def test_what_lies_before_may_be_needed() -> None:
    assert start(Window(2), A, A, A, final=False) is None
    assert start(Window(3), U, A, A, final=False) is None, "there may be a user row just there, and rows before it"
    assert start(Window(2), U, A, A, final=False) == 0
    assert start(Window(1), U, gives(z="Z"), A, final=False) is None, "its call may lie before"
    assert start(Window(1), U, gives(z="Z"), A, final=True) == 0


def test_without_a_user_row_before_it_moves_forward() -> None:
    assert start(Window(4), A, A, A, U, A) == 3
    assert start(Window(2), A, A, A) == 1
    assert start(Window(1), A, asks("a"), gives(a="A")) is not None
    assert start(Window(9), A, U) == 0, "nothing is cut"


def test_it_looks_back_so_far_and_no_further() -> None:
    many: list[Message] = [A] * LOOK_BACK_ROWS
    assert start(Window(3), *many[1:], A, U, A, final=False) is None
    assert start(Window(3), *many, A, U, A, final=False) == LOOK_BACK_ROWS + 1


def test_a_budget_is_kept() -> None:
    talk: list[Message] = [U, A, U, A, U, A]
    assert [start(Window(max_chars=chars), *talk) for chars in (10, 19, 20, 29, 30, 99)] == [4, 4, 2, 2, 0, 0]
    assert start(Window(max_chars=1), *talk) == 4, "at least from the newest user row on"
    assert start(Window(max_chars=20), *talk, lead=rows_of([system_message("1")])) == 4
    assert start(Window(max_chars=99), *talk, final=False) is None
    assert start(Window(max_chars=7), A, A, A) == 2


def test_tokens_are_counted_once_for_each_row() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return 1

    window = Window(max_tokens=3, count=count)
    assert [start(window, U, A, U, A), start(window, U, A, U, A)] == [2, 2]
    assert len(counted) == 4


@pytest.mark.parametrize(
    "limits",
    [
        {"n": 0},
        {"max_chars": 0},
        {"max_chars": float("nan")},
        {"max_tokens": -1, "count": len},
        {"n": 1, "max_chars": 1},
        {"max_tokens": 1},
        {"count": len},
    ],
    ids=str,
)
def test_limits_that_are_none(limits: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="window|go together"):
        Window(**limits)


def test_what_counts() -> None:
    picture = Image(data="QUJD" * 100)
    outputs: list[Any] = [
        JsonOutput(value={"a": 1}),
        ErrorTextOutput(value="no"),
        ExecutionDenied(reason="why"),
        ExecutionDenied(),
    ]
    shown = ContentOutput(value=(Text(text="see"), picture))
    assert budget_text(user_message([Text(text="a"), picture, Text(text="b")])) == "ab"
    assert budget_text(assistant_message([Reasoning(text="hm"), Text(text="a"), call("c1")])) == 'afind{"q":"é"}'
    assert budget_text(assistant_message([call("c1", invalid="{")])) == "find{"
    said = tool_message([result(str(n), output) for n, output in enumerate([*outputs, shown])])
    assert budget_text(said) == '{"a":1}nowhysee'


PIECES: list[Message] = [
    U,
    U,
    A,
    system_message("s"),
    asks("a"),
    asks("a", "b"),
    asks("b"),
    gives(a="A"),
    gives(b="B"),
    gives(a="", b=""),
]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=14), st.integers(1, 12), st.booleans())
def test_a_window_begins_at_a_user_row_and_cuts_no_group(messages: list[Message], size: int, chars: bool) -> None:
    rows = rows_of(messages)
    place = (Window(max_chars=size * 5) if chars else Window(size)).start(rows, final=True)
    assert place is not None
    groups, _ = pair(rows)
    assert not any(first < place <= group.last for first, group in groups.items())
    if place:
        users = [at for at in range(len(rows)) if not any(one < at <= two.last for one, two in groups.items())]
        assert rows[place].role == "user" or not any(rows[at].role == "user" for at in users)
