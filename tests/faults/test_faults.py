"""The simulation finds what it is there for: each planted fault within 50 seeds, and nothing without one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .planted import FAULTS, Fault

ROOT = Path(__file__).parents[2]
SEEDS = 50


def plant(fault: Fault | None, folder: Path) -> Path:
    """Makes a tree of the product's packages with a fault in it; returns what goes on the path."""
    package = folder / "parlatory"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "parlatory", package, ignore=ignore)
    for name in ("storage", "actors", "server"):
        shutil.copytree(ROOT / name, package / name, ignore=ignore)
    for edit in fault.edits if fault is not None else ():
        path = package / edit.path
        text = path.read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, f"{fault} does not apply any more: plant it anew in {edit.path}"
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    return folder


def simulate(tree: Path, *seeds: int) -> subprocess.CompletedProcess[str]:
    """Runs seeds on a tree, until one fails."""
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    # -P: the folder `parlatory` of the checkout must not come before the planted one.
    command = [sys.executable, "-P", "-m", "tests.sim.run", ",".join(map(str, seeds)), "-x"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_is_found(fault: Fault, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = simulate(plant(fault, tmp_path), *range(fault.seed, fault.seed + SEEDS))
    seed = re.search(r"^seed (\d+):", done.stdout, re.MULTILINE)
    assert done.returncode == 1 and seed is not None, f"not found within {SEEDS} seeds: {done.stdout}{done.stderr}"
    assert re.search(fault.found, done.stdout), f"seed {seed[1]} found something else: {done.stdout}"
    with capsys.disabled():
        sys.stdout.write(f" [{fault.name}: seed {seed[1]}] ")


def test_nothing_is_found_without_a_fault(tmp_path: Path) -> None:
    """The other seeds run in `tests/sim`, on the same text: this is about the planting."""
    done = simulate(plant(None, tmp_path), *range(10))
    assert done.returncode == 0, done.stdout + done.stderr
