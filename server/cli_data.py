"""`parlatory check`, `backup` and `restore`: what the operator does to a data directory."""

from __future__ import annotations

import sys
from pathlib import Path

from ..storage import Progress, backup_data, check_data, restore_data
from .client_terminal import printable
from .words import counted

__all__ = ["backup", "check", "restore"]

FAULTS_SHOWN = 50


def check(data: str) -> int:
    """Checks a data directory; returns 0 if it is sound, 1 if not."""
    report = check_data(Path(data), _progress("rows checked"))
    _clear()
    for fault in report.faults[:FAULTS_SHOWN]:
        where = f"{fault.conversation!r} row {fault.seq}: " if fault.conversation else ""
        print(printable(f"{where}{fault.what}"))  # what is wrong may be quoted from the file
    if len(report.faults) > FAULTS_SHOWN:
        print(f"... and {len(report.faults) - FAULTS_SHOWN} more")
    found = {"conversation": report.conversations, "row": report.rows, "fault": len(report.faults)}
    print(", ".join(counted(number, noun) for noun, number in found.items()))
    return 1 if report.faults else 0


def backup(data: str, to: str) -> int:
    """Copies a data directory, beside a live server too."""
    size = backup_data(Path(data), Path(to), _progress("pages copied"))
    _clear()
    print(f"{to}: {size / (1 << 20):.1f} MiB")
    return 0


def restore(source: str, data: str) -> int:
    """Makes a data directory from a backup."""
    restore_data(Path(source), Path(data))
    print(f"{data} is restored; its logs have a new epoch, so clients start over")
    return 0


def _progress(what: str) -> Progress | None:
    """Returns a teller of progress on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        return None

    def tell(done: int, total: int) -> None:
        print(f"\r{done:,} of {total:,} {what}", end="", file=sys.stderr, flush=True)

    return tell


def _clear() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
