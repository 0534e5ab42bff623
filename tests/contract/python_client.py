"""Carries out the cases with the Python client: the real one, over WebSocket bytes, on the clock of the simulation.

What is unrealistic about it: the network takes no time and cuts nothing into pieces, one process at a time runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from parlatory.server import Chat, connect
from parlatory.server.client_drafts import Draft
from parlatory.server.client_frames import Signal
from parlatory.storage import ParlatoryError, StoredMessage, encode_message

from ..sim.loop import SimLoop, Simulation
from ..sim.net import Network
from .script import CONVERSATION, Case

__all__ = ["play"]

PORT = 1
# How long whatever happens at once may take.
SETTLE_S = 0.0001
CODES = {4400: "bad_frame", 4401: "unauthorized", 4403: "forbidden", None: "too_large"}


def play(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carries out a case; fails with what the client did instead."""
    monkeypatch.setattr(random, "random", lambda: float(case["options"].get("random", 0.9)))
    monkeypatch.setattr(logging.getLogger("websockets.server"), "disabled", True)  # it reports every cut
    stage = Stage(case["options"])
    try:
        for number, step in enumerate(case["steps"]):
            try:
                getattr(stage, f"on_{step[0]}")(*step[1:])
                stage.pass_time(SETTLE_S)
            except AssertionError as error:
                raise AssertionError(f"step {number}, {step}: {error}") from None
    finally:
        stage.strike()


class Application:
    """Is what a program sees that iterates over everything."""

    def __init__(self) -> None:
        self.chat: Chat
        self.rows: list[str] = []
        self.signals: list[list[Any]] = []
        self.ends: list[list[Any]] = []
        self.outcomes: dict[str, dict[Any, Any]] = {"sends": {}, "cancels": {}, "pages": {}, "signalled": {}}
        self.closed: str | None = None
        self.done = asyncio.Event()

    async def run(self, options: dict[str, Any]) -> None:
        """Has the conversation open until the end."""
        tokens = list(options.get("tokens", ()))
        token = (lambda: tokens.pop(0)) if tokens else options.get("token")
        url = f"ws://127.0.0.1:{PORT}/v1"
        async with connect(url, CONVERSATION, token=token, tail=options.get("tail"), on_reset=self.reset) as self.chat:
            try:
                async for event in self.chat.events():
                    if isinstance(event, StoredMessage):
                        self.rows.append(event.text)
                    elif isinstance(event, Signal):
                        self.signals.append([event.name, event.by, event.data])
                    elif isinstance(event, Draft) and event.finish is not None:
                        self.ends.append([event.seq, event.text, event.finish])
                self.closed = "closed"
            except ParlatoryError as error:
                self.closed = _code(error)
            await self.done.wait()

    def reset(self, _chat: Chat) -> None:
        self.rows.clear()

    def view(self) -> dict[str, Any]:
        """Returns what there is to see, as `see` names it."""
        chat, draft = self.chat, self.chat.draft
        outcomes = {kind: list(found.values()) for kind, found in self.outcomes.items()}
        return outcomes | {
            "rows": self.rows,
            "draft": None if draft is None else draft.text,
            "content": None if draft is None else json.loads(encode_message(draft.message))["content"],
            "live": chat.status == "live",
            "closed": self.closed,
            "resets": chat.resets,
            "turn": [chat.turn.state, chat.turn.id],
            "signals": self.signals,
            "ends": self.ends,
            "sends": self.outcomes["sends"],
        }

    async def keep(self, kind: str, key: Any, work: Coroutine[Any, Any, Any]) -> None:
        """Waits for an outcome."""
        self.outcomes[kind][key] = "waits"
        try:
            self.outcomes[kind][key] = await work
        except ParlatoryError as error:
            self.outcomes[kind][key] = _code(error)

    async def page(self, before: int, limit: int) -> list[Any]:
        history = await self.chat.page(before, limit)
        return [[row.text for row in history.rows], history.more]

    async def cancel(self, turn: int | str | None) -> str:
        await self.chat.cancel(turn)
        return "heard"


def _code(error: ParlatoryError) -> str:
    """Returns the code that both clients have for it."""
    if error.code == "connection_refused":
        return CODES[getattr(error, "close_code", None)]
    return {"codec": "bad_message"}.get(error.code, error.code)


class Stage:
    """Is the server that does what the case says, the client, and the world of the two."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.simulation = Simulation(0)
        self.simulation.iteration_s = 0.0
        self.network = Network(self.simulation, tapped_write=_nothing, tapped_read=_nothing)
        self.network.latency_s = (0.0, 0.0)
        self.network.piece_bytes = self.network.window_bytes = self.network.high_bytes = 1 << 24
        self.loop: SimLoop = self.simulation.loop("all", self.network)
        self.tries = 0
        self.known: dict[str, Any] = {}
        # Sockets that no step has taken up; the one of now, with its frames.
        self.waiting: list[ServerConnection] = []
        self.socket: ServerConnection | None = None
        self.frames: dict[ServerConnection, list[dict[str, Any]]] = {}
        self.server: Server
        self.tasks: list[asyncio.Task[Any]] = []
        self.network.connect = self._counted(self.network.connect)  # type: ignore[method-assign]
        if not options.get("down"):
            self.on_up()
        self.app = self.call(Application)
        self.start(self.app.run(options))
        self.pass_time(SETTLE_S)

    def _counted(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*arguments: Any) -> Any:
            self.tries += 1
            return await connect(*arguments)

        return counted

    # -- the world

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function as if in a step of the loop."""
        before = self.simulation.enter(self.loop)
        try:
            return function(*arguments)
        finally:
            self.simulation.leave(before)
            self._step_out()

    def _step_out(self) -> None:
        """Leaves no loop behind as the running one."""
        self.simulation.leave(self.simulation.enter(None))

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.tasks.append(task)
        return task

    def pass_time(self, seconds: float) -> None:
        """Runs the loop up to a time."""
        end = self.simulation.now + seconds
        while True:
            while self.loop._ready:
                self.loop.step()
            when = self.loop.next_timer()
            if when is None or when > end:
                break
            self.simulation.now = max(self.simulation.now, when)
            self.loop.fire_timers(self.simulation.now)
        self.simulation.now = end
        self._step_out()
        assert not self.simulation.problems, self.simulation.problems

    def strike(self) -> None:
        """Ends everything."""
        try:
            self.app.done.set()
            end = self.start(self.app.chat._client.aclose())
            if hasattr(self, "server"):
                self.on_down()
            self.pass_time(60)
            assert end.done()
        finally:
            problems = list(self.simulation.problems)
            self.loop.bury()
        assert not problems, problems

    async def accept(self, socket: ServerConnection) -> None:
        self.frames[socket] = []
        self.waiting.append(socket)
        try:
            async for data in socket:
                self.frames[socket].append(json.loads(data))
        except ConnectionClosed:
            pass

    # -- what a server does

    def on_up(self) -> None:
        async def up() -> None:
            self.server = await serve(
                self.accept,
                "127.0.0.1",
                PORT,
                subprotocols=[Subprotocol("parlatory.v1")],
                compression=None,
                ping_interval=None,
                close_timeout=1,
            )

        self.start(up())
        self.pass_time(SETTLE_S)

    def on_down(self) -> None:
        self.server.close(close_connections=False)

    def on_socket(self) -> None:
        assert self.waiting, "there is no new socket"
        self.socket = self.waiting.pop(0)

    def on_say(self, frame: dict[str, Any]) -> None:
        self.on_raw(json.dumps(_filled(frame, self.known)))

    def on_raw(self, text: str) -> None:
        socket = self._socket()
        self.call(socket.protocol.send_text, text.encode())
        self.call(socket.send_data)

    def on_cut(self) -> None:
        self.call(self._socket().transport.abort)

    def on_close(self, code: int) -> None:
        self.start(self._socket().close(code))

    def _socket(self) -> ServerConnection:
        assert self.socket is not None, "no socket was taken up"
        return self.socket

    # -- what the client does meanwhile

    def on_expect(self, frame: dict[str, Any]) -> None:
        frames = self.frames[self._socket()]
        assert frames, "there is no frame"
        _match(frame, frames.pop(0), self.known)

    def on_quiet(self) -> None:
        left = [] if self.socket is None else self.frames[self.socket]
        assert not left, f"frames: {left}"

    def on_none(self) -> None:
        assert not self.waiting, "there is a new socket"

    def on_tries(self, count: int) -> None:
        assert self.tries == count, f"{self.tries} tries"

    def on_stays(self) -> None:
        assert self._socket().state.name == "OPEN", "the socket is gone"

    def on_gone(self) -> None:
        assert self._socket().state.name != "OPEN", "the socket is open"

    def on_see(self, view: dict[str, Any]) -> None:
        seen = self.app.view()
        for key, value in view.items():
            assert seen[key] == value, f"{key} is {seen[key]!r}"

    # -- what the application does

    def on_send(self, client_id: str, text: str) -> None:
        self.start(self.app.keep("sends", client_id, self.app.chat.send(text, client_id=client_id)))

    def on_page(self, before: int, limit: int) -> None:
        self.start(self.app.keep("pages", len(self.app.outcomes["pages"]), self.app.page(before, limit)))

    def on_cancel(self, turn: int | str | None = None) -> None:
        self.start(self.app.keep("cancels", len(self.app.outcomes["cancels"]), self.app.cancel(turn)))

    def on_signal(self, name: str, data: Any) -> None:
        self.start(self.app.keep("signalled", name, self.app.chat.signal(name, data)))

    def on_end(self) -> None:
        self.start(self.app.chat._client.aclose())

    def on_advance(self, seconds: float) -> None:
        self.pass_time(seconds)


def _nothing(*_: object) -> None:
    """Nobody listens in."""


def _filled(value: Any, known: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, known) for key, one in value.items()}
    return known[value] if isinstance(value, str) and value.startswith("$") else value


def _match(wanted: dict[str, Any], frame: dict[str, Any], known: dict[str, Any]) -> None:
    """Compares a frame with what a case expects, and keeps what that names."""
    for key, value in wanted.items():
        if value == "*" and key in frame:
            continue
        if isinstance(value, str) and value.startswith("$") and key in frame:
            known[value] = frame[key]
        else:
            assert frame.get(key) == value, f"it is {frame}"
    assert wanted.keys() == frame.keys(), f"it is {frame}"
