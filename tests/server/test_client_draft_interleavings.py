"""L05: whatever is dropped, cut, lagged or taken when, the text that an application assembles equals the row."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from parlatory.server.client_drafts import Draft
from parlatory.server.client_effects import Drop
from parlatory.storage import AssistantMessage, StoredMessage
from tests.server.test_client_session import C, Desk, instant


class Agent:
    """A log with one subscription, and an agent that writes, one draft after the other.

    What is unrealistic about it: frames wait in a list until a step moves or loses one of them, which TCP does not.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.log: list[dict[str, Any]] = []
        self.to_client: list[dict[str, Any]] = []
        self.told = 0
        self.subscribed = self.live = False
        self.count = 0
        self.index = 0
        self.text: str | None = None
        self.knows = False
        self.missed_end: dict[str, Any] | None = None

    @property
    def id(self) -> str:
        return f"d{self.count}"

    def say(self, type: str, **fields: Any) -> None:
        self.to_client.append({"type": type, "conversation": C, **fields})

    def tell(self, type: str, **fields: Any) -> None:
        """Tells who is live, and knows the draft if it is about that."""
        if self.live and (self.knows or type == "rows"):
            self.say(type, **fields)

    def snapshot(self) -> None:
        self.knows = True
        message = {"role": "assistant", "content": self.text}
        self.say("draft", id=self.id, turn=self.count, index=self.index, message=message)

    def begin(self) -> None:
        if self.text is None:
            self.count, self.index, self.text, self.knows = self.count + 1, 0, "", False
            if self.live:
                self.snapshot()

    def write(self) -> None:
        if self.text is not None:
            word = f"{self.count}.{self.index} "
            self.text += word
            self.index += 1
            ops = [{"add": word}]
            self.tell("delta", id=self.id, to=self.index, ops=ops, **{"from": self.index - 1})

    def finish(self) -> None:
        if self.text is None:
            return
        seq = None
        if self.text:
            seq = len(self.log) + 1
            message = {"role": "assistant", "content": self.text}
            self.log.append({"seq": seq, "at": instant(seq), "by": "agent", "turn": self.count, "message": message})
            if self.live:
                self.told = seq
                self.tell("rows", epoch="e", rows=[self.log[-1]])
        self.text = None
        end = {"id": self.id, "finish": "done", **({} if seq is None else {"seq": seq})}
        self.tell("draftEnd", **end)
        self.missed_end = end if self.knows and not self.live else None
        self.knows = False

    def replay(self) -> None:
        """Brings a subscription that is behind up to the head."""
        if not self.subscribed or self.live:
            return
        if self.told < len(self.log):
            self.say("rows", epoch="e", rows=self.log[self.told :])
            self.told = len(self.log)
        if self.missed_end is not None:
            self.say("draftEnd", **self.missed_end)
            self.missed_end = None
        if self.text is not None:
            self.snapshot()
        self.say("live", seq=self.told)
        self.live = True

    def lag(self) -> None:
        """The socket takes no more, until the next replay."""
        self.live = False

    def answer(self) -> None:
        for frame in self.desk.said():
            if frame["type"] == "open":
                self.told, self.subscribed, self.live, self.knows = frame.get("after", 0), True, False, False
                self.missed_end = None
                place = {"epoch": "e", "floor": 0, "head": len(self.log), "from": self.told}
                self.say("opened", turn={"state": "idle"}, **place)

    def cut(self) -> None:
        self.to_client.clear()
        self.subscribed = self.live = False
        self.desk.lose()
        self.desk.connect()

    def hear(self, lost: bool) -> None:
        if self.to_client:
            frame = self.to_client.pop(0)
            if not lost or frame["type"] not in ("delta", "draft"):
                self.desk.hear(**frame)


class Application:
    """Shows drafts until their end, and rows; judges what it is given."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.subscription = desk.session.open(C, None, None)
        self.subscription.want_events()
        self.open: dict[str, str] = {}
        self.rows: dict[int, AssistantMessage] = {}
        self.ended: dict[str, str | None] = {}

    def take(self) -> bool:
        event = self.desk.session.take_event(self.subscription)
        if isinstance(event, StoredMessage):
            assert event.seq == len(self.rows) + 1
            assert isinstance(event.message, AssistantMessage)
            self.rows[event.seq] = event.message
        elif isinstance(event, Draft):
            self.show(event)
        return event is not None

    def show(self, draft: Draft) -> None:
        if draft.finish is None:
            assert self.ended.get(draft.id) in (None, "lost"), "a draft after its end"
            self.open = {draft.id: draft.text}
            words = draft.text.split()
            assert words == [f"{draft.turn}.{place}" for place in range(len(words))], "nothing twice, nothing missing"
        else:
            self.ended[draft.id] = draft.finish
            self.open.pop(draft.id, None)
            if draft.seq is not None:
                assert self.rows[draft.seq] == draft.message, "the row came before, and is the same"


STEPS = ["begin", "write", "write", "write", "write", "finish", "hear", "hear", "hear", "hear", "lose a frame", "take",
         "take", "take", "cut", "replay", "replay", "lag"]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(STEPS), min_size=50, max_size=150))
def test_l05_the_text_equals_the_row(steps: list[str]) -> None:
    desk = Desk(welcome=False)
    app = Application(desk)
    agent = Agent(desk)
    agent.cut()
    for step in steps:
        match step:
            case "hear":
                agent.hear(lost=False)
            case "lose a frame":
                agent.hear(lost=True)
            case "take":
                app.take()
            case _:
                getattr(agent, step)()
        agent.answer()
        assert not desk.done(Drop)
        assert len(app.open) <= 1 and len(app.subscription.events) < 20
    agent.finish()
    agent.cut()
    for _ in range(200):
        agent.answer()
        agent.replay()
        agent.hear(lost=False)
        app.take()
    assert app.subscription.status == "live"
    assert [message.text for message in app.rows.values()] == [row["message"]["content"] for row in agent.log]
    assert not app.open, "no draft is left that never ends"
    assert app.subscription.draft is None
