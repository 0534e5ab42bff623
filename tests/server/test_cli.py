from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parlatory import connect
from parlatory.server import cli
from parlatory.storage import InvalidName, MessageLog, open_engine, user_message

from .peers import Peer

AGENTS = "from parlatory import Agent\nclass Relay(Agent):\n    pass\n"
STOP_S = 20


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("websockets", "parlatory.server.websockets")]
    before = [logger.level for logger in loggers]
    modules, path = set(sys.modules), list(sys.path)
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)
    for name in set(sys.modules) - modules:
        if name.startswith("bots"):
            del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def bots(tmp_path: Path) -> str:
    path = tmp_path / "bots.py"
    path.write_text(AGENTS, encoding="utf-8")
    return str(path)


class Served:
    """Is `parlatory serve` as a process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stderr is not None
        self.said = ""
        while "listening on" not in self.said:
            line = process.stderr.readline()
            assert line, self.said
            self.said += line
        self.url = re.findall(r"listening on (ws://\S+)\n", self.said)[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=STOP_S)
        return self.process.returncode, rest


@contextlib.contextmanager
def served(bots: str, data: Path, *options: str, prefix: tuple[str, ...] = (), **popen: Any) -> Iterator[Served]:
    command = [*prefix, sys.executable, "-m", "parlatory.server.cli", "serve", bots, "--data", str(data), "--port", "0"]
    popen = {"stdout": subprocess.DEVNULL, "stdin": subprocess.DEVNULL} | popen
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, **popen)
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()


def run(*arguments: str) -> int:
    try:
        return cli.main(arguments)
    except SystemExit as error:
        return int(error.code or 0)


# -- wrong calls


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["nosuch"], "invalid choice: 'nosuch'"),
        (["serve"], "the following arguments are required: FILE.py[:Agent,...], --data"),
        (["serve", "BOTS"], "the following arguments are required: --data"),
        (["serve", "nosuch.py", "--data", "D"], "there is no file nosuch.py"),
        (["serve", "BOTS:Other", "--data", "D"], "has no agent class Other"),
        (["serve", "BOTS", "--data", "D", "--host", "0.0.0.0"], "--allow-anonymous"),
        (["serve", "BOTS", "--data", ""], "argument --data: it names no directory"),
        (["serve", "BOTS", "--data", "D", "--port", "x"], "'x' is no port"),
        (["serve", "BOTS", "--data", "D", "--port", "-1"], "'-1' is no port"),
        (["serve", "BOTS", "--data", "D", "--port", "65536"], "'65536' is no port"),
        (["serve", "BOTS", "--data", "D", "--port", "9" * 5000], "is no port"),
        (["serve", "BOTS", "--data", "D", "--drain", "soon"], "'soon' is no number of seconds"),
        (["serve", "BOTS", "--data", "D", "--drain", "nan"], "'nan' is no number of seconds"),
        (["serve", "BOTS", "--data", "D", "--drain=-1"], "'-1' is no number of seconds"),
        (["serve", "BOTS", "--data", "D", "--idle-timeout", "0"], "0 seconds are too few"),
        (["serve", "BOTS", "--data", "D", "--origin", "chat.example"], "'chat.example' is no Origin"),
        (["serve", "BOTS", "--data", "BOTS"], "cannot make the data directory"),
        (["tail", "ws://127.0.0.1:1/v1", "relay/x", "-n", "-1"], "'-1' is no count"),
        (["tail", "ws://127.0.0.1:1/v1", "relay/x", "-n", "x"], "'x' is no count"),
        (["log", "D"], "holds no parlatory data"),
        (["log", "D", "nonsense"], "'nonsense' is no conversation"),
        (["log", "D", "relay/x"], "holds no parlatory data"),
    ],
)
def test_errors_are_one_sentence_and_code_2(
    arguments: list[str], error: str, bots: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled = [one.replace("BOTS", bots) if one != "D" else str(tmp_path / "data") for one in arguments]
    assert run(*filled) == 2
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("parlatory: ") and error in lines[0]
    assert captured.out == ""


def test_two_agents_of_one_name(bots: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(bots).write_text(AGENTS + "class Other(Agent):\n    name = 'relay'\n", encoding="utf-8")
    assert run("serve", bots, "--data", str(tmp_path / "data")) == 2
    assert "two agents are named 'relay'" in capsys.readouterr().err


def test_a_port_that_is_taken(bots: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run("serve", bots, "--data", str(tmp_path / "data"), "--port", port) == 2
    assert f"cannot listen on 127.0.0.1, port {port}: Address already in use" in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out.startswith("parlatory ")
    for command in ("serve", "chat", "tail", "log"):
        assert run(command, "--help") == 0
        text = capsys.readouterr().out
        assert not re.search(r"^  (--?\w\S*( \S+)?)$\n(?! {6})", text, re.MULTILINE), "an option without a help text"


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvalidName("x", "it is none"), 2, "parlatory: 'x' is no conversation: it is none\n"),
        (FileNotFoundError(2, "No such file", "x.py"), 2, "parlatory: No such file: x.py\n"),
        (OSError("two\n  lines"), 2, "parlatory: two lines\n"),
        (ValueError(), 2, "parlatory: ValueError\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_a_command_may_end_with(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_log", fail)
    assert run("log", "data", "relay/x") == code
    assert capsys.readouterr().err == said


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise RuntimeError("a fault")

    monkeypatch.setattr(cli, "_log", fail)
    with pytest.raises(RuntimeError):
        run("log", "data", "relay/x")


def test_chat_and_tail_get_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    from parlatory.server import cli_chat, cli_tail

    given: list[Any] = []

    async def command(*arguments: object) -> int:
        given.append(arguments)
        return 0

    monkeypatch.setattr(cli_chat, "chat", command)
    monkeypatch.setattr(cli_tail, "tail", command)
    assert run("chat", "ws://x/v1", "relay/x", "--token", "t") == 0
    assert run("tail", "ws://x/v1", "relay/x", "-n", "3", "--json") == 0
    default = os.environ.get("PARLATORY_TOKEN")
    assert given == [("ws://x/v1", "relay/x", "t"), ("ws://x/v1", "relay/x", default, 3, True)]


def test_log_in_this_process(bots: str, tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = str(tmp_path / "data")
    assert served_here(bots, data, monkeypatch) == 0
    assert run("log", data, "relay/x") == 1
    assert b"relay/x has no rows in" in capfdbinary.readouterr().err
    assert run("log", data) == 0
    assert capfdbinary.readouterr().out == b""
    asyncio.run(appended(data))
    assert run("log", data) == 0
    assert re.fullmatch(r"relay/x\t1 row\t[0-9-]+T[0-9:.]+Z\n", capfdbinary.readouterr().out.decode())
    assert run("log", data, "relay/x") == 0
    captured = capfdbinary.readouterr()
    assert (json.loads(captured.out)["message"]["content"], captured.err) == ("x", b"")
    monkeypatch.setattr(sys, "stdout", None)
    assert run("log", data, "relay/x") == 0


async def appended(data: str) -> None:
    engine = await open_engine(f"sqlite:///{data}")
    await MessageLog(await engine.partition("relay/x")).append(user_message("x"))
    await engine.close()


def served_here(bots: str, data: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Serves in this process until it says that it listens, then stops it."""

    class Stopping(io.StringIO):
        def write(self, text: str) -> int:
            if "listening on" in text:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().write(text)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", Stopping())
        return run("serve", bots, "--data", data, "--port", "0", "--drain", "0", "--idle-timeout", "5")


def test_a_server_whose_storage_failed_ends_with_1(bots: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parlatory.storage import sqlite

    monkeypatch.setattr(sqlite.SqliteEngine, "failed", property(lambda _: OSError("fsync")))
    assert served_here(bots, str(tmp_path / "data"), monkeypatch) == 1


def test_a_reader_that_has_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "_log", fail)
    with open(os.devnull, "w", encoding="utf-8") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert run("log", "data", "relay/x") == 0


def test_standard_streams_that_are_closed_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    monkeypatch.setattr(cli, "STANDARD_FDS", (fd,))
    cli._fill_standard_fds()
    os.fstat(fd)
    os.close(fd)


# -- serve


async def test_serve_and_log_beside_it_and_after_it(bots: str, tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    with served(bots, data, "--drain", "0") as server:
        async with Peer.admitted(server.url) as peer:
            await peer.fill("relay/x", ["a", "b\nc"])
            for _ in range(2):
                done = parlatory("log", str(data), "relay/x")
                rows = [json.loads(line) for line in done.stdout.splitlines()]
                assert [(row["seq"], row["message"]["content"]) for row in rows] == [(1, "a"), (2, "b\nc")]
                if server.process.poll() is None:
                    locked = parlatory("serve", bots, "--data", str(data))
                    assert locked.returncode == 2 and f"pid {server.process.pid}".encode() in locked.stderr
                    code, rest = await asyncio.to_thread(server.stop)
                    assert code == 0 and rest == "stopping; once more to stop at once\n"
                    await peer.refused(1012)
            done = parlatory("log", str(data), "relay/none")
            assert done.returncode == 1 and done.stdout == b"" and b"relay/none has no rows" in done.stderr


def parlatory(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "parlatory.server.cli", *arguments]
    return subprocess.run(command, capture_output=True, timeout=STOP_S, check=False)


def test_the_interpreter_is_set_up_for_serving_before_the_agents_are_loaded(tmp_path: Path) -> None:
    """So that their file may set it otherwise."""
    bots = tmp_path / "bots.py"
    bots.write_text(
        "import gc, sys\nfrom parlatory import Agent\n"
        "print(round(sys.getswitchinterval() * 1e6), gc.get_threshold(), file=sys.stderr)\nclass Bot(Agent): pass\n"
    )
    with served(str(bots), tmp_path / "data") as server:
        assert "10 (10000, 2, 2)" in server.said


def test_it_says_whom_it_serves(bots: str, tmp_path: Path) -> None:
    with served(bots, tmp_path / "data") as server:
        assert "serving relay (1 agent)\n" in server.said
    Path(bots).write_text(AGENTS + "class Echo(Agent):\n    pass\n", encoding="utf-8")
    with served(bots, tmp_path / "data") as server:
        assert sorted(re.findall(r"serving (.*), (.*) \(2 agents\)\n", server.said)[0]) == ["echo", "relay"]


def test_it_says_where_the_chat_page_is_unless_there_is_none(bots: str, tmp_path: Path) -> None:
    with served(bots, tmp_path / "data") as server:
        page = re.findall(r"the chat page is (http://127\.0\.0\.1:\d+/)\n", server.said)
        with urllib.request.urlopen(page[0], timeout=STOP_S) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    with served(bots, tmp_path / "data", "--no-web") as server:
        assert "page" not in server.said


def test_ctrl_c_ends_it_cleanly(bots: str, tmp_path: Path) -> None:
    with served(bots, tmp_path / "data") as server:
        assert server.stop(signal.SIGINT) == (0, "stopping; once more to stop at once\n")


async def test_a_second_signal_ends_it_at_once(bots: str, tmp_path: Path) -> None:
    with served(bots, tmp_path / "data", "--drain", "1000") as server:
        async with Peer.admitted(server.url):
            server.process.send_signal(signal.SIGTERM)
            assert server.process.stderr is not None
            assert server.process.stderr.readline() == "stopping; once more to stop at once\n"
            assert server.stop() == (1, "")


def test_closed_standard_streams_do_no_harm(bots: str, tmp_path: Path) -> None:
    """A data file that took the place of stdout would get what is printed."""
    closed = ("sh", "-c", 'exec "$@" <&- >&-', "sh")
    with served(bots, tmp_path / "data", prefix=closed) as server:
        for fd in ("0", "1"):
            assert os.readlink(f"/proc/{server.process.pid}/fd/{fd}") == os.devnull
        assert server.stop()[0] == 0
    log = [sys.executable, "-m", "parlatory.server.cli", "log", str(tmp_path / "data"), "relay/x"]
    assert subprocess.run([*closed, *log], stderr=subprocess.PIPE, timeout=STOP_S, check=False).returncode == 1


async def test_log_into_a_pipe_that_nobody_reads(bots: str, tmp_path: Path) -> None:
    with served(bots, tmp_path / "data", "--drain", "0") as server:
        async with Peer.admitted(server.url) as peer:
            await peer.fill("relay/x", ["x" * 100_000] * 3)
    command = [sys.executable, "-m", "parlatory.server.cli", "log", str(tmp_path / "data"), "relay/x"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b"" and process.wait(STOP_S) == 0
    process.stderr.close()


async def test_origins_of_the_command_line_let_in_who_names_none(bots: str, tmp_path: Path) -> None:
    with served(bots, tmp_path / "data", "--origin", "https://chat.example", "--drain", "0") as server:
        async with Peer.admitted(server.url) as peer, Peer.to(server.url, origin="https://chat.example"):
            await peer.barrier()


def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_the_end(tmp_path: Path) -> None:
    stubborn = tmp_path / "stubborn.py"
    stubborn.write_text(
        "import asyncio\nfrom parlatory import Agent\nclass Stubborn(Agent):\n"
        "    async def on_message(self, row):\n        while True:\n            try:\n"
        "                await asyncio.Event().wait()\n"
        "            except asyncio.CancelledError:\n                pass\n"
    )
    with served(str(stubborn), tmp_path / "data", "--drain", "0") as server:
        asyncio.run(_post(server.url, "stubborn/a"))
        code, said = server.stop()
    assert code == 0
    assert "is stuck in turn 1" in said and "leaving without" in said


async def _post(url: str, conversation: str) -> None:
    async with connect(url, conversation) as chat:
        assert await chat.send("hi") == 1
