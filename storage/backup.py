"""Backing up, restoring and checking a data directory, off the event loop: plain functions that block.

A copy gets an epoch of its own. Whoever serves it serves another log than the original, although it begins alike:
clients that were ahead of the copy must start over instead of taking its new rows for those they know.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from . import schema
from .codec import decode_message, message_digest
from .errors import CodecError, SchemaMismatch, StorageError
from .lock import DirectoryLock
from .media import cited

__all__ = ["CheckReport", "Fault", "Progress", "backup_data", "check_data", "restore_data"]

FILE = "parlatory.sqlite"
PAGES_PER_STEP = 2048
ROWS_PER_STEP = 10_000

Progress = Callable[[int, int], None]
"""Is told how much of how much is done."""


class Fault(NamedTuple):
    """Is something wrong in a data directory: in a conversation's row, or (seq 0) in the conversation or the file."""

    conversation: str
    seq: int
    what: str


class CheckReport(NamedTuple):
    """Is what a check found."""

    conversations: int
    rows: int
    faults: tuple[Fault, ...]


def backup_data(directory: Path, to: Path, progress: Progress | None = None) -> int:
    """Copies a data directory, beside a live server too; returns the bytes written.

    The copy is one moment of the original: every row that was acknowledged before the call is in it.

    Args:
        directory: the data directory.
        to: the directory to make; it must not hold data.
        progress: is told of pages copied.

    Raises:
        StorageError: there is no data, `to` holds some, or the disk is full.
    """
    target = _vacant(to)
    try:
        _copy(directory, target, progress)
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"the backup of {directory} failed: {error}") from error
    return target.stat().st_size


def restore_data(backup: Path, directory: Path, progress: Progress | None = None) -> None:
    """Makes a data directory from a backup, with an epoch of its own.

    Args:
        backup: what `backup_data` made.
        directory: the data directory to make; it must not hold data.
        progress: is told of pages copied.

    Raises:
        StorageError: there is no backup, it is damaged, or `directory` holds data.
        DataLocked: a server runs on `directory`.
    """
    report = check_data(backup)
    if report.faults:
        fault = report.faults[0]
        raise StorageError(f"{backup} is damaged, see `parlatory check`: {fault.conversation} {fault.seq} {fault.what}")
    target = _vacant(directory)
    lock = DirectoryLock(directory)
    lock.acquire()
    try:
        _copy(backup, target, progress)
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"restoring {backup} failed: {error}") from error
    finally:
        lock.release()


def check_data(directory: Path, progress: Progress | None = None) -> CheckReport:
    """Checks a data directory, beside a live server too: the file, every seq, body, digest and media.

    Of a message whose media lie beside its row the digest is not checked: it is of the message as it was sent.

    Args:
        directory: the data directory.
        progress: is told of rows checked.

    Raises:
        StorageError: there is no data, or the file cannot be read at all.
    """
    faults: list[Fault] = []
    rows = 0
    try:
        with _opened(directory) as database:
            for (line,) in database.execute("PRAGMA integrity_check(20)"):
                if line != "ok":
                    faults.append(Fault("", 0, line))
            names = dict(database.execute("SELECT id, name FROM conversation"))
            floors = dict(database.execute("SELECT id, floor FROM conversation"))
            ((total,),) = database.execute("SELECT count(*) FROM message")
            key, expected = None, 1
            statement = "SELECT conversation, seq, digest, size, body FROM message ORDER BY conversation, seq"
            for conversation, seq, digest, size, body in database.execute(statement):
                if conversation != key:
                    key, expected = conversation, floors.get(conversation, 0) + 1
                name = names.get(conversation, f"(unknown conversation {conversation})")
                if conversation not in names:
                    faults.append(Fault(name, seq, "the row belongs to no conversation"))
                if seq != expected:
                    faults.append(Fault(name, seq, f"row {expected} is missing"))
                expected = seq + 1
                holds = partial(_holds, database, conversation)
                faults += [Fault(name, seq, what) for what in _faults_of(body, digest, size, holds)]
                rows += 1
                if progress is not None and rows % ROWS_PER_STEP == 0:
                    progress(rows, total)
            faults += _media_faults(database, names)
    except sqlite3.DatabaseError as error:
        faults.append(Fault("", 0, f"the file cannot be read on: {error}"))
        return CheckReport(0, rows, tuple(faults))
    return CheckReport(len(names), rows, tuple(faults))


def _faults_of(body: object, digest: int | None, size: int, holds: Callable[[str], bool]) -> Iterator[str]:
    """Yields what is wrong with a stored message."""
    data = body if isinstance(body, bytes) else str(body).encode()
    if len(data) != size:
        yield f"the body has {len(data)} bytes, not {size}"
        return
    try:
        message = decode_message(data)
    except CodecError as error:
        yield f"the body does not decode: {error}"
        return
    hashes = list(cited(message.content))
    yield from (f"its media sha256:{hash} are missing" for hash in hashes if not holds(hash))
    if digest is not None and not hashes and message_digest(message) != digest:
        yield "the body is not the message that was sent"


def _holds(database: sqlite3.Connection, conversation: int, hash: str) -> bool:
    statement = "SELECT count(*) FROM media WHERE conversation = ? AND hash = ?"
    return bool(database.execute(statement, (conversation, hash)).fetchone()[0])


def _media_faults(database: sqlite3.Connection, names: Mapping[int, str]) -> Iterator[Fault]:
    """Yields what is wrong with media. An upload that came to no end is no fault: it goes after a day."""
    for id, conversation, hash, size, seq in database.execute(
        "SELECT id, conversation, hash, size, seq FROM media ORDER BY conversation, id"
    ):
        name = names.get(conversation, f"(unknown conversation {conversation})")
        if conversation not in names:
            yield Fault(name, 0, f"the media sha256:{hash} belong to no conversation")
        whole, length = hashlib.sha256(), 0
        for (piece,) in database.execute("SELECT CAST(data AS BLOB) FROM piece WHERE media = ? ORDER BY start", (id,)):
            whole.update(piece)
            length += len(piece)
        if length != size and seq is not None:
            yield Fault(name, seq, f"the media sha256:{hash} have {length} bytes, not {size}")
        elif length == size and whole.hexdigest() != hash:
            yield Fault(name, seq or 0, f"the media sha256:{hash} are not what was stored")


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[sqlite3.Connection]:
    path = directory / FILE
    if not path.is_file():
        raise StorageError(f"{directory} holds no parlatory data")
    quoted = str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    with contextlib.closing(sqlite3.connect(f"file:{quoted}?mode=ro", uri=True, isolation_level=None)) as database:
        database.text_factory = lambda data: data.decode(errors="surrogateescape")
        try:
            ((application,),) = database.execute("PRAGMA application_id")
            ((version,),) = database.execute("PRAGMA user_version")
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorname != "SQLITE_NOTADB":
                raise
            raise SchemaMismatch(f"{path} is no SQLite database") from error
        if application != schema.APPLICATION_ID or version > schema.VERSION:
            raise SchemaMismatch(f"{path} was written by a newer version, or not by parlatory")
        if not database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'media'").fetchone()[0]:
            database.execute("CREATE TEMP TABLE media (id, conversation, hash, size, seq)")  # older files have none
        yield database


def _vacant(directory: Path) -> Path:
    """Makes a directory and returns the path of the file to be; refuses one that holds data."""
    target = directory / FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {directory}: {error.strerror}") from error
    if target.exists():
        raise StorageError(f"{directory} holds data already; give an empty directory")
    return target


def _copy(directory: Path, target: Path, progress: Progress | None) -> None:
    """Copies the data of a directory, its WAL included, into a file with an epoch of its own."""
    partial = target.with_suffix(".partial")
    try:
        with _opened(directory) as source, contextlib.closing(sqlite3.connect(partial)) as copy:
            # One read transaction over all steps: otherwise every commit of a server would make the copy start over.
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM meta").fetchone()
            source.backup(copy, pages=PAGES_PER_STEP, progress=_page_progress(progress))
            _renew_epoch(copy)
        partial.rename(target)
    finally:
        _remove(partial)


def _remove(partial: Path) -> None:
    with contextlib.suppress(OSError):  # it is not there, or it could not even be made: that error is already told
        partial.unlink()


def _renew_epoch(copy: sqlite3.Connection) -> None:
    with copy:
        copy.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (secrets.token_hex(8),))
        copy.execute("INSERT OR REPLACE INTO meta VALUES ('clean', '1')")
    # Without a WAL: who only reads it leaves no file beside it. A server that opens it turns the WAL on.
    copy.execute("PRAGMA journal_mode=DELETE")


def _page_progress(progress: Progress | None) -> Callable[[int, int, int], None] | None:
    if progress is None:
        return None
    return lambda _status, remaining, total: progress(total - remaining, total)
