"""Cases from the field (CASES.md) about turns and drafts, as clients on the wire see them. Each test carries its id.

The same on the hub and the lane alone: actors/test_turns_stop.py, test_turns_recovery.py, test_draft.py. With processes
that are killed (T20, L07, T42, P7): crash/test_turns.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parlatory.actors import Agent, tool
from parlatory.actors.approvals import approval
from parlatory.server import Server
from parlatory.storage import StoredMessage, encode_message

from ..actors.fakes import applied
from ..server.peers import Json, Peer, history, on_disk, serving, until

C = "talk/c"
WORDS = 100
HALF = 40
WHOLE = "".join(f"w{number} " for number in range(WORDS))
PARTIAL = "".join(f"w{number} " for number in range(HALF))


class Talk(Agent):
    """Writes a hundred deltas, and waits in the middle for the test; answers what begins with `quick` at once.

    Class attributes, which `scene` makes anew: `half` is set in the middle, `go_on` lets it go on, `prompts` are what a
    model would have been asked.
    """

    half: asyncio.Event
    go_on: asyncio.Event
    prompts: list[list[Any]]

    async def on_message(self, row: StoredMessage) -> None:
        self.prompts.append(await self.messages.to_openai())
        async with self.reply() as draft:
            for number in range(0 if row.text.startswith("quick") else WORDS):
                if number == HALF:
                    draft.flush()
                    self.half.set()
                    await self.go_on.wait()
                await draft.write(f"w{number} ")
            if row.text.startswith("quick"):
                await draft.write(f"re {row.text}")


@pytest.fixture
def talk() -> Iterator[Callable[..., type[Talk]]]:
    def made(**attributes: Any) -> type[Talk]:
        begun = {"half": asyncio.Event(), "go_on": asyncio.Event(), "prompts": []}
        return type("Talk", (Talk,), begun | attributes)

    yield made


def drafts(peer: Peer) -> list[str]:
    """Returns the texts of the drafts as this client has assembled them, word for word as the protocol says."""
    texts: dict[str, str] = {}
    message: Json = {}
    index = 0
    for frame in peer.seen:
        if frame["type"] == "draft":
            message, index = frame["message"], frame["index"]
        elif frame["type"] == "delta" and frame["to"] > index:
            assert frame["from"] == index, "a gap, or a delta of what is known already"
            message, index = applied(message, frame["ops"]), frame["to"]
        if frame["type"] in ("draft", "delta"):
            texts[frame["id"]] = message["content"]
    return list(texts.values())


def told(peer: Peer, *kinds: str) -> list[str]:
    """Returns the types of frames, in order; of turns their states."""
    return [str(frame.get("state", frame["type"])) for frame in peer.seen if frame["type"] in kinds]


def prompt_text(prompt: list[Any]) -> list[str]:
    return [message["content"] for message in prompt]


async def ended(peer: Peer, turn: int, state: str = "done") -> None:
    await peer.get("turn", id=turn, state=state)


# -- order, and knowing what goes on


async def test_T01_two_questions_at_once_are_answered_one_after_the_other(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server) as a, Peer.admitted(server, client="b" * 22) as b:
        await a.open(C)
        await asyncio.gather(a.post(C, "quick one"), b.post(C, "quick two"))
        for turn in (1, 2):
            await ended(a, turn)
        rows = await history(server, C)
        first, second = (row["message"]["content"] for row in rows[:2])
        assert {first, second} == {"quick one", "quick two"}
        answers = {row["turn"]: row["message"]["content"] for row in rows if "turn" in row}
        assert answers == {1: f"re {first}", 2: f"re {second}"}
        assert [prompt_text(one) for one in agent.prompts] == [[first], [first, f"re {first}", second]]


async def test_T06_everybody_can_see_which_turn_runs_and_which_wait(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server) as a, Peer.admitted(server) as b:
        await a.open(C)
        await a.say(C, "long")
        await agent.half.wait()
        assert (await b.open(C))["turn"] == {"state": "running", "id": 1}
        await b.get("live")
        await b.post(C, "quick")
        assert (await a.get("turn", state="queued"))["queued"] == 1
        agent.go_on.set()
        turn = (await b.get("turn", state="queued"))["id"]
        await ended(b, turn)
        assert (await a.open(C))["turn"] == {"state": "idle"}


@pytest.mark.parametrize(
    ("on_busy", "ends"),
    [
        ("queue", {1: "done", 2: "done", 3: "done"}),
        ("latest", {1: "done", 2: "stopped", 3: "done"}),
        ("preempt", {1: "stopped", 3: "done"}),
        ("reject", {1: "done"}),
    ],
)
async def test_T06_each_policy_does_as_documented(
    talk: Callable[..., type[Talk]], on_busy: str, ends: dict[int, str]
) -> None:
    agent = talk(on_busy=on_busy)
    async with serving(agent) as server, Peer.admitted(server) as peer:
        await peer.open(C)
        await peer.say(C, "long")
        await agent.half.wait()
        ids = [await peer.post(C, text) for text in ("quick two", "quick three")]
        answers = [await peer.get("ack", "error", clientId=id) for id in ids]
        agent.go_on.set()
        for turn, state in ends.items():
            await ended(peer, turn, state)
        if on_busy == "reject":
            assert [(one["code"], "retryMs" in one) for one in answers] == [("busy", True)] * 2
            assert len(await history(server, C)) == 2
        else:
            assert [one["seq"] for one in answers] == [2, 3]


# -- joining, leaving


async def test_T29_a_resumed_stream_leaves_the_previous_message_alone(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server) as a, Peer.admitted(server) as b:
        await a.open(C)
        await a.say(C, "quick one")
        await ended(a, 1)
        await a.say(C, "long")
        await agent.half.wait()
        before = (await b.page(C))["rows"]
        await b.open(C)
        draft = await b.get("draft")
        assert draft["message"]["content"] == PARTIAL and draft["turn"] == 3
        assert [row["seq"] for row in before] == [1, 2, 3] and draft["id"] not in (None, 2)
        agent.go_on.set()
        assert (await b.get("draftEnd"))["seq"] == 4
        rows = await history(server, C)
        assert rows[:3] == before and rows[3]["message"]["content"] == WHOLE
        assert drafts(b) == [WHOLE]


async def test_T31_who_comes_in_the_middle_sees_it_all_and_the_next_turn_too(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server, client="b" * 22) as b:
        async with Peer.admitted(server) as a:
            await a.open(C)
            await a.say(C, "long")
            await agent.half.wait()
            await b.open(C)
            await b.get("live")
        agent.go_on.set()
        await ended(b, 1)
        assert drafts(b) == [WHOLE] and b.seqs(C) == [1, 2]
        async with Peer.admitted(server) as a:
            await a.say(C, "quick next")
        await ended(b, 3)
        assert drafts(b) == [WHOLE, "re quick next"]


async def test_T37_closing_every_tab_stops_nothing(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with serving(agent) as server:
        async with Peer.admitted(server) as a, Peer.admitted(server) as b:
            await b.open(C)
            await a.open(C)
            await a.say(C, "long")
            await agent.half.wait()
        await until(lambda: server.connections == 0)
        agent.go_on.set()
        async with Peer.admitted(server) as back:
            await back.open(C)
            await back.row(C, 2)
        row = (await history(server, C))[1]
        assert row["message"]["content"] == WHOLE and "finish" not in row


async def test_T38_closing_every_tab_stops_where_the_agent_says_so(talk: Callable[..., type[Talk]]) -> None:
    agent = talk(cancel_when_empty_s=0.02)
    async with serving(agent) as server:
        async with Peer.admitted(server) as a:
            await a.open(C)
            await a.say(C, "long")
            await agent.half.wait()
        async with Peer.admitted(server) as late:  # not subscribed: it asks only
            while len(rows := (await late.page(C))["rows"]) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        assert (rows[1]["message"]["content"], rows[1]["finish"]) == (PARTIAL, "stopped")


# -- stopping


async def test_T35_stop_keeps_the_partial_and_the_question_and_the_next_turn_is_valid(
    talk: Callable[..., type[Talk]],
) -> None:
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server) as peer:
        await peer.open(C)
        await peer.say(C, "long")
        await agent.half.wait()
        await peer.send(type="cancel", conversation=C)
        assert (await peer.get("draftEnd")) | {"id": 0} == {
            "type": "draftEnd", "conversation": C, "id": 0, "seq": 2, "finish": "stopped",
        }  # fmt: skip
        await ended(peer, 1, "stopped")
        await peer.say(C, "quick next")
        await ended(peer, 3)
        rows = await history(server, C)
        assert [row["message"]["content"] for row in rows] == ["long", PARTIAL, "quick next", "re quick next"]
        assert [row.get("finish") for row in rows] == [None, "stopped", None, None]
        assert prompt_text(agent.prompts[1]) == ["long", PARTIAL, "quick next"]


async def test_T40_a_stop_from_elsewhere_ends_it_once_for_everybody(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with (
        serving(agent) as server,
        Peer.admitted(server) as a,
        Peer.admitted(server, client="b" * 22) as b,
    ):
        for peer in (a, b):
            await peer.open(C)
            await peer.get("live")
        await a.say(C, "long")
        await agent.half.wait()
        for _ in range(3):
            await b.send(type="cancel", conversation=C, turn=1)
        await b.barrier()
        for peer in (a, b):
            await ended(peer, 1, "stopped")
        await b.send(type="cancel", conversation=C, turn=1)
        await b.send(type="cancel", conversation=C)
        await a.say(C, "quick next")
        for peer in (a, b):
            await ended(peer, 3)
            assert told(peer, "turn", "draftEnd") == ["running", "draftEnd", "stopped", "running", "draftEnd", "done"]
        assert [row.get("finish") for row in await history(server, C)] == [None, "stopped", None, None]


# -- tools


def paired_openai(prompt: list[Any]) -> None:
    """Refuses what the API would: calls whose results do not follow at once, results without a call."""
    waiting: set[str] = set()
    for message in prompt:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
            continue
        assert not waiting
        waiting = {call["id"] for call in message.get("tool_calls") or ()}
    assert not waiting


def paired_anthropic(prompt: list[Any]) -> None:
    waiting: set[str] = set()
    for message in prompt:
        blocks = message["content"] if isinstance(message["content"], list) else []
        assert {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"} == waiting
        waiting = {block["id"] for block in blocks if block["type"] == "tool_use"}
    assert not waiting


class Clerk(Agent):
    """Asks for what the message says, `book` or `delete`, and answers what is left in words."""

    begun: asyncio.Event
    leave: asyncio.Event
    runs: list[str]

    async def on_message(self, row: StoredMessage) -> None:
        async for _ in self.tool_rounds({"book": self.book, "delete": self.delete}):
            openai = await self.messages.to_openai()
            paired_openai(openai)
            paired_anthropic(await self.messages.to_anthropic())
            async with self.reply() as draft:
                if row.text in ("book", "delete") and row.seq == self.turn.id and not self.asked(openai):
                    await draft.tool_call("c1", row.text, {})
                else:
                    await draft.write("words")

    def asked(self, prompt: list[Any]) -> bool:
        return any(message.get("tool_calls") for message in prompt)

    async def book(self) -> str:
        """Waits for the test."""
        self.runs.append("book")
        self.begun.set()
        await self.leave.wait()
        return "booked"

    @tool(needs_approval=True)
    async def delete(self) -> str:
        """Deletes."""
        self.runs.append("delete")
        return "deleted"


def clerk() -> type[Clerk]:
    return type("Clerk", (Clerk,), {"begun": asyncio.Event(), "leave": asyncio.Event(), "runs": []})


async def test_T42_a_stop_in_mid_tool_does_not_spoil_the_conversation() -> None:
    agent, where = clerk(), "clerk/c"
    async with serving(agent) as server, Peer.admitted(server) as peer:
        await peer.open(where)
        await peer.say(where, "book")
        await agent.begun.wait()
        await peer.send(type="cancel", conversation=where)
        await ended(peer, 1, "stopped")
        await peer.say(where, "and now?")
        await ended(peer, 4)  # the handler judges its prompts
        rows = await history(server, where)
        assert [row["message"]["role"] for row in rows] == ["user", "assistant", "tool", "user", "assistant"]
        output = rows[2]["message"]["content"][0]["output"]
        assert output["type"] == "error-text" and output["value"].startswith("interrupted")
        assert agent.runs == ["book"]


async def test_T45_an_approval_after_a_restart_runs_the_call_once(tmp_path: Path) -> None:
    agent, where = clerk(), "clerk/c"
    yes = {"role": "user", "content": decoded(approval("c1"))}
    async with on_disk(tmp_path, agent) as server, Peer.admitted(server) as a:
        await a.open(where)
        await a.say(where, "delete")
        await ended(a, 1, "waiting")
    async with on_disk(tmp_path, agent) as server, Peer.admitted(server, client="b" * 22) as b:
        await b.open(where)
        assert b.seqs(where) == [] and agent.runs == []
        await b.say(where, yes)
        await ended(b, 3)
        await b.say(where, yes)
        await ended(b, 6)
        assert agent.runs == ["delete"]
        rows = await history(server, where)
        roles = [row["message"]["role"] for row in rows]
        assert roles == ["user", "assistant", "user", "tool", "assistant", "user"]
        assert rows[3]["message"]["content"][0]["output"] == {"type": "text", "value": "deleted"}


def decoded(message: Any) -> Any:
    return json.loads(encode_message(message))["content"]


# -- the live protocol


async def test_L04_opening_twice_in_mid_draft_doubles_nothing(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server) as a, Peer.admitted(server) as b:
        await a.open(C)
        await a.say(C, "long")
        await agent.half.wait()
        for peer in (a, a, b, b):
            await peer.send(type="open", conversation=C)
        await a.barrier()
        await b.barrier()
        agent.go_on.set()
        for peer in (a, b):
            await ended(peer, 1)
            assert drafts(peer) == [WHOLE]


async def test_L05_what_a_client_assembled_across_a_drop_is_the_row(talk: Callable[..., type[Talk]]) -> None:
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server) as writer:
        async with Peer.admitted(server) as lost:
            position = await lost.open(C)
            await writer.say(C, "long")
            await agent.half.wait()
            await lost.get("delta")
            lost.connection.transport.abort()
        async with Peer.admitted(server) as back:
            await back.open(C, epoch=position["epoch"], after=1)
            await back.get("live")
            agent.go_on.set()
            await ended(back, 1)
            assert drafts(back) == [WHOLE] and back.seqs(C) == [2]


async def test_L08_no_delta_comes_before_live(talk: Callable[..., type[Talk]]) -> None:
    """Deltas are written while a client is still being served the history."""
    agent = talk()
    async with serving(agent) as server, Peer.admitted(server) as writer:
        await fill(server, writer, 300)
        await writer.say(C, "long")
        await agent.half.wait()
        async with Peer.admitted(server) as late:
            await late.send(type="open", conversation=C)
            agent.go_on.set()
            await ended(late, 301)
            kinds = told(late, "live", "delta", "draft", "draftEnd")
            before = kinds[: kinds.index("live")]
            assert "delta" not in before and before.count("draft") <= 1
            assert late.seqs(C) == list(range(1, 303))


async def fill(server: Server, peer: Peer, rows: int) -> None:
    """Appends rows that start no turn."""
    record = await server.runtime.conversation(C)
    log = await server.runtime.get("talk", "c").log()
    for number in range(rows):
        await log.append({"role": "assistant", "content": f"old {number}"})
    assert record.head == rows


async def test_T51_an_emoji_in_two_deltas_is_one_emoji_for_everybody(talk: Callable[..., type[Talk]]) -> None:
    async def on_message(self: Talk, row: StoredMessage) -> None:
        async with self.reply() as draft:
            await draft.write("a \ud83d")
            draft.flush()
            self.half.set()
            await self.go_on.wait()
            await draft.write("\ude00 b")

    agent = talk(on_message=on_message)
    async with serving(agent) as server, Peer.admitted(server) as a, Peer.admitted(server) as b:
        await a.open(C)
        await a.say(C, "x")
        await agent.half.wait()
        await b.open(C)
        assert (await b.get("draft"))["message"]["content"] == "a "
        agent.go_on.set()
        for peer in (a, b):
            await ended(peer, 1)
            assert drafts(peer) == ["a \U0001f600 b"]
        assert (await history(server, C))[1]["message"]["content"] == "a \U0001f600 b"
