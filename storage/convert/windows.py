"""Windows: where in the history a prompt begins, so that no provider finds a call without its result or the reverse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from msgspec.json import encode

from ..messages import (
    AssistantMessage,
    ContentOutput,
    ErrorJsonOutput,
    ExecutionDenied,
    JsonOutput,
    Message,
    Text,
    ToolCall,
    ToolResult,
)
from ..rows import StoredMessage
from .pairing import pair

__all__ = ["LOOK_BACK_ROWS", "Window", "budget_text"]

LOOK_BACK_ROWS = 500
"""How far before its exact beginning a window looks for a row it may begin at."""


class Window:
    """Is how much of the end of a history a prompt shall hold: a number of rows, or a budget of text.

    A window begins at a user row, and never inside of a group of calls and results. `n` rows become more: it moves back
    to the nearest such row. A budget is kept: the window begins at the farthest such row that fits, yet holds at least
    what there is from the newest one on. Where there is none in reach, it moves forward to the next one.

    Args:
        n: how many rows, at least.
        max_chars: how many characters of text, at most; pictures and files count nothing.
        max_tokens: how many tokens of text, at most, as `count` counts them.
        count: returns the tokens of a text.
    """

    def __init__(
        self,
        n: int | None = None,
        *,
        max_chars: int | None = None,
        max_tokens: int | None = None,
        count: Callable[[str], int] | None = None,
    ) -> None:
        given = [limit for limit in (n, max_chars, max_tokens) if limit is not None]
        if len(given) > 1:
            raise ValueError("a window has one size: n, max_chars or max_tokens")
        if given and not given[0] >= 1:  # NaN is neither
            raise ValueError(f"a window of {given[0]}: its size is at least 1")
        if (max_tokens is None) != (count is None):
            raise ValueError("max_tokens and count go together: count(text) returns the tokens of a text")
        self.n = n
        self._budget = max_chars if max_tokens is None else max_tokens
        self._count: Callable[[str], int] = count or len
        self._sizes: dict[int, int] = {}

    @property
    def whole(self) -> bool:
        """Says that there is no limit."""
        return self.n is None and self._budget is None

    def start(self, rows: Sequence[StoredMessage], lead: Sequence[StoredMessage] = (), *, final: bool) -> int | None:
        """Returns the place in `rows` where the window begins; None: rows from before these are needed to know.

        Args:
            rows: the end of the history, in the order of the prompt.
            lead: rows that stand before the window in any case, and take from its budget.
            final: says that there are no rows before these.
        """
        exact = self._exact(rows, lead)
        if exact == 0:
            return 0 if final else None
        final = final or exact >= LOOK_BACK_ROWS
        places = _beginnings(rows, final)
        behind = [place for place in places if place >= exact]
        before = [place for place in places if place < exact]
        if self.n is not None and exact not in behind:
            found = before[-1:] or (behind[:1] if final else [])
        else:
            found = behind[:1] or before[-1:]
        return found[0] if found else None

    def _exact(self, rows: Sequence[StoredMessage], lead: Sequence[StoredMessage]) -> int:
        """Returns the place of the first row that is inside of the limit, whatever that row is."""
        if self._budget is None:
            return max(len(rows) - (self.n or 0), 0)
        left = self._budget - sum(map(self._size, lead))
        for place in range(len(rows) - 1, -1, -1):
            left -= self._size(rows[place])
            if left < 0:
                return place + 1
        return 0

    def _size(self, row: StoredMessage) -> int:
        size = self._sizes.get(row.seq)
        if size is None:
            size = self._sizes[row.seq] = self._count(budget_text(row.message))
        return size


def _beginnings(rows: Sequence[StoredMessage], final: bool) -> list[int]:
    """Returns the places of the user rows that split no group; where there is none at all, of any rows that do not.

    Where there are rows before these, a result without a call belongs to one of them for all we know.
    """
    groups, strays = pair(rows)
    cuts = [(place, group.last) for place, group in groups.items()]
    if not final:
        cuts += [(-1, stray.place) for stray in strays if not stray.second]
    inside = [0] * (len(rows) + 1)
    for first, last in cuts:
        inside[first + 1] += 1
        inside[last + 1] -= 1
    depths = list(accumulate(inside))
    users = [place for place, row in enumerate(rows) if not depths[place] and row.role == "user"]
    return users if users or not final else [place for place in range(len(rows)) if not depths[place]]


def budget_text(message: Message) -> str:
    """Returns what counts of a message: all text that a model reads of it, arguments and outputs included."""
    content = message.content
    if isinstance(content, str):
        return content
    texts = []
    for part in content:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, ToolCall) and isinstance(message, AssistantMessage):
            texts.append(part.tool_name)
            texts.append(encode(part.input).decode() if part.invalid is None else part.invalid)
        elif isinstance(part, ToolResult):
            texts.append(_output_text(part))
    return "".join(texts)


def _output_text(result: ToolResult) -> str:
    output = result.output
    match output:
        case JsonOutput() | ErrorJsonOutput():
            return encode(output.value).decode()
        case ContentOutput():
            return "".join(part.text for part in output.value if isinstance(part, Text))
        case ExecutionDenied():
            return output.reason or ""
    return output.value
