"""Which result answers which call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..messages import AssistantMessage, ToolCall, ToolMessage, ToolResult
from ..rows import StoredMessage

__all__ = ["Group", "Stray", "pair"]


class Group:
    """Is an assistant row with calls: these, and the result of each, or None while it is open.

    Attributes:
        calls: in the order of the row.
        results: those of `calls`, by their place.
        last: the place of the last row that holds one of the results; at least that of the calls.
    """

    __slots__ = ("calls", "last", "results")

    def __init__(self, calls: list[ToolCall], place: int) -> None:
        self.calls = calls
        self.results: list[ToolResult | None] = [None] * len(calls)
        self.last = place


class Stray(NamedTuple):
    """Is a result that answers nothing: its row's place, the part of that row, whether its call has one already."""

    place: int
    part: int
    second: bool


def pair(rows: Sequence[StoredMessage]) -> tuple[dict[int, Group], list[Stray]]:
    """Returns the groups of the rows by the place of their calls, and the results that are in none.

    A result belongs to the latest earlier open call of its id, since providers use ids again. Where a message of the
    assistant holds results, they are those of tools that the provider ran.
    """
    groups: dict[int, Group] = {}
    strays: list[Stray] = []
    open_calls: dict[str, list[tuple[Group, int]]] = {}  # of each id, the latest last
    answered: set[str] = set()
    for place, row in enumerate(rows):
        message = row.message
        if type(message) is ToolMessage:
            parts: tuple[object, ...] = message.content
        elif type(message) is AssistantMessage and type(message.content) is tuple:
            parts = message.content
            if calls := [part for part in parts if type(part) is ToolCall]:
                group = groups[place] = Group(calls, place)
                for slot in range(len(calls) - 1, -1, -1):  # within one row, the first call is answered first
                    open_calls.setdefault(calls[slot].tool_call_id, []).append((group, slot))
        else:
            continue
        for index, part in enumerate(parts):
            if type(part) is not ToolResult:
                continue
            if waiting := open_calls.get(part.tool_call_id):
                group, slot = waiting.pop()
                group.results[slot] = part
                group.last = place
                answered.add(part.tool_call_id)
            else:
                strays.append(Stray(place, index, part.tool_call_id in answered))
    return groups, strays
