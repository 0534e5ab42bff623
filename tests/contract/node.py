"""Runs what is written in JavaScript, where there is a Node that can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["run_node"]

FOLDER = Path(__file__).parent
MODULE = FOLDER.parent.parent / "server" / "web" / "parlatory.js"
DEADLINE_S = 60
# The first that has WebSocket, behind a flag; and the first that has it without one.
OLDEST = (20, 10)
WITHOUT_FLAG = (22, 0)


def run_node(script: str, *arguments: str, text: str = "") -> str:
    """Runs a script of this folder on the client, with `text` on its input, and returns its output.

    Without a Node the test is skipped, unless `CI_NODE_REQUIRED` says that there has to be one.
    """
    node = shutil.which("node")
    version = _version(node) if node else None
    if node is None or version is None or version < OLDEST:
        missing = f"NO NODE HERE ({version or 'none'}): the JavaScript client is NOT tested; install Node 22"
        assert not os.environ.get("CI_NODE_REQUIRED"), missing
        pytest.skip(missing)
    flags = [] if version >= WITHOUT_FLAG else ["--experimental-websocket"]
    command = [node, *flags, str(FOLDER / script), MODULE.as_uri(), *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, encoding="utf-8", timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _version(node: str) -> tuple[int, int] | None:
    found = re.match(r"v(\d+)\.(\d+)", subprocess.run([node, "--version"], capture_output=True, text=True).stdout)
    return None if found is None else (int(found[1]), int(found[2]))
