"""One Chromium for all tests, one reader with his own storage for each. Without it they are skipped, and say so."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from .chromium import Browser, Chromium, Tabs

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = "there is no Chromium: run tests/browser/setup.sh"
NO_AXE = "there is no axe-core: run tests/browser/setup.sh"


def missing(what: str) -> NoReturn:
    """Skips a test; where a browser is required, as in CI, fails it."""
    if os.environ.get("PARLATORY_BROWSER") == "require":
        pytest.fail(what)
    pytest.skip(what)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped browser is easily overlooked among the dots."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    for what in (NO_BROWSER, NO_AXE):
        if any(what in str(one) for one in skipped):
            terminalreporter.write_line(f"TESTS IN A BROWSER DID NOT RUN: {what}", red=True, bold=True)


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        missing(NO_BROWSER)
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
        missing(NO_AXE)
    return found[-1].read_text(encoding="utf-8")
