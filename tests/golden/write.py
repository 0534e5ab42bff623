"""Writes the golden files: `python -m tests.golden.write rows` for a new format version, `prompts` after a new rule.

Rows of a version that was released are never written again: they are what its files hold.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from parlatory.storage import (
    Batch,
    Message,
    NewRow,
    Row,
    StoredMessage,
    assistant_message,
    encode_message,
    message_digest,
    open_engine,
    system_message,
    tool_message,
    user_message,
)
from parlatory.storage.convert.prompt import PROVIDERS, Prompt, render
from parlatory.storage.messages import (
    ContentOutput,
    Custom,
    ErrorJsonOutput,
    ErrorTextOutput,
    ExecutionDenied,
    File,
    Image,
    JsonOutput,
    Reasoning,
    Text,
    TextOutput,
    ToolCall,
    ToolOutput,
    ToolResult,
    UserPart,
)
from parlatory.storage.schema import VERSION
from parlatory.storage.sqlite import FILE

HERE = Path(__file__).parent
NAME = "bot/ann"
PNG, PDF, TIFF, WAV = "iVBORw0KGgo=", "JVBERi0xLjQ=", "SUkqAAgAAAA=", "UklGRgAAAABXQVZF"
OUTPUTS: list[ToolOutput] = [
    TextOutput(value="sent"),
    TextOutput(value=""),
    JsonOutput(value={"eta": [1, 2.5, None, True]}),
    JsonOutput(value=None),
    ErrorTextOutput(value="no such order"),
    ErrorJsonOutput(value={"code": 7}),
    ExecutionDenied(reason="over budget"),
    ContentOutput(value=(Text(text="see"), Image(data=PNG), File(data=PDF, media_type="application/pdf"))),
]


def rows() -> list[NewRow]:
    """Everything that a row can hold in this version, and what a newer one may have written."""
    calls = [
        ToolCall(tool_call_id=f"call_{n}", tool_name="find order" if n else "2fa.check", input={"order": n, "é": "日"})
        for n in range(len(OUTPUTS))
    ]
    results = [
        ToolResult(tool_call_id=call.tool_call_id, tool_name=call.tool_name, output=output)
        for call, output in zip(calls, OUTPUTS, strict=True)
    ]
    shown: list[UserPart] = [
        Text(text="look: naïve 😀 שלום a\0b", provider_options={"anthropic": {"cacheControl": {"type": "ephemeral"}}}),
        Image(data=PNG, media_type="image/png", detail="low"),
        Image(url="https://x.test/a.jpg", filename="a.jpg"),
        Image(data=TIFF, media_type="image/tiff"),
        Image(ref={"parlatory": "sha256:0f"}, media_type="image/png"),
        File(data=PDF, media_type="application/pdf", filename="bill.pdf"),
        File(data=WAV, media_type="audio/wav"),
        File(data="aGVsbG8=", media_type="text/plain; charset=utf-8"),
        File(ref={"openai": "file-1"}, media_type="application/pdf"),
        File(url="https://x.test/b.pdf", media_type="application/pdf"),
        Custom(kind="acme.card", data={"a": [1]}),
    ]
    thoughts = [
        Reasoning(text="plan ", signature="sig", provider="anthropic"),
        Reasoning(data="redacted", provider="anthropic"),
        Reasoning(text="plan", id="rs_1", data="enc", provider="openai"),
        Reasoning(text="plan", signature="AAEC", provider="google"),
    ]
    newer = (
        b'{"role":"assistant","content":[{"type":"x-new","a":1.50},{"type":"text","text":"newer","x":1}],'
        b'"xField":{"kept":"\\u00e9"}}'
    )
    ran = ToolCall(tool_call_id="srv_1", tool_name="web_search", input={"q": "x"}, provider_executed=True)
    found = ToolResult(tool_call_id="srv_1", tool_name="web_search", output=TextOutput(value="a page"))
    asked = user_message("hello", name="Ann <Lee>", id="m1", metadata={"tab": 3})
    broken = ToolCall(tool_call_id="call_0", tool_name="lookup", input={}, invalid='{"a":')
    messages: list[tuple[Message, dict[str, Any]]] = [
        (system_message("Be kind."), {}),
        (system_message(""), {}),
        (asked, {"client_id": "c1", "digest": message_digest(asked)}),
        (assistant_message([*thoughts, Text(text="Let me look."), *calls]), {"turn": 3}),
        (tool_message(results[::-1]), {"turn": 3}),
        (assistant_message("half an ans "), {"turn": 3, "finish": "stopped"}),
        (user_message(shown), {}),
        (assistant_message([ran, found, Text(text="Found.")]), {"turn": 7}),
        (system_message("Be brief."), {}),
        (user_message([Text(text=" "), Text(text="again")]), {}),
        (assistant_message([broken]), {"turn": 10}),
        (user_message("are you there?"), {}),
        (assistant_message([Text(text="Yes. "), File(data=PNG, media_type="image/png", filename="chart.png")]), {}),
    ]
    made = [NewRow(body=encode_message(message), by=f"{message.role}-1", **fields) for message, fields in messages]
    return [*made, NewRow(body=newer, by="agent", turn="call:9")]


async def write_rows() -> None:
    """Writes the file of the current version as SQL, and its rows as the protocol writes them."""
    with tempfile.TemporaryDirectory() as folder:
        engine = await open_engine(f"sqlite:///{folder}")
        partition = await engine.partition(NAME)
        for row in rows():
            await partition.commit(Batch(rows=(row,)))
        await partition.commit(Batch(puts={"state.a": b'{"b":1}'}, work=True))
        lines = [row.json() for row in await partition.read()]
        await engine.close()
        with closing(sqlite3.connect(Path(folder) / FILE)) as database:
            script = list(database.iterdump())
            for pragma in ("application_id", "user_version"):
                script.insert(0, f"PRAGMA {pragma}={database.execute(f'PRAGMA {pragma}').fetchone()[0]};")
    (HERE / "rows" / f"{VERSION}.sql").write_text("\n".join(script) + "\n")
    (HERE / "rows" / f"{VERSION}.jsonl").write_bytes(b"\n".join(lines) + b"\n")


def history() -> list[StoredMessage]:
    """The golden rows of the first version."""
    return [stored(line) for line in (HERE / "rows" / "1.jsonl").read_bytes().splitlines()]


def stored(line: bytes) -> StoredMessage:
    fields = msgspec.json.decode(line)
    seq, by, body = fields["seq"], fields["by"], msgspec.json.decode(line, type=dict[str, msgspec.Raw])["message"]
    return Row(seq, 0, by, None, fields.get("turn"), fields.get("finish"), bytes(body)).stored(NAME)


def golden(prompt: Prompt) -> bytes:
    """A prompt and its notes as a golden file holds them."""
    notes = [{"code": note.code, "seq": note.seq, "index": note.index, "text": note.text} for note in prompt.notes]
    return msgspec.json.format(msgspec.json.encode({"prompt": prompt, "notes": notes}), indent=1) + b"\n"


def write_prompts() -> None:
    for provider in PROVIDERS:
        prompt = render(provider, history(), conversation=NAME)
        (HERE / "prompts" / f"{provider}.json").write_bytes(golden(prompt))


if __name__ == "__main__":
    if sys.argv[1] == "rows":
        asyncio.run(write_rows())
    else:
        write_prompts()
