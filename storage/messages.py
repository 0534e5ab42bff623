"""What is said in a conversation: a union of four messages tagged by `role`, their parts tagged by `type`.

Python is snake_case, JSON is camelCase, absent fields are left out. All structs are frozen and hold tuples, never
lists. A constructor does not validate, msgspec's way: `codec.check_message` does, before anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, cast

import msgspec

__all__ = [
    "AssistantMessage",
    "AssistantPart",
    "ContentOutput",
    "Custom",
    "ErrorJsonOutput",
    "ErrorTextOutput",
    "ExecutionDenied",
    "File",
    "Image",
    "JsonObject",
    "JsonOutput",
    "Message",
    "MessageFields",
    "OutputPart",
    "Reasoning",
    "Role",
    "SystemMessage",
    "Text",
    "TextOutput",
    "ToolCall",
    "ToolMessage",
    "ToolOutput",
    "ToolPart",
    "ToolResult",
    "UnknownPart",
    "UserMessage",
    "UserPart",
    "assistant_message",
    "system_message",
    "tool_message",
    "user_message",
]

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
JsonObject: TypeAlias = dict[str, Any]


class _Tagged(msgspec.Struct, tag_field="type", frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Is the base of everything that is told apart by `type`."""

    @property
    def type(self) -> str:
        """Names the kind, in kebab case as in JSON."""
        return cast(str, self.__struct_config__.tag)


class _Part(_Tagged, frozen=True, kw_only=True):
    """Is the base of the parts; `provider_options` goes to the provider as it is."""

    provider_options: JsonObject | None = None


class UnknownPart:
    """Holds a part of a type that this version does not know: read from a newer row, written back verbatim.

    A `tool-result` whose output is of an unknown type is one as well. It is neither struct nor dataclass, so that the
    encoder does not write it by itself.
    """

    __slots__ = ("raw", "type")

    def __init__(self, type: str, raw: msgspec.Raw) -> None:
        self.type = type
        self.raw = raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownPart) and (self.type, self.raw) == (other.type, other.raw)

    def __hash__(self) -> int:
        return hash((self.type, bytes(self.raw)))

    def __repr__(self) -> str:
        return f"UnknownPart({self.type!r}, {bytes(self.raw)!r})"


class Text(_Part, tag="text", frozen=True, kw_only=True):
    """Holds text."""

    text: str


class Image(_Part, tag="image", frozen=True, kw_only=True):
    """Holds a picture in exactly one of `data` (base64), `url` (http, https, data) and `ref` (`{provider: id}`)."""

    data: str | None = None
    url: str | None = None
    ref: dict[str, str] | None = None
    media_type: str | None = None
    filename: str | None = None
    detail: str | None = None


class File(_Part, tag="file", frozen=True, kw_only=True):
    """Holds a file, its bytes placed as those of an `Image`; `media_type` is required."""

    media_type: str
    data: str | None = None
    url: str | None = None
    ref: dict[str, str] | None = None
    filename: str | None = None
    detail: str | None = None


class Reasoning(_Part, tag="reasoning", frozen=True, kw_only=True):
    """Holds what the model thought; `data` is its redacted or encrypted form, `provider` the only one to send it to."""

    text: str = ""
    id: str | None = None
    signature: str | None = None
    data: str | None = None
    provider: str | None = None


class ToolCall(_Part, tag="tool-call", frozen=True, kw_only=True):
    """Asks for a tool; `invalid` is the raw argument text when that was no JSON object, and `input` is then empty."""

    tool_call_id: str
    tool_name: str
    input: JsonObject
    invalid: str | None = None
    provider_executed: bool = False


class TextOutput(_Tagged, tag="text", frozen=True, kw_only=True):
    """Is the output of a tool as text."""

    value: str


class JsonOutput(_Tagged, tag="json", frozen=True, kw_only=True):
    """Is the output of a tool as JSON. `value` has no default, so null is written too."""

    value: Any


class ErrorTextOutput(_Tagged, tag="error-text", frozen=True, kw_only=True):
    """Is the failure of a tool as text."""

    value: str


class ErrorJsonOutput(_Tagged, tag="error-json", frozen=True, kw_only=True):
    """Is the failure of a tool as JSON."""

    value: Any


class ExecutionDenied(_Tagged, tag="execution-denied", frozen=True, kw_only=True):
    """Says that nobody ran the tool, because somebody did not allow it."""

    reason: str | None = None


class Custom(_Part, tag="custom", frozen=True, kw_only=True):
    """Holds what only one vendor or application knows; `kind` is `vendor.type`. No prompt contains it."""

    kind: str
    data: Any


class ContentOutput(_Tagged, tag="content", frozen=True, kw_only=True):
    """Is the output of a tool as parts."""

    value: tuple[OutputPart, ...]


class ToolResult(_Part, tag="tool-result", frozen=True, kw_only=True):
    """Answers the tool call of the same `tool_call_id`."""

    tool_call_id: str
    tool_name: str
    output: ToolOutput


class _Message(msgspec.Struct, tag_field="role", frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Is the base of the messages; `metadata` is the application's and never sent to a model."""

    id: str | None = None
    name: str | None = None
    metadata: JsonObject | None = None
    provider_options: JsonObject | None = None

    @property
    def role(self) -> Role:
        """Names who speaks."""
        return cast(Role, self.__struct_config__.tag)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Lists the tool calls in this message, in order."""
        return ()

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Lists the tool results in this message, in order."""
        return ()


class SystemMessage(_Message, tag="system", frozen=True, kw_only=True):
    """Instructs the model."""

    content: str

    @property
    def text(self) -> str:
        """Is the content."""
        return self.content


class UserMessage(_Message, tag="user", frozen=True, kw_only=True):
    """Holds what a person, or the application for one, says."""

    content: str | tuple[UserPart, ...]

    @property
    def text(self) -> str:
        """Joins the text parts."""
        return _joined(self.content)


class AssistantMessage(_Message, tag="assistant", frozen=True, kw_only=True):
    """Holds what the model says, thinks and asks tools for."""

    content: str | tuple[AssistantPart, ...]

    @property
    def text(self) -> str:
        """Joins the text parts; reasoning is none."""
        return _joined(self.content)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Lists the tool calls in this message, in order."""
        return tuple(part for part in self.content if isinstance(part, ToolCall))

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Lists the results of the tools that the provider itself ran, in order."""
        return tuple(part for part in self.content if isinstance(part, ToolResult))


class ToolMessage(_Message, tag="tool", frozen=True, kw_only=True):
    """Answers tool calls."""

    content: tuple[ToolPart, ...]

    @property
    def text(self) -> str:
        """Joins the outputs that are text; JSON is none."""
        return "".join(_output_text(result.output) for result in self.tool_results)

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Lists the tool results in this message, in order."""
        return tuple(part for part in self.content if isinstance(part, ToolResult))


ToolOutput: TypeAlias = TextOutput | JsonOutput | ErrorTextOutput | ErrorJsonOutput | ContentOutput | ExecutionDenied
Message: TypeAlias = SystemMessage | UserMessage | AssistantMessage | ToolMessage

# A union of msgspec has room for tagged structs only, so `decode_message` puts unknown parts beside the known ones
# by hand. Whoever reads content meets them, and type checkers shall say so.
if TYPE_CHECKING:
    OutputPart: TypeAlias = Text | Image | File | UnknownPart
    UserPart: TypeAlias = Text | Image | File | Custom | UnknownPart
    AssistantPart: TypeAlias = Text | Reasoning | File | ToolCall | ToolResult | Custom | UnknownPart
    ToolPart: TypeAlias = ToolResult | UnknownPart
else:
    OutputPart = Text | Image | File
    UserPart = Text | Image | File | Custom
    AssistantPart = Text | Reasoning | File | ToolCall | ToolResult | Custom
    ToolPart = ToolResult


def _joined(content: str | Iterable[object]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, Text))


def _output_text(output: ToolOutput) -> str:
    match output:
        case TextOutput(value=text) | ErrorTextOutput(value=text):
            return text
        case ContentOutput(value=parts):
            return _joined(parts)
    return ""


class MessageFields(TypedDict, total=False):
    """Names the fields that every message has, as the four functions below take them."""

    id: str | None
    name: str | None
    metadata: JsonObject | None
    provider_options: JsonObject | None


def system_message(text: str, **fields: Unpack[MessageFields]) -> SystemMessage:
    """Makes a system message."""
    return SystemMessage(content=text, **fields)


def user_message(content: str | Iterable[UserPart], **fields: Unpack[MessageFields]) -> UserMessage:
    """Makes a user message of text or parts."""
    return UserMessage(content=_content(content), **fields)


def assistant_message(content: str | Iterable[AssistantPart], **fields: Unpack[MessageFields]) -> AssistantMessage:
    """Makes an assistant message of text or parts."""
    return AssistantMessage(content=_content(content), **fields)


def tool_message(results: Iterable[ToolPart], **fields: Unpack[MessageFields]) -> ToolMessage:
    """Makes a tool message of tool results."""
    return ToolMessage(content=_content(results), **fields)


def _content(content: Any) -> Any:
    """Returns text and what is neither text nor parts as it is: the append check refuses that, and says where."""
    if isinstance(content, str | bytes | bytearray | Mapping) or not isinstance(content, Iterable):
        return content
    return tuple(content)
