"""Network file systems are told from others."""

from __future__ import annotations

from pathlib import Path

import pytest

from parlatory.storage import StorageError, open_engine, sqlite
from parlatory.storage.filesystem import network_file_system

MOUNTS = """\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 21 0:40 / /mnt/net rw shared:5 - nfs4 server:/export rw,vers=4.2
31 30 0:41 / /mnt/net/local rw - tmpfs tmpfs rw
32 21 0:42 / /mnt/with\\040space rw - fuse.sshfs me@host: rw
33 21 0:43 / /mnt/twice rw - cifs //server/share rw
34 21 0:44 / /mnt/twice rw - ext4 /dev/vdb rw
garbage
35 21
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS)
    return path


@pytest.mark.parametrize(("directory", "expected"), [
    ("/srv/data", None), ("/mnt/net", "nfs4"), ("/mnt/net/deep/er", "nfs4"), ("/mnt/net/local/x", None),
    ("/mnt/network", None), ("/mnt/with space/x", "fuse.sshfs"), ("/mnt/twice/x", None),
])  # fmt: skip
def test_the_longest_mount_point_counts(mounts: Path, directory: str, expected: str | None) -> None:
    assert network_file_system(Path(directory), mounts) == expected


def test_where_nobody_tells_nothing_is_refused(tmp_path: Path) -> None:
    assert network_file_system(tmp_path, tmp_path / "nothing") is None


async def test_a_network_file_system_is_refused(tmp_path: Path, mounts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"40 21 0:50 / {tmp_path} rw - nfs server:/x rw\n"
    mounts.write_text(MOUNTS + line)
    monkeypatch.setattr(sqlite, "network_file_system", lambda path: network_file_system(path, mounts))
    with pytest.raises(StorageError, match="nfs.*local disk"):
        await open_engine(f"sqlite:///{tmp_path}/data")
