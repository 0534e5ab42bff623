from __future__ import annotations

import functools
import threading
from typing import Annotated, Any

import msgspec
import pytest

from parlatory.actors.tool_schema import ArgumentsError, arguments_of, convert, options_of, tool, tool_schemas

# -- what tools are given


class Place(msgspec.Struct):
    city: str
    tags: list[str] = []


def weather(city: str, days: Annotated[int, msgspec.Meta(ge=1)] = 3, *, place: Place | None = None) -> str:
    """Says how the weather will be.

    It may be wrong.

    Args:
        city: where,
            in words
        days (int): for how long
        other: is no argument

    Returns:
        A sentence.
    """
    return f"{city} {days} {place}"


@pytest.mark.parametrize(
    ("input", "says"),
    [
        ({}, "$.city: is required"),
        ({"city": "Rome", "town": 1}, "$.town: is unknown"),
        ({"city": 1}, "$.city: Expected `str`, got `int`"),
        ({"city": "Rome", "days": 0}, "$.days: Expected `int` >= 1"),
        ({"city": "Rome", "place": {}}, "$.place.city: is required"),
        ({"city": "Rome", "place": {"city": "x", "tags": ["a", 2]}}, "$.place.tags[1]: Expected `str`, got `int`"),
    ],
)
def test_arguments_that_do_not_fit_are_named_by_their_path(input: dict[str, Any], says: str) -> None:
    with pytest.raises(ArgumentsError) as caught:
        convert(arguments_of("weather", weather), input)
    assert str(caught.value) == says


def test_a_reason_without_a_path_stands_at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(msgspec.Struct):
        a: int

        def __post_init__(self) -> None:
            raise ValueError("odd")

    with pytest.raises(ArgumentsError, match=r"\$: odd"):
        convert(Odd, {"a": 1})


def test_arguments_are_converted_and_defaults_left_to_the_function() -> None:
    def odd(a, b: list[int] = [1], c: Place = Place("x")) -> None:  # type: ignore[no-untyped-def]  # noqa: B006, B008
        """Takes anything as a."""

    arguments = arguments_of("odd", odd)
    assert convert(arguments, {"a": [1, "x"]}) == {"a": [1, "x"]}
    assert convert(arguments, {"a": None, "c": {"city": "y"}}) == {"a": None, "c": Place("y")}


@pytest.mark.parametrize("function", [lambda *rest: 0, lambda **rest: 0, lambda a, /: 0])
def test_a_tool_takes_its_arguments_by_name(function: Any) -> None:
    with pytest.raises(TypeError, match="cannot be given by name"):
        arguments_of("odd", function)


def test_annotations_must_mean_something() -> None:
    def odd(a: Unheard) -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(TypeError, match="its signature cannot be read"):
        arguments_of("odd", odd)


# -- what models are told


def test_schemas_of_each_provider() -> None:
    (openai,) = tool_schemas({"weather": weather})
    assert openai["type"] == "function"
    function = openai["function"]
    assert (function["name"], function["description"]) == (
        "weather",
        "Says how the weather will be.\n\nIt may be wrong.",
    )
    parameters = function["parameters"]
    assert parameters["type"] == "object"
    assert parameters["required"] == ["city"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["city"] == {"type": "string", "description": "where, in words"}
    assert parameters["properties"]["days"] == {
        "type": "integer",
        "minimum": 1,
        "default": 3,
        "description": "for how long",
    }
    assert "description" not in parameters["properties"]["place"]
    assert list(parameters["$defs"]) == ["Place"]
    assert tool_schemas({"weather": weather}, "anthropic") == [
        {"name": "weather", "description": function["description"], "input_schema": parameters}
    ]
    assert tool_schemas({"weather": weather}, "openai-responses") == [{"type": "function", **function, "strict": False}]


def test_a_bare_function_has_a_schema_too() -> None:
    def bare(a: int) -> None:
        pass

    def said(a: Annotated[int, msgspec.Meta(description="mine")], place: Place) -> None:
        """Says.

        Args:
            a: theirs
            place: a reference has no room for it
        """

    assert tool_schemas({"bare": bare}, "anthropic") == [
        {
            "name": "bare",
            "input_schema": {
                "type": "object",
                "properties": {"a": {"type": "integer"}},
                "required": ["a"],
                "additionalProperties": False,
            },
        }
    ]
    properties = tool_schemas({"said": said}, "anthropic")[0]["input_schema"]["properties"]
    assert properties == {"a": {"type": "integer", "description": "mine"}, "place": {"$ref": "#/$defs/Place"}}


def test_what_has_no_schema_is_refused() -> None:
    def odd(a: threading.Lock) -> None:
        pass

    with pytest.raises(TypeError, match="tool 'odd': "):
        tool_schemas({"odd": odd})
    with pytest.raises(TypeError, match="cannot be given by name"):
        tool_schemas({"odd": lambda *rest: 0})
    with pytest.raises(ValueError, match="is no name of a tool"):
        tool_schemas({"my tool": weather})
    with pytest.raises(ValueError, match="no provider"):
        tool_schemas({}, "acme")  # type: ignore[arg-type]


def test_a_docstring_without_arguments_first() -> None:
    def odd(a: int) -> None:
        """Says.

        Args:
          not an argument at all

        Raises:
            ValueError: never.
        """

    assert "description" not in tool_schemas({"odd": odd})[0]["function"]["parameters"]["properties"]["a"]


def test_marks_of_a_function() -> None:
    @tool(idempotent=True)
    def one() -> None:
        pass

    class Bot:
        @tool(needs_approval=True)
        def two(self) -> None:
            pass

    assert options_of(one).idempotent
    assert options_of(Bot().two).needs_approval
    assert not options_of(weather).needs_approval
    assert options_of(tool(lambda: 0, idempotent=True)).idempotent
    with pytest.raises(TypeError, match="marks functions"):
        tool(functools.partial(weather, "x"))
