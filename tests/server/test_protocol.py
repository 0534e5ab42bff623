from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlatory.server import Limits
from parlatory.server.frames import Call, Cancel, Hello, Open, Send, decode_client_frame
from parlatory.server.protocol import Decision, ServerSession, SessionState, Shut, echo_for

from .test_frames import texts

C = "relay/x"
NOW = 1000.0
HELLO = '{"type":"hello"}'
CLOSE = '{"type":"close","conversation":"relay/x"}'
PING = '{"type":"ping","n":1}'
SEND = '{"type":"send","conversation":"relay/x","clientId":"c1","message":{}}'
CALL = '{"type":"call","conversation":"relay/x","id":"i1","method":"m"}'


def session(state: SessionState = SessionState.SERVING, **limits: Any) -> ServerSession:
    made = ServerSession(Limits(**limits))
    made.state = state
    return made


def code_of(decision: Decision) -> str | None:
    return None if decision.refusal is None else decision.refusal.code


# -- the greeting


def test_a_hello_is_served_and_then_nothing_until_it_is_admitted() -> None:
    greeted = session(SessionState.GREETING)
    assert isinstance(greeted.receive(HELLO, NOW).serve, Hello)
    assert greeted.state is SessionState.ADMITTING
    assert greeted.receive(PING, NOW) == Decision()
    greeted.admitted()
    assert greeted.receive(PING, NOW).answer == b'{"type":"pong","n":1}'


@pytest.mark.parametrize("text", ["", "{", PING, SEND, '{"type":"hello","token":7}', '{"type":"hello","client":"x"}'])
def test_anything_else_in_front_of_a_hello_ends_it(text: str) -> None:
    greeted = session(SessionState.GREETING)
    decision = greeted.receive(text, NOW)
    assert (code_of(decision), decision.shut, decision.serve) == ("bad_frame", Shut(4400), None)
    assert greeted.state is SessionState.CLOSING
    assert greeted.receive(HELLO, NOW) == Decision()


def test_a_first_frame_has_a_limit() -> None:
    hello = '{"type":"hello","token":"%s"}'
    fits = hello % ("é" * ((4096 - len(hello) + 2) // 2))
    assert len(fits.encode()) <= 4096
    assert session(SessionState.GREETING).receive(fits, NOW).shut is None
    assert session(SessionState.GREETING).receive(fits + "  ", NOW).shut == Shut(1009, bye=False)


# -- bad frames


def test_the_16th_bad_frame_in_a_row_is_answered_and_ends_it() -> None:
    serving = session()
    for _ in range(15):
        assert serving.receive("{}", NOW).shut is None
    assert serving.receive(PING, NOW).answer is not None
    for _ in range(15):
        assert serving.receive('{"type":"open","conversation":"Relay/x"}', NOW).shut is None
    decision = serving.receive(HELLO, NOW)
    assert (code_of(decision), decision.shut) == ("bad_frame", Shut(4400))
    assert serving.receive(PING, NOW) == Decision()


def test_a_refused_frame_is_a_good_one() -> None:
    serving = session(bad_frames=2, inflight=1)
    assert serving.receive(SEND, NOW).serve is not None
    for _ in range(3):
        assert code_of(serving.receive("{}", NOW)) == "bad_frame"
        assert code_of(serving.receive(SEND, NOW)) == "rate"


@pytest.mark.parametrize(
    ("conversation", "echoed"), [("relay/x", True), ("relay", False), ("relay/a\\u0000", False), ("\\ud800", False)]
)
def test_a_bad_frame_names_a_conversation_that_is_one(conversation: str, echoed: bool) -> None:
    decision = session().receive(f'{{"type":"open","after":1,"id":"i","conversation":"{conversation}"}}', NOW)
    assert decision.refusal is not None and decision.refusal.code == "bad_frame"
    assert decision.refusal.echo == ({"id": "i", "conversation": C} if echoed else {"id": "i"})


# -- what couples frames


def test_33_sends_and_calls_are_one_too_many() -> None:
    serving = session()
    for text in (SEND, CALL) * 16:
        assert serving.receive(text, NOW).serve is not None
    assert serving.inflight == 32
    decision = serving.receive(CALL, NOW)
    assert decision.refusal is not None
    assert (decision.refusal.code, decision.refusal.echo) == ("rate", {"conversation": C, "id": "i1"})
    assert code_of(serving.receive(SEND, NOW)) == "rate"
    serving.answered()
    assert isinstance(serving.receive(SEND, NOW).serve, Send)


def test_the_33rd_open_conversation_is_one_too_many() -> None:
    serving = session(conversations=2)
    serving.opened |= {"relay/a", "relay/b"}
    opening = '{"type":"open","conversation":"relay/%s"}'
    assert code_of(serving.receive(opening % "c", NOW)) == "too_many"
    assert isinstance(serving.receive(opening % "a", NOW).serve, Open)
    serving.opened.discard("relay/b")
    assert isinstance(serving.receive(opening % "c", NOW).serve, Open)


def test_a_server_that_drains_takes_nothing_that_changes_something() -> None:
    serving = session()
    serving.draining = True
    for text in (SEND, CALL, '{"type":"signal","conversation":"relay/x","name":"n"}'):
        assert code_of(serving.receive(text, NOW)) == "draining"
    assert serving.inflight == 0
    for kind in ("open", "close", "cancel"):
        assert serving.receive(f'{{"type":"{kind}","conversation":"relay/x"}}', NOW).serve is not None
    assert serving.receive('{"type":"page","conversation":"relay/x","id":"i","before":1}', NOW).serve is not None
    assert serving.receive('{"type":"auth","token":"t"}', NOW).serve is not None
    assert serving.receive(PING, NOW).answer is not None


def test_a_signal_has_a_limit() -> None:
    serving = session(signal_bytes=8)
    fits = serving.receive('{"type":"signal","conversation":"relay/x","name":"éé","data":1234}', NOW)
    assert fits.serve is not None and fits.conversation == ("relay", "x")
    for large in ('"éé","data":12345', '"ééééé"'):
        text = f'{{"type":"signal","conversation":"relay/x","name":{large}}}'
        assert code_of(serving.receive(text, NOW)) == "too_large"


@pytest.mark.parametrize(
    ("text", "echo"),
    [
        (HELLO, {}),
        (PING, {}),
        ('{"type":"auth","token":"t"}', {}),
        ('{"type":"close","conversation":"relay/x"}', {"conversation": C}),
        (SEND, {"conversation": C, "clientId": "c1"}),
        (CALL, {"conversation": C, "id": "i1"}),
        ('{"type":"cancel","conversation":"relay/x","turn":1}', {"conversation": C}),
        ('{"type":"cancel","conversation":"relay/x","id":"i"}', {"conversation": C, "id": "i"}),
    ],
)
def test_an_error_names_the_frame(text: str, echo: dict[str, str]) -> None:
    assert echo_for(decode_client_frame(text)) == echo


# -- whatever comes


@given(st.lists(texts() | st.text(), max_size=20), st.booleans())
def test_every_text_is_decided_over(sent: list[str], draining: bool) -> None:
    """Each is refused, answered or served; a refusal names what the text names; no bad frame is one too many."""
    serving = session()
    serving.draining = draining
    bad = 0
    for text in sent:
        decision = serving.receive(text, NOW)
        if bad == 16:
            assert decision == Decision()
            continue
        outcomes = [decision.refusal is not None, decision.answer is not None, decision.serve is not None]
        assert outcomes.count(True) == 1
        bad = bad + 1 if code_of(decision) == "bad_frame" else 0
        assert decision.shut == (Shut(4400) if bad == 16 else None)
        if decision.refusal is not None and decision.refusal.code == "bad_frame":
            check_echo(text, dict(decision.refusal.echo))
        if isinstance(decision.serve, Send | Call):
            serving.answered()
        elif isinstance(decision.serve, Open | Cancel):
            assert decision.conversation is not None
    assert serving.inflight == 0


def check_echo(text: str, echo: dict[str, str]) -> None:
    try:
        loaded = json.loads(text)
    except ValueError:
        return
    if isinstance(loaded, dict):
        echo.pop("conversation", None)
        named = {key: loaded.get(key) for key in ("clientId", "id")}
        assert echo == {key: value for key, value in named.items() if isinstance(value, str)}


# -- how fast frames may come


def test_a_socket_that_is_too_fast_is_refused_until_it_waits() -> None:
    serving = session(frames_per_s=10, frames_burst=4)
    for _ in range(4):
        assert serving.receive(CLOSE, NOW).serve is not None
    assert code_of(serving.receive(CLOSE, NOW)) == "rate"
    assert serving.receive(CLOSE, NOW + 0.25).serve is not None
    assert code_of(serving.receive(CLOSE, NOW + 0.25)) == "rate"
    assert all(serving.receive(CLOSE, NOW + 60).serve is not None for _ in range(4))
    assert code_of(serving.receive(CLOSE, NOW + 60)) == "rate"


def test_a_socket_that_goes_on_all_the_same_is_closed() -> None:
    serving = session(frames_per_s=10, frames_burst=4)
    decisions = [serving.receive(CLOSE, NOW) for _ in range(9)]
    assert [code_of(one) for one in decisions] == [None] * 4 + ["rate"] * 5
    assert [one.shut for one in decisions] == [None] * 8 + [Shut(4429)]
    assert serving.receive(CLOSE, NOW + 60) == Decision()


def test_pings_cost_nothing_however_many() -> None:
    """A socket that does not take its pongs is not read; the conformance suite pushes as many as the buffers hold."""
    serving = session(frames_per_s=10, frames_burst=4)
    assert all(serving.receive(PING, NOW).answer is not None for _ in range(1000))


@pytest.mark.parametrize(
    ("text", "most"),
    [(CLOSE, 10), (SEND, 100), (CALL, 100), ('{"type":"page","conversation":"relay/x","id":"i","before":1}', 2)],
)
def test_what_costs_more_is_let_through_less_often(text: str, most: int) -> None:
    serving = session(frames_per_s=10, frames_burst=10.001, inflight=1000)
    codes = [code_of(serving.receive(text, NOW)) for _ in range(most + 1)]
    assert codes == [None] * most + ["rate"]


def test_a_refusal_for_the_rate_names_its_frame_and_leaves_the_window_alone() -> None:
    serving = session(frames_per_s=10, frames_burst=0.25)
    refusals = [serving.receive(SEND, NOW).refusal for _ in range(3)]
    assert refusals[:2] == [None, None] and refusals[2] is not None
    assert refusals[2].echo == {"conversation": C, "clientId": "c1"}
    assert serving.inflight == 2
