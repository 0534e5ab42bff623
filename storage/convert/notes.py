"""Notes: what a prompt says otherwise than the log, so that nothing changes silently."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

__all__ = ["Note", "NoteCode"]

NoteCode: TypeAlias = Literal[
    "arguments_wrapped",
    "blank_dropped",
    "call_dropped",
    "call_id_renamed",
    "call_pending",
    "message_dropped",
    "media_as_text",
    "media_moved",
    "name_changed",
    "options_dropped",
    "output_filled",
    "part_dropped",
    "prefill",
    "reasoning_dropped",
    "result_dropped",
    "result_moved",
    "result_synthesized",
    "system_moved",
    "text_trimmed",
    "tool_name_changed",
    "turn_inserted",
]


class Note(msgspec.Struct, frozen=True):
    """Says what was dropped, moved, renamed or made up on the way from the log to a prompt.

    Attributes:
        code: what happened; stable.
        text: the same for people; may change.
        seq: the row it happened to; None where it is no row of the log.
        index: the part of its content; None where it is the whole row.
    """

    code: NoteCode
    text: str
    seq: int | None = None
    index: int | None = None
