"""The client's side of the protocol without I/O: what it says, what it makes of what it hears."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import pytest

from parlatory.server.client_effects import (
    Done,
    Drop,
    Effect,
    Ended,
    Failed,
    History,
    Noted,
    Present,
    Ready,
    Signalled,
    StatusChanged,
    TurnTold,
)
from parlatory.server.client_errors import ClientClosed, ConnectionRefused, ConversationRefused, Refused, SendRefused
from parlatory.server.client_outbox import Outgoing
from parlatory.server.client_session import ClientSession
from parlatory.server.client_subscription import Met, Position, Subscription
from parlatory.storage import CorruptRow, StoredMessage, TooLarge

C, D = "echo/a", "echo/b"
BODY = b'{"role":"user","content":"x"}'
E = TypeVar("E")


def instant(seq: int) -> str:
    return f"2026-11-30T00:00:00.{seq:06}Z"


def row(seq: int, by: str = "me", client_id: str | None = None, role: str = "user") -> dict[str, Any]:
    found = {"seq": seq, "at": instant(seq), "by": by, "message": {"role": role, "content": str(seq)}}
    return found if client_id is None else {**found, "clientId": client_id}


class Desk:
    """A session and what came out of it. Its clock stands still unless the test moves it."""

    def __init__(self, *, welcome: bool = True, **limits: int) -> None:
        self.session = ClientSession("c" * 22, rows_max=4, bytes_max=10**6)
        self.now = 100.0
        self.effects: list[Effect] = []
        if welcome:
            self.connect(**limits)
            self.said()

    def connect(self, **limits: int) -> None:
        self.session.greet(None)
        self.said()
        self.welcome(**limits)

    def welcome(self, **limits: int) -> None:
        known = {"frame": 4 << 20, "message": 1 << 20, "inflight": 32, "conversations": 32, "page": 200, **limits}
        self.hear("welcome", version="1", connection="k", principal="me", beatMs=10000, boot="b", limits=known)

    def hear(self, type: str, **fields: Any) -> None:
        self.session.receive(json.dumps({"type": type, **fields}).encode(), self.now)
        self.effects += self.session.effects()

    def opened(self, start: int = 0, conversation: str = C, epoch: str = "e") -> None:
        self.hear(
            "opened", conversation=conversation, epoch=epoch, floor=0, head=9, turn={"state": "idle"}, **{"from": start}
        )

    def rows(self, *rows: dict[str, Any], conversation: str = C, epoch: str = "e") -> None:
        self.hear("rows", conversation=conversation, epoch=epoch, rows=rows)

    def said(self, type: str | None = None) -> list[dict[str, Any]]:
        frames = [json.loads(frame) for frame in self.session.frames()]
        return [frame for frame in frames if type in (None, frame["type"])]

    def ids(self) -> list[str]:
        return [frame["clientId"] for frame in self.said("send")]

    def done(self, kind: type[E]) -> list[E]:
        self.effects += self.session.effects()
        found: list[E] = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def open(self, conversation: str = C, **fields: Any) -> Subscription:
        subscription = self.session.open(conversation, fields.get("tail"), fields.get("position"))
        self.opened(conversation=conversation)
        self.said()
        return subscription

    def send(self, client_id: str, conversation: str = C, body: bytes = BODY) -> Outgoing:
        entry = self.session.send(conversation, client_id, body, self.now)
        assert entry is not None
        return entry

    def lose(self, code: int | None = None) -> None:
        self.session.lost(code)

    def taken(self, subscription: Subscription) -> list[int]:
        seqs: list[int] = []
        while (item := self.session.take(subscription)) is not None:
            assert isinstance(item, StoredMessage)
            seqs.append(item.seq)
        return seqs


def test_hello_then_opens_pages_sends() -> None:
    desk = Desk(welcome=False)
    desk.session.open(C, 5, None)
    desk.send("m1")
    desk.session.page(D, None, None)
    desk.session.greet("t")
    assert desk.said() == [{"type": "hello", "token": "t", "client": "c" * 22}]
    assert desk.session.deadline() is None
    desk.session.wake(desk.now)
    assert desk.said() == []
    desk.welcome()
    assert [frame["type"] for frame in desk.said()] == ["open", "page", "send"]
    assert (desk.session.principal, desk.session.beat_s) == ("me", 10.0)
    desk.welcome(message=1)
    assert desk.said() == [], "the answer to an auth"
    assert desk.session.limits is not None and desk.session.limits.message == 1


def test_a_hello_longer_than_any_server_reads() -> None:
    with pytest.raises(ConnectionRefused, match="token"):
        Desk(welcome=False).session.greet("t" * 4096)


def test_rows_and_status() -> None:
    desk = Desk()
    subscription = desk.session.open(C, None, None)
    assert desk.said("open") == [{"type": "open", "conversation": C}]
    desk.opened()
    desk.rows(row(1), row(2))
    desk.hear("live", conversation=C, seq=2)
    assert desk.session.fruitful
    assert [effect.status for effect in desk.done(StatusChanged)] == ["replaying", "live"]
    assert desk.done(Ready) == [Ready(subscription)]
    assert desk.taken(subscription) == [1, 2]
    desk.lose()
    assert [effect.status for effect in desk.done(StatusChanged)] == ["offline"]


def test_t26_what_is_known_is_dropped() -> None:
    """T26: nothing at or below the position reaches the application, from whatever socket it comes."""
    desk = Desk()
    subscription = desk.open()
    desk.rows(row(1), row(2))
    assert desk.taken(subscription) == [1, 2]
    desk.lose()
    desk.connect()
    assert desk.said("open") == [{"type": "open", "conversation": C, "epoch": "e", "after": 2, "at": instant(2)}]
    desk.opened(2)
    desk.rows(row(1), row(2), row(3))
    assert desk.taken(subscription) == [3]


def test_t28_opened_twice() -> None:
    """T28: a repeated answer, and the rows it brings, change nothing."""
    desk = Desk()
    subscription = desk.open()
    desk.rows(row(1))
    desk.opened()
    desk.rows(row(1), row(2))
    assert desk.taken(subscription) == [1, 2]


def test_t34_reset() -> None:
    desk = Desk()
    subscription = desk.session.open(C, None, Position("old", 10**9))
    desk.hear(
        "reset", conversation=C, epoch="e", floor=0, head=1, turn={"state": "idle"}, reason="ahead", **{"from": 0}
    )
    assert desk.done(Ready) == [Ready(subscription)]
    desk.rows(row(1))
    assert desk.session.take(subscription) == Met("e", 0)
    assert desk.taken(subscription) == [1]


def test_a_hole_and_a_beat_open_again() -> None:
    desk = Desk()
    desk.open()
    desk.rows(row(2))
    assert [frame["after"] for frame in desk.said("open")] == [0]
    desk.opened()
    desk.rows(row(1))
    desk.hear("beat", heads={C: 1, "echo/unknown": 7})
    assert desk.said() == []
    desk.hear("beat", heads={C: 3})
    assert [frame["after"] for frame in desk.said("open")] == [1]


def test_a_server_that_makes_no_sense_is_dropped() -> None:
    desk = Desk()
    desk.open()
    desk.opened(5)
    desk.hear("live")
    assert len(desk.done(Drop)) == 2


def test_unknown_and_foreign_frames_are_ignored() -> None:
    desk = Desk()
    desk.hear("x-new", a=1)
    desk.hear("live", conversation="echo/other", seq=4)
    desk.rows(row(1), conversation="echo/other")
    desk.hear("authExpiring", inMs=5)
    desk.hear("page", id="x", conversation=C, epoch="e", rows=[], more=False)
    desk.hear("page", id="77", conversation=C, epoch="e", rows=[], more=False)
    desk.hear("ack", conversation=C, clientId="none", seq=3)
    desk.hear("error", code="forbidden", text="", conversation=C, clientId="none")
    desk.hear("error", code="forbidden", text="", conversation=C, id="77")
    assert desk.effects == [] and desk.said() == []


def test_an_error_about_nothing_known_is_noted() -> None:
    desk = Desk()
    desk.open()
    desk.hear("error", code="bad_frame", text="why")
    desk.hear("error", code="bad_frame", text="why", conversation=C)
    assert len(desk.done(Noted)) == 2


# -- sends


def test_t47_a_lost_ack() -> None:
    """T47, L13: the message goes out again under its id, and the ack of the first one is as good as any."""
    desk = Desk()
    desk.open()
    entry = desk.send("m1")
    assert desk.ids() == ["m1"]
    desk.lose()
    desk.connect()
    assert desk.ids() == ["m1"]
    desk.hear("ack", conversation=C, clientId="m1", seq=4, duplicate=True)
    assert desk.done(Done) == [Done(entry.request, 4)]


def test_an_own_row_is_an_ack() -> None:
    desk = Desk()
    desk.open()
    mine, other = desk.send("m1"), desk.send("m2")
    desk.rows(row(1, client_id="m1"), row(2, by="somebody", client_id="m2"), row(3, by="agent"))
    assert desk.done(Done) == [Done(mine.request, 1)]
    desk.hear("ack", conversation=C, clientId="m1", seq=1)
    desk.hear("ack", conversation=C, clientId="m2", seq=4)
    assert desk.done(Done) == [Done(other.request, 4)]


@pytest.mark.parametrize(("told", "most"), [(32, 32), (100, 32), (2, 2)])
def test_at_most_32_in_flight(told: int, most: int) -> None:
    desk = Desk(inflight=told)
    for number in range(most + 2):
        desk.send(f"m{number}", (C, D)[number % 2])
    assert len(desk.ids()) == most
    desk.hear("ack", conversation=C, clientId="m0", seq=1)
    assert desk.ids() == [f"m{most}"]


def test_a_client_id_in_use() -> None:
    desk = Desk()
    desk.send("m1")
    assert desk.session.send(C, "m1", BODY, desk.now) is None
    assert desk.session.send(D, "m1", BODY, desk.now) is not None


def test_a_refusal_for_now_is_repeated_and_holds_back() -> None:
    desk = Desk()
    desk.send("m1")
    desk.said()
    desk.hear("error", code="busy", text="", retryMs=500, conversation=C, clientId="m1")
    desk.send("m2")
    desk.send("d1", D)
    assert desk.ids() == ["d1"]
    assert desk.session.deadline() == desk.now + 0.5
    desk.now += 0.5
    desk.session.wake(desk.now)
    assert desk.ids() == ["m1", "m2"]
    assert desk.done(Failed) == []


def test_a_refusal_for_now_without_a_time() -> None:
    desk = Desk()
    desk.send("m1")
    desk.hear("error", code="internal", text="", conversation=C, clientId="m1")
    assert desk.session.deadline() == desk.now + 1


def test_l21_a_refusal_for_good() -> None:
    desk = Desk()
    entry = desk.send("m1")
    desk.hear("error", code="client_id_conflict", text="t", conversation=C, clientId="m1")
    (failed,) = desk.done(Failed)
    assert failed.request == entry.request
    assert isinstance(failed.error, SendRefused)
    assert (failed.error.code, failed.error.client_id) == ("client_id_conflict", "m1")


def test_t53_what_is_over_a_limit_is_not_sent() -> None:
    """T53: neither over the limit of messages, nor where only the frame around it is too long."""
    desk = Desk(message=40, frame=120)
    desk.send("m1", body=b"x" * 41)
    desk.send("m" * 64, body=b"x" * 40)
    assert desk.said() == []
    first, second = (failed.error for failed in desk.done(Failed))
    assert isinstance(first, TooLarge) and isinstance(second, TooLarge)
    assert (first.size, first.limit) == (41, 40)
    assert second.limit == 120
    desk.send("m2")
    assert desk.ids() == ["m2"], "the socket is as good as before"


def test_t53_what_closed_the_socket_is_not_repeated() -> None:
    """T53: a proxy or server with a smaller limit than told ends the socket with 1009; the largest message did it."""
    desk = Desk()
    small, large = desk.send("m1"), desk.send("m2", body=BODY + b" " * 99)
    desk.lose(1009)
    (failed,) = desk.done(Failed)
    assert failed.request == large.request and isinstance(failed.error, TooLarge)
    desk.connect()
    assert desk.ids() == ["m1"]
    desk.hear("ack", conversation=C, clientId="m1", seq=1)
    assert desk.done(Done) == [Done(small.request, 1)]
    desk.lose(1009)
    fresh = Desk(welcome=False)
    fresh.lose(1009)
    assert fresh.done(Failed) == []


def test_forget() -> None:
    desk = Desk(welcome=False)
    entry = desk.send("m1")
    assert desk.session.forget(entry)
    desk.connect()
    assert desk.ids() == []


# -- the subscription ends


def test_an_open_that_is_refused() -> None:
    desk = Desk()
    subscription = desk.session.open(C, None, None)
    desk.hear("error", code="forbidden", text="t", conversation=C)
    assert desk.done(Ended) == [Ended(subscription)]
    assert isinstance(subscription.error, ConversationRefused) and subscription.error.code == "forbidden"
    assert not desk.session.is_open(C) and desk.session.open_count() == 0


def test_an_open_that_is_refused_for_now() -> None:
    desk = Desk()
    desk.session.open(C, None, None)
    desk.said()
    desk.hear("error", code="internal", text="t", retryMs=200, conversation=C)
    assert desk.session.deadline() == desk.now + 0.2
    desk.session.wake(desk.now + 0.1)
    assert desk.said() == []
    desk.session.wake(desk.now + 0.2)
    assert len(desk.said("open")) == 1


def test_closed_by_the_server() -> None:
    desk = Desk()
    subscription = desk.open()
    desk.rows(row(1))
    desk.hear("closed", conversation=C, code="internal")
    assert desk.session.deadline() == desk.now + 1
    desk.session.wake(desk.now + 1)
    assert [frame["after"] for frame in desk.said("open")] == [1]
    desk.hear("closed", conversation=C, code="forbidden")
    assert desk.done(Ended) == [Ended(subscription)]
    assert desk.taken(subscription) == [1], "what is held can still be taken"


def test_closed_by_the_application() -> None:
    desk = Desk(inflight=1)
    subscription = desk.open()
    desk.open(D)
    sent, unsent = desk.send("m1"), desk.send("m2")
    page = desk.session.page(C, None, None)
    kept = desk.session.page(D, None, None)
    desk.said()
    desk.session.close(subscription)
    assert [frame["type"] for frame in desk.said()] == ["close"]
    assert {failed.request for failed in desk.done(Failed)} == {sent.request, unsent.request, page}
    assert isinstance(subscription.error, ClientClosed)
    desk.session.close(subscription)
    assert desk.said() == []
    desk.lose()
    desk.connect()
    assert desk.ids() == ["m1"], "it may be in the log, so it is brought to its end"
    desk.session.forget_request(kept)
    desk.session.close(desk.session.open(C, None, None))


def test_closed_while_offline() -> None:
    desk = Desk(welcome=False)
    subscription = desk.session.open(C, None, None)
    desk.session.close(subscription)
    desk.connect()
    assert desk.said("open") == []


def test_the_end_of_everything() -> None:
    desk = Desk()
    subscription = desk.open()
    entry, page, signal = desk.send("m1"), desk.session.page(D, 5, 2), desk.session.signal(C, "n", None)
    elsewhere = desk.session.send(D, "m2", BODY, desk.now)
    assert elsewhere is not None
    error = ClientClosed("x")
    desk.session.end(error)
    assert [effect.status for effect in desk.done(StatusChanged)][-1:] == ["closed"]
    assert desk.done(Ended) == [Ended(subscription)]
    assert desk.done(Failed) == [
        Failed(entry.request, error),
        Failed(elsewhere.request, error),
        Failed(page, error),
    ]
    assert desk.done(Done) == [Done(signal or 0, False)]
    assert desk.session.error is error


# -- the buffer, pages, signals, turns


def test_a_full_buffer_pauses_and_resumes() -> None:
    desk = Desk()
    subscription = desk.open()
    desk.rows(*(row(seq) for seq in range(1, 6)))
    assert [frame["type"] for frame in desk.said()] == ["close"]
    for _ in range(3):
        desk.session.take(subscription)
    assert [frame["after"] for frame in desk.said("open")] == [5]


def test_a_full_buffer_resumes_with_the_next_socket() -> None:
    desk = Desk()
    subscription = desk.open()
    desk.rows(*(row(seq) for seq in range(1, 6)))
    desk.lose()
    for _ in range(4):
        desk.session.take(subscription)
    assert not desk.session.pending or desk.done(StatusChanged)
    assert desk.said() == []
    desk.connect()
    assert [frame["after"] for frame in desk.said("open")] == [4]


def test_pages() -> None:
    desk = Desk()
    request = desk.session.page(C, 8, 2)
    newest = desk.session.page(C, None, None)
    first, second = desk.said("page")
    assert first == {"type": "page", "id": str(request), "conversation": C, "before": 8, "limit": 2}
    assert second["before"] == 2**53 - 1 and "limit" not in second
    desk.hear("page", id=str(request), conversation=C, epoch="e", rows=[row(6), row(7)], more=True)
    (done,) = desk.done(Done)
    assert isinstance(done.value, History)
    assert ([found.seq for found in done.value.rows], done.value.more, done.value.epoch) == ([6, 7], True, "e")
    desk.lose()
    desk.connect()
    assert [frame["id"] for frame in desk.said("page")] == [str(newest)]
    desk.hear("error", code="internal", text="", retryMs=100, id=str(newest), conversation=C)
    assert desk.session.deadline() == desk.now + 0.1
    desk.session.wake(desk.now + 0.05)
    assert desk.said() == []
    desk.session.wake(desk.now + 0.1)
    assert len(desk.said("page")) == 1
    desk.hear("page", id=str(newest), conversation=C, epoch="e", rows=[row(6), row(7, role="judge")], more=True)
    (failed,) = desk.done(Failed)
    assert isinstance(failed.error, CorruptRow)


def test_a_page_that_is_refused() -> None:
    desk = Desk()
    request = desk.session.page(C, 8, 2)
    desk.hear("error", code="forbidden", text="", id=str(request), conversation=C)
    (failed,) = desk.done(Failed)
    assert isinstance(failed.error, Refused) and failed.error.code == "forbidden"


def test_signals() -> None:
    desk = Desk()
    subscription = desk.open()
    first, second = desk.session.signal(C, "n", b"[1]"), desk.session.signal(C, "n", None)
    assert first is not None and second is not None
    assert desk.said() == [
        {"type": "signal", "conversation": C, "name": "n", "data": [1]},
        {"type": "ping", "n": first},
        {"type": "signal", "conversation": C, "name": "n"},
        {"type": "ping", "n": second},
    ]
    desk.hear("pong", n=first)
    assert desk.done(Done) == [Done(first, True)]
    desk.hear("error", code="rate", text="", retryMs=5, conversation=D)
    desk.hear("error", code="rate", text="", retryMs=5, conversation=C)
    assert [failed.request for failed in desk.done(Failed)] == [second]
    desk.hear("pong", n=second)
    third = desk.session.signal(C, "n", None)
    desk.lose()
    assert desk.done(Done) == [Done(third or 0, False)]
    assert desk.session.signal(C, "n", None) is None
    assert subscription.error is None


def test_what_others_signal_and_who_is_there() -> None:
    desk = Desk()
    desk.open()
    desk.hear("signal", conversation=C, name="n", by="x", data=1)
    desk.hear("presence", conversation=C, count=1, principals=["me"])
    desk.hear("turn", conversation=C, id=4, state="running")
    assert desk.done(Signalled)[0].frame.data == 1
    assert desk.done(Present)[0].frame.count == 1
    assert desk.done(TurnTold)[0].turn.id == 4


def test_bye_is_kept_until_the_next_socket() -> None:
    desk = Desk()
    desk.hear("bye", code=1012, retryMs=[1, 2])
    assert desk.session.bye is not None and desk.session.bye.retry_ms == (1, 2)
    desk.lose()
    desk.connect()
    assert desk.session.bye is None


def test_l10_a_quiet_hour_costs_nothing() -> None:
    """L10: a position does not expire."""
    desk = Desk()
    subscription = desk.open()
    desk.rows(row(1))
    desk.taken(subscription)
    desk.now += 3600
    desk.session.wake(desk.now)
    desk.lose()
    desk.connect()
    assert [frame["after"] for frame in desk.said("open")] == [1]
