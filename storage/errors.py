"""The errors of storage, one tree.

ParlatoryError
├── InvalidName         a conversation name that cannot be one
├── CodecError          a message that cannot be stored and read back equal
│   └── TooLarge        a message or a batch over its limit
├── Conflict            `expected_seq` is not the head of the log
├── ClientIdConflict    a client id was used before, for another message
├── MissingResult       a tool call without its result, where a prompt was to refuse that
├── UnknownMedia        a ref to media that the conversation does not hold
├── ReentrancyError     an append from inside the hook that tells of an append
├── HookError           the hook raised; the rows are committed
└── StorageError        the engine could not do its work
    ├── StorageBusy     it is busy; repeating makes sense
    ├── StorageFull     the disk is full; nothing was written
    ├── StorageFailed   it has stopped for good; nothing more is told
    ├── StorageClosed   it was closed
    ├── DataLocked      another process owns the data directory
    ├── SchemaMismatch  the file was written by a newer version, or by another program
    └── CorruptRow      a stored row does not decode

Every error has a stable `code`; its text is for people and may change. `temporary` says whether the same call may
succeed later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .rows import StoredMessage

__all__ = [
    "ClientIdConflict",
    "CodecError",
    "Conflict",
    "CorruptMedia",
    "CorruptRow",
    "DataLocked",
    "HookError",
    "InvalidName",
    "MissingResult",
    "ParlatoryError",
    "ReentrancyError",
    "SchemaMismatch",
    "StorageBusy",
    "StorageClosed",
    "StorageError",
    "StorageFailed",
    "StorageFull",
    "TooLarge",
    "UnknownMedia",
    "kind_of",
]


class ParlatoryError(Exception):
    """Is the root of all errors that parlatory raises on purpose."""

    code: ClassVar[str] = "internal"
    temporary: ClassVar[bool] = False


class InvalidName(ParlatoryError, ValueError):
    """Says that a conversation name is not `<agent>/<name>` as the protocol defines it (section 1)."""

    code = "bad_frame"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} is no conversation: {reason}")
        self.name = name
        self.reason = reason


class CodecError(ParlatoryError, ValueError):
    """Says that a message cannot be stored and read back equal; nothing was written.

    `path` points into the message in JSON terms, such as `$.content[1].toolCallId`; `reason` says what is wrong there.
    """

    code = "bad_message"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class TooLarge(CodecError):
    """Says that a message or a batch is over a limit; `size` and `limit` are in `unit`."""

    code = "too_large"

    def __init__(self, what: str, size: int, limit: int, unit: str = "bytes") -> None:
        super().__init__("$", f"{what} of {size} {unit} is over the limit of {limit}")
        self.size = size
        self.limit = limit
        self.unit = unit


class Conflict(ParlatoryError):
    """Says that the log has moved on: its head is not the `expected` one. Read on from there, then append again."""

    code = "conflict"

    def __init__(self, expected: int, head: int) -> None:
        super().__init__(f"expected the log to end at {expected}, it ends at {head}")
        self.expected = expected
        self.head = head


class ClientIdConflict(ParlatoryError):
    """Says that this author used the client id before, for another message, row `seq`. A new one needs a new id."""

    code = "client_id_conflict"

    def __init__(self, client_id: str, seq: int) -> None:
        super().__init__(f"client id {client_id!r} belongs to another message, row {seq}")
        self.client_id = client_id
        self.seq = seq


class MissingResult(ParlatoryError):
    """Says that a tool call of row `seq` has no result. Append it, or let the prompt make one up or drop the call."""

    code = "missing_result"

    def __init__(self, seq: int, tool_call_id: str) -> None:
        super().__init__(f"call {tool_call_id!r} of row {seq} has no result: append one, or pass another `missing`")
        self.seq = seq
        self.tool_call_id = tool_call_id


class UnknownMedia(ParlatoryError):
    """Says that the conversation holds no media of this `hash`; `path` is where a message names them, if one does.

    Media are looked up in their own conversation only, and are gone once its rows are. Put them there with `put_media`.
    """

    code = "bad_message"

    def __init__(self, hash: str, path: str = "$") -> None:
        super().__init__(f"{path}: the conversation holds no media sha256:{hash}; put them there first")
        self.hash = hash
        self.path = path


class ReentrancyError(ParlatoryError):
    """Says that a call came from inside the code it would have to wait for. Let the outer call return first."""

    code = "reentrancy"


class HookError(ParlatoryError):
    """Says that `on_append` raised. The rows are committed and stay so; the hook's error is the `__cause__`."""

    code = "hook"

    def __init__(self, rows: Sequence[StoredMessage], raised: str = "an error") -> None:
        super().__init__(f"on_append raised {raised} after {len(rows)} row(s) were committed, up to {rows[-1].seq}")
        self.rows = tuple(rows)


class StorageError(ParlatoryError):
    """Is what went wrong inside an engine."""


class StorageBusy(StorageError):
    """Says that the engine has too much to do, or another program holds the file. Nothing was written; try again."""

    code = "busy"
    temporary = True


class StorageFull(StorageError):
    """Says that the disk is full or refused a write. Nothing was written; make room and try again."""

    temporary = True


class StorageFailed(StorageError):
    """Says that a flush to disk failed: what is durable is no longer known. Restart the process on a good disk."""


class StorageClosed(StorageError):
    """Says that the engine was closed before this call."""


class DataLocked(StorageError):
    """Says that another process owns the data directory; `owner` is what its LOCK says of it (pid, host, start)."""

    def __init__(self, directory: str, owner: str) -> None:
        who = owner or "unknown"
        super().__init__(f"{directory} is owned by another process: {who}. Stop it, or use another directory")
        self.directory = directory
        self.owner = owner


class SchemaMismatch(StorageError):
    """Says that the file is not one that this version may write."""


class CorruptRow(StorageError):
    """Says that row `seq` of `conversation` does not decode. Every other row stays readable."""

    def __init__(self, conversation: str, seq: int, reason: str) -> None:
        super().__init__(f"row {seq} of {conversation!r} is corrupt: {reason}")
        self.conversation = conversation
        self.seq = seq
        self.reason = reason


class CorruptMedia(StorageError):
    """Says that the media `hash` of `conversation` are not what was stored. Its rows stay readable."""

    def __init__(self, conversation: str, hash: str) -> None:
        super().__init__(f"the media sha256:{hash} of {conversation!r} are not what was stored; run parlatory check")
        self.conversation = conversation
        self.hash = hash


def kind_of(value: object) -> str:
    """Returns the type of a value with its article, for a sentence: `an int`, `a str`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"
