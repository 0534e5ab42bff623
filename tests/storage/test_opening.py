from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from parlatory.storage import StorageError, open_engine
from parlatory.storage.memory import MemoryEngine
from parlatory.storage.sqlite import SqliteEngine


async def test_memory() -> None:
    engine = await open_engine("memory:")
    assert isinstance(engine, MemoryEngine)
    await engine.close()


async def test_absolute_and_relative_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address, directory in ((f"sqlite:///{tmp_path}/a/b", tmp_path / "a/b"), ("sqlite:///c", tmp_path / "c")):
        engine = await open_engine(address)
        assert isinstance(engine, SqliteEngine)
        assert (directory / "parlatory.sqlite").exists()
        await engine.close()


@pytest.mark.parametrize(
    "address", ["", "memory", "sqlite:", "sqlite://x", "sqlite:///", "postgresql:///x", "/data", "sqlite:///a\0b"]
)
async def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match="sqlite:///DIRECTORY|NUL"):
        await open_engine(address)


async def test_other_durabilities_are_refused() -> None:
    durability: Any = "off"
    with pytest.raises(ValueError, match="'full' or 'normal'"):
        await open_engine("memory:", durability=durability)


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        with pytest.raises(StorageError, match="cannot make the data directory"):
            await open_engine(f"sqlite:///{tmp_path}/{path}")


async def test_read_only_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no parlatory data"):
        await open_engine(f"sqlite:///{tmp_path}/nothing", read_only=True)
    assert os.listdir(tmp_path) == []
