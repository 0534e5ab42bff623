"""The agents of a world: they do what a message says, with pauses, and note it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, ClassVar

from parlatory import Agent
from parlatory.actors import Draft, tool
from parlatory.storage import StoredMessage

from .model import Reply

if TYPE_CHECKING:
    from .world import Host, World

__all__ = ["Planned", "cast"]


class Planned(Exception):
    """Is what an agent of this world raises on purpose."""


class Relay(Agent):
    """Passes rows on."""


class Echo(Agent):
    """Answers, and looks out for handlers that run at the same time."""

    world: ClassVar[World]
    host: ClassVar[Host]
    inside: ClassVar[dict[str, object]]

    @property
    def conversation(self) -> str:
        return f"{self.wire_name}/{self.name}"

    async def on_start(self) -> None:
        await self._guarded("on_start", self._pause())

    async def on_stop(self) -> None:
        await self._guarded("on_stop", self._pause())

    async def on_turn_failed(self, row: StoredMessage) -> None:
        await self._guarded(f"on_turn_failed {row.seq}", self._pause())

    async def on_message(self, row: StoredMessage) -> None:
        world = self.world
        if self.host.loop.dead:
            return
        handled = world.truth.handled.get(self.conversation, 0)
        if row.seq <= handled:
            world.history.problem(
                f"on_message {row.seq} of {self.conversation}, handled up to {handled} before the start"
            )
        world.model.begins(self.host, self.conversation, row.seq, self.turn.attempt)
        await self._guarded(f"on_message {row.seq}", self._answer(row))

    async def _guarded(self, what: str, work: Any) -> None:
        world, conversation = self.world, self.conversation
        if self.host.loop.dead:
            work.close()
            return
        if conversation in self.inside:
            world.history.problem(f"handlers of {conversation} overlap: {what} during {self.inside[conversation]}")
        self.inside[conversation] = what
        world.history.add("enter", self.host.number, conversation, what)
        ended = "raised"
        try:
            await work
            ended = "done"
        except asyncio.CancelledError:
            ended = "cancelled"
            raise
        finally:
            self.inside.pop(conversation, None)
            if not self.host.loop.dead:
                world.history.add("leave", self.host.number, conversation, what, ended)

    async def _pause(self) -> None:
        random = self.world.random
        if random.random() < 0.5:
            await asyncio.sleep(random.choice((0.0, 0.01, 0.3)) * random.random())

    async def _answer(self, row: StoredMessage) -> None:
        kind = (row.text.split() or ["approval"])[0]
        await self._pause()
        match kind:
            case "fail":
                raise Planned
            case "quiet":
                pass
            case "draft" | "break":
                await self._draft(broken=kind == "break")
            case "empty":
                async with self.reply():
                    await self._pause()
            case "more":
                await self._draft(final=False)
                await self._pause()
                await self._draft()
            case "tools" | "ask" | "approval":
                await self._use_tools(kind)
            case _:
                await self._say(kind, row)

    async def _say(self, kind: str, row: StoredMessage) -> None:
        if kind == "read":
            rows = await self.messages.last(5)
            assert rows[-1].seq >= row.seq
        await self.say(f"to {row.seq}.")
        if kind == "twice":
            await self._pause()
            await self.messages.append({"role": "assistant", "content": f"more to {row.seq}."})

    # -- drafts

    async def _draft(self, *, final: bool = True, calls: tuple[str, ...] = (), broken: bool = False) -> None:
        """Streams an answer of the model."""
        world = self.world
        random = world.random
        ask = self.messages.to_openai if random.random() < 0.5 else self.messages.to_anthropic
        prompt = await ask()
        exact = random.random() < 0.5
        final = final and not calls
        reply = world.model.asked(self.host, self.conversation, self.turn.id, prompt, final=final, exact=exact)
        async with self.reply(more=not final and not calls) as draft:
            if random.random() < 0.2:
                await draft.reasoning("hm")
            if exact:
                await self._write(draft, reply)
            else:
                await draft.consume(self._stream(reply))
            for number, name in enumerate(calls):
                call = f"c{self.turn.id}-{reply.number}-{number}"
                await draft.tool_call(call, name, {"call": call})
                await self._pause()
            if broken:
                raise Planned

    async def _write(self, draft: Draft, reply: Reply) -> None:
        try:
            async for piece in self._stream(reply, noted=False):
                reply.written += piece
                await draft.write(piece)
        except asyncio.CancelledError:
            if not draft.ending and self.world.random.random() < 0.3:  # its last words
                reply.written += "!"
                await draft.write("!")
            raise

    async def _stream(self, reply: Reply, *, noted: bool = True) -> AsyncIterator[str]:
        random = self.world.random
        pace_s = random.choice((0.0, 0.002, 0.02, 0.2))
        for piece in reply.pieces:
            if random.random() < 0.7:
                await asyncio.sleep(pace_s * random.random())
            if noted:
                reply.written += piece
            yield piece

    # -- tools

    async def _use_tools(self, kind: str) -> None:
        """Lets the model ask for tools, once or twice, then answer."""
        random = self.world.random
        wanted = 0 if kind == "approval" else random.randint(1, 2)
        tools = self._toolbox()
        names = tuple(tools) if kind == "ask" else ("work", "again", "broken")
        async for number in self.tool_rounds(tools):
            asked = random.randint(1, 3) if number <= wanted else 0
            calls = ("ask",) * (kind == "ask" and number == 1) + tuple(random.choices(names, k=asked))
            await self._draft(calls=calls if asked else ())

    def _toolbox(self) -> dict[str, Any]:
        async def work(call: str) -> str:
            return await self._worked("work", call)

        @tool(idempotent=True)
        async def again(call: str) -> str:
            return await self._worked("again", call)

        @tool(needs_approval=True)
        async def ask(call: str) -> str:
            return await self._worked("ask", call)

        async def broken(call: str) -> str:
            await self._worked("broken", call)
            raise Planned

        return {"work": work, "again": again, "ask": ask, "broken": broken}

    async def _worked(self, name: str, call: str) -> str:
        self.world.model.runs(self.host, self.conversation, name, call)
        await asyncio.sleep(self.world.random.choice((0.0, 0.05, 0.5)) * self.world.random.random())
        return f"{name} is done"


def cast(world: World, host: Host) -> list[type[Agent]]:
    """Returns the agents of one process."""
    shared = {
        "world": world,
        "host": host,
        "inside": {},
        "max_attempts": world.max_attempts,
        "turn_timeout_s": world.turn_timeout_s,
        "cancel_when_empty_s": world.cancel_when_empty_s,
    }
    modes = {"echo": "queue", "latest": "latest", "preempt": "preempt", "reject": "reject"}
    wanted = {conversation.partition("/")[0] for conversation in world.conversations}
    return [
        Relay,
        *(type(name.title(), (Echo,), {**shared, "on_busy": modes[name]}) for name in modes if name in wanted),
    ]
