"""The agent base class: the user's code for one kind of conversation."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from anyio import to_thread

from ..storage import AGENT_NAME, Message, MessageLog, StoredMessage, ToolCall, assistant_message
from .draft import Draft
from .tools import OUTPUT_CHARACTERS_MAX, PARALLEL_MAX, ROUNDS_MAX, Call, Tools
from .turn import OnBusy, Turn
from .turn_log import TurnLog

if TYPE_CHECKING:
    from .conversation import TurnStorage

__all__ = ["Agent", "wire_name_of"]

Result = TypeVar("Result")

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def kebab_case(name: str) -> str:
    """Returns a class name in lower case, its words apart by `-`: `HTTPBot` is `http-bot`."""
    return "-".join(_WORD.split(name.replace("_", "-").strip("-"))).lower()


def wire_name_of(agent: type[Agent] | str) -> str:
    """Returns the name under which clients address an agent: the kebab case of its class, or its own `name =`."""
    return agent if isinstance(agent, str) else agent.wire_name


HOOKS = {"__init__": 2, "on_start": 0, "on_message": 1, "on_turn_failed": 1, "on_stop": 0}
"""What an agent may override, and with how many arguments it is called."""
SETTINGS = ("on_busy", "turn_timeout_s", "method_timeout_s", "cancel_when_empty_s", "max_attempts")
"""What an agent may set in its class body."""
TIMES = ("turn_timeout_s", "method_timeout_s", "cancel_when_empty_s")
ALIKE = 0.85  # how much alike a hook or setting a name has to be to be taken for a misspelling of it


class Agent:
    """Is the base of all agents. Each conversation that has work gets an instance of its own; when idle it is dropped.

    Subclass it and override what you need:

    - `on_start()` when the instance is made, before its first message,
    - `on_message(row)` for each message of a client, one at a time, in order,
    - `on_stop()` before the instance is dropped.

    They never overlap within a conversation, and clients are served all the while. What an instance keeps in attributes
    is gone when it is dropped; what is in `messages` stays for ever.

    Attributes:
        wire_name: the first half of a conversation's name on the wire. It is the kebab case of the class name unless
            the class body says `name = "..."`.
        name: the second half, such as `ann` in `bot/ann`.
        messages: the log of this conversation. What is appended in a turn carries the turn, and its prompts are in
            turn order.
        on_busy: what happens to a message that comes while a turn runs: `queue`, `latest`, `reject` or `preempt`.
        turn_timeout_s: how long `on_message` may take. A turn that is over it is stopped as by a cancel: what it has
            written is kept as a row with finish `error`, and its state is `error`. None: as long as it likes.
        method_timeout_s: how long `on_start`, `on_turn_failed` and `on_stop` may take. One that is over it is stopped;
            a turn whose `on_start` it is ends as by `turn_timeout_s`. None: as long as they like.
        cancel_when_empty_s: for how long a turn goes on while nobody has the conversation open; then it is stopped as
            by a cancel. None: to its end.
        max_attempts: how often a turn is attempted whose process ended; then it ends with a row that says so.
    """

    wire_name: ClassVar[str] = "agent"
    on_busy: ClassVar[OnBusy] = "queue"
    turn_timeout_s: ClassVar[float | None] = None
    method_timeout_s: ClassVar[float | None] = 30.0
    cancel_when_empty_s: ClassVar[float | None] = None
    max_attempts: ClassVar[int] = 3
    name: str
    messages: MessageLog

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        name = cls.__dict__.get("name")
        wire_name = name if isinstance(name, str) else kebab_case(cls.__name__)
        if not AGENT_NAME.fullmatch(wire_name):
            raise ValueError(
                f"agent {cls.__name__}: {wire_name!r} is no agent name; set name = '...' of a-z, 0-9 and -, "
                "beginning with a letter, at most 32 characters"
            )
        cls.wire_name = wire_name
        for hook, arguments in HOOKS.items():
            _check_hook(cls, hook, arguments)
        for name in cls.__dict__:
            _check_spelling(cls, name)
        if cls.on_busy not in get_args(OnBusy):
            raise ValueError(
                f"{cls.__name__}.on_busy is {cls.on_busy!r}: write 'queue', 'latest', 'reject' or 'preempt'"
            )
        for setting in TIMES:
            if getattr(cls, setting) is not None:
                _check_number(cls, setting, (int, float), "a number of seconds above 0, or None")
        _check_number(cls, "max_attempts", (int,), "a whole number above 0")

    def __init__(self, name: str, storage: TurnStorage) -> None:
        self.name = name
        self.messages = TurnLog(storage)
        self._storage = storage

    @property
    def turn(self) -> Turn:
        """Is the running turn.

        Raises:
            RuntimeError: none runs, as in `on_start` and `on_stop`.
        """
        turn = self._storage.lane.turn
        if turn is None:
            raise RuntimeError("no turn runs: self.turn is there in on_message")
        return turn

    def reply(self, *, more: bool = False) -> Draft:
        """Returns the draft of an answer: `async with self.reply() as draft: await draft.write("...")`.

        Args:
            more: says that more of the answer follows in this turn, so that its message is not handled yet.
        """
        return Draft(self._storage.lane, self.turn.id, more=more)

    async def on_start(self) -> None:
        """Is called when the instance is made, before anything else of it."""

    async def on_message(self, row: StoredMessage) -> None:
        """Is called for each message of a client, once it is committed and told; one at a time, in the order of `seq`.

        A message whose turn did not end because the process died is delivered again.
        """

    async def on_turn_failed(self, row: StoredMessage) -> None:
        """Is called for a message that is given up: every attempt at its turn ended with its process.

        The row that says so, and that the message is handled, are durable before. It is called once, or never.
        """

    async def on_stop(self) -> None:
        """Is called before the instance is dropped: after idling, or when the runtime stops."""

    async def run_sync(self, function: Callable[..., Result], *args: Any) -> Result:
        """Runs a function that blocks, in a thread, and returns what it returns; the loop goes on meanwhile.

        A stop waits for the function: it cannot be stopped, and nothing else of this conversation runs beside it.
        """
        limiter = self._storage.lane.conversation.runtime.threads
        running = asyncio.ensure_future(to_thread.run_sync(function, *args, limiter=limiter))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            raise

    async def say(self, content: str | Sequence[Any], **fields: Any) -> int:
        """Appends an assistant message and returns its seq, once it is durable and told.

        Args:
            content: text, or parts of an assistant message.
            **fields: further fields of the message, such as `metadata`.
        """
        message: Message | Mapping[str, Any] = assistant_message(content, **fields)
        return await self.messages.append(message)

    # -- tools

    async def run_tools(
        self,
        calls: Sequence[Call],
        tools: Mapping[str, Callable[..., Any]],
        *,
        parallel_max: int = PARALLEL_MAX,
        output_characters_max: int = OUTPUT_CHARACTERS_MAX,
    ) -> list[Any]:
        """Runs tool calls, appends their results as one message, and returns these (`ToolResult`), in order.

        Whatever goes wrong with a call is its result: an unknown tool, arguments that do not fit the signature, an
        exception, a result that cannot be stored. Each call runs once: where a process died in mid-tool, the next
        attempt at the turn gets an error for it, unless the tool is `tool(idempotent=True)`. A stop leaves results for
        all calls, "interrupted" for those that were not finished.

        Where calls need approval, the others run, `self.turn.waiting` is set, and the handler must return.

        Args:
            calls: what `Draft.consume` or `open_calls` returned; or mappings with `toolCallId`, `toolName`, `input`.
                They are in the log already.
            tools: functions by name; coroutine functions run on the loop, others in a thread. See `tool`.
            parallel_max: how many run at a time.
            output_characters_max: how long a result may be; text is cut there, JSON becomes an error.

        Raises:
            TypeError: the signature of a tool cannot be used.
            ValueError: two calls have the same id; or one needs approval and is in no row of this turn.
            RuntimeError: no turn runs, or a draft is open.
            StorageError: the results were not written.
        """
        return await self._tools().run(calls, tools, parallel_max, output_characters_max)

    async def open_calls(self) -> list[ToolCall]:
        """Returns the tool calls that this turn has to see to; give them to `run_tools`.

        They are the calls in the rows of this turn, also of an earlier attempt, that have no result. Where the turn's
        message approves or denies calls that wait, it is these, and the others of the same row that wait.
        """
        return await self._tools().open_calls()

    def tool_rounds(
        self, tools: Mapping[str, Callable[..., Any]], *, rounds_max: int = ROUNDS_MAX
    ) -> AsyncIterator[int]:
        """Yields 1, 2, ... while the model is to be asked, and runs the tools that it asks for in between.

            async for _ in self.tool_rounds(TOOLS):
                async with self.reply() as draft:
                    await draft.consume(await ask(await self.messages.to_openai()))

        It begins with what a crash or an approval left to do, and ends when an answer asks for no tool, when a call
        needs approval, or where the message is an approval from which nothing follows.

        Args:
            tools: as `run_tools` takes them.
            rounds_max: how often the model is asked; the calls of its last answer are refused then.
        """
        return self._tools().rounds(tools, rounds_max)

    def _tools(self) -> Tools:
        return Tools(self._storage, self.messages, self.turn)


def _check_number(agent: type[Agent], setting: str, kinds: tuple[type, ...], wanted: str) -> None:
    value: Any = getattr(agent, setting)
    if type(value) not in kinds or not 0 < value < inf:
        raise ValueError(f"{agent.__name__}.{setting} is {value!r}: write {wanted}")


def _check_spelling(agent: type[Agent], name: str) -> None:
    """Refuses what looks like a hook or setting with a slip in its name, because nobody would ever look at it."""
    if hasattr(Agent, name) or name.startswith("_"):
        return
    for meant in get_close_matches(name, HOOKS, 1, ALIKE) if name.startswith("on_") else ():
        raise TypeError(f"{agent.__name__}.{name} would never be called: write {meant}, or give it another name")
    for meant in get_close_matches(name, SETTINGS, 1, ALIKE):
        raise TypeError(f"{agent.__name__}.{name} would never be read: write {meant}, or give it another name")


def _check_hook(agent: type[Agent], hook: str, arguments: int) -> None:
    """Refuses a method that could never be called, when the class is made and not at the first message."""
    function = getattr(agent, hook)
    if hook != "__init__" and not inspect.iscoroutinefunction(function):
        raise TypeError(f"{agent.__name__}.{hook} is called with await: write `async def {hook}(...)`")
    try:
        inspect.signature(function).bind(None, *range(arguments))
    except TypeError as error:
        what = "(self, name, storage), and passes them on" if hook == "__init__" else f"{arguments} beside self"
        raise TypeError(f"{agent.__name__}.{hook} takes {what}: {error}") from None
