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
# WebSocket is behind a flag in the first. The other flag is for machines that limit address space: what reads HTTP in
# Node is WebAssembly, which otherwise reserves gigabytes of it.
OLDEST_20, OLDEST = (20, 15), (22, 2)
SMALL = "--disable-wasm-trap-handler"


def run_node(script: str, *arguments: str, text: str = "") -> str:
    """Runs a script of this folder on the client, with `text` on its input, and returns its output.

    Without a Node the test is skipped, unless `CI_NODE_REQUIRED` says that there has to be one.
    """
    node = shutil.which("node")
    version = _version(node) if node else (0, 0)
    old = OLDEST_20 <= version < (21, 0)
    if node is None or not (old or version >= OLDEST):
        missing = f"NO NODE HERE ({version[0]}.{version[1]}): the JavaScript client is NOT tested; install Node 22"
        assert not os.environ.get("CI_NODE_REQUIRED"), missing
        pytest.skip(missing)
    flags = [SMALL, "--experimental-websocket"] if old else [SMALL]
    command = [node, *flags, str(FOLDER / script), MODULE.as_uri(), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, encoding="utf-8", timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _version(node: str) -> tuple[int, int]:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    assert found is not None, said
    return int(found[1]), int(found[2])
