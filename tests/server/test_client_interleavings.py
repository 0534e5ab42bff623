"""Any interleaving of appends, sends, cuts, repeats, refusals and wipes: each row once, each send once, in order."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from parlatory.server.client_effects import Done, Drop, Failed
from parlatory.server.client_subscription import Met
from parlatory.storage import CorruptRow
from tests.server.test_client_session import C, Desk, row


class Server:
    """A log and one socket. Unrealistic: the frames of both directions wait in lists until a step moves one of them."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.generation = 0
        self.log: list[dict[str, Any]] = []
        self.first: dict[str, int] = {}
        self.to_server: list[dict[str, Any]] = []
        self.to_client: list[dict[str, Any]] = []
        self.sent_up_to: int | None = None  # the position of the subscription
        self.live = False
        self.connected = False

    @property
    def epoch(self) -> str:
        return f"e{self.generation}"

    def say(self, type: str, **fields: Any) -> None:
        self.to_client.append({"type": type, "conversation": C, **fields})

    def connect(self) -> None:
        if not self.connected:
            self.connected = True
            self.desk.connect(inflight=3)

    def cut(self) -> None:
        """What is under way is lost, in both directions."""
        if self.connected:
            self.connected = False
            self.to_server.clear()
            self.to_client.clear()
            self.sent_up_to = None
            self.desk.lose()

    def wipe(self) -> None:
        """The log is restored as an empty one; every socket ends with that."""
        self.cut()
        self.generation += 1
        self.log, self.first = [], {}

    def append(self, by: str, client_id: str | None = None) -> int:
        self.log.append(row(len(self.log) + 1, by, client_id))
        return len(self.log)

    def replay(self, most: int) -> None:
        if self.sent_up_to is not None and self.sent_up_to < len(self.log):
            found = self.log[self.sent_up_to : self.sent_up_to + most]
            self.sent_up_to += len(found)
            self.say("rows", epoch=self.epoch, rows=found)
            if self.sent_up_to == len(self.log) and not self.live:
                self.live = True
                self.say("live", seq=self.sent_up_to)

    def work(self, refuse: bool) -> None:
        """Handles one frame of the client."""
        if not self.to_server:
            return
        frame = self.to_server.pop(0)
        if frame["type"] == "open":
            good = frame.get("epoch", self.epoch) == self.epoch and frame.get("after", 0) <= len(self.log)
            start = frame.get("after", 0) if good else 0
            place = {"epoch": self.epoch, "floor": 0, "head": len(self.log), "from": start, "turn": {"state": "idle"}}
            self.say("opened", **place) if good else self.say("reset", reason="epoch", **place)
            self.sent_up_to = start
            self.live = start == len(self.log)
            self.say("live", seq=start) if self.live else self.replay(200)
        elif frame["type"] == "close":
            self.sent_up_to = None
        elif refuse:
            self.say("error", code="busy", text="", retryMs=0, clientId=frame["clientId"])
        else:
            known = frame["clientId"] in self.first
            if not known:
                self.first[frame["clientId"]] = self.append("me", frame["clientId"])
            self.say("ack", clientId=frame["clientId"], seq=self.first[frame["clientId"]], duplicate=known)

    def hear(self) -> None:
        """Brings one frame to the client."""
        if self.to_client:
            frame = self.to_client.pop(0)
            self.desk.hear(**frame)


class Application:
    """Takes rows and sends; judges that each comes once and in order."""

    def __init__(self, server: Server) -> None:
        self.server, self.desk = server, server.desk
        self.subscription = self.desk.session.open(C, None, None)
        self.epoch: str | None = None
        self.rows: list[int] = []
        self.waiting: dict[int, str] = {}
        self.acked: list[str] = []

    def take(self) -> None:
        item = self.desk.session.take(self.subscription)
        assert not isinstance(item, CorruptRow)
        if isinstance(item, Met):
            self.rows.clear()
        elif item is not None:
            assert self.subscription.applied is not None and self.subscription.applied.seq == item.seq
            self.rows.append(item.seq)
            assert self.rows == list(range(1, len(self.rows) + 1))

    def settle(self) -> None:
        self.server.to_server += self.desk.said()
        for done in self.desk.done(Done):
            self.acked.append(self.waiting.pop(done.request))
        assert not self.desk.done(Failed) and not self.desk.done(Drop)

    def send(self) -> None:
        entry = self.desk.send(f"m{len(self.waiting) + len(self.acked)}")
        self.waiting[entry.request] = entry.client_id


STEPS = ["append", "append", "send", "send", "work", "work", "work", "busy", "replay", "hear", "hear", "hear", "hear",
         "take", "take", "take", "cut", "connect", "connect", "wipe", "repeat", "lost rows"]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(STEPS), min_size=100, max_size=200))
def test_t26_l13_each_row_once_and_each_send_once(steps: list[str]) -> None:
    """T26, L13: whatever is cut, repeated, refused or wiped when. Sends count per log: a wipe forgets their ids too."""
    desk = Desk(welcome=False)
    server = Server(desk)
    app = Application(server)
    for step in steps:
        match step:
            case "append":
                server.append("agent")
            case "send":
                app.send()
            case "work":
                server.work(refuse=False)
            case "busy":
                server.work(refuse=True)
                desk.session.wake(desk.now)
            case "replay":
                server.replay(2)
            case "hear":
                server.hear()
            case "take":
                app.take()
            case "connect":
                server.connect()
            case "cut":
                server.cut()
            case "wipe":
                server.wipe()
            case "repeat" if server.to_client and server.to_client[0]["type"] == "rows":
                server.to_client.insert(0, server.to_client[0])
            case "lost rows" if server.to_client and server.to_client[0]["type"] == "rows":
                server.to_client.pop(0)
        app.settle()
    finish(server, app)
    ids = [found["clientId"] for found in server.log if "clientId" in found]
    assert len(ids) == len(set(ids))
    if not {"busy", "wipe"} & set(steps):
        assert ids == [f"m{number}" for number in range(len(ids))]


def finish(server: Server, app: Application) -> None:
    """Everything that was asked for arrives once the faults end."""
    server.cut()
    server.connect()
    for _ in range(2000):
        before = len(app.rows), len(server.to_server), len(server.to_client), len(app.waiting)
        app.settle()
        server.work(refuse=False)
        server.replay(200)
        if not server.to_client and server.sent_up_to is not None:
            server.say("beat", heads={C: server.sent_up_to})
        server.hear()
        app.desk.session.wake(app.desk.now)
        app.take()
        app.settle()
        if (
            before == (len(app.rows), len(server.to_server), len(server.to_client), len(app.waiting))
            and not app.waiting
        ):
            break
    assert app.rows == list(range(1, len(server.log) + 1))
    assert app.subscription.status == "live"
    assert app.subscription.applied is not None and app.subscription.applied.epoch == server.epoch
    assert len(set(app.acked)) == len(app.acked)
