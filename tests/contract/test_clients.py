"""One set of cases drives both clients, over a server that does what the case says, on a virtual clock.

`javascript.json` has what only a browser has: storage, tabs, sleep; and what the Python client has no calls for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from .python_client import play
from .script import load

FOLDER = Path(__file__).parent
MODULE = FOLDER.parent.parent / "server" / "web" / "parlatory.js"
CASES = load("cases.json")
JAVASCRIPT = CASES | load("javascript.json")
DEADLINE_S = 60


@pytest.mark.parametrize("name", CASES)
def test_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play(CASES[name], monkeypatch)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    """What was wrong with each case, from one run of Node over all of them."""
    node = shutil.which("node")
    if node is None:
        assert not os.environ.get("CI_NODE_REQUIRED"), "there is no node, and CI_NODE_REQUIRED says there is to be one"
        pytest.skip("NO NODE HERE: the JavaScript client is not tested at all; install Node 20 or newer")
    command = [node, str(FOLDER / "javascript_client.mjs"), MODULE.as_uri()]
    done = subprocess.run(
        command, input=json.dumps(JAVASCRIPT), capture_output=True, encoding="utf-8", timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line["wrong"] for line in lines}


@pytest.mark.parametrize("name", JAVASCRIPT)
def test_javascript(name: str, outcomes: dict[str, str | None]) -> None:
    assert name in outcomes, "the run ended before this case"
    assert outcomes[name] is None, outcomes[name]
