from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from parlatory.storage import DataLocked, StorageError, open_engine
from parlatory.storage import lock as lock_module
from parlatory.storage.lock import DirectoryLock

OWNER = """
import sys, pathlib
from parlatory.storage.lock import DirectoryLock
lock = DirectoryLock(pathlib.Path(sys.argv[1]))
lock.acquire()
print("owned", flush=True)
sys.stdin.read()
lock.release()
"""


@contextmanager
def owner(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns the directory."""
    argv = [sys.executable, "-c", OWNER, str(directory)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owned\n"
        try:
            yield process
        finally:
            process.kill()


def refusal(directory: Path) -> DataLocked:
    with pytest.raises(DataLocked) as caught:
        DirectoryLock(directory).acquire()
    return caught.value


def test_one_owner(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    error = refusal(tmp_path)
    assert f"pid {os.getpid()} on " in error.owner
    assert error.owner in str(error)
    assert error.directory == str(tmp_path)
    lock.release()
    lock.release()
    other = DirectoryLock(tmp_path)
    other.acquire()
    other.release()
    assert (tmp_path / "LOCK").read_bytes() == b""


def test_t08_the_error_names_the_other_process(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        assert f"pid {process.pid} on " in str(refusal(tmp_path))


def test_the_lock_of_a_killed_owner_is_stale(tmp_path: Path) -> None:
    with owner(tmp_path) as process:
        process.kill()
        process.wait()
        assert f"pid {process.pid} " in (tmp_path / "LOCK").read_text()
        lock = DirectoryLock(tmp_path)
        lock.acquire()
        assert f"pid {os.getpid()} " in str(refusal(tmp_path))
        lock.release()


def test_an_empty_lock_is_no_owner(tmp_path: Path) -> None:
    (tmp_path / "LOCK").touch()
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    lock.release()


def test_an_owner_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_module, "OWNER_WAIT_S", 0.02)
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    (tmp_path / "LOCK").write_bytes(b"")
    error = refusal(tmp_path)
    assert error.owner == ""
    assert "unknown" in str(error)
    lock.release()


def test_an_owner_that_is_about_to_write_is_waited_for(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    text = (tmp_path / "LOCK").read_text()
    (tmp_path / "LOCK").write_bytes(b"")
    writer = threading.Timer(0.02, (tmp_path / "LOCK").write_text, [text])
    writer.start()
    assert refusal(tmp_path).owner == text
    writer.join()
    lock.release()


def test_released_before_it_was_acquired(tmp_path: Path) -> None:
    """Whoever waited for the thread that acquires was cancelled: nothing may stay locked."""
    late = DirectoryLock(tmp_path)
    late.release()
    late.acquire()
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    lock.release()


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    try:
        refusal(tmp_path)  # a child that closes its descriptor unlocks nothing
        lock.release()
        again = DirectoryLock(tmp_path)
        again.acquire()
        again.release()
    finally:
        os.close(writing)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_systems_and_files_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def no_locks(fd: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", no_locks)
        with pytest.raises(StorageError, match="cannot lock .*LOCK: Function not implemented"):
            DirectoryLock(tmp_path).acquire()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fcntl", None)
        with pytest.raises(StorageError, match="POSIX file locks"):
            DirectoryLock(tmp_path).acquire()
    with pytest.raises(StorageError, match="cannot open .*LOCK: No such file"):
        DirectoryLock(tmp_path / "nothing").acquire()


async def test_opening_twice_at_once(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}"
    outcomes = await asyncio.gather(*(open_engine(address) for _ in range(4)), return_exceptions=True)
    (engine,) = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
    refused = [outcome for outcome in outcomes if outcome is not engine]
    assert [type(error) for error in refused] == [DataLocked] * 3
    assert all(f"pid {os.getpid()} " in str(error) for error in refused)
    await engine.close()
    await (await open_engine(address)).close()


async def test_a_cancelled_opening_locks_nothing(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}"
    for waits in range(30):
        task = asyncio.create_task(open_engine(address))
        for _ in range(waits):
            await asyncio.sleep(0)
        if not task.cancel():
            await task.result().close()
        await asyncio.wait({task})
    for _ in range(100):
        try:
            engine = await open_engine(address)
        except DataLocked:
            continue
        break
    await engine.close()
