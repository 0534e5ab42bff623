"""Room in the WAL: steps, the end of it, a full disk, and what SQLite makes of zeros behind its frames."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from parlatory.storage import MessageLog, open_engine, user_message
from parlatory.storage.sqlite import FILE
from parlatory.storage.wal_room import MARGIN_BYTES, STEP_MAX_BYTES, STEP_MIN_BYTES, WalRoom

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def wal(tmp_path: Path) -> Path:
    path = tmp_path / "x-wal"
    path.write_bytes(b"f" * 1000)
    return path


def test_it_grows_in_time_by_its_own_length_and_leaves_what_is_there(wal: Path) -> None:
    room = WalRoom(wal, 16 * MIB)
    lengths = []
    for written in range(0, 20 * MIB, 64 * KIB):
        if room.wanted(written):
            room.make(written)
            lengths.append(wal.stat().st_size)
        assert wal.stat().st_size >= min(1000 + written + MARGIN_BYTES, 16 * MIB)
    assert lengths[0] == 1000 + STEP_MIN_BYTES
    steps = [later - earlier for earlier, later in zip(lengths, lengths[1:], strict=False)]
    assert max(steps) == STEP_MAX_BYTES and lengths[-1] == 16 * MIB and len(lengths) < 20
    assert wal.read_bytes()[:1000] == b"f" * 1000
    assert not wal.read_bytes()[1000:].strip(b"\0")


def test_a_long_file_is_left_alone(wal: Path) -> None:
    room = WalRoom(wal, 500)
    room.make(0)
    assert wal.stat().st_size == 1000
    assert not room.wanted(10 * MIB)


def test_a_full_disk_leaves_the_file_as_it_was(wal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    room = WalRoom(wal, 16 * MIB)

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if offset > 1000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:100], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    room.make(0)
    assert wal.read_bytes() == b"f" * 1000
    assert not room.wanted(10 * MIB)


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    room = WalRoom(tmp_path / "none", 16 * MIB)
    assert room.wanted(0)
    room.make(0)
    assert not room.wanted(10 * MIB) and not list(tmp_path.iterdir())


async def test_an_engine_makes_room_and_what_it_leaves_opens_again(tmp_path: Path) -> None:
    """As after a kill: the files are copied while the engine has them open."""
    engine = await open_engine(f"sqlite:///{tmp_path / 'data'}")
    log = MessageLog(await engine.partition("bot/ann"))
    for number in range(30):
        await log.append(user_message(f"{number} " + "x" * 4000))
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "data", killed)
    await engine.close()
    wal = killed / f"{FILE}-wal"
    content = wal.read_bytes()
    assert len(content) >= STEP_MIN_BYTES and not content[-4096:].strip(b"\0")
    again = await open_engine(f"sqlite:///{killed}")
    rows = await MessageLog(await again.partition("bot/ann")).all()
    assert [row.text.split()[0] for row in rows] == [str(number) for number in range(30)]
    await MessageLog(await again.partition("bot/ann")).append(user_message("more"))
    await again.close()
    with sqlite3.connect(killed / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


@pytest.mark.parametrize("durability", ["full", "normal"])
async def test_room_is_made_where_commits_are_flushed(tmp_path: Path, durability: str) -> None:
    engine = await open_engine(f"sqlite:///{tmp_path}", durability=durability)  # type: ignore[arg-type]
    await MessageLog(await engine.partition("bot/ann")).append(user_message("hi"))
    await MessageLog(await engine.partition("bot/ann")).append(user_message("hi"))
    assert ((tmp_path / f"{FILE}-wal").stat().st_size >= STEP_MIN_BYTES) is (durability == "full")
    await engine.close()
