"""The client's session: drafts, turns and stops."""

from __future__ import annotations

from parlatory.server.client_effects import Done, Drop, Failed, Ready
from parlatory.server.client_errors import ClientClosed, Refused
from parlatory.server.client_frames import TurnState
from tests.server.test_client_session import C, D, Desk, row


def pinged(desk: Desk) -> int:
    """Returns the number of the last ping."""
    return int(desk.said("ping")[-1]["n"])


def test_a_stop_is_done_with_its_pong() -> None:
    desk = Desk()
    desk.open()
    for turn in (7, "call:1", None):
        request = desk.session.cancel(C, turn)
        cancel, ping = desk.said()
        named = {} if turn is None else {"turn": turn}
        assert cancel == {"type": "cancel", "conversation": C, **named}
        assert not desk.done(Done)
        desk.hear("pong", n=ping["n"])
        assert desk.done(Done) == [Done(request, True)]
    desk.lose()
    desk.connect()
    assert not desk.said("cancel")


def test_a_stop_waits_for_a_connection() -> None:
    desk = Desk(welcome=False)
    request = desk.session.cancel(C, None)
    assert desk.said() == []
    desk.connect()
    desk.hear("pong", n=pinged(desk))
    assert desk.done(Done) == [Done(request, True)]


def test_only_a_stop_that_names_its_turn_is_repeated() -> None:
    """The other one might stop a turn that began later."""
    desk = Desk()
    named, other = desk.session.cancel(C, 7), desk.session.cancel(C, None)
    first = pinged(desk)
    desk.lose()
    assert desk.done(Done) == [Done(other, False)]
    desk.connect()
    assert [frame["type"] for frame in desk.said("cancel")] == ["cancel"]
    desk.hear("pong", n=first + 1)
    assert desk.done(Done) == [Done(named, True)]


def test_a_stop_that_is_refused() -> None:
    desk = Desk()
    subscription = desk.open()
    request = desk.session.cancel(C, 7)
    ping = pinged(desk)
    desk.hear("error", code="forbidden", text="t", conversation=C)
    (failed,) = desk.done(Failed)
    assert failed.request == request and isinstance(failed.error, Refused)
    desk.hear("pong", n=ping)
    assert not desk.done(Done) and subscription.error is None


def test_a_stop_that_nobody_waits_for() -> None:
    desk = Desk(welcome=False)
    assert not desk.session.forget_request(desk.session.cancel(C, 7))
    desk.connect()
    assert not desk.said("cancel")
    sent = desk.session.cancel(C, 7)
    assert desk.session.forget_request(sent), "it may still take effect"
    desk.hear("error", code="rate", text="t", retryMs=1, conversation=C)
    assert not desk.done(Failed)
    desk.session.forget_request(desk.session.cancel(C, None))
    desk.lose()
    desk.connect()
    assert not desk.done(Done) and not desk.said("cancel")


def test_stops_end_with_the_chat_and_the_client() -> None:
    desk = Desk()
    subscription = desk.open()
    mine, named, other = desk.session.cancel(C, 7), desk.session.cancel(D, 7), desk.session.cancel(D, None)
    desk.session.close(subscription)
    assert [failed.request for failed in desk.done(Failed)] == [mine]
    desk.session.end(ClientClosed("over"))
    assert [failed.request for failed in desk.done(Failed)] == [named, other]
    assert not desk.done(Done)


def test_frames_about_drafts() -> None:
    desk = Desk()
    subscription = desk.open()
    desk.hear("live", conversation=C, seq=0)
    message = {"role": "assistant", "content": "a"}
    desk.hear("draft", conversation=C, id="d", turn=1, index=1, message=message)
    assert not desk.done(Ready), "nobody wants events"
    subscription.want_events()
    desk.hear("delta", conversation=C, id="d", to=2, ops=[{"add": "b"}], **{"from": 1})
    assert desk.done(Ready)
    draft = desk.session.take_event(subscription)
    assert draft == subscription.draft and subscription.draft is not None and subscription.draft.text == "ab"
    desk.rows({**row(1, "agent", role="assistant"), "turn": 1})
    desk.hear("draftEnd", conversation=C, id="d", seq=1, finish="done")
    assert subscription.draft is None
    desk.hear("turn", conversation=C, id=1, state="done")
    assert subscription.turns.now == TurnState("done", 1)
    for kind in ("draft", "delta", "draftEnd", "turn"):
        fields = {"turn": 1, "index": 0, "message": message, "from": 5, "to": 6, "ops": [], "finish": "done"}
        desk.hear(kind, conversation=D, id="d", **{**fields, "state": "done"})
    assert not desk.said() and not desk.done(Drop)


def test_a_draft_whose_end_was_missed_wakes_the_application() -> None:
    desk = Desk()
    subscription = desk.open()
    subscription.want_events()
    desk.hear("draft", conversation=C, id="d", turn=1, index=1, message={"role": "assistant", "content": "a"})
    assert desk.session.take_event(subscription) == subscription.draft and desk.done(Ready)
    desk.lose()
    desk.connect()
    desk.opened()
    assert not desk.done(Ready)
    desk.hear("live", conversation=C, seq=0)
    assert desk.done(Ready)
    desk.lose()
    desk.connect()
    desk.hear("opened", conversation=C, epoch="e", floor=0, head=0, turn={"state": "running", "id": 1}, **{"from": 0})
    assert desk.done(Ready), "the turn"


def test_a_delta_that_does_not_fit_opens_again() -> None:
    desk = Desk()
    desk.open()
    desk.hear("live", conversation=C, seq=0)
    desk.hear("delta", conversation=C, id="d", to=2, ops=[], **{"from": 1})
    assert [frame["after"] for frame in desk.said("open")] == [0]


def test_a_delta_that_is_none_drops_the_socket() -> None:
    desk = Desk()
    desk.open()
    desk.hear("delta", conversation=C, id="d", to=2, ops=[{"add": 1}], **{"from": 1})
    assert desk.done(Drop)
