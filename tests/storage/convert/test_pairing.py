from __future__ import annotations

from parlatory.storage import assistant_message, tool_message, user_message
from parlatory.storage.convert.pairing import Group, pair

from ...prompts.adapter import rows_of
from ...prompts.said import asks, call, gives, result


def texts(group: Group) -> list[str | None]:
    return [None if found is None else getattr(found.output, "value", "") for found in group.results]


def test_a_result_belongs_to_the_latest_open_call_of_its_id() -> None:
    groups, strays = pair(rows_of([asks("a"), asks("a"), gives(a="new"), gives(a="old"), gives(a="none")]))
    assert {place: (texts(group), group.last) for place, group in groups.items()} == {0: (["old"], 3), 1: (["new"], 2)}
    assert strays == [(4, 0, True)]


def test_results_without_a_call() -> None:
    groups, strays = pair(rows_of([gives(a="A"), asks("a", "b"), gives(c="C", b="B"), user_message("a")]))
    assert texts(groups[1]) == [None, "B"]
    assert strays == [(0, 0, False), (2, 0, False)]


def test_results_in_a_message_of_the_assistant() -> None:
    said = assistant_message([result("z"), call("a"), result("a", "A"), call("b")])
    groups, strays = pair(rows_of([said, tool_message([result("b", "B")])]))
    assert texts(groups[0]) == ["A", "B"]
    assert strays == [(0, 0, False)]


def test_two_calls_of_one_id_in_one_row_are_answered_in_their_order() -> None:
    groups, _ = pair(
        rows_of([assistant_message([call("a"), call("a")]), tool_message([result("a", "1"), result("a", "2")])])
    )
    assert texts(groups[0]) == ["1", "2"]
