"""A chat with eliza: `make demo` serves eliza.py on a free port, with its page, and opens `parlatory chat` on it.

The conversation lies in ./demo-data. It is still there when the demo is started again, and when the server is killed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

DATA = "demo-data"
CONVERSATION = "eliza/demo"
QUESTION = "I feel happy today."
ANSWER_S = 60
STOP_S = 15


class ServerFailed(Exception):
    """The server ended before it listened; the text is what it said."""


def command() -> str:
    """The command of the environment that runs this file."""
    found = shutil.which("parlatory", path=str(Path(sys.executable).parent))
    if found is None:
        raise ServerFailed(f"There is no `parlatory` beside {sys.executable}: install the package first.")
    return os.path.relpath(found)


def end_with_parent() -> None:
    """Runs in the server before it starts: where Linux can, a demo that is killed takes its server along."""
    if sys.platform == "linux":
        import ctypes

        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


class Server:
    """The served example as a child process, in a session of its own: Ctrl-C is for the chat."""

    def __init__(self) -> None:
        self.port = 0  # free; the first start finds it, later ones keep it
        self.url = ""
        self.child: subprocess.Popen[str] | None = None

    @property
    def page(self) -> str:
        """The address of the chat page, with the conversation that the terminal has open."""
        return f"http://127.0.0.1:{self.port}/#{CONVERSATION}"

    def start(self) -> None:
        example = str(Path(__file__).with_name("eliza.py"))
        arguments = ["serve", example, "--data", DATA, "--host", "127.0.0.1", "--port", str(self.port), "--drain", "1"]
        self.child = subprocess.Popen(
            [command(), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        assert self.child.stderr is not None
        said = []
        for line in self.child.stderr:
            if found := re.search(r"listening on (ws://\S+:(\d+)/\S+)", line):
                self.url, self.port = found[1], int(found[2])
                return
            said.append(line)
        self.child.wait()
        raise ServerFailed("".join(said).strip() or f"The server ended with code {self.child.returncode}.")

    def wait(self) -> None:
        """Read what the server logs, so that it never waits for us, until it ends."""
        assert self.child is not None and self.child.stderr is not None
        for _ in self.child.stderr:
            pass
        self.child.wait()

    def stop(self) -> None:
        if self.child is None or self.child.poll() is not None:
            return
        self.child.terminate()
        try:
            self.child.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()


def talk(server: Server) -> int:
    """Chat on this terminal; a server that is killed meanwhile comes back on the same port and the same data."""
    assert server.child is not None
    print(f"The same chat in a browser: {server.page}")
    print(f"Try `kill -9 {server.child.pid}` elsewhere: the server comes back and the chat goes on. Ctrl-D ends it.")
    sys.stdout.flush()
    # The terminal gives its Ctrl-C to us as well; it is for the chat, which begins with the default again.
    signal.signal(signal.SIGINT, lambda *_: None)
    chat = subprocess.Popen([command(), "chat", server.url, CONVERSATION])
    ended = threading.Event()

    def end() -> None:
        chat.wait()
        ended.set()
        if server.child is not None:
            server.child.terminate()

    watcher = threading.Thread(target=end, daemon=True)
    watcher.start()
    try:
        while not ended.is_set():
            server.wait()
            if not ended.is_set():
                server.start()
        return chat.returncode
    finally:
        if chat.poll() is None:
            chat.terminate()
        watcher.join(STOP_S)


def ask(server: Server) -> int:
    """Ask one question and print it with its answer."""
    chat = [command(), "chat", server.url, CONVERSATION]
    try:
        done = subprocess.run(chat, input=f"{QUESTION}\n", stdout=subprocess.PIPE, text=True, timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        print(f"There was no answer within {ANSWER_S} s.", file=sys.stderr)
        return 1
    lines = done.stdout.splitlines()
    asked = [index for index, line in enumerate(lines) if line.endswith(f": {QUESTION}")]
    exchange = lines[asked[-1] :] if asked else []
    print("\n".join(exchange))
    if done.returncode == 0 and len(exchange) < 2:
        print("The question was not answered.", file=sys.stderr)
        return 1
    return done.returncode


def main() -> int:
    # However the demo is told to end, the server is stopped first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    server = Server()
    try:
        server.start()
        print(f"The conversation lies in ./{DATA}; `{command()} log {DATA} {CONVERSATION}` shows it.", flush=True)
        return talk(server) if sys.stdin is not None and sys.stdin.isatty() else ask(server)
    except ServerFailed as error:
        locked = "owned by another process" in str(error)
        print(f"A demo is still running: {str(error).splitlines()[-1]}" if locked else error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 0
    finally:
        server.stop()


if __name__ == "__main__":
    sys.exit(main())
