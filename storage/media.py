"""Media: pictures and files that are too big for a row lie beside it, once per conversation, named by their SHA-256.

A row holds `{"ref": {"parlatory": "sha256:..."}}` in place of their base64 text, so that a page, a replay and a window
cost the same with and without pictures. A ref is looked up in its own conversation only: who learns the hash of a
picture elsewhere can do nothing with it.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from .errors import CodecError
from .messages import ContentOutput, File, Image, Message, ToolResult
from .rules import REF_KEY

__all__ = [
    "INLINE_BYTES_MAX",
    "MEDIA_BYTES_MAX",
    "PIECE_BYTES",
    "PROMPT_MEDIA_BYTES_MAX",
    "Blob",
    "Extracted",
    "Fetch",
    "Media",
    "MediaPart",
    "MediaRef",
    "check_media_type",
    "cited",
    "cut",
    "extract",
    "hash_of",
    "inline_media",
    "media_ref",
    "resolve",
]

INLINE_BYTES_MAX = 64 << 10
"""A part with more bytes than this lies beside its row."""
MEDIA_BYTES_MAX = 32 << 20
PROMPT_MEDIA_BYTES_MAX = 64 << 20
"""More than a provider takes in one call."""
PIECE_BYTES = 256 << 10
"""Media are stored and read in pieces of this size; the last one is what is left."""

_BASE64_MAX = (INLINE_BYTES_MAX + 2) // 3 * 4
_HASH = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]{1,127}/[\w!#$&^.+-]{1,127}(?:; ?[\w.-]{1,64}=[\w.+-]{1,127})*", re.ASCII)
# What pictures begin with; `....` is any four bytes.
_SIGNATURES = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "image/png"),
    (re.compile(rb"\xff\xd8\xff"), "image/jpeg"),
    (re.compile(rb"GIF8[79]a"), "image/gif"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "image/webp"),
    (re.compile(rb"....ftypavi[fs]", re.DOTALL), "image/avif"),
)

MediaPart: TypeAlias = Image | File
MediaRef: TypeAlias = MediaPart | Mapping[str, str] | str
"""What names media: a part, its `ref`, or `sha256:...`."""


class Media(msgspec.Struct, frozen=True, kw_only=True):
    """Is a picture or a file: its bytes, and the type they were stored with."""

    data: bytes
    media_type: str

    def __repr__(self) -> str:
        return f"<Media {self.media_type} of {len(self.data)} bytes>"


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """Is a piece of media in storage.

    Attributes:
        hash: the SHA-256 of the whole, in hex.
        media_type: what the whole is.
        size: bytes of the whole.
        start: where in it the piece begins, a multiple of 256 KiB.
        data: the piece, 256 KiB or what is left.
    """

    hash: str
    media_type: str
    size: int
    start: int
    data: bytes


class Extracted(NamedTuple):
    """Is a message with its big media taken out, and what storage has to know of its media.

    Attributes:
        message: the message to store.
        blobs: what was taken out.
        refs: the hashes of what must be there already, each with the path that names it.
    """

    message: Message
    blobs: tuple[Blob, ...]
    refs: Mapping[str, str]


Fetch: TypeAlias = Callable[[str, int], Awaitable[Media | None]]
"""Returns the media of a hash, or None where there are none or they have more bytes than that."""


def media_ref(hash: str) -> dict[str, str]:
    """Returns the `ref` of a part whose media have this hash."""
    return {REF_KEY: f"sha256:{hash}"}


def hash_of(ref: MediaRef) -> str | None:
    """Returns the hash that a part, a ref or its text names; None where it names no media of a conversation."""
    if isinstance(ref, Image | File):
        ref = ref.ref or {}
    name = ref.get(REF_KEY) if isinstance(ref, Mapping) else ref
    hash = name.removeprefix("sha256:") if isinstance(name, str) else ""
    return hash if _HASH.fullmatch(hash) else None


def inline_media(ref: MediaRef) -> Media | None:
    """Returns the media that lie in a part as base64 text, or None."""
    if not isinstance(ref, Image | File) or ref.data is None:
        return None
    data = binascii.a2b_base64(ref.data)
    return Media(data=data, media_type=ref.media_type or _sniffed(data) or "application/octet-stream")


def check_media_type(media_type: str) -> str:
    """Returns a media type such as `image/png`; raises ValueError where it is none."""
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise ValueError(f"{media_type!r} is no media type; it has the form image/png")
    return media_type


def cut(hash: str, media_type: str, data: bytes) -> Iterator[Blob]:
    """Yields media in pieces; one at least, for empty ones too."""
    for start in range(0, len(data) or 1, PIECE_BYTES):
        piece = data[start : start + PIECE_BYTES]
        yield Blob(hash=hash, media_type=media_type, size=len(data), start=start, data=piece)


# ---- out of a message ---------------------------------------------------------------------------------------------


def extract(message: Message) -> Extracted:
    """Takes the media above 64 KiB out of a message that obeys the rules; what has none comes back as it is.

    Raises:
        CodecError: a picture above 64 KiB does not say its type, and is of none that is known.
    """
    content = message.content
    if isinstance(content, str) or not _concerned(content):
        return Extracted(message, (), {})
    blobs: list[Blob] = []
    refs: dict[str, str] = {}
    parts = _extracted(content, "$.content", blobs, refs)
    if blobs:
        message = replace(message, content=parts)
        for blob in blobs:
            refs.pop(blob.hash, None)
    return Extracted(message, tuple(blobs), refs)


def _concerned(parts: Sequence[object]) -> bool:
    """Says whether there is anything to take out or to look for: most messages are let through here."""
    for part in parts:
        if isinstance(part, (Image, File)):
            if part.ref is not None or (part.data is not None and len(part.data) >= _BASE64_MAX):
                return True
        elif isinstance(part, ToolResult) and isinstance(part.output, ContentOutput) and _concerned(part.output.value):
            return True
    return False


def _extracted(parts: Sequence[object], path: str, blobs: list[Blob], refs: dict[str, str]) -> tuple[object, ...]:
    stored = []
    for index, part in enumerate(parts):
        if isinstance(part, (Image, File)):
            part = _placed(part, f"{path}[{index}]", blobs, refs)
        elif isinstance(part, ToolResult) and isinstance(part.output, ContentOutput):
            value = _extracted(part.output.value, f"{path}[{index}].output.value", blobs, refs)
            part = replace(part, output=replace(part.output, value=value))
        stored.append(part)
    return tuple(stored)


def _placed(part: MediaPart, path: str, blobs: list[Blob], refs: dict[str, str]) -> MediaPart:
    """Returns a part as the row holds it."""
    if part.data is None:
        if (cited := hash_of(part)) is not None:
            refs.setdefault(cited, f"{path}.ref")
        return part
    if len(part.data) < _BASE64_MAX:
        return part
    data = binascii.a2b_base64(part.data)
    if len(data) <= INLINE_BYTES_MAX:
        return part
    media_type = part.media_type or _sniffed(data)
    if media_type is None:
        raise CodecError(f"{path}.mediaType", "must be given for a picture above 64 KiB whose bytes do not tell it")
    hash = sha256(data).hexdigest()
    if all(blob.hash != hash for blob in blobs):
        blobs.extend(cut(hash, media_type, data))
    return replace(part, data=None, ref=media_ref(hash), media_type=media_type)


def _sniffed(data: bytes) -> str | None:
    return next((media_type for signature, media_type in _SIGNATURES if signature.match(data)), None)


# ---- into messages ------------------------------------------------------------------------------------------------


async def resolve(messages: Sequence[Message], fetch: Fetch, *, max_bytes: int) -> list[Message]:
    """Returns messages with the media that they refer to put back as base64 data, each fetched once.

    What is not there, or does not fit, stays a ref: whoever renders it says so. The newest come first. Each use counts,
    for a message of 1 MiB could refer to one picture thousands of times.
    """
    texts: dict[str, str | None] = {}
    left = max_bytes
    found: list[Message] = []
    for message in reversed(messages):
        uses: list[str | None] = []
        for hash in cited(message.content):
            if hash not in texts:
                media = await fetch(hash, left)
                texts[hash] = None if media is None else b64encode(media.data).decode()
            text = texts[hash]
            if text is not None and (size := len(text) // 4 * 3 - text[-2:].count("=")) <= left:
                left -= size
            else:
                text = None
            uses.append(text)
        if any(text is not None for text in uses):
            message = replace(message, content=_filled(message.content, iter(uses)))
        found.append(message)
    return found[::-1]


def cited(content: str | Sequence[object]) -> Iterator[str]:
    """Yields the hashes of the media that a content refers to."""
    for part in () if isinstance(content, str) else content:
        if isinstance(part, (Image, File)):
            if part.ref is not None and (hash := hash_of(part)) is not None:
                yield hash
        elif isinstance(part, ToolResult) and isinstance(part.output, ContentOutput):
            yield from cited(part.output.value)


def _filled(parts: Sequence[object], texts: Iterator[str | None]) -> tuple[object, ...]:
    """Returns parts with data for each that `cited` names, in its order; None leaves one as it is."""
    filled = []
    for part in parts:
        if isinstance(part, (Image, File)):
            if part.ref is not None and hash_of(part) is not None and (text := next(texts)) is not None:
                part = replace(part, data=text, ref=None)
        elif isinstance(part, ToolResult) and isinstance(part.output, ContentOutput):
            part = replace(part, output=replace(part.output, value=_filled(part.output.value, texts)))
        filled.append(part)
    return tuple(filled)
