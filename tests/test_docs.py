"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parlatory.storage.convert.prompt import PROVIDERS

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


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"^\| \[.+\]\((.+)\) \| .+ \|$", (ROOT / "docs" / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "README.md")


def examples(page: Path) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the text block directly behind it, which is what it prints."""
    found = re.findall(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```)?", page.read_text(), re.M | re.S)
    return [(code, printed or None) for code, printed in found]


def test_the_examples_for_prompts_print_what_they_say(capsys: pytest.CaptureFixture[str]) -> None:
    """Each goes on from those before it on the page."""
    names: dict[str, object] = {}
    blocks = examples(ROOT / "docs" / "messages.md")
    for code, printed in blocks:
        exec(compile(code, "docs/messages.md", "exec"), names)
        assert capsys.readouterr().out == printed
    assert set(PROVIDERS) == set(re.findall(r'ask\("([\w-]+)"', "".join(code for code, _ in blocks)))


def test_the_example_of_media_runs() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "media.md").read_text(), re.M | re.S)
    exec(compile(code, "docs/media.md", "exec"), {})
