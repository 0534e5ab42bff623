"""WebSocket frames that are one whole text, which almost all are, without websockets (RFC 6455 section 5.2).

Its parser takes frames of every kind, in pieces of any size, for which each message would pay.
"""

from __future__ import annotations

from websockets.frames import apply_mask  # type: ignore[attr-defined]  # the fastest one that is installed

__all__ = ["framed", "text_at"]

_WHOLE_TEXT = 0x81  # the last fragment, no extension, text
_MASKED = 0x80
_MASKED_TWO_BYTES = 0xFE  # the size follows in two bytes
_MASK_BYTES = 4


def framed(payload: bytes) -> bytes:
    """Returns a payload as one unfragmented text frame of a server."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65_536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


def text_at(data: bytes, start: int, most: int) -> tuple[str, int] | None:
    """Returns the text of the client's frame that starts there, and where the frame ends.

    None where that is no whole text: a part of it, one of many fragments, another kind of frame, one that breaks a
    rule, one of 64 KiB or of more than `most` bytes.
    """
    if len(data) < start + 2 + _MASK_BYTES or data[start] != _WHOLE_TEXT:
        return None
    size, at = data[start + 1], start + 2
    if size == _MASKED_TWO_BYTES:
        size, at = data[at] << 8 | data[at + 1], at + 2
    elif _MASKED <= size < _MASKED_TWO_BYTES:
        size -= _MASKED
    else:
        return None
    at += _MASK_BYTES
    end = at + size
    if size > most or end > len(data):
        return None
    try:
        return str(apply_mask(data[at:end], data[at - _MASK_BYTES : at]), "utf-8"), end
    except UnicodeDecodeError:
        return None
