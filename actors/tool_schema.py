"""Tools as a model sees them: typed functions, the JSON schema of their arguments, what they say about themselves.

    @tool(needs_approval=True)
    async def delete(self, path: str, force: bool = False) -> str:
        \"\"\"Deletes a file of the project.\"\"\"

The signature is the schema and the check. A parameter without a default is required; one without an annotation takes
anything; `Annotated[int, msgspec.Meta(ge=1)]` narrows. Pure: nothing is called here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Literal, TypeAlias, TypeVar, overload

import msgspec

__all__ = ["ArgumentsError", "Provider", "ToolOptions", "arguments_of", "convert", "options_of", "tool", "tool_schemas"]

Function = TypeVar("Function", bound=Callable[..., Any])
Provider: TypeAlias = Literal["openai", "openai-responses", "anthropic"]

OPTIONS = "__parlatory_tool__"
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what every provider takes

_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_FIELD = re.compile(r"Object (missing required|contains unknown) field `(.*?)`(?: - at `(.*)`)?", re.DOTALL)
_PLACE = re.compile(r"(.*) - at `(.*)`", re.DOTALL)
_SECTION = re.compile(r"(Args|Arguments|Parameters|Returns|Yields|Raises|Notes?|Examples?):\s*")
_ARGUMENT = re.compile(r"(\s+)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)")


class ToolOptions(msgspec.Struct, frozen=True):
    """Is what `tool()` says about a function."""

    idempotent: bool = False
    needs_approval: bool = False


class ArgumentsError(ValueError):
    """Says that a model's arguments do not fit a signature; `str()` names the path."""


@overload
def tool(function: Function, /, *, idempotent: bool = ..., needs_approval: bool = ...) -> Function: ...
@overload
def tool(*, idempotent: bool = ..., needs_approval: bool = ...) -> Callable[[Function], Function]: ...
def tool(
    function: Function | None = None, /, *, idempotent: bool = False, needs_approval: bool = False
) -> Function | Callable[[Function], Function]:
    """Marks a function for `Agent.run_tools`; only one that is to be treated specially needs it.

    Args:
        function: the function or method; without it, `tool(...)` is a decorator.
        idempotent: a second run does no harm. After a crash in mid-tool it runs again, and no mark is written before.
        needs_approval: somebody must approve each call before it runs; the turn ends in state `waiting` meanwhile.
    """

    def marked(function: Function) -> Function:
        if not isinstance(function, FunctionType):
            raise TypeError(f"tool() marks functions, and {function!r} is none: write one that calls it")
        setattr(function, OPTIONS, ToolOptions(idempotent, needs_approval))
        return function

    return marked if function is None else marked(function)


def options_of(function: Callable[..., Any]) -> ToolOptions:
    """Returns what `tool()` said about a function or method."""
    options = getattr(function, OPTIONS, None)
    return options if isinstance(options, ToolOptions) else ToolOptions()


# -- arguments


def arguments_of(name: str, function: Callable[..., Any]) -> type[msgspec.Struct]:
    """Returns the type of a tool's arguments.

    Raises:
        TypeError: the function has parameters that cannot be given by name, or annotations that mean nothing.
    """
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except (NameError, ValueError) as error:
        raise TypeError(f"tool {name!r}: its signature cannot be read: {error}") from error
    fields: list[Any] = []
    for parameter in parameters:
        if parameter.kind not in _KINDS:
            raise TypeError(f"tool {name!r}: {parameter} cannot be given by name")
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        # The default is what the schema needs to know of; what is not given is left to the function itself.
        default = () if parameter.default is parameter.empty else (_default(parameter.default),)
        fields.append((parameter.name, kind, *default))
    return msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)


def _default(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return msgspec.field(default_factory=lambda: value)


def convert(arguments: type[msgspec.Struct], input: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call, converted; what the model did not give is not in it.

    Raises:
        ArgumentsError: an argument is missing, unknown or of a wrong type.
    """
    try:
        value = msgspec.convert(dict(input), arguments)
    except msgspec.ValidationError as error:
        raise ArgumentsError(_located(str(error))) from None
    return {name: getattr(value, name) for name in arguments.__struct_fields__ if name in input}


def _located(reason: str) -> str:
    """Returns msgspec's sentence with its path in front."""
    if match := _FIELD.fullmatch(reason):
        what = "is required" if match[1] == "missing required" else "is unknown"
        return f"{match[3] or '$'}.{match[2]}: {what}"
    if match := _PLACE.fullmatch(reason):
        return f"{match[2]}: {match[1]}"
    return f"$: {reason}"


# -- schemas


def tool_schemas(tools: Mapping[str, Callable[..., Any]], provider: Provider = "openai") -> list[dict[str, Any]]:
    """Returns the tools as a provider's SDK takes them, in `tools=`.

    Args:
        tools: functions by the name that the model uses, as `Agent.run_tools` takes them. Their docstrings say what
            they do; those of the arguments are read from a Google-style `Args:` section.
        provider: `openai` (chat completions), `openai-responses` or `anthropic`.

    Raises:
        ValueError: a name that providers refuse, or an unknown provider.
        TypeError: a signature that has no JSON schema.
    """
    if provider not in ("openai", "openai-responses", "anthropic"):
        raise ValueError(f"no provider {provider!r}: openai, openai-responses or anthropic")
    return [_schema(name, function, provider) for name, function in tools.items()]


def _schema(name: str, function: Callable[..., Any], provider: Provider) -> dict[str, Any]:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a tool: 1 to 64 of a-z, A-Z, 0-9, _ and -")
    says, about = described(inspect.getdoc(function) or "")
    parameters = _parameters(name, function, about)
    labels = {"name": name, "description": says} if says else {"name": name}
    if provider == "anthropic":
        return {**labels, "input_schema": parameters}
    if provider == "openai":
        return {"type": "function", "function": {**labels, "parameters": parameters}}
    # Strict is the default there, and asks for schemas in which nothing is optional.
    return {"type": "function", **labels, "parameters": parameters, "strict": False}


def _parameters(name: str, function: Callable[..., Any], about: Mapping[str, str]) -> dict[str, Any]:
    try:
        schema = msgspec.json.schema(arguments_of(name, function))
    except TypeError as error:
        if str(error).startswith("tool "):
            raise
        raise TypeError(f"tool {name!r}: {error}") from error
    others = dict(schema["$defs"])
    # Providers want an object at the root, not a reference to one.
    root: dict[str, Any] = others.pop(schema["$ref"].rpartition("/")[2])
    del root["title"]
    properties = root["properties"]
    for argument in properties.keys() & about.keys():
        if "$ref" not in properties[argument]:
            properties[argument].setdefault("description", about[argument])
    return {**root, "$defs": others} if others else root


def described(doc: str) -> tuple[str, dict[str, str]]:
    """Returns what a docstring says before its first section, and what it says of each argument."""
    said: list[str] = []
    about: dict[str, str] = {}
    section = argument = ""
    depth = 0
    for line in doc.splitlines():
        if match := _SECTION.fullmatch(line):
            section = match[1]
        elif not section:
            said.append(line)
        elif section in ("Args", "Arguments", "Parameters") and line.strip():
            match = _ARGUMENT.fullmatch(line)
            if match and (not about or len(match[1]) <= depth):
                depth, argument = len(match[1]), match[2]
                about[argument] = match[3]
            elif argument:
                about[argument] = f"{about[argument]} {line.strip()}".strip()
    return "\n".join(said).strip(), about
