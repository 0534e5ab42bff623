"""Transports that are gone: asyncio's fail when they are aborted then, and websockets aborts whatever is closing.

A transport that is closed while data waits ends once the data is sent. It has forgotten its event loop by then, but
does not know it: `abort` raises AttributeError (CPython 3.11 to 3.14).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

__all__ = ["Gone"]


class Gone(asyncio.Protocol):
    """Is a protocol whose transport may be aborted at any time, also behind its end. Stands in front of its bases."""

    transport: asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Notes the end of the connection."""
        super().connection_lost(exc)
        with suppress(AttributeError):  # a transport of another loop, which has no such fault and takes no attributes
            self.transport.abort = _nothing  # type: ignore[method-assign]


def _nothing() -> None:
    """Does nothing: what is gone needs no abort."""
