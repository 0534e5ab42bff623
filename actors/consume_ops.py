"""What the stream of a model does to a draft, whatever its dialect: a few operations.

A reader is pure: event in, operations out. It knows a dialect by the shapes of its events, objects or dicts alike, so
that no SDK is imported. What it does not know it ignores: providers add events at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from ..storage import ParlatoryError

__all__ = [
    "Begin",
    "Call",
    "ModelFailed",
    "Op",
    "Put",
    "Reader",
    "Say",
    "Seal",
    "Think",
    "field",
    "plain",
    "text_field",
]


class ModelFailed(ParlatoryError):
    """Says that the provider ended an answer without finishing it. What came until then is in the draft.

    Attributes:
        reason: the provider's own code for it, where it gave one.
    """

    code = "internal"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class Say(NamedTuple):
    """Appends text to the answer."""

    text: str


class Begin(NamedTuple):
    """Begins a part of reasoning, which has these fields beside its text."""

    fields: Mapping[str, Any]


class Think(NamedTuple):
    """Appends text to the reasoning."""

    text: str


class Seal(NamedTuple):
    """Adds fields to the reasoning that was begun last, such as its signature."""

    fields: Mapping[str, Any]


class Put(NamedTuple):
    """Appends a part, in JSON terms."""

    part: Mapping[str, Any]


class Call(NamedTuple):
    """Appends a tool call, whole; `arguments` is the text that the model wrote, or an object."""

    id: str | None
    name: str | None
    arguments: object


Op: TypeAlias = Say | Begin | Think | Seal | Put | Call


class Reader(Protocol):
    """Reads one stream of one dialect.

    Attributes:
        usage: what the provider counted, as it says it.
        stop_reason: why the model stopped, in the provider's word. None before its end was seen.
    """

    usage: dict[str, Any] | None
    stop_reason: str | None

    def feed(self, event: object) -> Iterator[Op]:
        """Returns what an event does.

        Raises:
            ModelFailed: the event says so.
        """
        ...


def field(obj: object, name: str) -> Any:
    """Returns a field of an object or a dict; None where it has none."""
    return obj.get(name) if isinstance(obj, Mapping) else getattr(obj, name, None)


def text_field(obj: object, name: str) -> str:
    """Returns a field that is text, else the empty text."""
    value = field(obj, name)
    return value if isinstance(value, str) else ""


def plain(obj: object) -> dict[str, Any]:
    """Returns an object of an SDK, or a dict, in JSON terms, without the fields that the provider did not send."""
    if isinstance(obj, Mapping):
        return dict(obj)
    dump = getattr(obj, "model_dump", None)
    # An SDK builds its objects unchecked; that one of them is not what its type says is no news of ours.
    return dict(dump(mode="json", by_alias=True, exclude_unset=True, warnings=False)) if dump else dict(vars(obj))
