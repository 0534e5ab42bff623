"""The ids of calls and the names of tools and speakers, as a provider takes them."""

from __future__ import annotations

import re
from hashlib import blake2b

from ..rows import StoredMessage
from .notes import Note

__all__ = ["Labels", "portable_labels", "speaker"]

_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")
_NO_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_SPEAKER = re.compile(r"[^\s<|\\/>]{1,64}")
_NO_SPEAKER = re.compile(r"[\s<|\\/>]+")


class Labels:
    """Gives each call of one prompt an id that no other has, and each tool a name, both within a provider's rules.

    What is within them stays. Another id becomes a hash of it, another name one with `_` for what is refused.

    Args:
        id_plain: what an id may be.
        name_plain: what a name may be.
        name_refused: the characters that a name may not have.
        notes: where to say what was changed.
    """

    def __init__(
        self, id_plain: re.Pattern[str], name_plain: re.Pattern[str], name_refused: re.Pattern[str], notes: list[Note]
    ) -> None:
        self._id_plain = id_plain
        self._name_plain = name_plain
        self._name_refused = name_refused
        self._notes = notes
        self._ids: set[str] = set()
        self._names: dict[str, str] = {}

    def call_id(self, id: str, seq: int) -> str:
        """Returns the id of a call of row `seq`; the same row gives the same id in every window."""
        plain = id
        if id in self._ids or not self._id_plain.fullmatch(id):
            turn = 0
            while (plain := _hashed(f"{seq} {turn} {id}")) in self._ids:
                turn += 1
            self._notes.append(Note("call_id_renamed", f"call {id!r} is called {plain!r}", seq))
        self._ids.add(plain)
        return plain

    def tool_name(self, name: str, seq: int) -> str:
        """Returns the name of a tool."""
        plain = self._names.get(name)
        if plain is None:
            plain = name
            if not self._name_plain.fullmatch(name):
                plain = self._name_refused.sub("_", name)[:63] or "tool"
                if not self._name_plain.fullmatch(plain):
                    plain = f"_{plain}"
                self._notes.append(Note("tool_name_changed", f"tool {name!r} is called {plain!r}", seq))
            self._names[name] = plain
        return plain


def portable_labels(notes: list[Note]) -> Labels:
    """Returns labels that every provider takes, for a library that may have any of them behind it."""
    return Labels(_ID, _NAME, _NO_NAME, notes)


def _hashed(text: str) -> str:
    return f"call_{blake2b(text.encode(), digest_size=12).hexdigest()}"


def speaker(row: StoredMessage, notes: list[Note]) -> str | None:
    """Returns the name of who speaks as OpenAI takes it; None where there is none, or nothing is left of it."""
    name = row.message.name
    if name is None or _SPEAKER.fullmatch(name):
        return name
    plain = _NO_SPEAKER.sub("_", name).strip("_")[:64] or None
    notes.append(Note("name_changed", f"{name!r} is called {plain!r}", row.seq))
    return plain
