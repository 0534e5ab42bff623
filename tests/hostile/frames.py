"""What a hostile client may send: frames of the wire with right and wrong fields, and texts that are no frames."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

__all__ = ["payloads"]

CONVERSATIONS = ["relay/a", "relay/b", "echo/a", "vault/a", "nosuch/a", "relay/" + "é" * 256]
surrogates = st.sampled_from(["\ud800", "x\udfff", "\ud83d"])
junk: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | surrogates,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
conversations = st.sampled_from(CONVERSATIONS) | st.text(max_size=12) | junk
integers = st.integers(0, 300) | st.sampled_from([-1, 2**53 - 1, 2**53, 1.5, True]) | junk
ids = st.sampled_from(["a", "b", "c-1", "d_2"]) | st.text(max_size=70) | junk
texts = st.text(max_size=20) | st.sampled_from(["/quiet", "/fail", "/stream 2 0", "/sleep 0", "x" * 5000]) | surrogates
parts = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image", "file", "tool-call", "nope"])}, optional={
        "text": texts, "url": st.sampled_from(["https://example.org/a.png", "file:///x", "x"]), "toolCallId": ids,
        "data": st.sampled_from(["AAAA", "!"]), "mediaType": st.sampled_from(["image/png", ""]), "input": junk,
    }), max_size=3,
)  # fmt: skip
messages = (
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user"] * 4 + ["system", "assistant", "tool", "x"]), "content": texts | parts | junk},
        optional={"name": texts, "metadata": junk, "seq": integers, "id": ids, "providerOptions": junk},
    )
    | junk
)
instants = st.sampled_from(["2026-11-30T08:00:00.123456Z", "2026-11-30", ""]) | junk
epochs = st.sampled_from(["e", "", "x" * 65]) | junk

FRAMES = {
    "hello": {"token": ids, "client": ids},
    "auth": {"token": st.sampled_from(["user:ann", "nobody"]) | junk},
    "open": {"conversation": conversations, "epoch": epochs, "after": integers, "at": instants, "tail": integers},
    "page": {"id": ids, "conversation": conversations, "before": integers, "limit": integers},
    "close": {"conversation": conversations},
    "send": {"conversation": conversations, "clientId": ids, "message": messages},
    "cancel": {"conversation": conversations, "turn": integers, "id": ids},
    "call": {"id": ids, "conversation": conversations, "method": texts, "args": junk, "key": ids},
    "signal": {"conversation": conversations, "name": texts, "data": junk},
    "ping": {"n": integers},
    "nope": {"conversation": conversations},
}


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """Draws a frame as JSON text: some fields right, some wrong, some missing, some too many."""
    kind = draw(st.sampled_from([*FRAMES, "send", "open", "page"]))
    frame: dict[str, Any] = {"type": kind}
    for name, values in FRAMES[kind].items():
        if draw(st.integers(0, 9)):
            frame[name] = draw(values)
    if not draw(st.integers(0, 9)):
        frame[draw(st.text(max_size=5))] = draw(junk)
    return json.dumps(frame, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """Draws a frame with some bytes changed, cut out or put in."""
    data = bytearray(draw(frames()))
    for _ in range(draw(st.integers(1, 4))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 3)):
            case 0:
                data[at] = draw(st.integers(0, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 8))]
            case 2:
                data[at:at] = draw(st.binary(max_size=4))
            case _:
                del data[at:]
    return bytes(data)


def nested(depth: int) -> bytes:
    """Returns a text that is nested so deep."""
    send = b'{"type":"send","conversation":"relay/a","clientId":"a","message":{"role":"user","content":"x",'
    head = send + b'"metadata":{"v":'
    return head + b"[" * depth + b"]" * depth + b"}}}"


payloads = st.one_of(
    frames(), frames(), frames(), mutations(), st.binary(max_size=30), st.sampled_from([150, 250, 60_000]).map(nested)
)
"""One frame's worth of bytes; most are texts of the protocol."""
