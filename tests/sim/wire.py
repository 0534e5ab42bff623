"""What goes over the sockets, judged in the step in which the server writes it (PROTOCOL sections 3 and 4).

The network hands in the bytes of both directions. A `Wire` per connection takes the frames out of them and
follows each subscription: that a position is accepted or refused as it must be, that rows come without gap,
duplicate or reorder, that nothing is told before it is in the file, that acks name rows, that sends commit
in the order in which they came, that drafts grow without a hole into their rows, and that a turn is told as over
once, when that is durable.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from websockets.frames import Opcode

from .history import TruthRow

if TYPE_CHECKING:
    from .world import World

__all__ = ["Wire", "body_of"]

ENDS = ("done", "error", "stopped")

_decode = msgspec.json.Decoder().decode


class Frames:
    """Takes text frames out of one direction of a WebSocket, behind its handshake."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._open = False

    def feed(self, data: bytes) -> Iterator[Any]:
        self._bytes += data
        if not self._open:
            end = self._bytes.find(b"\r\n\r\n")
            if end < 0:
                return
            self._open = True
            del self._bytes[: end + 4]
        while (frame := self._next()) is not None:
            opcode, payload = frame
            if opcode == Opcode.TEXT:
                yield _decode(payload)

    def _next(self) -> tuple[int, bytes] | None:
        data = self._bytes
        if len(data) < 2:
            return None
        size, start = data[1] & 127, 2
        if size > 125:
            start = 4 if size == 126 else 10
            if len(data) < start:
                return None
            size = int.from_bytes(data[2:start], "big")
        mask_size = 4 if data[1] & 128 else 0
        if len(data) < start + mask_size + size:
            return None
        mask = bytes(data[start : start + mask_size])
        start += mask_size
        payload = bytes(data[start : start + size])
        opcode = data[0] & 15
        del data[: start + size]
        return opcode, _unmasked(payload, mask) if mask else payload


class DraftTold:
    """Is a draft as one subscription knows it."""

    def __init__(self, frame: dict[str, Any]) -> None:
        self.id = frame["id"]
        self.turn = frame["turn"]
        self.index = frame["index"]
        self.content = frame["message"]["content"]

    def apply(self, op: dict[str, Any]) -> None:
        """Does what an op says (PROTOCOL section 3)."""
        if "add" in op and isinstance(self.content, str):
            self.content += op["add"]
            return
        if isinstance(self.content, str):
            self.content = [{"type": "text", "text": self.content}] if self.content else []
        if "set" in op:
            self.content[op["set"]] = op["part"]
        elif "part" in op:
            self.content.append(op["part"])
        else:
            kind, text = ("text", op["add"]) if "add" in op else ("reasoning", op["reasoning"])
            if not self.content or self.content[-1]["type"] != kind:
                self.content.append({"type": kind, "text": ""})
            self.content[-1]["text"] += text


class Told:
    """Is what one subscription was told since its last `opened` or `reset`.

    Attributes:
        behind: a draft ended that was not told to its end: the subscription lags, so that `live` has to follow.
    """

    def __init__(self, epoch: str, position: int) -> None:
        self.epoch = epoch
        self.position = position
        self.live = False
        self.draft: DraftTold | None = None
        self.behind = False
        self.drafts_ended: set[str] = set()
        self.turns_ended: set[Any] = set()


class Wire:
    """Is one connection as the world sees it."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self._world = world
        self._history = world.history
        self._truth = world.truth
        self._down = Frames()
        self._up = Frames()
        self._told: dict[str, Told] = {}
        self._opens: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        # Errors that were about an open or about a signal: so many opens at the front may be answered already.
        self._doubts: dict[str, int] = defaultdict(int)
        # Per conversation the client ids of sends in the order in which they came, and the last seq that one was acked.
        self._sends: dict[str, list[str]] = defaultdict(list)
        self._acked: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._principal = ""
        self._rules: dict[str, Callable[[dict[str, Any]], object]] = {
            "welcome": self._welcome,
            "opened": self._opened,
            "reset": self._opened,
            "rows": self._rows,
            "live": self._live,
            "ack": self._ack,
            "error": self._error,
            "page": self._page,
            "beat": self._beat,
            "turn": self._turn,
            "draft": self._draft,
            "delta": self._delta,
            "draftEnd": self._draft_end,
            "closed": lambda frame: self._told.pop(frame["conversation"], None),
        }

    def wrong(self, text: str, frame: object) -> None:
        """Says what is wrong with a frame."""
        self._history.problem(f"connection {self.number}: {text}: {frame!r}")

    # -- from the client

    def read(self, data: bytes) -> None:
        """Takes what has reached the server."""
        for frame in self._up.feed(data):
            self._history.add("<-", self.number, frame)
            conversation = frame.get("conversation", "")
            if frame["type"] == "open":
                self._opens[conversation].append(frame)
            elif frame["type"] == "send":
                self._sends[conversation].append(frame["clientId"])
            elif frame["type"] == "cancel":
                self._world.model.stopped(conversation, frame.get("turn"))

    # -- from the server

    def written(self, data: bytes) -> None:
        """Takes what the server writes."""
        for frame in self._down.feed(data):
            self._history.add("->", self.number, frame)
            rule = self._rules.get(frame["type"])
            if rule is not None:
                rule(frame)
                self._judge_access(frame)

    def _welcome(self, frame: dict[str, Any]) -> None:
        self._principal = frame["principal"]

    def _opened(self, frame: dict[str, Any]) -> None:
        conversation, head, start = frame["conversation"], frame["head"], frame["from"]
        durable = self._truth.head(conversation)
        if not self._opens[conversation]:
            self.wrong("an answer to no open", frame)
            return
        if head > durable:
            self.wrong(f"told before committed: the file ends at {durable}", frame)
        while True:
            asked = self._opens[conversation].popleft()
            due = self._start(asked, frame)
            if due == (start, frame.get("reason")):
                break
            if not self._doubts[conversation] or not self._opens[conversation]:
                self.wrong(f"{asked!r} is not answered with from, reason {due}", frame)
                break
            self._doubts[conversation] -= 1
        self._told[conversation] = Told(frame["epoch"], start)
        self._truth.epoch = frame["epoch"].partition(".")[0]

    def _start(self, asked: dict[str, Any], frame: dict[str, Any]) -> tuple[int, str | None]:
        """Returns where an answer has to start, and the reason of its reset."""
        head = frame["head"]
        reason = None
        if "epoch" in asked:
            row = self._truth.row(frame["conversation"], asked["after"])
            if asked["epoch"] != frame["epoch"]:
                reason = "epoch"
            elif asked["after"] > head:
                reason = "ahead"
            elif row is not None and "at" in asked and asked["at"] != _instant(row.at):
                reason = "epoch"
            else:
                return asked["after"], None
        return max(0, head - asked["tail"]) if "tail" in asked else 0, reason

    def _rows(self, frame: dict[str, Any]) -> None:
        conversation, rows = frame["conversation"], frame["rows"]
        told = self._told.get(conversation)
        if told is None or frame["epoch"] != told.epoch:
            self.wrong("rows of no subscription", frame)
            return
        if (told.draft is not None and not told.live) or told.behind:
            self.wrong("rows between a draft and live", frame)
        for row in rows:
            if row["seq"] != told.position + 1:
                kind = "duplicate or reorder" if row["seq"] <= told.position else "gap without reset"
                self.wrong(f"{kind}: row {row['seq']} behind row {told.position}", frame)
                return
            told.position = row["seq"]
            self._same(conversation, row, frame)

    def _same(self, conversation: str, row: dict[str, Any], frame: object) -> None:
        """Compares a row on the wire with the file."""
        durable = self._truth.row(conversation, row["seq"])
        if durable is None:
            self.wrong(f"told before committed: the file ends at {self._truth.head(conversation)}", frame)
        elif (row["by"], row.get("clientId"), row.get("turn"), row.get("finish"), row["message"]) != (
            durable.author,
            durable.client_id,
            durable.turn,
            durable.finish,
            _decode(durable.body),
        ):
            self.wrong(f"row {row['seq']} is another one in the file: {durable}", frame)

    def _live(self, frame: dict[str, Any]) -> None:
        told = self._told.get(frame["conversation"])
        if told is None or told.position != frame["seq"]:
            self.wrong(f"live at another place than {told and told.position}", frame)
        else:
            told.live, told.behind = True, False

    def _ack(self, frame: dict[str, Any]) -> None:
        conversation, client_id, seq = frame["conversation"], frame["clientId"], frame["seq"]
        durable = self._truth.row(conversation, seq)
        if durable is None or (durable.client_id, durable.author) != (client_id, self._principal):
            self.wrong(f"ack before commit, or without row: the file has {durable}", frame)
            return
        sends = self._sends[conversation]
        if client_id not in sends:
            self.wrong("an answer to no send", frame)
            return
        index = sends.index(client_id)
        sends[index] = ""
        if not frame.get("duplicate"):
            acked = self._acked[conversation]
            if any((seq < other) != (index < place) for place, other in acked):
                self.wrong(f"sends overtook each other: (place, seq) {acked} before {(index, seq)}", frame)
            acked.append((index, seq))

    def _error(self, frame: dict[str, Any]) -> None:
        conversation, client_id = frame.get("conversation", ""), frame.get("clientId")
        if client_id is not None:
            sends = self._sends[conversation]
            if client_id in sends:
                sends[sends.index(client_id)] = ""
            forbidden = frame["code"] == "forbidden" and (self._principal, conversation) in self._world.ever_forbidden
            if frame["code"] not in ("busy", "rate", "draining", "internal") and not forbidden:
                self.wrong("a send is refused for good", frame)
        elif "id" not in frame and conversation and frame["code"] != "draining":
            self._doubts[conversation] += 1

    def _page(self, frame: dict[str, Any]) -> None:
        rows = frame["rows"]
        for before, row in zip(rows, rows[1:], strict=False):
            if row["seq"] != before["seq"] + 1:
                self.wrong("a page with a hole", frame)
        for row in rows:
            self._same(frame["conversation"], row, frame)
        if rows and frame["more"] != (rows[0]["seq"] > 1):
            self.wrong("a page that is wrong about more", frame)

    def _beat(self, frame: dict[str, Any]) -> None:
        for conversation, head in frame["heads"].items():
            told = self._told.get(conversation)
            if told is None or told.position != head:
                self.wrong(f"a beat at another place than {told and told.position}", frame)

    # -- drafts

    def _draft(self, frame: dict[str, Any]) -> None:
        told = self._told.get(frame["conversation"])
        if told is None:
            self.wrong("a draft of no subscription", frame)
            return
        known = told.draft
        if frame["id"] in told.drafts_ended:
            self.wrong("a draft behind its end", frame)
        elif known is not None and (known.id != frame["id"] or known.index > frame["index"]):
            self.wrong(f"a draft while {known.id} is open, up to {known.index}", frame)
        told.draft = DraftTold(frame)

    def _delta(self, frame: dict[str, Any]) -> None:
        told = self._told.get(frame["conversation"])
        draft = None if told is None else told.draft
        if told is None or not told.live:
            self.wrong("delta before live", frame)
        elif draft is None or draft.id != frame["id"]:
            self.wrong("a delta of a draft that was not told", frame)
        elif draft.index != frame["from"] or frame["to"] <= frame["from"] or told.behind:
            self.wrong(f"a delta that does not follow on write {draft.index}", frame)
        else:
            draft.index = frame["to"]
            for op in frame["ops"]:
                draft.apply(op)

    def _draft_end(self, frame: dict[str, Any]) -> None:
        """A draft ends once, behind its row, and what was told of it is that row, unless it is told while it lags."""
        conversation = frame["conversation"]
        told = self._told.get(conversation)
        if told is None or told.draft is None or told.draft.id != frame["id"]:
            self.wrong("a second draft end" if told and frame["id"] in told.drafts_ended else "an unknown draft", frame)
            return
        draft, told.draft = told.draft, None
        told.drafts_ended.add(draft.id)
        row = self._truth.row(conversation, frame.get("seq", 0))
        if "seq" not in frame:
            if frame["finish"] == "done" and draft.content:
                self.wrong("a draft that is done and left no row", frame)
        elif told.position < frame["seq"]:
            self.wrong(f"draft end before row: told up to {told.position}", frame)
        elif row is None or (row.turn, row.finish or "done") != (draft.turn, frame["finish"]):
            self.wrong(f"a draft end that its row does not fit: {row}", frame)
        elif _decode(row.body)["content"] != draft.content:
            told.behind = True
            if not _text(_decode(row.body)["content"]).startswith(_text(draft.content)):
                self.wrong(f"the draft told is not its row: {draft.content!r}, {row}", frame)

    def _turn(self, frame: dict[str, Any]) -> None:
        """The rows of a turn come before its end, which is told once, when it is durable that nothing follows."""
        conversation, turn = frame["conversation"], frame["id"]
        told = self._told.get(conversation)
        if told is None:
            self.wrong("a turn of no subscription", frame)
            return
        if told.behind:
            self.wrong("a turn between the end of a draft that was not told whole, and live", frame)
        world = self._world
        if turn in told.turns_ended:
            self.wrong("a turn that was told as over", frame)
        if frame["state"] not in ENDS and frame["state"] != "waiting":
            return
        missing = [row.seq for row in self._truth.rows[conversation][told.position :] if row.turn == turn]
        if missing:
            self.wrong(f"the end of a turn before its rows {missing}", frame)
        told.turns_ended.add(turn)
        ended = world.model.ended[world.model.place(conversation)]
        if turn not in ended and not self._truth.is_handled(conversation, turn):
            self.wrong("the end of a turn before its mark is durable", frame)
        ended.add(turn)

    # -- access

    def _judge_access(self, frame: dict[str, Any]) -> None:
        """Whose access was taken away hears of that, and of what was sent before, and nothing else."""
        if frame["type"] not in ("ack", "error", "opened", "reset", "closed"):
            since = self._world.forbidden.get((self._principal, frame.get("conversation", "")))
            if since is not None:
                self.wrong(f"told behind a revocation at {since}", frame)


def body_of(row: TruthRow) -> Any:
    """Returns the message of a row."""
    return _decode(row.body)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _unmasked(payload: bytes, mask: bytes) -> bytes:
    size = len(payload)
    key = int.from_bytes((mask * (size // 4 + 1))[:size], "big")
    return (int.from_bytes(payload, "big") ^ key).to_bytes(size, "big")


def _instant(at: int) -> str:
    from parlatory.storage import instant_text

    return instant_text(at)
