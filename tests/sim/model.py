"""The model that the agents of a world ask, which knows every request, and judges at once what they do (P5 to P8):

no turn begins that was told as over or that has its answer, no prompt holds a message whose turn has not begun,
no tool that was started runs again, and a row holds what was written.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .history import TruthRow

if TYPE_CHECKING:
    from .world import Host, World

__all__ = ["Begun", "Model", "Reply", "ends_turn", "is_answer"]

# What stands in the texts of messages and of answers, and says which message it is, or belongs to.
SIGNS = re.compile(r"\b((?:p\d+|hook)-\d+);|\b(answer|final|to) (\d+)\.")
WORDS = ("so ", "it is\n", "\U0001f642", "\u00e9t\u00e9 ", "x" * 40, "on ", "\U0001f469\u200d\U0001f680 ", "y" * 500)

Prompt = list[dict[str, Any]]
_decode = msgspec.json.Decoder().decode


class Begun(NamedTuple):
    """Is one attempt at a turn, as its agent saw it."""

    process: int
    attempt: int


class Reply:
    """Is one answer of the model; `written` is how far it was handed to the draft, which has all of it if `exact`."""

    def __init__(self, number: int, pieces: list[str], *, exact: bool) -> None:
        self.number = number
        self.pieces = pieces
        self.written = ""
        self.exact = exact

    def fits(self, text: str, finish: str | None) -> bool:
        """Says whether a row may hold this text of it."""
        written = whole(self.written)
        if finish is None:
            return text == written
        # Half a character that never became whole shows as U+FFFD.
        part = written.startswith(text) or (text.endswith("\ufffd") and written.startswith(text[:-1]))
        return part and (text == written or not self.exact or finish == "interrupted")


class Model:
    """Answers with a few words, and keeps what it was asked.

    Attributes:
        begun: the attempts, by conversation (and how often its log was restored) and turn.
        ended: the turns whose end somebody was told.
        stops: in which process which turn somebody wanted to stop, by conversation; None: whichever ran.
    """

    def __init__(self, world: World) -> None:
        self.begun: dict[tuple[int, str], dict[int, list[Begun]]] = defaultdict(lambda: defaultdict(list))
        self.ended: dict[tuple[int, str], set[Any]] = defaultdict(set)
        self.stops: dict[tuple[int, str], set[tuple[int, int | str | None]]] = defaultdict(set)
        self._world = world
        self._replies: dict[tuple[str, int | str], list[Reply]] = defaultdict(list)
        self._count = 0
        self._runs: dict[tuple[int, str, str], int] = defaultdict(int)

    def place(self, conversation: str) -> tuple[int, str]:
        """Returns what names a log: a restored one is another."""
        return self._world.truth.era, conversation

    # -- turns

    def begins(self, host: Host, conversation: str, turn: int, attempt: int) -> None:
        """Notes that an agent is called for a message."""
        place = self.place(conversation)
        self._world.history.add("begin", host.number, conversation, turn, attempt)
        if turn in self.ended[place]:
            self._wrong(f"turn {turn} of {conversation} runs, though its end was told: stopped, or answered")
        if any(ends_turn(row) for row in self._world.truth.rows[conversation][turn:] if row.turn == turn):
            self._wrong(f"turn {turn} of {conversation} runs again, though its answer is in the log")
        before = self.begun[place][turn]
        if before and before[-1].process != host.number and attempt <= before[-1].attempt:
            self._wrong(f"attempt {attempt} at turn {turn} of {conversation} comes behind attempt {before[-1].attempt}")
        before.append(Begun(host.number, attempt))

    def stopped(self, conversation: str, turn: int | str | None) -> None:
        """Notes that a process was asked to stop a turn."""
        if self._world.host is not None:
            self.stops[self.place(conversation)].add((self._world.host.number, turn))

    def stops_so_far(self) -> dict[str, set[tuple[int, int | str | None]]]:
        """Returns what was to be stopped in these logs until now, which a backup of them remembers."""
        era = self._world.truth.era
        return {name: set(stops) for (at, name), stops in self.stops.items() if at == era}

    def restored(self, stops: dict[str, set[tuple[int, int | str | None]]]) -> None:
        """Notes that logs were restored, and what they remember."""
        for conversation, remembered in stops.items():
            self.stops[self.place(conversation)] |= remembered

    def asked(self, host: Host, conversation: str, turn: int, prompt: Prompt, *, final: bool, exact: bool) -> Reply:
        """Answers a prompt; `final`: this is the answer, and not a part of it."""
        attempt = self.begun[self.place(conversation)][turn][-1].attempt
        self._count += 1
        text = f"{'final' if final else 'answer'} {turn}.{attempt}.{self._count}; " + "".join(self._words())
        reply = Reply(self._count, list(self._pieces(text)), exact=exact)
        if not host.loop.dead:
            self._world.history.add("ask", host.number, conversation, turn, attempt)
            self._judge_prompt(conversation, turn, "\n".join(strings(prompt)))
            self._replies[conversation, turn].append(reply)
        return reply

    def _words(self) -> list[str]:
        random = self._world.random
        return random.choices(WORDS, (4, 4, 2, 2, 2, 4, 1, 0.2), k=random.randint(0, 6))

    def _pieces(self, text: str) -> Any:
        """Cuts a text anywhere, also through a character: between its surrogate halves."""
        random = self._world.random
        units = text.encode("utf-16-le").decode("utf-16-le", "surrogatepass") if random.random() < 0.5 else text
        if units is text and random.random() < 0.5:
            units = "".join(halves(character) for character in text)
        start = 0
        while start < len(units):
            size = random.choice((1, 3, 20, 300))
            yield units[start : start + size]
            start += size

    def _judge_prompt(self, conversation: str, turn: int, prompt: str) -> None:
        """Judges a prompt: what has no turn yet is not in it, what was answered is, and all in the order of turns."""
        rows = self._world.truth.rows[conversation]
        seqs: dict[str, int] = {}
        due = set() if b"parlatory.approval" in rows[turn - 1].body else {turn}
        finals = set()
        for row in rows:
            if row.turn is None:
                seqs.update((found[1], row.seq) for found in SIGNS.finditer(row.body.decode()) if found[1])
            elif isinstance(row.turn, int) and row.turn < turn and is_answer(row):
                finals.add(row.turn)
        found = SIGNS.findall(prompt)
        turns = [seqs.get(marker, 0) if marker else int(answered) for marker, _, answered in found]
        due -= {seqs.get(marker) for marker, _, _ in found}
        finals -= {int(answered) for _, kind, answered in found if kind == "final"}
        what = f"the prompt of turn {turn} of {conversation}"
        if max(turns, default=0) > turn:
            self._wrong(f"queued message in the prompt: {what} has what belongs to turn {max(turns)}: {prompt}")
        elif turns != sorted(turns):
            self._wrong(f"{what} is not in turn order: {turns}")
        elif due or finals:
            self._wrong(f"{what} lacks its message, or the answers of turns {finals}: {prompt}")
        for row in rows[turn:]:
            if row.turn == turn and row.finish == "interrupted" and ";" in (text := text_of(row)) and text in prompt:
                self._wrong(f"{what} holds what an interrupted attempt at it left: {row}")

    # -- rows

    def committed(self, row: TruthRow) -> None:
        """Judges a row of an answer: it holds what was written, and no other one answers the same message."""
        if row.turn is None or not isinstance(row.turn, int):
            return
        rows = self._world.truth.rows[row.conversation]
        if ends_turn(row) and any(ends_turn(one) for one in rows[row.turn : row.seq - 1] if one.turn == row.turn):
            self._wrong(f"answered twice: row {row.seq} of {row.conversation} is a second answer to {row.turn}")
        text = text_of(row)
        signed = SIGNS.match(text)
        if signed is None or signed[0].startswith("to "):
            return
        replies = self._replies[row.conversation, row.turn]
        if not any(reply.fits(text, row.finish) for reply in replies):
            written = [reply.written for reply in replies]
            self._wrong(f"row {row.seq} of {row.conversation} holds {text!r} ({row.finish}), written was {written}")

    # -- tools

    def runs(self, host: Host, conversation: str, name: str, call: str) -> None:
        """Notes that a tool is called."""
        if host.loop.dead:
            return
        self._world.history.add("tool", host.number, conversation, name, call)
        key = (*self.place(conversation), call)
        self._runs[key] += 1
        if name == "again":
            return
        if self._runs[key] > 1:
            self._wrong(f"second run of a started tool: call {call} of {conversation}")
        mark = self._world.truth.key(conversation, f"tool.{call[1:].partition('-')[0]}.{call}")
        if mark is None or b'"started"' not in mark:
            self._wrong(f"call {call} of {conversation} runs before its start is durable: {mark!r}")
        if name == "ask" and not any(approves(row, call) for row in self._world.truth.rows[conversation]):
            self._wrong(f"call {call} of {conversation} runs, and nobody approved")

    def _wrong(self, text: str) -> None:
        self._world.history.problem(text)


def approves(row: TruthRow, call: str) -> bool:
    """Says whether a row approves a call."""
    return row.turn is None and f'"{call}"'.encode() in row.body and b'"approved":true' in row.body


def text_of(row: TruthRow) -> str:
    """Returns the text of a row."""
    content = _decode(row.body)["content"]
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part["type"] == "text")


def is_answer(row: TruthRow) -> bool:
    """Says whether a row is the finished answer of its turn."""
    return row.turn is not None and row.finish is None and text_of(row).startswith("final ")


def ends_turn(row: TruthRow) -> bool:
    """Says whether the message that a row answers is handled with it."""
    if not row.body.startswith(b'{"role":"assistant"') or row.turn is None:
        return False
    return row.finish in ("stopped", "error") or is_answer(row)


def strings(value: Any) -> Iterator[str]:
    """Yields the strings in JSON terms, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)


def halves(character: str) -> str:
    """Returns the surrogate halves of a character that has some."""
    code = ord(character) - 0x10000
    return character if code < 0 else chr(0xD800 + (code >> 10)) + chr(0xDC00 + (code & 0x3FF))


def whole(text: str) -> str:
    """Returns text with its surrogate halves joined; a single one shows as U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
