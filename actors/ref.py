"""References to conversations, for code beside the agents: web handlers, webhooks, jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..storage import MEDIA_BYTES_MAX, Batch, Blob, Committed, Message, MessageLog, Partition, Row, Told, new_row

if TYPE_CHECKING:
    from .runtime import Runtime

__all__ = ["Ref"]


class Ref:
    """Is one conversation of a runtime, seen from outside. Made by `Runtime.get`; cheap, valid as long as the runtime.

    Attributes:
        name: the conversation, `<agent>/<name>`.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self.name = name

    async def append(
        self, message: Message | Mapping[str, Any], *, by: str | None = None, client_id: str | None = None
    ) -> int:
        """Appends a message as a client would: told to everybody, deduplicated, and answered by the agent.

        Args:
            message: a message, or a mapping in a dialect that `normalize` reads. One of role user starts a turn.
            by: the author; by default `user` for role user, else `agent`.
            client_id: makes it idempotent: a repeat by the same author returns the first seq.

        Returns:
            The seq, once the row is durable and told.

        Raises:
            CodecError: the message cannot be stored; `path` says where.
            ClientIdConflict: the client id belongs to another message of this author.
            UnknownMedia: it refers to media that the conversation does not hold.
            MailboxFull, StorageBusy: too much waits; try again.
            Draining: the runtime is stopping.
            StorageError: it was not written.
        """
        _, row = new_row(message, by=by, client_id=client_id)
        record = await self._runtime.conversation(self.name)
        return (await record.post(row)).seq

    async def cancel(self, turn: int | None = None) -> None:
        """Stops the running turn, or the one named, running or queued, as a client's cancel does.

        What it has written is kept. Nothing where there is no such turn, or its answer is being committed. It has ended
        when its end is told, not when this returns.

        Raises:
            StorageError: the conversation cannot be loaded.
        """
        (await self._runtime.conversation(self.name)).lane.cancel(turn)

    async def put_media(self, data: bytes, media_type: str, *, max_bytes: int = MEDIA_BYTES_MAX) -> dict[str, str]:
        """Stores a picture or file in the conversation and returns the `ref` of the part that will show it.

        It is kept for a day, and from the first row that refers to it on as long as such rows are.

        Args:
            data: its bytes.
            media_type: what they are, such as `image/png`.
            max_bytes: the most they may be; 32 MiB if it is not given.

        Raises:
            TooLarge: they are more than `max_bytes`.
            ValueError: the type is none.
            Draining: the runtime is stopping.
            StorageError: they were not written.
        """
        return await (await self.log()).put_media(data, media_type, max_bytes=max_bytes)

    async def log(self) -> MessageLog:
        """Returns the log of the conversation. What is appended through it is told, and a user's message is answered.

        Raises:
            StorageError: the log cannot be opened. Its appends raise Draining once the runtime is stopping.
        """
        return MessageLog(_RefStorage(self._runtime, await self._runtime.engine.partition(self.name)))

    def __repr__(self) -> str:
        return f"<Ref {self.name!r}>"


class _RefStorage:
    """Is a log that needs a record of the runtime only while it appends."""

    def __init__(self, runtime: Runtime, partition: Partition) -> None:
        self.name = partition.name
        self._runtime = runtime
        self._partition = partition

    @property
    def head(self) -> int:
        return self._partition.head

    async def commit(self, batch: Batch, told: Told | None = None) -> Committed:
        self._runtime.check_accepting()
        return await (await self._runtime.conversation(self.name)).commit(batch, told)

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> list[Row]:
        return await self._partition.read(after=after, before=before, limit=limit, max_bytes=max_bytes, newest=newest)

    async def media(self, hash: str, start: int = 0) -> Blob | None:
        return await self._partition.media(hash, start)
