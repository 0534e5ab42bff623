"""One set of cases drives both clients, over a server that does what the case says, on a virtual clock.

`javascript.json` has what only a browser has: storage, tabs, sleep; and what the Python client has no calls for.
"""

from __future__ import annotations

import json

import pytest

from .node import run_node
from .python_client import play
from .script import load

CASES = load("cases.json")
JAVASCRIPT = CASES | load("javascript.json")


@pytest.mark.parametrize("name", CASES)
def test_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play(CASES[name], monkeypatch)


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str | None]:
    """What was wrong with each case, from one run of Node over all of them."""
    lines = [json.loads(line) for line in run_node("javascript_client.mjs", text=json.dumps(JAVASCRIPT)).splitlines()]
    return {line["name"]: line["wrong"] for line in lines}


@pytest.mark.parametrize("name", JAVASCRIPT)
def test_javascript(name: str, outcomes: dict[str, str | None]) -> None:
    assert name in outcomes, "the run ended before this case"
    assert outcomes[name] is None, outcomes[name]
