"""`parlatory check`, `backup` and `restore`."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path

import pytest

from parlatory.server import cli, cli_data
from parlatory.storage import MessageLog, open_engine, user_message


async def _fill(directory: Path, rows: int) -> None:
    engine = await open_engine(f"sqlite:///{directory}")
    log = MessageLog(await engine.partition("relay/a"))
    for index in range(rows):
        await log.append(user_message(f"{index}"))
    await engine.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    asyncio.run(_fill(directory, 4))
    return directory


def spoil(directory: Path, seqs: str) -> None:
    database = sqlite3.connect(directory / "parlatory.sqlite")
    database.execute(f"UPDATE message SET body = '\x1b[31m' WHERE seq IN ({seqs})")
    database.commit()
    database.close()


def test_a_sound_directory(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(data)]) == 0
    assert capsys.readouterr().out == "1 conversation, 4 rows, no faults\n"


def test_faults_are_named_and_the_exit_code_says_it_T14(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(data, "2, 4")
    assert cli.main(["check", str(data)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("'relay/a' row 2: the body has 5 bytes, not ")
    assert lines[1].startswith("'relay/a' row 4: ")
    assert lines[2:] == ["1 conversation, 4 rows, 2 faults"]
    assert "\x1b" not in "".join(lines)


def test_of_many_faults_some_are_shown(
    data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_data, "FAULTS_SHOWN", 1)
    spoil(data, "1, 2, 3")
    assert cli.main(["check", str(data)]) == 1
    assert "... and 2 more\n" in capsys.readouterr().out


def test_a_backup_and_its_restore(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy, again = tmp_path / "copy", tmp_path / "again"
    assert cli.main(["backup", str(data), str(copy)]) == 0
    assert cli.main(["restore", str(copy), str(again)]) == 0
    assert cli.main(["check", str(again)]) == 0
    out = capsys.readouterr().out
    assert f"{copy}: 0.1 MiB\n" in out and "new epoch" in out
    assert cli.main(["log", str(again), "relay/a"]) == 0
    assert capsys.readouterr().out.count("\n") == 4


@pytest.mark.parametrize("words", [
    ["check", "nothing"], ["backup", "nothing", "to"], ["restore", "nothing", "to"],
])  # fmt: skip
def test_an_error_is_one_sentence(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert capsys.readouterr().err == "parlatory: nothing holds no parlatory data\n"


def test_progress_is_shown_on_a_terminal_only(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["backup", str(data), str(tmp_path / "one")]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert cli.main(["backup", str(data), str(tmp_path / "two")]) == 0
    shown = capsys.readouterr().err
    assert "pages copied" in shown and shown.endswith("\r\033[K")


def test_reading_a_backup_leaves_nothing_beside_it(data: Path, tmp_path: Path) -> None:
    copy, again = tmp_path / "copy", tmp_path / "again"
    assert cli.main(["backup", str(data), str(copy)]) == 0
    assert cli.main(["log", str(copy), "relay/a"]) == 0
    assert cli.main(["check", str(copy)]) == 0
    assert cli.main(["restore", str(copy), str(again)]) == 0
    assert cli.main(["log", str(again), "relay/a"]) == 0
    assert [path.name for folder in (copy, again) for path in folder.glob("parlatory.*")] == ["parlatory.sqlite"] * 2


def test_a_file_that_is_none_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "parlatory.sqlite").write_bytes(b"garbage" * 1000)
    assert cli.main(["log", str(tmp_path), "relay/a"]) == 2
    assert f"{tmp_path / 'parlatory.sqlite'} is no SQLite database" in capsys.readouterr().err
