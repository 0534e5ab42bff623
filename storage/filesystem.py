"""What kind of file system a directory lies on: a network one is refused.

The WAL needs memory that all its users share, and the LOCK needs locks that the kernel lets go with the process.
Neither holds across machines: two servers on one network directory would each believe to own it.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["network_file_system"]

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = frozenset(
    "9p afs beegfs ceph cifs coda fuse.ceph fuse.glusterfs fuse.s3fs fuse.sshfs glusterfs gpfs lustre ncpfs nfs nfs4 "
    "ocfs2 orangefs smb3 smbfs".split()
)
_ESCAPE = re.compile(r"\\([0-7]{3})")


def network_file_system(directory: Path, mounts: Path = MOUNTS) -> str | None:
    """Returns the type of the network file system that a directory lies on, or None: it lies on none, or nobody knows.

    Args:
        directory: the directory; it exists.
        mounts: where Linux tells the mounts, see proc(5).
    """
    try:
        lines = mounts.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    path = directory.resolve()
    found, depth = None, -1
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) < 5 or not after:
            continue
        point = Path(_ESCAPE.sub(lambda code: chr(int(code[1], 8)), fields[4]))
        # The longest mount point that holds the directory; of two on the same one, the later covers the earlier.
        if path.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = after.split(" ")[0], len(point.parts)
    return found if found in NETWORK else None
