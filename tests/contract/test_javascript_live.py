"""The JavaScript client against a real server: Stop, a cut network, a killed server, a late join, offline sends."""

from __future__ import annotations

import sys
from pathlib import Path

from .node import run_node

AGENTS = Path(__file__).parent.parent.parent / "examples" / "echo.py"


def test_t26_t29_t31_rows_once_and_drafts_that_become_their_rows(tmp_path: Path) -> None:
    """T26, T29, T31, L13: what each client has seen is judged in the script."""
    said = run_node("javascript_live.mjs", sys.executable, str(AGENTS), str(tmp_path / "data"))
    assert "cuts" in said
