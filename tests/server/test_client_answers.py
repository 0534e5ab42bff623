"""The client's session: what an answer that names only its conversation is about."""

from __future__ import annotations

import pytest

from parlatory.server.client_effects import Done, Drop, Ended, Failed
from tests.server.test_client_session import C, D, Desk, row


@pytest.mark.parametrize("answered", [False, True])
def test_a_refused_open_is_not_the_cancel_behind_it(answered: bool) -> None:
    desk = Desk()
    subscription = desk.session.open(C, None, None)
    cancel, signal = desk.session.cancel(C, 3), desk.session.signal(C, "n", None)
    assert signal is not None
    pings = [frame["n"] for frame in desk.said("ping")]
    if answered:
        desk.opened()
        desk.hear("pong", n=pings[0])
        desk.hear("error", code="rate", text="t", retryMs=5, conversation=C)
        assert desk.done(Done) == [Done(cancel, True)]
        assert [failed.request for failed in desk.done(Failed)] == [signal]
        assert subscription.status == "replaying"
        return
    desk.hear("error", code="internal", text="t", retryMs=200, conversation=C)
    assert desk.session.deadline() == desk.now + 0.2 and desk.done(Failed) == []
    desk.hear("error", code="forbidden", text="t", conversation=C)
    assert [failed.request for failed in desk.done(Failed)] == [cancel]
    desk.hear("pong", n=pings[1])
    assert desk.done(Done) == [Done(signal, True)]
    desk.session.wake(desk.now + 0.2)
    assert len(desk.said("open")) == 1
    desk.opened()
    assert subscription.status == "replaying"


def test_a_refused_cancel_is_not_the_open_behind_it() -> None:
    desk = Desk()
    subscription = desk.open()
    cancel = desk.session.cancel(C, None)
    desk.rows(row(2))
    assert [frame["type"] for frame in desk.said()] == ["cancel", "ping", "open"]
    desk.hear("error", code="forbidden", text="t", conversation=C)
    assert [failed.request for failed in desk.done(Failed)] == [cancel]
    desk.opened()
    desk.rows(row(1), row(2))
    assert desk.taken(subscription) == [1, 2] and subscription.error is None


def test_what_a_closed_chat_is_refused_is_not_the_next_one() -> None:
    """Also behind a cancel of it, and though another conversation is answered in between."""
    desk = Desk()
    first = desk.session.open(C, None, None)
    cancel = desk.session.cancel(C, 3)
    desk.session.close(first)
    second, other = desk.session.open(C, None, None), desk.session.open(D, None, None)
    desk.hear("error", code="forbidden", text="t", conversation=C)
    desk.hear("error", code="forbidden", text="t", conversation=C)  # the cancel's
    assert [failed.request for failed in desk.done(Failed)] == [cancel], "it failed with the close, once"
    desk.hear("error", code="internal", text="t", retryMs=200, conversation=D)
    assert other.retry_at == desk.now + 0.2
    desk.opened()
    assert second.status == "replaying" and desk.done(Ended)[1:] == []
    desk.hear("closed", conversation=C, code="forbidden")
    assert desk.done(Ended) == [Ended(second)]


def test_a_server_that_answers_out_of_order_is_dropped() -> None:
    """It would leave the chat connecting for ever."""
    desk = Desk()
    desk.session.open(C, None, None)
    desk.session.cancel(C, 3)
    desk.hear("pong", n=1)
    assert [drop.text for drop in desk.done(Drop)] == [f"a later frame than the open of {C!r} was answered first"]
