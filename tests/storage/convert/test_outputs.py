from __future__ import annotations

import msgspec
import pytest

from parlatory.storage.convert.outputs import failed, media_in, output_text
from parlatory.storage.messages import (
    ContentOutput,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Text,
    TextOutput,
    ToolOutput,
    UnknownPart,
)

PICTURE = Image(url="https://x.test/a.png")
PDF = File(data="QQ==", media_type="application/pdf", filename="a.pdf")
SHOWN = (Text(text="a"), PICTURE, UnknownPart("x", msgspec.Raw(b"{}")), PDF, Text(text=""), Text(text="b"))


@pytest.mark.parametrize(
    ("output", "text", "bad"),
    [
        (TextOutput(value=""), "", False),
        (JsonOutput(value=None), "null", False),
        (JsonOutput(value={"a": "é"}), '{"a":"é"}', False),
        (ErrorJsonOutput(value=[1]), "[1]", True),
        (ErrorTextOutput(value=""), "", True),
        (ExecutionDenied(), "Tool execution was denied.", True),
        (ExecutionDenied(reason="No."), "Tool execution was denied. No.", True),
        (ContentOutput(value=SHOWN), "a\nhttps://x.test/a.png\n[a.pdf]\nb", False),
        (ContentOutput(value=()), "", False),
    ],
    ids=str,
)
def test_texts(output: ToolOutput, text: str, bad: bool) -> None:
    assert (output_text(output), failed(output)) == (text, bad)


def test_media() -> None:
    assert media_in(ContentOutput(value=SHOWN)) == [PICTURE, PDF]
    assert media_in(TextOutput(value="a")) == []
