"""Pictures and files: where their bytes are, and what kind they really are."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import a2b_base64
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from ..messages import File, Image

__all__ = ["SOME_IMAGE", "Medium", "data_url", "foreign_ids", "medium", "placeholder", "type_of_address"]

SOME_IMAGE = "image/*"
"""What an image is declared to be of which nothing more is known, though its address may end otherwise."""

# Stricter than the rule of the log: what a browser would not read as an address, a library may read as base64.
_WEB = re.compile(r"https?://(?:[^\s/?#@]*@)?(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d{1,5})?(?:[/?#]\S*)?")
_DATA = re.compile(r"data:([^;,\s]*)((?:;[^;,]*)*),(.*)", re.DOTALL | re.IGNORECASE)
_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+")
_MAGIC = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF", "application/pdf"),
)
_MAGIC_CHARACTERS = 16  # 12 bytes
_DOUBTFUL = ("image/", "application/pdf", "application/octet-stream")
_BY_ENDING = {
    "gif": "image/gif",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "pdf": "application/pdf",
    "png": "image/png",
    "webp": "image/webp",
}


class Medium(NamedTuple):
    """Is a picture or a file that can be sent: exactly one of `data` (base64), `url` (http, https) and `id` is there.

    `kind` is `image` or `file`; `type` is its media type, or "" where nothing tells it; `id` is the provider's own.
    """

    kind: str
    type: str
    data: str | None = None
    url: str | None = None
    id: str | None = None


def medium(part: Image | File, provider: str) -> Medium | None:
    """Returns a picture or file as `provider` may be given it; None where it has no bytes that can be sent.

    The type is that of the bytes where these tell, else the declared one.
    """
    declared = _plain_type(part.media_type)
    data, url = part.data, part.url
    if url is not None and (match := _DATA.fullmatch(url)):
        declared, url = _plain_type(match[1]) or declared, None
        data = _data_of(match[3], ";base64" in match[2].lower())
    if data:
        type = declared
        if (not declared or declared.startswith(_DOUBTFUL)) and (found := _sniffed(data)):
            type = found
        return Medium(_kind(part, type), type, data=data)
    if url is not None and _WEB.fullmatch(url):
        type = declared or type_of_address(url)
        if part.media_type == SOME_IMAGE and not type.startswith("image/"):
            type = ""
        return Medium(_kind(part, type), type, url=url)
    if part.ref and (id := part.ref.get(provider)):
        return Medium(_kind(part, declared), declared, id=id)
    return None


def type_of_address(url: str) -> str:
    """Returns the media type that the end of an address tells, "" where it tells none."""
    return _BY_ENDING.get(url.partition("?")[0].rpartition(".")[2].lower(), "")


def foreign_ids(part: Image | File) -> dict[str, str]:
    """Returns the ids that providers gave a medium; that in a store of ours is none of them."""
    return {provider: id for provider, id in (part.ref or {}).items() if provider != "parlatory"}


def _plain_type(type: str | None) -> str:
    """Returns a media type without its parameters; "" where it is none."""
    plain = (type or "").partition(";")[0].strip().lower()
    if not _TYPE.fullmatch(plain):
        return ""
    return "image/jpeg" if plain == "image/jpg" else plain


def _kind(part: Image | File, type: str) -> str:
    if type:
        return "image" if type.startswith("image/") else "file"
    return "image" if part.media_type == SOME_IMAGE else part.type


def _data_of(text: str, is_base64: bool) -> str | None:
    """Returns what a data URL holds, as base64; nobody has looked at it before."""
    if not is_base64:
        return b64encode(unquote_to_bytes(text)).decode()
    try:
        a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
    return text


def _sniffed(data: str) -> str | None:
    head = b64decode(data[:_MAGIC_CHARACTERS])
    for magic, type in _MAGIC:
        if head.startswith(magic):
            return type
    return "image/webp" if head[:4] == b"RIFF" and head[8:] == b"WEBP" else None


def data_url(found: Medium) -> str:
    """Returns the bytes of a medium as a data URL."""
    return f"data:{found.type or 'application/octet-stream'};base64,{found.data}"


def placeholder(part: Image | File) -> str:
    """Stands for a medium where only text can go: its address, or its name."""
    if part.url is not None and _WEB.fullmatch(part.url):
        return part.url
    return f"[{part.filename or part.media_type or part.type}]"
