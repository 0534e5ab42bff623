"""One Chromium for all tests, one reader with his own storage for each. Without it they are skipped, and say so."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from .chromium import Browser, Chromium, Tabs

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
MISSING = "there is no Chromium: run tests/browser/setup.sh"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        if os.environ.get("PARLATORY_BROWSER") == "require":
            pytest.fail(MISSING)
        pytest.skip(f"BROWSER TESTS DID NOT RUN: {MISSING}")
    started = Chromium(program, tmp_path_factory.mktemp("chromium"))
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture
async def tabs(chromium: Chromium) -> AsyncIterator[Tabs]:
    async with Browser.to(chromium) as browser, browser.tabs() as own:
        yield own


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    found = sorted((Path(__file__).parents[2] / ".venv/browser").glob("axe-*.js"))
    if not found:
        if os.environ.get("PARLATORY_BROWSER") == "require":
            pytest.fail("there is no axe-core: run tests/browser/setup.sh")
        pytest.skip("THE TEST OF ACCESSIBILITY DID NOT RUN: there is no axe-core: run tests/browser/setup.sh")
    return found[-1].read_text(encoding="utf-8")
