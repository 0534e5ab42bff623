"""Backing up, restoring and checking."""

from __future__ import annotations

import asyncio
import sqlite3
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from parlatory.storage import (
    Batch,
    Blob,
    DataLocked,
    Engine,
    File,
    MessageLog,
    SchemaMismatch,
    StorageError,
    UnknownMedia,
    open_engine,
    user_message,
)
from parlatory.storage.backup import FILE, Fault, backup_data, check_data, restore_data


async def opened(directory: Path) -> Engine:
    return await open_engine(f"sqlite:///{directory}")


async def filled(directory: Path, conversations: int = 3, rows: int = 10) -> None:
    engine = await opened(directory)
    for index in range(conversations):
        log = MessageLog(await engine.partition(f"relay/{index}"))
        for seq in range(rows):
            await log.append(user_message(f"{index}.{seq}"), client_id=f"c{seq}")
    await engine.close()


async def texts(directory: Path, name: str) -> tuple[str, list[str]]:
    engine = await opened(directory)
    partition = await engine.partition(name)
    rows = await MessageLog(partition).all()
    await engine.close()
    return partition.epoch, [row.text for row in rows]


def change(directory: Path, statement: str) -> None:
    database = sqlite3.connect(directory / FILE)
    database.execute(statement)
    database.commit()
    database.close()


async def test_a_sound_directory_has_no_faults(tmp_path: Path) -> None:
    await filled(tmp_path)
    report = await asyncio.to_thread(check_data, tmp_path)
    assert report == (3, 30, ())


@pytest.mark.parametrize(("statement", "fault"), [
    ("UPDATE message SET body = '{\"role\":\"us', size = 11 WHERE conversation = 2 AND seq = 4", "does not decode"),
    ("UPDATE message SET body = replace(body, '1.3', '9.9') WHERE conversation = 2 AND seq = 4", "not the message"),
    ("UPDATE message SET size = 1 WHERE conversation = 2 AND seq = 4", "bytes, not 1"),
    ("DELETE FROM message WHERE conversation = 2 AND seq = 3", "row 3 is missing"),
])  # fmt: skip
async def test_a_fault_is_named_by_conversation_and_seq(tmp_path: Path, statement: str, fault: str) -> None:
    """T14: whatever is wrong with a row is found; the other rows are still counted."""
    await filled(tmp_path)
    await asyncio.to_thread(change, tmp_path, statement)
    report = await asyncio.to_thread(check_data, tmp_path)
    (found,) = report.faults
    assert (found.conversation, found.seq) == ("relay/1", 4)
    assert fault in found.what
    assert report.rows == 30 - ("DELETE" in statement)


async def test_rows_of_no_conversation_are_a_fault(tmp_path: Path) -> None:
    await filled(tmp_path, conversations=1, rows=1)
    await asyncio.to_thread(change, tmp_path, "DELETE FROM conversation")
    report = await asyncio.to_thread(check_data, tmp_path)
    assert report.faults == (Fault("(unknown conversation 1)", 1, "the row belongs to no conversation"),)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def scribble(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize("damage", [cut, scribble])
async def test_a_damaged_file_is_a_fault(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    await filled(tmp_path, rows=300)
    await asyncio.to_thread(damage, tmp_path / FILE)
    report = await asyncio.to_thread(check_data, tmp_path)
    assert report.faults


async def test_checking_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parlatory.storage.backup.ROWS_PER_STEP", 10)
    await filled(tmp_path)
    told: list[tuple[int, int]] = []
    await asyncio.to_thread(check_data, tmp_path, lambda done, total: told.append((done, total)))
    assert told == [(10, 30), (20, 30), (30, 30)]


async def test_a_backup_beside_a_live_server_is_one_moment_of_it(tmp_path: Path) -> None:
    engine = await opened(tmp_path / "data")
    log = MessageLog(await engine.partition("relay/a"))
    for index in range(500):
        await log.append(user_message(f"{index} " + "x" * 2000))
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            await log.append(user_message("later"))

    writing = asyncio.create_task(write())
    told: list[tuple[int, int]] = []
    before = await log.count()
    size = await asyncio.to_thread(backup_data, tmp_path / "data", tmp_path / "copy", lambda *step: told.append(step))
    stop.set()
    await writing
    after = await log.count()
    await engine.close()
    assert size > 500 * 2000 and told[-1][0] == told[-1][1]
    epoch, rows = await texts(tmp_path / "copy", "relay/a")
    assert before <= len(rows) <= after
    assert rows[:500] == [f"{index} " + "x" * 2000 for index in range(500)]
    assert epoch != (await texts(tmp_path / "data", "relay/a"))[0]
    assert not (await asyncio.to_thread(check_data, tmp_path / "copy")).faults


async def test_every_restore_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    await filled(tmp_path / "data")
    await asyncio.to_thread(backup_data, tmp_path / "data", tmp_path / "copy")
    told: list[tuple[int, int]] = []
    for name in ("one", "two"):
        await asyncio.to_thread(restore_data, tmp_path / "copy", tmp_path / name, lambda *step: told.append(step))
    logs = [await texts(tmp_path / name, "relay/1") for name in ("data", "copy", "one", "two")]
    assert len({epoch for epoch, _ in logs}) == 4
    assert all(rows == logs[0][1] for _, rows in logs)
    assert len(told) == 2 and all(done == total for done, total in told)


async def test_what_a_killed_server_left_in_its_wal_is_restored(tmp_path: Path) -> None:
    """A data directory that was copied as it stood serves as a backup: its newest rows lie in the WAL."""
    engine = await opened(tmp_path / "data")
    await MessageLog(await engine.partition("relay/a")).append(user_message("in the WAL"))
    (tmp_path / "plain").mkdir()
    for path in (tmp_path / "data").glob(f"{FILE}*"):
        if not path.name.endswith("-shm"):
            (tmp_path / "plain" / path.name).write_bytes(path.read_bytes())
    await engine.close()
    await asyncio.to_thread(restore_data, tmp_path / "plain", tmp_path / "again")
    assert (await texts(tmp_path / "again", "relay/a"))[1] == ["in the WAL"]


async def test_data_is_never_overwritten(tmp_path: Path) -> None:
    await filled(tmp_path / "data")
    await filled(tmp_path / "other")
    with pytest.raises(StorageError, match="holds data already"):
        await asyncio.to_thread(backup_data, tmp_path / "data", tmp_path / "other")
    with pytest.raises(StorageError, match="holds data already"):
        await asyncio.to_thread(restore_data, tmp_path / "data", tmp_path / "other")
    with pytest.raises(StorageError, match="holds data already"):
        await asyncio.to_thread(backup_data, tmp_path / "data", tmp_path / "data")


async def test_a_restore_under_a_running_server_is_refused(tmp_path: Path) -> None:
    await filled(tmp_path / "data")
    engine = await opened(tmp_path / "live")
    (tmp_path / "live" / FILE).rename(tmp_path / "live" / "elsewhere")
    with pytest.raises(DataLocked):
        await asyncio.to_thread(restore_data, tmp_path / "data", tmp_path / "live")
    await engine.close()


async def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    await filled(tmp_path / "copy")
    await asyncio.to_thread(change, tmp_path / "copy", "DELETE FROM message WHERE seq = 3")
    with pytest.raises(StorageError, match=r"damaged.* relay/0 4 row 3 is missing"):
        await asyncio.to_thread(restore_data, tmp_path / "copy", tmp_path / "new")
    assert not (tmp_path / "new").exists()


async def test_what_is_no_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no parlatory data"):
        await asyncio.to_thread(check_data, tmp_path)
    with pytest.raises(StorageError, match="cannot make"):
        (tmp_path / "file").write_text("x")
        await asyncio.to_thread(backup_data, tmp_path, tmp_path / "file" / "deeper")
    (tmp_path / FILE).write_bytes(b"no database" * 1000)
    with pytest.raises(SchemaMismatch, match="no SQLite database"):
        await asyncio.to_thread(check_data, tmp_path)
    (tmp_path / FILE).unlink()
    await asyncio.to_thread(change, tmp_path, "CREATE TABLE foreign_table (a)")
    with pytest.raises(SchemaMismatch):
        await asyncio.to_thread(check_data, tmp_path)


async def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    await filled(tmp_path / "data")
    (tmp_path / "copy" / "parlatory.partial").mkdir(parents=True)
    with pytest.raises(StorageError, match="the backup of"):
        await asyncio.to_thread(backup_data, tmp_path / "data", tmp_path / "copy")
    (tmp_path / "new" / "parlatory.partial").mkdir(parents=True)
    with pytest.raises(StorageError, match="restoring"):
        await asyncio.to_thread(restore_data, tmp_path / "data", tmp_path / "new")
    assert not (tmp_path / "copy" / FILE).exists() and not (tmp_path / "new" / FILE).exists()


PICTURE = b"picture" * 60_000  # two pieces


async def with_media(directory: Path) -> str:
    """Fills a directory with one row that brings media, and an upload that came to no end; returns the hash."""
    engine = await opened(directory)
    partition = await engine.partition("relay/0")
    log = MessageLog(partition)
    file = File(data=b64encode(PICTURE).decode(), media_type="application/pdf")
    await log.append(user_message([file]), client_id="c")
    half = Blob(hash="0" * 64, media_type="a/b", size=500_000, start=0, data=bytes(1 << 18))
    await partition.commit(Batch(uploads=[half]))
    await engine.close()
    return sha256(PICTURE).hexdigest()


async def test_media_are_checked_and_copied(tmp_path: Path) -> None:
    hash = await with_media(tmp_path / "data")
    assert await asyncio.to_thread(check_data, tmp_path / "data") == (1, 1, ())
    await asyncio.to_thread(backup_data, tmp_path / "data", tmp_path / "backup")
    await asyncio.to_thread(restore_data, tmp_path / "backup", tmp_path / "again")
    engine = await opened(tmp_path / "again")
    assert (await MessageLog(await engine.partition("relay/0")).media(hash)).data == PICTURE
    await engine.close()


@pytest.mark.parametrize(("statement", "seq", "fault"), [
    ("UPDATE piece SET data = zeroblob(length(data)) WHERE start > 0", 1, "are not what was stored"),
    ("DELETE FROM piece WHERE start > 0", 1, "have 262144 bytes, not 420000"),
    ("UPDATE piece SET data = substr(data, 1, 9) WHERE start > 0", 1, "have 262153 bytes, not 420000"),
    ("UPDATE piece SET data = 'text' WHERE start > 0", 1, "have 262148 bytes, not 420000"),
    ("UPDATE piece SET data = 7 WHERE start > 0", 1, "have 262145 bytes, not 420000"),
    ("DELETE FROM media WHERE seq = 1", 1, "are missing"),
    ("UPDATE media SET conversation = 9 WHERE seq IS NULL", 0, "belong to no conversation"),
])  # fmt: skip
async def test_a_fault_of_media_is_named(tmp_path: Path, statement: str, seq: int, fault: str) -> None:
    await with_media(tmp_path)
    await asyncio.to_thread(change, tmp_path, statement)
    report = await asyncio.to_thread(check_data, tmp_path)
    (found,) = report.faults
    assert found.seq == seq
    assert fault in found.what


@pytest.mark.parametrize("damage", ["substr(data, 1, 9)", "x''", "data || x'00'", "'text'", "7"])
async def test_media_of_damaged_pieces_are_not_there(tmp_path: Path, damage: str) -> None:
    """Reading them comes to an end, and a model is asked without them."""
    hash = await with_media(tmp_path)
    await asyncio.to_thread(change, tmp_path, f"UPDATE piece SET data = {damage} WHERE start > 0")
    engine = await opened(tmp_path)
    log = MessageLog(await engine.partition("relay/0"))
    with pytest.raises(UnknownMedia):
        await log.media(hash)
    assert [note.code for note in (await log.prompt("openai")).notes] == ["media_as_text"]
    await engine.close()
