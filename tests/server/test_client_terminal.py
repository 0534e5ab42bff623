"""What clients print: nothing of a row steers the terminal, and the loss of the connection is told."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import threading
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.asyncio.server import ServerConnection

from parlatory.actors.approvals import approval
from parlatory.server import client_terminal
from parlatory.server.client_errors import ConnectionRefused, ConversationRefused
from parlatory.server.client_terminal import first_of, interrupts, line_of, name_of, open_chat, printable, said, tell
from parlatory.storage import Message, StoredMessage, assistant_message, tool_message, user_message
from parlatory.storage.messages import Custom, File, Image, Text, TextOutput, ToolCall, ToolResult, UnknownPart
from tests.server.test_client_peer import Frame, peer

C = "echo/a"


def row(message: Message, by: str = "user:ann", finish: str | None = None) -> StoredMessage:
    return StoredMessage(seq=1, at=datetime(2026, 11, 30, tzinfo=UTC), by=by, message=message, finish=finish)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain äöü 漢字 🙂", "plain äöü 漢字 🙂"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("a\r\nb\tc\0", "a\\r\\nb\\tc\\x00"),
        ("\x7f\x9b31m\x85", "\\x7f\\x9b31m\\x85"),
        ("abc\u202ecba\u2066\u200f\u2028", "abc\\u202ecba\\u2066\\u200f\\u2028"),
        ("\ud83d", "\\ud83d"),
    ],
)
def test_what_steers_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_ends_may_stay() -> None:
    assert printable("a\nb\r\x1b\t", lines=True) == "a\nb\\r\\x1b\\t"


@given(st.text())
def test_nothing_steers(text: str) -> None:
    shown = printable(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert printable(shown) == shown
    shown.encode()


def test_a_row_is_one_line() -> None:
    assert line_of(row(user_message("a\nb"), by="x\x1b")) == "x\\x1b: a\\nb"
    assert line_of(row(assistant_message("a"), finish="stopped")) == "user:ann: a [stopped]"


def test_what_has_no_text_is_named() -> None:
    call = ToolCall(tool_call_id="c", tool_name="find", input={})
    unknown = UnknownPart("x-new", msgspec.Raw(b"{}"))
    assert said(row(assistant_message([call, unknown]))) == "[calls find {}] [x-new]"
    assert said(row(user_message(""))) == said(row(user_message([]))) == ""


def test_tools_and_approvals_are_told() -> None:
    call = ToolCall(tool_call_id="c9", tool_name="cancel_order", input={"order": "7"})
    assert line_of(row(assistant_message([Text(text="Wait."), call]), by="agent")) == (
        'agent: Wait. [calls cancel_order {"order":"7"}]'
    )
    broken = ToolCall(tool_call_id="c", tool_name="find", input={}, invalid="x" * 300)
    assert said(row(assistant_message([broken]))) == f"[calls find {'x' * 200}...]"
    assert said(row(approval("call_c9"))) == "[approved call_c9]"
    assert said(row(approval("call_c9", False))) == "[denied call_c9]"
    assert said(row(user_message([Custom(kind="parlatory.approval", data=1)]))) == "[custom]"
    result = ToolResult(tool_call_id="c9", tool_name="cancel_order", output=TextOutput(value="done"))
    assert line_of(row(tool_message([result]), by="agent")) == "tool: done"


def test_who_a_row_is_from() -> None:
    names = ["user:ann", "user:bob", "anonymous:0123456789", "anonymous", "agent"]
    shown = [name_of(row(user_message("x"), by=name), "user:ann") for name in names]
    assert shown == ["you", "user:bob", "anonymous 012345", "anonymous", "agent"]


def test_pictures_and_files_are_named_beside_the_text() -> None:
    assert said(row(user_message([Text(text="see"), Image(url="https://x.test")]))) == "see [image]"
    file = File(ref={"parlatory": "sha256:" + "0" * 64}, media_type="application/pdf", filename="a.pdf")
    assert said(row(user_message([file, Text(text="see")]))) == "see [file a.pdf, application/pdf]"
    assert said(row(user_message([Image(data="", media_type="image/png"), file]))) == (
        "[image image/png] [file a.pdf, application/pdf]"
    )
    steering = Image(url="https://x.test", filename="\x1b[2J")
    assert line_of(row(user_message([steering]))) == "user:ann: [image \\x1b[2J]"


def test_tell(capsys: pytest.CaptureFixture[str]) -> None:
    tell("no\x1b")
    assert capsys.readouterr() == ("", "parlatory: no\\x1b\n")


async def test_ctrl_c_may_mean_something_else() -> None:
    pressed: list[asyncio.Event] = []
    async with asyncio.timeout(10), interrupts(pressed.append) as stopped:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        await stopped.wait()
    assert pressed == [stopped]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_interrupts(number: signal.Signals) -> None:
    async with asyncio.timeout(10), interrupts() as stopped:
        os.kill(os.getpid(), number)
        await stopped.wait()
    assert signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)


def test_interrupts_in_another_thread() -> None:
    async def enter() -> bool:
        async with interrupts() as stopped:
            return stopped.is_set()

    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(asyncio.run(enter())))
    thread.start()
    thread.join()
    assert found == [False]


async def test_first_of() -> None:
    forever = asyncio.get_running_loop().create_future()

    async def fail() -> None:
        raise ZeroDivisionError

    async def wait() -> None:
        await forever

    with pytest.raises(ZeroDivisionError):
        await first_of(fail(), wait())
    assert forever.cancelled()


async def test_the_loss_of_a_connection_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "random", lambda: 0.0)
    told: list[str] = []
    async with asyncio.timeout(10), peer() as server:
        async with open_chat(server.url, C, None, tail=0, tell=told.append) as chat:
            assert (chat.status, told) == ("live", [])
            server.closings = [1011, 1011]
            server.append(C, "old")
            await anext(chat)
            server.epoch = "e2"
            server.cut()
            await chat.wait_status("offline")
            await chat.wait_status("live")
            server.append(C, "new")
            await anext(chat)
    assert ["trying again" in text for text in told] == [True, False, False]
    assert set(told[1:]) == {"connected again", "the conversation is another one than before; it begins anew"}


async def test_what_cannot_be_had_at_first() -> None:
    async with asyncio.timeout(10), peer() as server:
        server.closings = [1013]
        with pytest.raises(ConnectionRefused, match="1013"):
            async with open_chat(server.url, C, None, tail=0):
                raise AssertionError
        server.closings = [4403]
        with pytest.raises(ConnectionRefused, match="does not allow"):
            async with open_chat(server.url, C, None, tail=0):
                raise AssertionError
        server.on["open"] = lambda socket, frame: server.say(
            socket, "error", code="forbidden", text="t", conversation=C
        )
        with pytest.raises(ConversationRefused, match="forbidden"):
            async with open_chat(server.url, C, None, tail=0):
                raise AssertionError


async def test_an_open_that_is_refused_for_now_is_told_once_and_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(socket: ServerConnection, frame: Frame) -> None:
        server.say(socket, "error", code="internal", text="t", retryMs=1, conversation=C)

    told: list[str] = []
    monkeypatch.setattr(client_terminal, "SLOW_S", 0.05)
    async with asyncio.timeout(10), peer() as server:
        server.on["open"] = refuse
        with pytest.raises(ConnectionRefused, match=r"cannot open the conversation \(internal\)"):
            async with open_chat(server.url, C, None, tail=0, patience_s=0.05, tell=told.append):
                raise AssertionError
        assert told == ["the server cannot open the conversation (internal), trying again"]
        monkeypatch.setattr(client_terminal, "SLOW_S", 0.0)
        server.on["open"] = lambda socket, frame: None
        with pytest.raises(ConnectionRefused, match="does not open the conversation"):
            async with open_chat(server.url, C, None, tail=0, patience_s=0.0):
                raise AssertionError
        del server.on["open"]
        async with open_chat(server.url, C, None, tail=0, patience_s=None) as chat:
            await chat.wait_status("live")
            assert chat.problem is None
