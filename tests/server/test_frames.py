from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlatory.server.frames import (
    RETRYABLE,
    Ack,
    Auth,
    Bye,
    Call,
    Cancel,
    ClientFrame,
    Close,
    Hello,
    Open,
    Page,
    Ping,
    Send,
    SignalSent,
    decode_client_frame,
    echo_of,
    encode,
    encode_error,
)
from parlatory.storage import CodecError, parse_message

C = "relay/x"
AT = "2026-11-30T08:00:00.123456Z"
DEEP = "[" * 5_000 + "]" * 5_000
SEND = '{"type":"send","conversation":"relay/x","clientId":"c1","message":%s}'
CALL = '{"type":"call","conversation":"relay/x","id":"i1","method":"m","args":{"a":%s}}'
SIGNAL = '{"type":"signal","conversation":"relay/x","name":"n","data":%s}'

GOOD: list[tuple[dict[str, Any], type]] = [
    ({"type": "hello"}, Hello),
    ({"type": "hello", "token": "", "client": "c" * 22}, Hello),
    ({"type": "auth", "token": "t"}, Auth),
    ({"type": "open", "conversation": C}, Open),
    ({"type": "open", "conversation": C, "epoch": "e", "after": 1, "at": AT, "tail": 0}, Open),
    ({"type": "page", "conversation": C, "id": "i" * 64, "before": 2**53 - 1, "limit": 0}, Page),
    ({"type": "close", "conversation": C}, Close),
    ({"type": "send", "conversation": C, "clientId": "aZ_-9", "message": 7}, Send),
    ({"type": "cancel", "conversation": C, "turn": "task:1"}, Cancel),
    ({"type": "cancel", "conversation": C, "id": "i"}, Cancel),
    ({"type": "call", "conversation": C, "id": "i", "method": "m", "args": {"a": [1]}, "key": "k"}, Call),
    ({"type": "signal", "conversation": C, "name": "", "data": None}, SignalSent),
    ({"type": "ping", "n": 0, "unknown": {"deep": [1]}}, Ping),
]


@pytest.mark.parametrize(("frame", "kind"), GOOD, ids=lambda value: getattr(value, "__name__", ""))
def test_good_frames(frame: dict[str, Any], kind: type) -> None:
    assert type(decode_client_frame(json.dumps(frame))) is kind


BAD = [
    "",
    "{",
    "[]",
    "{}",
    '{"type":"nope"}',
    '{"type":"ping","n":1} {}',
    '{"type":"ping","n":1.0}',
    '{"type":"ping","n":true}',
    '{"type":"ping","n":9007199254740992}',
    '{"type":"ping","n":1' + "0" * 5_000 + "}",
    '{"type":"ping","n":' + DEEP + "}",
    '{"type":"hello","client":"short"}',
    '{"type":"hello","token":null}',
    '{"type":"open","conversation":"relay/x","after":1}',
    '{"type":"open","conversation":"relay/x","epoch":"e"}',
    '{"type":"open","conversation":"relay/x","at":"2026-11-30T08:00:00.123456Z"}',
    '{"type":"open","conversation":"relay/x","epoch":"","after":1}',
    '{"type":"open","conversation":"relay/x","epoch":"e","after":1,"at":"2026-11-30T08:00:00Z"}',
    '{"type":"cancel","conversation":"relay/x","turn":1,"id":"i"}',
    '{"type":"send","conversation":"relay/x","clientId":"c"}',
    '{"type":"send","conversation":"relay/x","clientId":"a b","message":"\\ud800"}',
    SEND % '{"role":"user"} garbage',
    SEND % "tru",
    SEND % '"open',
    CALL % DEEP,
    CALL % '"\\ud800"',
    SIGNAL % '"\\ud800"',
    '{"type":"ping","n":1,"message":"\\ud800"}',
    SIGNAL % '{"a":"\\udfff"}',
    SIGNAL % "1e999",
    SIGNAL % DEEP,
]


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:60])
def test_bad_frames(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        decode_client_frame(text)


@pytest.mark.parametrize(
    "message",
    ['"\\ud800"', '{"role":"user","content":"x\\ud83d"}', DEEP, '{"a":' + DEEP + "}", '["\\ud800"]', "1" * 5_000],
)
def test_a_message_that_alone_is_wrong_is_a_bad_message(message: str) -> None:
    """The frame is good, whatever its message is: the refusal names the client id."""
    frame = decode_client_frame(SEND % message)
    assert isinstance(frame, Send) and frame.client_id == "c1"
    with pytest.raises(CodecError):
        parse_message(frame.message)


@pytest.mark.parametrize(
    ("text", "echo"),
    [
        ('{"clientId":"c","id":"i","conversation":"x","type":7}', {"clientId": "c", "id": "i", "conversation": "x"}),
        ('{"clientId":7,"id":null,"conversation":{"id":"i"}}', {}),
        ('{"clientId":"a","clientId":"b"}', {"clientId": "b"}),
        ('{"clientId":"a","clientId":5}', {}),
        ('{"\\u0063lientId" : "c\\u0041" }', {"clientId": "cA"}),
        ('{"clientId":"\\ud800"}', {"clientId": "\ud800"}),
        ('{"message":' + DEEP + ',"clientId":"c"}', {"clientId": "c"}),
        ('{"n":' + "1" * 5_000 + ',"id":"i"}', {"id": "i"}),
        ('{"a":"\\"}{,:","id":"i"}', {"id": "i"}),
        ('{"a":{"id":"inner"},"b":[{"id":"inner"}]}', {}),
        ('["id","i"]', {}),
        ('"id"', {}),
        ("", {}),
        ("}{", {}),
        ('{"id":"i', {}),
        ('{"id":"\\x"}', {}),
        ('{"\\x":"i"}', {}),
        ('{:"i"}', {}),
    ],
)
def test_echo(text: str, echo: dict[str, str]) -> None:
    assert echo_of(text) == echo


@pytest.mark.parametrize("piece", ['"', '\\"', '"\\"', "[", "{", "{:", '{"a":', "\\"])
def test_the_echo_of_much_nonsense_costs_little(piece: str) -> None:
    """A quadratic search would take hours for these."""
    text = "{" + piece * ((1 << 20) // len(piece))
    assert echo_of(text) == {}
    with pytest.raises(ValueError, match="."):
        decode_client_frame(text)


def test_an_echo_gives_up_after_many_tokens() -> None:
    assert echo_of('{"id":"i","a":[' + "[]," * 200_000 + '0],"clientId":"c"}') == {"id": "i"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    "conversation clientId id message n before limit after epoch at tail turn method args key name data token".split()
)
TYPES = st.sampled_from([frame["type"] for frame, _ in GOOD])
OBJECTS = st.builds(lambda kind, rest: rest | {"type": kind}, TYPES, st.dictionaries(KEYS, JSON_VALUES, max_size=5))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Good frames with wrong values, bytes changed in them, and anything else that is UTF-8."""
    frame = draw(OBJECTS | st.sampled_from([frame for frame, _ in GOOD]))
    data = bytearray(json.dumps(frame, ensure_ascii=draw(st.booleans())).encode(errors="replace"))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.integers(0, 2)):
            case 0:
                data[at] = draw(st.integers(0, 127))
            case 1:
                del data[at : at + draw(st.integers(0, 8))]
                data = data or bytearray(b" ")
            case _:
                data[at:at] = draw(st.sampled_from([b'"', b"{", b"}", b"[", b"\\ud800", b",", b"\\", b"1e999", b"NaN"]))
    return data.decode(errors="replace")


@given(texts() | st.text())
def test_whatever_comes_is_a_frame_or_a_value_error(text: str) -> None:
    try:
        frame = decode_client_frame(text)
    except ValueError:
        pass
    else:
        assert isinstance(frame, ClientFrame)
    echo = echo_of(text)
    try:
        loaded = json.loads(text)
    except ValueError:
        return
    if isinstance(loaded, dict):
        named = {key: loaded.get(key) for key in ("clientId", "id", "conversation")}
        assert echo == {key: value for key, value in named.items() if isinstance(value, str)}


def test_frames_of_the_server_leave_out_what_they_do_not_say() -> None:
    ack = {"type": "ack", "conversation": C, "clientId": "c", "seq": 1}
    assert json.loads(encode(Ack(conversation=C, client_id="c", seq=1))) == ack
    assert json.loads(encode(Ack(conversation=C, client_id="c", seq=1, duplicate=True))) == ack | {"duplicate": True}
    assert encode(Bye(code=1012, retry_ms=(1, 2))) == b'{"type":"bye","code":1012,"retryMs":[1,2]}'


def test_only_an_error_that_may_be_repeated_says_when() -> None:
    for code in ("busy", "rate", "draining", "internal", "bad_frame", "forbidden"):
        frame = json.loads(encode_error(code, "text", {"clientId": "c", "conversation": C}))
        assert ("retryMs" in frame) == (code in RETRYABLE)
        assert (frame["clientId"], frame["conversation"], "id" in frame) == ("c", C, False)


def test_an_echo_with_a_lone_surrogate_goes_back_as_it_came() -> None:
    wire = encode_error("bad_frame", "text", {"id": "\ud800"})
    assert json.loads(wire) == {"type": "error", "code": "bad_frame", "text": "text", "id": "\ud800"}


def test_structs_are_what_the_protocol_names() -> None:
    tags = {kind.__struct_config__.tag for kind in ClientFrame.__args__}
    assert tags == {"hello", "auth", "open", "page", "close", "send", "cancel", "call", "signal", "ping"}
