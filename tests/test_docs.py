"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("actors", "storage", "server", "tests", "examples", "docs")
NAMED = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+)`")
LINKED = re.compile(r"\]\(([\w./-]+)\)")
TESTS = re.compile(r"`(?:\w+\.)?(test_\w+)`")
TARGETS = re.compile(r"`make ([a-z]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    missing = [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    missing += [link for link in LINKED.findall(text) if not (page.parent / link).exists()]
    sources = "\n".join(path.read_text() for folder in ("tests", "storage") for path in (ROOT / folder).rglob("*.py"))
    missing += [name for name in TESTS.findall(text) if f"def {name}(" not in sources]
    makefile = (ROOT / "Makefile").read_text()
    missing += [target for target in TARGETS.findall(text) if not re.search(rf"^{target}:", makefile, re.M)]
    assert not missing


def test_the_example_of_media_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "media.md").read_text(), re.M | re.S)
    exec(compile(code, "docs/media.md", "exec"), {})
