"""Short words for messages, and the prompts made of them."""

from __future__ import annotations

from typing import Any

from parlatory.storage import AssistantMessage, Message, Prompt, ToolMessage, assistant_message, tool_message
from parlatory.storage.convert.prompt import Provider, render
from parlatory.storage.messages import TextOutput, ToolCall, ToolOutput, ToolResult

from .adapter import rows_of


def call(id: str, name: str = "find", **fields: Any) -> ToolCall:
    return ToolCall(**{"tool_call_id": id, "tool_name": name, "input": {"q": "é"}, **fields})


def result(id: str, output: ToolOutput | str = "found", name: str = "find") -> ToolResult:
    return ToolResult(
        tool_call_id=id, tool_name=name, output=TextOutput(value=output) if isinstance(output, str) else output
    )


def asks(*ids: str) -> AssistantMessage:
    return assistant_message([call(id) for id in ids])


def gives(**outputs: Any) -> ToolMessage:
    return tool_message([result(id, output) for id, output in outputs.items()])


def prompt(provider: Provider, *messages: Message, **options: Any) -> Prompt:
    return render(provider, rows_of(messages), **options)


def codes(of: Prompt) -> list[str]:
    return [note.code for note in of.notes]
