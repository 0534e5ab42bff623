"""Golden files: rows of every format version, which later code reads for ever, and the prompts made of the first."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from parlatory.storage import MessageLog, SchemaMismatch, encode_message, open_engine, user_message
from parlatory.storage.convert.prompt import PROVIDERS, Provider, render
from parlatory.storage.messages import UnknownPart
from parlatory.storage.schema import VERSION
from parlatory.storage.sqlite import FILE

from .write import HERE, NAME, golden, history

VERSIONS = range(1, VERSION + 1)


def database(folder: Path, version: int) -> Path:
    """A data directory as that version left it."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as opened:
        opened.executescript((HERE / "rows" / f"{version}.sql").read_text())
    return folder / FILE


@pytest.mark.parametrize("version", VERSIONS)
async def test_t62_rows_of_every_version_are_read_for_ever(version: int, tmp_path: Path) -> None:
    database(tmp_path, version)
    lines = (HERE / "rows" / f"{version}.jsonl").read_bytes().splitlines()
    engine = await open_engine(f"sqlite:///{tmp_path}")
    partition = await engine.partition(NAME)
    assert [row.json() for row in await partition.read()] == lines
    assert await partition.keys("state.") == {"state.a": b'{"b":1}'}
    log = MessageLog(partition)
    rows = await log.all()
    assert [row.seq for row in rows] == list(range(1, len(lines) + 1))
    for row, line in zip(rows[:-1], lines, strict=False):
        assert encode_message(row.message) in line
    assert await log.append(rows[2].message, by="user-1", client_id="c1") == 3, "a repeat is still one"
    assert await log.append(user_message("and on it goes")) == len(lines) + 1
    await engine.close()


async def test_t62_a_newer_file_is_refused_before_any_write(tmp_path: Path) -> None:
    file = database(tmp_path, VERSION)
    with closing(sqlite3.connect(file, isolation_level=None)) as opened:
        opened.execute(f"PRAGMA user_version={VERSION + 1}")
    before = file.read_bytes()
    with pytest.raises(SchemaMismatch, match="install a newer parlatory"):
        await open_engine(f"sqlite:///{tmp_path}")
    assert file.read_bytes() == before


def test_t63_what_a_newer_version_wrote_is_kept_and_not_sent() -> None:
    last = history()[-1].message
    assert isinstance(last.content, tuple) and isinstance(last.content[0], UnknownPart)
    assert bytes(last.content[0].raw) == b'{"type":"x-new","a":1.50}'
    assert b'{"type":"x-new","a":1.50}' in encode_message(last)
    for provider in PROVIDERS:
        prompt = render(provider, history())
        assert "x-new" not in str(dict(prompt))
        assert ("part_dropped", 14) in {(note.code, note.seq) for note in prompt.notes}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_prompts(provider: Provider) -> None:
    """What changes here changes what models read: `python -m tests.golden.write prompts` writes it anew."""
    prompt = render(provider, history(), conversation=NAME)
    assert golden(prompt).decode() == (HERE / "prompts" / f"{provider}.json").read_text()
