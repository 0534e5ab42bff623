"""What an error of SQLite means."""

from __future__ import annotations

import sqlite3

import pytest

from parlatory.storage import StorageBusy, StorageError, StorageFailed, StorageFull
from parlatory.storage.committer import Refused
from parlatory.storage.sqlite_errors import name_of, translated


def error(name: str | None) -> sqlite3.Error:
    made = sqlite3.OperationalError("it went wrong")
    if name is not None:
        made.sqlite_errorname = name
    return made


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("SQLITE_IOERR_FSYNC", StorageFailed),
        ("SQLITE_IOERR_DIR_FSYNC", StorageFailed),
        ("SQLITE_FULL", StorageFull),
        ("SQLITE_IOERR_WRITE", StorageFull),
        ("SQLITE_IOERR_READ", StorageError),
        ("SQLITE_BUSY_SNAPSHOT", StorageBusy),
        ("SQLITE_LOCKED", StorageBusy),
        ("SQLITE_TOOBIG", Refused),
        ("SQLITE_CONSTRAINT_UNIQUE", Refused),
        ("SQLITE_CORRUPT", StorageError),
        (None, StorageError),
    ],
)
def test_each_has_its_meaning(name: str | None, kind: type[Exception]) -> None:
    assert type(translated(error(name))) is kind
    assert name_of(error(name)) == (name or "")
    assert "it went wrong" in str(translated(error(name)))
