"""What a tool gave back, as text."""

from __future__ import annotations

from typing import cast

from msgspec.json import encode

from ..messages import (
    ContentOutput,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    OutputPart,
    Text,
    TextOutput,
    ToolOutput,
)
from .media import placeholder

__all__ = ["failed", "media_in", "output_text"]

_FAILURES: tuple[type, ...] = (ErrorTextOutput, ErrorJsonOutput, ExecutionDenied)


def output_text(output: ToolOutput) -> str:
    """Returns an output as text, each medium in it as its name."""
    if type(output) is ExecutionDenied:
        return f"Tool execution was denied. {output.reason or ''}".rstrip()
    if type(output) is ContentOutput:
        return "\n".join(text for part in output.value if (text := _text(part)))
    if type(output) is JsonOutput or type(output) is ErrorJsonOutput:
        return encode(output.value).decode()
    return cast(TextOutput | ErrorTextOutput, output).value


def _text(part: OutputPart) -> str:
    if type(part) is Text:
        return part.text
    return placeholder(part) if type(part) is Image or type(part) is File else ""


def failed(output: ToolOutput) -> bool:
    """Says whether the tool failed, or was not allowed to run."""
    return type(output) in _FAILURES


def media_in(output: ToolOutput) -> list[Image | File]:
    """Returns the pictures and files in an output."""
    if type(output) is not ContentOutput:
        return []
    return [part for part in output.value if type(part) is Image or type(part) is File]
