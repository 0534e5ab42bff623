"""What must be true of a whole run, from its history and the file at its end. What can be judged at once is judged
in `wire.py`, `history.py` and `people.py`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from .model import ends_turn
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
            if row.turn is None and isinstance(content, str):
                places[conversation, content].append(row.seq)
    for (conversation, content), seqs in places.items():
        if len(seqs) > 1:
            yield f"appended more than once: {content[:40]!r} is in {conversation} at {seqs}"
    for person in people:
        for sent in person.sent:
            seqs = places.get((sent.conversation, sent.text), [])
            if sent.seq is not None and sent.seq not in seqs and sent.era == world.truth.era:
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


class Turns:
    """Is what is known of the turns of one conversation.

    Attributes:
        ends: how the handler of each turn ended, once for each time that it ran.
        cut: turns may end without an answer: somebody, a later message or a timeout stopped one.
    """

    def __init__(self, world: World, conversation: str, ends: dict[int, list[str]]) -> None:
        self.conversation = conversation
        self.rows = world.truth.rows[conversation]
        self.triggers = [row for row in self.rows if row.turn is None and body_of(row)["role"] == "user"]
        self.ends = ends
        self.mode = conversation.partition("/")[0]
        place = world.model.place(conversation)
        self.stops = world.model.stops[place]
        self.begun = world.model.begun[place]
        self.timed = world.turn_timeout_s is not None or world.cancel_when_empty_s is not None
        self.cut = bool(self.stops) or self.timed or self.mode in ("latest", "preempt") or world.max_attempts < 10

    def may_lack_an_end(self, seq: int) -> bool:
        """Says whether a turn may have been stopped, superseded or given up, before it began or behind that."""
        if self.triggers[-1].seq > seq and self.mode in ("preempt", "latest"):
            return True  # also one that had begun, when it is delivered again
        if any(row.turn == seq and row.finish == "error" for row in self.rows):
            return True
        # It may have been stopped where its agent was called, or was about to be: in a later process, but not when a
        # later turn has begun there.
        begun = [one.process for one in self.begun[seq]]
        first, latest = min(begun, default=0), max(begun, default=0)
        later = [one.process for turn, attempts in self.begun.items() if turn > seq for one in attempts]
        last = min((process for process in later if process >= latest), default=math.inf)
        stopped = any(turn == seq or (turn is None and first <= process <= last) for process, turn in self.stops)
        return self.timed or stopped


def _handlers(world: World) -> Iterator[str]:
    """Every message of a client had its turn, in order, and once in each process at most."""
    ends: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    settled: dict[str, int] = {}
    last: dict[tuple[int, str], int] = {}
    for _, kind, about in world.history.events:
        if kind == "restore":  # what was not handled in the backup is to come
            ends.clear()
            settled = about[1]
        if kind not in ("enter", "leave") or not about[2].startswith("on_message "):
            continue
        process, conversation, seq = about[0], about[1], int(about[2].split()[1])
        if kind == "leave":
            ends[conversation][seq].append(about[3])
            continue
        before = last.get((process, conversation), 0)
        if seq <= before:
            yield f"on_message {seq} of {conversation} came behind {before} in process {process}"
        last[process, conversation] = seq
    for conversation in list(world.truth.rows):
        if not conversation.startswith("relay/"):
            turns = Turns(world, conversation, ends[conversation])
            yield from _answered(world, turns, settled.get(conversation, 0))
            yield from _tools(world, turns)


def _answered(world: World, turns: Turns, settled: int) -> Iterator[str]:
    """Every message behind `settled` is handled, and answered once, unless it was stopped or wanted nothing else."""
    conversation = turns.conversation
    if turns.triggers and world.truth.handled.get(conversation, 0) < turns.triggers[-1].seq:
        yield f"unanswered: {conversation} has no mark for {turns.triggers[-1].seq}, {world.truth.handled}"
    for row in turns.triggers:
        if row.seq <= settled:
            continue
        ends = turns.ends[row.seq]
        what = f"the turn of message {row.seq} of {conversation}"
        answers = [one.seq for one in turns.rows if one.turn == row.seq and ends_turn(one)]
        if not ends or ends[-1] == "cancelled":
            if not answers and not turns.may_lack_an_end(row.seq):
                yield f"unanswered: {what} was never run to its end: {ends}"
        elif ends[-1] == "done" and str(body_of(row)["content"]).startswith(("draft ", "more ", "tools ")):
            if len(answers) != 1:
                yield f"unanswered: {what} came to its end and has the answers {answers}"
    for one in turns.rows:
        if one.turn is not None and not (isinstance(one.turn, int) and one.turn < one.seq):
            yield f"row {one.seq} of {conversation} belongs to turn {one.turn}"


def _tools(world: World, turns: Turns) -> Iterator[str]:
    """Every call has one result at most; none lacks it, unless its turn was cut or nobody has approved."""
    calls: dict[str, str] = {}
    results: dict[str, int] = defaultdict(int)
    for row in turns.rows:
        content = body_of(row)["content"]
        for part in content if isinstance(content, list) else ():
            if part["type"] == "tool-call" and row.finish is None:
                calls[part["toolCallId"]] = part["toolName"]
            elif part["type"] == "tool-result":
                results[part["toolCallId"]] += 1
            elif part["type"] == "custom" and calls.get(part["data"]["toolCallId"]) == "ask":
                calls[part["data"]["toolCallId"]] = "approved"
    for call, name in calls.items():
        if results[call] > 1:
            yield f"call {call} of {turns.conversation} has {results[call]} results"
        elif not results[call] and name != "ask" and not turns.cut and not world.storage_trouble:
            yield f"call {call} of {turns.conversation} ({name}) has no result"
