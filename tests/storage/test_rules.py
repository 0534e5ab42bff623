"""Rules at append: what is refused and at which path, and what is only irregular."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from parlatory.storage.errors import CodecError
from parlatory.storage.messages import (
    AssistantMessage,
    ContentOutput,
    Custom,
    File,
    Image,
    JsonOutput,
    Message,
    Reasoning,
    SystemMessage,
    Text,
    TextOutput,
    ToolCall,
    ToolMessage,
    ToolOutput,
    ToolResult,
    UnknownPart,
    UserMessage,
    assistant_message,
    system_message,
    tool_message,
    user_message,
)
from parlatory.storage.rules import check_rules, irregularities

TEXT = Text(text="a")
IMAGE = Image(url="https://x.test/a.png")
UNKNOWN = UnknownPart("x-new", msgspec.Raw(b'{"type":"x-new"}'))


def call(id: str = "c1", **fields: Any) -> ToolCall:
    return ToolCall(**{"tool_call_id": id, "tool_name": "find", "input": {}, **fields})


def result(id: str = "c1", output: ToolOutput | None = None, **fields: Any) -> ToolResult:
    return ToolResult(**{"tool_call_id": id, "tool_name": "find", "output": output or TextOutput(value="x"), **fields})


def content(*parts: Any) -> ToolMessage:
    return tool_message([result(output=ContentOutput(value=parts))])


GOOD: list[Message] = [
    system_message(""),
    user_message("a", name="ann", id="i" * 128),
    user_message([TEXT, IMAGE, File(data="QUJD", media_type="a/b"), Custom(kind="a.b", data=1), UNKNOWN]),
    user_message([Image(data=""), Image(url="DATA:text/plain,x"), Image(url="HTTP://x"), Image(ref={"openai": "f"})]),
    user_message([]),
    assistant_message([Reasoning(), TEXT, File(url="http://x", media_type="a/b"), call(), call("c2"), UNKNOWN]),
    assistant_message([call(provider_executed=True), result()]),
    tool_message([result(), result("c2", JsonOutput(value=None)), UNKNOWN]),
    content(TEXT, IMAGE, File(data="QQ==", media_type="a/b"), UNKNOWN),
    content(),
]


@pytest.mark.parametrize("message", GOOD)
def test_good_messages_pass(message: Message) -> None:
    check_rules(message)


BAD: list[tuple[Any, str, str]] = [
    ({"role": "user"}, "$", "is a dict, not a message"),
    (user_message("a", name="n" * 65), "$.name", "at most 64"),
    (user_message("a", name="a\x00"), "$.name", "control"),
    (user_message("a", name="a\x85"), "$.name", "control"),
    (user_message("a", id="i" * 129), "$.id", "at most 128"),
    (SystemMessage(content=(TEXT,)), "$.content", "must be text"),  # type: ignore[arg-type]
    (ToolMessage(content="a"), "$.content", "not text"),  # type: ignore[arg-type]
    (UserMessage(content=[TEXT]), "$.content", "not a list"),  # type: ignore[arg-type]
    (UserMessage(content=5), "$.content", "not an int"),  # type: ignore[arg-type]
    (tool_message([]), "$.content", "at least one"),
    (UserMessage(content=(TEXT, call())), "$.content[1]", "a tool-call part has no place in a user message"),  # type: ignore[arg-type]
    (UserMessage(content=(Reasoning(),)), "$.content[0]", "reasoning"),  # type: ignore[arg-type]
    (UserMessage(content=(result(),)), "$.content[0]", "tool-result"),  # type: ignore[arg-type]
    (UserMessage(content=({"type": "text"},)), "$.content[0]", "a dict has no place"),  # type: ignore[arg-type]
    (AssistantMessage(content=(IMAGE,)), "$.content[0]", "image"),  # type: ignore[arg-type]
    (ToolMessage(content=(TEXT,)), "$.content[0]", "text"),  # type: ignore[arg-type]
    (assistant_message([call("")]), "$.content[0].toolCallId", "empty"),
    (assistant_message([call(tool_name="")]), "$.content[0].toolName", "empty"),
    (assistant_message([call(), TEXT, call()]), "$.content[2].toolCallId", "twice"),
    (assistant_message([call(), result()]), "$.content[1]", "provider executed"),
    (assistant_message([result(), call(provider_executed=True)]), "$.content[0]", "must follow"),
    (tool_message([result("")]), "$.content[0].toolCallId", "empty"),
    (tool_message([result(), result("c2", tool_name="")]), "$.content[1].toolName", "empty"),
    (user_message([Image()]), "$.content[0]", "exactly one"),
    (user_message([Image(url="http://x", data="QQ==")]), "$.content[0]", "exactly one"),
    (user_message([Image(data="Q")]), "$.content[0].data", "not base64"),
    (user_message([Image(data="QQ==\n")]), "$.content[0].data", "not base64"),
    (user_message([Image(data="ä")]), "$.content[0].data", "not base64"),
    (user_message([Image(url="ftp://x")]), "$.content[0].url", "http, https or data"),
    (user_message([Image(url="https://")]), "$.content[0].url", "http, https or data"),
    (user_message([Image(ref={})]), "$.content[0].ref", "provider"),
    (user_message([Image(ref={"parlatory": "x"}, media_type="a/b")]), "$.content[0].ref.parlatory", "hex"),
    (user_message([Image(ref={"parlatory": "sha256:" + "a" * 64})]), "$.content[0].mediaType", "beside a ref"),
    (user_message([File(data="", media_type="")]), "$.content[0].mediaType", "empty"),
    (content(TEXT, call()), "$.content[0].output.value[1]", "a tool-call part has no place in a tool result"),
    (content(Image()), "$.content[0].output.value[0]", "exactly one"),
    (content(Image(url="x")), "$.content[0].output.value[0].url", "http"),
    (tool_message([result(output=ContentOutput(value=[]))]), "$.content[0].output.value", "not a list"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("message", "path", "reason"), BAD)
def test_bad_messages_are_refused_with_their_path(message: Any, path: str, reason: str) -> None:
    with pytest.raises(CodecError) as caught:
        check_rules(message)
    assert caught.value.path == path
    assert reason in caught.value.reason


ASKED = assistant_message([call("c1"), call("c2")])

IRREGULAR: list[tuple[list[Message], Message, list[str]]] = [
    ([], user_message("a"), []),
    ([ASKED], tool_message([result("c1"), UNKNOWN, result("c2")]), []),
    ([ASKED, tool_message([result("c1")]), user_message("wait")], tool_message([result("c2")]), []),
    ([], tool_message([result("c1")]), ["$.content[0]: call 'c1' is not open"]),
    ([ASKED], tool_message([result("c1"), result("c1")]), ["$.content[1]: call 'c1' has a result already"]),
    (
        [ASKED, tool_message([result("c1")])],
        tool_message([result("c1")]),
        ["$.content[0]: call 'c1' has a result already"],
    ),
    ([ASKED, tool_message([result("c1"), result("c2")]), ASKED], tool_message([result("c1")]), []),
    ([ASKED], assistant_message([call("c3")]), ["$.content: new calls while 'c1', 'c2' wait for results"]),
    ([ASKED], assistant_message([call("c3", provider_executed=True)]), []),
    ([assistant_message([call("c1", provider_executed=True)])], ASKED, []),
    ([ASKED], assistant_message("one moment"), []),
    ([], user_message(""), ["$.content: is empty"]),
    ([], assistant_message([]), ["$.content: is empty"]),
    ([], user_message([Text(text=""), Text(text="")]), ["$.content: is empty"]),
    ([], user_message([Text(text=""), IMAGE]), []),
]


@pytest.mark.parametrize(("before", "message", "found"), IRREGULAR)
def test_irregularities_are_named(before: list[Message], message: Message, found: list[str]) -> None:
    assert irregularities(message, before) == found
