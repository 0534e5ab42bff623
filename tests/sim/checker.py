"""What must be true of a whole run, from its history and the file at its end. What can be judged at once is judged
in `wire.py`, `history.py` and `people.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from .people import Person
from .wire import body_of
from .world import World

__all__ = ["judge"]


def judge(world: World, people: list[Person]) -> Iterator[str]:
    """Yields what is wrong with a run that has come to its end."""
    yield from _sends(world, people)
    yield from _readings(world, people)
    yield from _handlers(world)


def _sends(world: World, people: list[Person]) -> Iterator[str]:
    """Every acknowledged message is there once, under its id and seq; one that was certainly not sent is not there."""
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for conversation, rows in world.truth.rows.items():
        for row in rows:
            content = body_of(row)["content"]
            if row.turn is None:
                places[conversation, content].append(row.seq)
    for (conversation, content), seqs in places.items():
        if len(seqs) > 1:
            yield f"appended more than once: {content[:40]!r} is in {conversation} at {seqs}"
    for person in people:
        for sent in person.sent:
            seqs = places.get((sent.conversation, sent.text), [])
            if sent.seq is not None and sent.seq not in seqs:
                yield f"acked row lost: {sent} is in the file at {seqs}"
            if sent.certain and seqs:
                yield f"forgotten and yet appended: {sent} is in the file at {seqs}"


def _readings(world: World, people: list[Person]) -> Iterator[str]:
    """Who is live at the end has every row, from where they began."""
    for person in people:
        for conversation, reading in person.readings.items():
            head = world.truth.head(conversation)
            seqs = [row.seq for row in reading.rows]
            first = (seqs[0] if seqs else head + 1) if reading.after is None else reading.after + 1
            if seqs != list(range(first, head + 1)):
                yield f"committed row missing: person {person.number} has {seqs} of {conversation}, the head is {head}"


def _handlers(world: World) -> Iterator[str]:
    """Every message of a client had its turn, in order, and once in each process at most."""
    runs: dict[str, dict[int, list[tuple[Any, str]]]] = defaultdict(lambda: defaultdict(list))
    last: dict[tuple[int, str], int] = {}
    for _, kind, about in world.history.events:
        if kind not in ("enter", "leave") or not about[2].startswith("on_message "):
            continue
        process, conversation, seq = about[0], about[1], int(about[2].split()[1])
        if kind == "leave":
            runs[conversation][seq].append((process, about[3]))
            continue
        before = last.get((process, conversation), 0)
        # Where storage refused to note the end of a turn, an agent that was evicted meanwhile begins it anew.
        if seq <= before and not world.storage_trouble:
            yield f"on_message {seq} of {conversation} came behind {before} in process {process}"
        last[process, conversation] = seq
    for conversation, rows in world.truth.rows.items():
        if not conversation.startswith("echo/"):
            continue
        for row in rows:
            if row.turn is None and body_of(row)["role"] == "user":
                ends = [end for _, end in runs[conversation][row.seq]]
                if not any(end in ("done", "raised") for end in ends):
                    yield f"on_message {row.seq} of {conversation} was never run to its end: {ends}"
        yield from _answers(conversation, rows)


def _answers(conversation: str, rows: list[Any]) -> Iterator[str]:
    """The rows of a turn follow the message that it answers."""
    for row in rows:
        if row.turn is not None and not (isinstance(row.turn, int) and row.turn < row.seq):
            yield f"row {row.seq} of {conversation} belongs to turn {row.turn}"
