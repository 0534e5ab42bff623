"""`make demo`: on a terminal the first Ctrl-C is for the turn, and without one it asks a question and ends."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest

DEMO = str(Path(__file__).parents[2] / "examples" / "demo.py")


@pytest.mark.timeout(60)
def test_without_a_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DEMO], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stderr) == (0, "")
    *told, question, answer = done.stdout.splitlines()
    assert question.endswith(": I feel happy today.") and answer.startswith("agent: ")
    assert not any("browser" in line for line in told), "its server is gone by now"


@pytest.mark.timeout(60)
def test_ctrl_c_stops_the_turn_and_goes_on(tmp_path: Path) -> None:
    master, slave = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

    demo = subprocess.Popen(
        [sys.executable, DEMO],
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(slave)
    seen = ""

    def see(text: str) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(master, 1 << 16).decode()
        seen = seen.partition(text)[2]

    try:
        see("in a browser: http://")
        see("> ")
        os.write(master, b"I feel happy today.\n")
        see("agent")
        os.write(master, b"\x03")
        see("stopping the turn")
        see("[stopped]")
        os.write(master, b"I feel fine.\n")
        see("agent")
        os.write(master, b"\x04")
        assert demo.wait(30) == 0
    finally:
        demo.terminate()
        demo.wait(30)
        os.close(master)
