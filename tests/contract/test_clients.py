"""One set of cases drives both clients, over a server that does what the case says, on a virtual clock."""

from __future__ import annotations

import pytest

from .python_client import play
from .script import load

CASES = load("cases.json")


@pytest.mark.parametrize("name", CASES)
def test_python(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play(CASES[name], monkeypatch)
