"""The message log of one conversation: append-only, ordered by `seq`, told after each commit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol, TypeAlias, cast, overload

from msgspec.structs import replace

from .codec import MESSAGE_BYTES_MAX, check_message, encode_message, message_digest
from .convert.prompt import Prompt, Provider, SystemRole, render
from .convert.repair import Missing
from .convert.windows import Window
from .dialects import normalize
from .engine import Batch, Committed, NewRow, Told
from .errors import CodecError, Conflict, CorruptMedia, HookError, ReentrancyError, TooLarge, UnknownMedia
from .media import (
    MEDIA_BYTES_MAX,
    PROMPT_MEDIA_BYTES_MAX,
    Blob,
    Media,
    MediaRef,
    check_media_type,
    cut,
    extract,
    hash_of,
    inline_media,
    media_ref,
    resolve,
)
from .messages import Message
from .names import CONTROL
from .rows import Row, StoredMessage
from .rules import irregularities

__all__ = ["LogStorage", "MessageLog", "OnAppend", "new_row"]

PAGE_ROWS = 500
PAGE_BYTES = 4 << 20
WINDOW_ROWS = 32
UPLOAD_PIECES = 4
AUTHOR_MAX = 512
CLIENT_ID_MAX = 64

SURROGATE = re.compile("[\ud800-\udfff]")

OnAppend: TypeAlias = Callable[[Sequence[StoredMessage]], object]


class LogStorage(Protocol):
    """Is what a log needs below it: a partition, or whoever stands in front of one."""

    @property
    def name(self) -> str:
        """Is the conversation."""

    @property
    def head(self) -> int:
        """Is the seq of the last committed row."""

    async def commit(self, batch: Batch, told: Told | None = None) -> Committed:
        """Commits a batch."""

    async def read(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 200,
        max_bytes: int = 1 << 20,
        newest: bool = False,
    ) -> list[Row]:
        """Returns rows."""

    async def media(self, hash: str, start: int = 0) -> Blob | None:
        """Returns a piece of media."""


def new_row(
    message: Message | Mapping[str, Any],
    *,
    by: str | None = None,
    client_id: str | None = None,
    turn: int | str | None = None,
    finish: str | None = None,
    max_bytes: int = MESSAGE_BYTES_MAX,
) -> tuple[Message, NewRow]:
    """Checks a message and returns it, as the log will hold it, with the row it will be.

    Media above 64 KiB lie beside the row, which refers to them. The digest is of the message as it was given.

    Args:
        message: a message, or a mapping in one of the dialects that `normalize` reads.
        by: the author; by default `user` for a message of role user, else `agent`.
        client_id: what makes a repeat recognisable; at most 64 characters.
        turn: the turn that appends it.
        finish: how its draft ended, where that is not `done`.
        max_bytes: the limit of the message as given.

    Raises:
        CodecError: it cannot be stored and read back equal, or breaks a rule of its role; the path says where.
        TooLarge: it is over 1 MiB.
    """
    if isinstance(message, Mapping):
        message = normalize(message)
    body = check_message(message, max_bytes=max_bytes)
    if by is None:
        by = "user" if message.role == "user" else "agent"
    else:
        _check_label("by", by, AUTHOR_MAX)
    digest = None
    if client_id is not None:
        _check_label("clientId", client_id, CLIENT_ID_MAX)
        digest = message_digest(message)
    if isinstance(message.content, str):
        return message, NewRow(body=body, by=by, client_id=client_id, digest=digest, turn=turn, finish=finish)
    stored, media, refs = extract(message)
    if media:
        body = encode_message(stored)
    return stored, NewRow(
        body=body, by=by, client_id=client_id, digest=digest, turn=turn, finish=finish, media=media, refs=refs
    )


def _check_label(field: str, value: str, characters_max: int) -> None:
    if not 1 <= len(value) <= characters_max or CONTROL.search(value) or SURROGATE.search(value):
        raise CodecError(f"${field}", f"has 1 to {characters_max} characters, no control character, no lone surrogate")


class MessageLog:
    """Appends and reads the messages of one conversation.

    Works alone, without actors or a server. `on_append(rows)` is a plain function that is called once per commit, in
    seq order, before the append returns; if it raises, the appender gets `HookError` and the rows stay.

    Args:
        partition: where the rows lie: `await engine.partition("agent/name")`.
        on_append: whom to tell of every commit through this log.
    """

    def __init__(self, partition: LogStorage, on_append: OnAppend | None = None) -> None:
        self._partition = partition
        self._on_append = on_append
        self._telling = False

    @property
    def name(self) -> str:
        """Is the conversation, `<agent>/<name>`."""
        return self._partition.name

    # -- appending

    def add(self, role: str, content: Any, **fields: Any) -> Coroutine[Any, Any, int]:
        """Appends a message by role and content; shorthand for `append({"role": role, "content": content, ...})`."""
        return self.append({"role": role, "content": content, **fields})

    def append(
        self,
        message: Message | Mapping[str, Any] | Sequence[Message | Mapping[str, Any]],
        *,
        by: str | None = None,
        client_id: str | None = None,
        expected_seq: int | None = None,
        strict: bool = False,
    ) -> Coroutine[Any, Any, int]:
        """Appends one message, or a list of them as `append_many` does, and returns the last seq, once it is durable.

        Args:
            message: a message, or a mapping in a dialect that `normalize` reads; or a list of these.
            by: the author; by default `user` for role user, else `agent`.
            client_id: makes the append idempotent: a repeat by the same author returns the first seq for ever. Not
                for a list.
            expected_seq: the seq the log must end at just before; otherwise nothing is written.
            strict: refuses what is accepted otherwise but no provider takes as it stands, such as a result without its
                call.

        Raises:
            CodecError: it cannot be stored and read back equal, or breaks a rule; `path` says where.
            TooLarge: it is over 1 MiB.
            Conflict: the log does not end at `expected_seq`, but at `head`.
            ClientIdConflict: the client id belongs to another message of this author.
            UnknownMedia: it refers to media that the conversation does not hold.
            HookError: `on_append` raised; the row is committed.
            ReentrancyError: the call comes from inside `on_append`.
            StorageError: it was not written.
        """
        self._check_reentrancy()
        if isinstance(message, list | tuple):
            if client_id is not None:
                raise ValueError("a client id is that of one message: append each with its own, or the list without")
            return self._append_many(message, by, expected_seq, strict)
        return self._append(cast(Message | Mapping[str, Any], message), by, client_id, expected_seq, strict)

    def append_many(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        by: str | None = None,
        expected_seq: int | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Appends messages, all or nothing, and returns the seq of the last (of an empty list: the count).

        Raises:
            TooLarge: more than 2,000 rows or 4 MiB.
            CodecError, Conflict, UnknownMedia, HookError, ReentrancyError, StorageError: as `append`.
        """
        self._check_reentrancy()
        return self._append_many(messages, by, expected_seq, False)

    async def _append(
        self,
        message: Message | Mapping[str, Any],
        by: str | None,
        client_id: str | None,
        expected_seq: int | None,
        strict: bool,
    ) -> int:
        checked, row = new_row(message, by=by, client_id=client_id)
        if strict:
            return await self._append_strictly([checked], [row], expected_seq)
        return await self._commit([checked], Batch(rows=(row,), expected_seq=expected_seq))

    async def _append_strictly(
        self, messages: Sequence[Message], rows: Sequence[NewRow], expected_seq: int | None, *, listed: bool = False
    ) -> int:
        """Appends what fits behind the history as it was read; where that has grown meanwhile, reads again."""
        while True:
            before = [stored.message for stored in await self.all()]
            history = [*before, *messages]
            places = range(len(before), len(history))
            found = [(place, fault) for place in places for fault in irregularities(history[place], history[:place])]
            # A repeat is answered as ever, though it does not fit behind itself: no log ends at -1.
            head = -1 if found else len(before) if expected_seq is None else expected_seq
            try:
                return await self._commit(messages, Batch(rows=tuple(rows), expected_seq=head))
            except Conflict:
                if found:
                    place, fault = found[0]
                    path, _, reason = fault.partition(": ")
                    raise CodecError(f"$[{place - len(before)}]{path[1:]}" if listed else path, reason) from None
                if expected_seq is not None:
                    raise

    async def _append_many(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        by: str | None,
        expected_seq: int | None,
        strict: bool,
    ) -> int:
        if not messages:
            if expected_seq is not None and expected_seq != self._partition.head:
                raise Conflict(expected_seq, self._partition.head)
            return self._partition.head
        pairs = []
        for index, message in enumerate(messages):
            try:
                pairs.append(new_row(message, by=by))
            except CodecError as error:
                error.path = f"$[{index}]{error.path[1:]}"
                error.args = (f"{error.path}: {error.reason}",)
                raise
        checked, rows = [message for message, _ in pairs], tuple(row for _, row in pairs)
        if strict:
            return await self._append_strictly(checked, rows, expected_seq, listed=True)
        return await self._commit(checked, Batch(rows=rows, expected_seq=expected_seq))

    async def _commit(self, messages: Sequence[Message], batch: Batch) -> int:
        if self._on_append is None:
            return (await self._partition.commit(batch)).seq

        def told(committed: Committed) -> None:
            self._tell([row.holding(message) for row, message in zip(committed.rows, messages, strict=True)])

        return (await self._partition.commit(batch, told)).seq

    def _tell(self, rows: Sequence[StoredMessage]) -> None:
        assert self._on_append is not None
        self._telling = True
        try:
            self._on_append(rows)
        except Exception as error:
            raise HookError(rows, repr(error)) from error
        finally:
            self._telling = False

    def _check_reentrancy(self) -> None:
        if self._telling:
            raise ReentrancyError(f"an append to {self.name!r} from inside its own on_append: let that return first")

    # -- reading

    async def count(self) -> int:
        """Returns how many messages were ever appended: the seq of the last."""
        return self._partition.head

    async def all(self) -> list[StoredMessage]:
        """Returns the whole history, oldest first; prefer `last(n)` or iteration for a long one."""
        return [row async for row in self]

    @overload
    async def last(self) -> StoredMessage | None: ...
    @overload
    async def last(self, n: int) -> list[StoredMessage]: ...
    async def last(self, n: int | None = None) -> StoredMessage | None | list[StoredMessage]:
        """Returns the newest message or None; with `n`, the newest n messages, oldest first."""
        if n is None:
            rows = await self._partition.read(limit=1, newest=True)
            return self._decoded(rows)[0] if rows else None
        if n < 0:
            raise ValueError(f"last({n}): a count is not negative")
        rows = []
        before: int | None = None
        while len(rows) < n:
            page = await self._partition.read(
                before=before, limit=min(n - len(rows), PAGE_ROWS), max_bytes=PAGE_BYTES, newest=True
            )
            if not page:
                break
            rows[:0] = page
            before = page[0].seq
        return self._decoded(rows)

    async def get(self, seq: int) -> StoredMessage | None:
        """Returns the message with this seq, or None where there is none."""
        if seq < 1:
            return None
        rows = await self._partition.read(after=seq - 1, before=seq + 1, limit=1)
        return self._decoded(rows)[0] if rows else None

    async def read(self, after: int = 0, before: int | None = None, limit: int = 100) -> list[StoredMessage]:
        """Returns messages with `after` < seq < `before`, oldest first: at most `limit` (up to 500), and 4 MiB.

        The first ones of the range; with `before` alone, the last ones, for paging back.
        """
        if after < 0 or limit < 0 or (before is not None and before < 0):
            raise ValueError("read: after, before and limit are not negative")
        newest = before is not None and after == 0
        rows = await self._partition.read(
            after=after, before=before, limit=min(limit, PAGE_ROWS), max_bytes=PAGE_BYTES, newest=newest
        )
        return self._decoded(rows)

    async def __aiter__(self) -> AsyncIterator[StoredMessage]:
        """Yields the history, oldest first, in pages; rows that come meanwhile are included."""
        after = 0
        while page := await self._partition.read(after=after, limit=PAGE_ROWS, max_bytes=PAGE_BYTES):
            for row in page:
                yield row.stored(self.name)
            after = page[-1].seq

    def _decoded(self, rows: Sequence[Row]) -> list[StoredMessage]:
        name = self.name
        return [row.stored(name) for row in rows]

    # -- media

    async def media(self, ref: MediaRef, *, max_bytes: int = MEDIA_BYTES_MAX) -> Media:
        """Returns the bytes and the type of a picture or file, whether they lie in its part or beside the row.

        Args:
            ref: the part, its `ref`, or `sha256:...`.
            max_bytes: the most it may have.

        Raises:
            UnknownMedia: the conversation does not hold it.
            TooLarge: it has more than `max_bytes`.
            CorruptMedia: it is not what was stored.
            ValueError: it is elsewhere, at a URL or a provider, or no ref at all.
            StorageError: it cannot be read.
        """
        if (inline := inline_media(ref)) is not None:
            return inline
        hash = hash_of(ref)
        if hash is None:
            raise ValueError(f"{ref!r} names no media of a conversation")
        blob = await self._partition.media(hash)
        if blob is None:
            raise UnknownMedia(hash)
        if blob.size > max_bytes:
            raise TooLarge("media", blob.size, max_bytes)
        pieces = [blob.data]
        read = len(blob.data)
        while read < blob.size:
            more = await self._partition.media(hash, read)
            if more is None:  # its last row went meanwhile
                raise UnknownMedia(hash)
            pieces.append(more.data)
            read += len(more.data)
        data = b"".join(pieces)
        if await asyncio.to_thread(_hash, data) != hash:
            raise CorruptMedia(self.name, hash)
        return Media(data=data, media_type=blob.media_type)

    async def put_media(
        self, data: bytes | bytearray | memoryview, media_type: str, *, max_bytes: int = MEDIA_BYTES_MAX
    ) -> dict[str, str]:
        """Stores a picture or file and returns the `ref` of the part that will show it.

        It is kept for a day; from the first row that refers to it on, as long as such rows are. The same bytes are
        stored once, with the type they had first.

            ref = await log.put_media(data, "image/png")
            await log.append(user_message([Image(ref=ref, media_type="image/png")]))

        Args:
            data: its bytes.
            media_type: what they are.
            max_bytes: the most they may be.

        Raises:
            TooLarge: they are more than `max_bytes`.
            ValueError: the type is none.
            TypeError: they are no bytes.
            StorageError: they were not written.
        """
        check_media_type(media_type)
        if not isinstance(data, bytes):
            data = bytes(memoryview(data))  # a copy: what can change while it is written is not what its hash says
        if len(data) > max_bytes:
            raise TooLarge("media", len(data), max_bytes)
        hash = await asyncio.to_thread(_hash, data)
        blobs = list(cut(hash, media_type, data))
        for index in range(0, len(blobs), UPLOAD_PIECES):  # so that others are not held up by one big write
            await self._partition.commit(Batch(uploads=blobs[index : index + UPLOAD_PIECES]))
        return media_ref(hash)

    # -- for models

    async def context(
        self,
        n: int | None = None,
        *,
        max_chars: int | None = None,
        max_tokens: int | None = None,
        count: Callable[[str], int] | None = None,
    ) -> list[StoredMessage]:
        """Returns the end of the history that a prompt is made of, oldest first; without a limit, all of it.

        It begins at a message of a user, never inside of a group of tool calls and results, and the system messages at
        the beginning of the log stand before it. `n` rows move back to such a beginning; a budget is kept, except that
        what there is from the newest message of a user on is always in it. Where no beginning lies within 500 rows
        before, it moves forward. Inside a turn the rows are in turn order.

        Args:
            n: how many rows, at least; the leading system messages do not count.
            max_chars: how many characters of text, arguments and outputs included; pictures and files count nothing.
            max_tokens: how many tokens of that text, as `count` counts them.
            count: returns the tokens of a text.

        Raises:
            ValueError: there is more than one limit, or one below 1; or `max_tokens` without `count`.
        """
        window = Window(n, max_chars=max_chars, max_tokens=max_tokens, count=count)
        if window.whole:
            return self._in_prompt_order(await self.all(), 0)
        lead = await self._leading()
        rows: list[StoredMessage] = []
        limit = WINDOW_ROWS if n is None else n + WINDOW_ROWS
        while True:
            page = await self._partition.read(
                before=rows[0].seq if rows else None, limit=min(limit, PAGE_ROWS), max_bytes=PAGE_BYTES, newest=True
            )
            rows[:0] = self._decoded(page)
            final = not page or page[0].seq == 1
            ordered = self._in_prompt_order(rows, 0 if final else rows[0].seq)
            start = window.start(ordered, lead, final=final)
            if start is not None:
                kept = ordered[start:]
                return [row for row in lead if not kept or row.seq < kept[0].seq] + kept
            limit = max(len(rows), limit)

    async def _leading(self) -> list[StoredMessage]:
        """Returns the system messages that the log begins with."""
        lead: list[StoredMessage] = []
        while True:
            page = await self.read(after=lead[-1].seq if lead else 0, limit=WINDOW_ROWS if lead else 4)
            for row in page:
                if row.role != "system":
                    return lead
                lead.append(row)
            if not page:
                return lead

    async def prompt(
        self,
        provider: Provider,
        *,
        window: int | Sequence[StoredMessage] | None = None,
        missing: Missing = "synthesize",
        system_role: SystemRole = "system",
        max_media_bytes: int = PROMPT_MEDIA_BYTES_MAX,
    ) -> Prompt:
        """Returns what a provider's SDK is called with: `client.messages.create(model=MODEL, **prompt)`.

        Its `notes` say what was dropped, moved, renamed or made up so that the provider accepts it.

        Args:
            provider: `openai`, `openai-responses`, `anthropic`, `google`, `langchain`, `pydantic-ai`, `ai-sdk` or
                `ag-ui`.
            window: the last so many rows, as `context` returns them; or rows, such as `await log.last(5)`, from
                which a call or a result that is cut in two is repaired; by default the whole history.
            missing: what becomes of a tool call without result: `synthesize` one that says it was interrupted, `drop`
                the call, or `raise`.
            system_role: the role of system messages for OpenAI, `system` or `developer`.
            max_media_bytes: how many bytes of media beside the rows are put into it, the newest first; those that do
                not fit are named.

        Raises:
            ValueError: there is no such provider, or no such `missing` or `system_role`; or `window` is less than 1.
            TypeError: `window` is neither a number of rows nor rows.
            MissingResult: a call has no result, and `missing` says to raise.
        """
        rows = await self.context(window) if window is None or type(window) is int else _rows_of(window)
        return render(
            provider,
            await self._resolved(rows, max_media_bytes),
            missing=missing,
            pending=await self._pending(rows),
            conversation=self.name,
            system_role=system_role,
        )

    async def to_openai(self) -> list[dict[str, Any]]:
        """Returns the whole history as OpenAI Chat Completions messages."""
        return self._turns(await self.prompt("openai"))

    async def to_anthropic(self) -> list[dict[str, Any]]:
        """Returns the whole history as Anthropic turns, without system messages: pass those as `system`."""
        rows = [row for row in await self.context() if row.role != "system"]
        return self._turns(await self.prompt("anthropic", window=rows))

    async def to_langchain(self) -> list[dict[str, Any]]:
        """Returns the whole history as LangChain message dicts."""
        return self._turns(await self.prompt("langchain"))

    @staticmethod
    def _turns(prompt: Prompt) -> list[dict[str, Any]]:
        turns: list[dict[str, Any]] = prompt["messages"]
        return turns

    def _in_prompt_order(self, rows: list[StoredMessage], since: int) -> list[StoredMessage]:
        """Returns those of the rows that belong into a prompt from place `since` on, in its order; here all.

        `rows` are the end of the log, from seq `since` on or from its beginning.
        """
        return rows

    async def _pending(self, rows: Sequence[StoredMessage]) -> Collection[tuple[int, str]]:
        """Returns the calls that wait for somebody, by the seq of their row and their id; here none."""
        return ()

    async def _resolved(self, rows: Sequence[StoredMessage], max_bytes: int) -> Sequence[StoredMessage]:
        """Returns the rows with their media in them; media that are gone or do not fit stay a ref."""

        async def fetch(hash: str, max_bytes: int) -> Media | None:
            try:
                return await self.media(hash, max_bytes=max_bytes)
            except (UnknownMedia, CorruptMedia, TooLarge):
                return None

        messages = await resolve([row.message for row in rows], fetch, max_bytes=max_bytes)
        return [
            row if row.message is message else replace(row, message=message)
            for row, message in zip(rows, messages, strict=True)
        ]


def _rows_of(window: object) -> Sequence[StoredMessage]:
    """Returns the rows that a window is; a text, or a number that is none of rows, is taken for no window."""
    if isinstance(window, Sequence) and all(isinstance(row, StoredMessage) for row in window):
        return window
    raise TypeError(f"window is a number of rows, or rows such as await log.last(5), not {window!r}"[:200])


def _hash(data: bytes) -> str:
    return sha256(data).hexdigest()
