"""Frames of one whole text: as websockets has them, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from parlatory.server.text_frames import framed, text_at

from .peers import wire

MIB = 1 << 20
SIZES = [0, 1, 125, 126, 127, 65_535]


@pytest.mark.parametrize("size", [*SIZES, 65_536, 70_000])
def test_frames_are_those_of_websockets(size: int) -> None:
    assert framed(b"x" * size) == Frame(Opcode.TEXT, b"x" * size).serialize(mask=False)


@pytest.mark.parametrize("size", SIZES)
def test_a_text_is_read_where_it_starts(size: int) -> None:
    frame = wire(b"x" * size)
    assert text_at(frame, 0, MIB) == ("x" * size, len(frame))
    assert text_at(b"before" + frame + b"behind", 6, MIB) == ("x" * size, 6 + len(frame))
    assert text_at(frame, 0, size) == ("x" * size, len(frame))
    assert text_at(frame, 0, size - 1) is None, "websockets refuses what is too large"


@pytest.mark.parametrize("size", [0, 125, 300])
def test_a_part_is_not_read(size: int) -> None:
    frame = wire(b"x" * size)
    assert [end for end in range(len(frame)) if text_at(frame[:end], 0, MIB) is not None] == []
    assert text_at(frame, len(frame), MIB) is None


@pytest.mark.parametrize(
    "frame",
    [
        wire(b"x" * 65_536),
        wire(b"abc", fin=False),
        wire(b"abc", Opcode.CONT),
        wire(b"abc", Opcode.BINARY),
        wire(b"abc", Opcode.PING),
        wire(b"abc", Opcode.CLOSE),
        wire(b"\xff\xfe"),
        wire(b"\xed\xa0\x80"),
        framed(b"abcdef"),
        framed(b"x" * 300),
        b"\xc1" + wire(b"abc")[1:],
        b"\x8f" + wire(b"abc")[1:],
    ],
    ids=lambda frame: f"{frame[:2].hex()}-{len(frame)}",
)
def test_other_frames_are_left_to_websockets(frame: bytes) -> None:
    assert text_at(frame, 0, MIB) is None


@given(text=st.text(max_size=300), mask=st.binary(min_size=4, max_size=4))
def test_it_is_unmasked(text: str, mask: bytes) -> None:
    payload = text.encode()
    head = wire(payload)[: -len(payload) - 4] if payload else wire(payload)[:-4]
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    assert text_at(head + mask + masked, 0, MIB) == (text, len(head) + 4 + len(payload))
