"""A prompt: what a provider's SDK is called with, and what it says otherwise than the log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Literal, TypeAlias, get_args

from ..rows import StoredMessage
from . import ag_ui, ai_sdk, anthropic, google, langchain, openai, openai_responses, pydantic_ai
from .notes import Note
from .repair import Missing, repair

__all__ = ["PROVIDERS", "Prompt", "Provider", "SystemRole", "render"]

Provider: TypeAlias = Literal[
    "openai", "openai-responses", "anthropic", "google", "langchain", "pydantic-ai", "ai-sdk", "ag-ui"
]
SystemRole: TypeAlias = Literal["system", "developer"]

_RENDER = {
    "anthropic": anthropic.render,
    "google": google.render,
    "langchain": langchain.render,
    "pydantic-ai": pydantic_ai.render,
    "ai-sdk": ai_sdk.render,
}
PROVIDERS: tuple[Provider, ...] = get_args(Provider)


class Prompt(dict[str, Any]):
    """Is the keyword arguments of a call of a provider's SDK: `client.messages.create(model=MODEL, **prompt)`.

    `notes` says what was dropped, moved, renamed or made up: nothing changes silently.
    """

    __slots__ = ("notes",)

    def __init__(self, arguments: Mapping[str, Any], notes: Iterable[Note]) -> None:
        super().__init__(arguments)
        self.notes: tuple[Note, ...] = tuple(notes)


def render(
    provider: Provider,
    rows: Sequence[StoredMessage],
    *,
    missing: Missing = "synthesize",
    pending: Collection[tuple[int, str]] = (),
    conversation: str = "",
    system_role: SystemRole = "system",
) -> Prompt:
    """Returns the prompt of rows, repaired.

    Args:
        provider: whose form it is to have, one of `PROVIDERS`.
        rows: the rows in the order of the prompt.
        missing: what becomes of a call without result; see `repair`.
        pending: the calls that wait for somebody; see `repair`.
        conversation: what the ids of AG-UI messages begin with.
        system_role: the role of system messages for OpenAI.

    Raises:
        ValueError: there is no such provider, `missing` or `system_role`.
        MissingResult: a call has no result, and `missing` says to raise.
    """
    if provider not in PROVIDERS:
        raise ValueError(f"no provider {provider!r}: there are {', '.join(PROVIDERS)}")
    for name, value, known in (("missing", missing, Missing), ("system_role", system_role, SystemRole)):
        if value not in get_args(known):
            raise ValueError(f"no {name}={value!r}: there are {', '.join(get_args(known))}")
    notes: list[Note] = []
    repaired = repair(rows, notes, missing=missing, pending=pending)
    if provider == "openai":
        arguments = openai.render(repaired, notes, system_role)
    elif provider == "openai-responses":
        arguments = openai_responses.render(repaired, notes, system_role)
    elif provider == "ag-ui":
        arguments = ag_ui.render(repaired, notes, conversation)
    else:
        arguments = _RENDER[provider](repaired, notes)
    return Prompt(arguments, sorted(notes, key=_place) if notes else ())


def _place(note: Note) -> tuple[float, int]:
    """Orders notes as the log is, those of no row last."""
    return (inf if note.seq is None else note.seq, -1 if note.index is None else note.index)
