from __future__ import annotations

import asyncio

import pytest

from parlatory.actors import Closed, Event, Live, Presence, RowsTold, Signal
from parlatory.actors import hub as hub_module
from parlatory.actors.hub import Subscription
from parlatory.actors.row_runs import runs
from parlatory.storage import Batch, Committed, NewRow, Row, StorageFull

from .fakes import Clock, Recorder, batch, steps, until
from .room import NAME, Room

# -- rows


async def test_an_empty_log_is_live_at_once(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    live = next(event for event in sink.events if isinstance(event, Live))
    assert (live.seq, sink.seqs) == (0, [])


async def test_replay_then_live(room: Room) -> None:
    await room.commit("one", "two")
    sink = await room.subscribe().until_live(2)
    await room.commit("three")
    await sink.until_live(3)
    assert sink.seqs == [1, 2, 3]
    assert [kind for kind in sink.kinds() if kind != "Presence"] == ["RowsTold", "Live", "RowsTold"]


async def test_a_position_is_resumed_behind_its_row(room: Room) -> None:
    await room.commit("one", "two", "three")
    assert (await room.subscribe(2).until_live(3)).seqs == [3]


async def test_live_subscribers_share_one_event(room: Room) -> None:
    sinks = [await room.subscribe().until_live(0) for _ in range(3)]
    await room.commit("one")
    events = {next(e for e in (await sink.until_live(1)).events if isinstance(e, RowsTold)) for sink in sinks}
    assert len(events) == 1


async def test_those_who_lag_at_the_same_place_share_one_event(room: Room) -> None:
    await room.commit("one", "two")
    sinks = [room.subscribe() for _ in range(3)]
    events = {next(e for e in (await sink.until_live(2)).events if isinstance(e, RowsTold)) for sink in sinks}
    assert len(events) == 1


async def test_what_is_committed_in_one_step_is_told_together(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    await asyncio.gather(*(room.commit(f"text {index}") for index in range(5)))
    await sink.until_live(5)
    assert sink.seqs == [1, 2, 3, 4, 5]
    assert sink.count(RowsTold) <= 2  # the first is a group of its own, the others wait for it and are the next


async def test_more_than_a_frame_holds_is_told_in_runs(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    await room.commit(*(f"text {index}" for index in range(450)))
    await sink.until_live(450)
    assert [len(event.rows) for event in sink.events if isinstance(event, RowsTold)] == [200, 200, 50]


async def test_beyond_the_fan_out_the_pump_serves(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FAN_OUT_MAX", 2)
    monkeypatch.setattr(hub_module, "PUMPS_PER_STEP", 2)
    sinks = [await room.subscribe().until_live(0) for _ in range(7)]
    await room.commit("one")
    for sink in sinks:
        await sink.until(lambda sink: sink.seqs == [1])
    assert [sink.count(Live) for sink in sinks] == [1, 1, 2, 2, 2, 2, 2]


async def test_a_subscriber_that_takes_no_more_gets_the_rest_later_and_holds_up_nobody(room: Room) -> None:
    slow, good = [await room.subscribe().until_live(0) for _ in range(2)]
    slow.pause()
    for index in range(3):
        await room.commit(f"text {index}")
    await good.until_live(3)
    assert slow.seqs == []
    slow.resume()
    await slow.until_live(3)
    assert slow.seqs == good.seqs == [1, 2, 3]
    assert slow.count(Live) == 2


async def test_a_pause_in_the_middle_of_the_replay(room: Room) -> None:
    await room.commit(*(f"text {index}" for index in range(500)))
    room.hub.forget_tail()
    sink = room.subscribe()
    room.log.gate.clear()
    await room.log.entered.wait()
    sink.pause()
    room.log.gate.set()
    await sink.until(lambda sink: sink.last_seq() > 0)  # what was being read is still told
    told = sink.last_seq()
    await steps(5)
    assert sink.last_seq() == told < 500
    sink.resume()
    sink.resume()
    await sink.until_live(500)
    assert sink.seqs == list(range(1, 501))


async def test_rows_committed_while_the_pump_reads_are_not_lost_L01(room: Room) -> None:
    await room.commit("one")
    room.hub.forget_tail()
    room.log.gate.clear()
    sink = room.subscribe()
    await room.log.entered.wait()
    await room.commit("two")
    room.log.gate.set()
    await sink.until_live(2)
    assert sink.seqs == [1, 2]


async def test_nothing_is_told_after_the_end_of_a_subscription(room: Room) -> None:
    await room.commit("one")
    room.hub.forget_tail()
    room.log.gate.clear()
    sink = room.subscribe()
    assert sink.subscription is not None
    await room.log.entered.wait()
    sink.subscription.unsubscribe()
    sink.subscription.unsubscribe()
    room.log.gate.set()
    sink.resume()
    await room.commit("two")
    await until(lambda: room.hub.idle)
    assert set(sink.kinds()) <= {"Presence"}


async def test_a_subscription_that_ends_in_the_queue_of_the_pump_is_passed_over(room: Room) -> None:
    await room.commit("one")
    first, second = room.subscribe(), room.subscribe()
    assert first.subscription is not None
    first.subscription.unsubscribe()
    await second.until_live(1)
    assert (first.seqs, first.count(Live), second.seqs) == ([], 0, [1])


async def test_rows_that_the_hub_was_not_told_of_are_read_from_the_log(room: Room) -> None:
    """Somebody appends to the partition past the actor: the next commit shows the hole, and the log fills it."""
    sink = await room.subscribe().until_live(0)
    await room.commit("one")
    await room.log.partition.commit(batch("behind the hub's back"))
    late = await room.subscribe(1).until_live(2)
    await room.commit("three")
    await sink.until_live(3)
    await late.until_live(3)
    assert (sink.seqs, late.seqs) == ([1, 2, 3], [2, 3])


@pytest.mark.parametrize("what", ["error", "lose"])
async def test_a_log_that_cannot_be_read_ends_the_subscription_aloud(
    room: Room, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    await room.commit("one")
    room.hub.forget_tail()
    setattr(room.log, what, StorageFull("no space") if what == "error" else True)
    sink = await room.subscribe().until(lambda sink: bool(sink.closed))
    assert sink.closed == ["internal"]
    assert "cannot be read" in caplog.text or "has no row 1" in caplog.text
    room.log.error, room.log.lose = None, False
    assert (await room.subscribe().until_live(1)).seqs == [1]


async def test_a_corrupt_row_ends_the_replay_at_its_place_T14(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    """The rows in front of it are told, it is named, and what lies behind it stays reachable."""
    await room.commit("one", "two")
    corrupt = NewRow(body=b'{"role":"us', by="user:x")
    await room.log.partition.commit(Batch(rows=(corrupt,)))
    await room.commit("four")
    room.hub.forget_tail()
    sink = await room.subscribe().until(lambda sink: bool(sink.closed))
    assert (sink.seqs, sink.closed) == ([1, 2], ["internal"])
    assert "row 3 of 'bot/ann' is corrupt" in caplog.text
    assert (await room.subscribe(3).until_live(4)).seqs == [4]


async def test_an_error_that_nobody_foresaw_does_not_stop_the_pump(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await room.commit("one")
    room.hub.forget_tail()
    room.log.error = ZeroDivisionError("in the engine")
    sinks = [room.subscribe() for _ in range(2)]
    for sink in sinks:
        await sink.until(lambda sink: sink.closed == ["internal"])
    assert "in the engine" in caplog.text


async def test_an_error_that_comes_after_the_end_of_its_subscription_is_nobody_s(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await room.commit("one")
    room.hub.forget_tail()
    room.log.gate.clear()
    sink = room.subscribe()
    assert sink.subscription is not None
    await room.log.entered.wait()
    sink.subscription.unsubscribe()
    room.log.error = StorageFull("no space")
    room.log.gate.set()
    await until(lambda: room.hub.idle)
    assert (sink.closed, caplog.text) == ([], "")


class Broken(Recorder):
    """A sink that breaks the promise of the protocol: it raises."""

    def tell(self, event: Event) -> None:
        super().tell(event)
        raise RuntimeError("of the sink")


async def test_a_sink_that_raises_is_taken_out_and_the_others_are_served(
    room: Room, caplog: pytest.LogCaptureFixture
) -> None:
    await room.commit("one")
    broken = Broken()
    room.hub.subscribe(broken, "ann", 0)
    good = await room.subscribe().until_live(1)
    assert len(broken.events) == 1
    assert len(room.hub.subscriptions) == 1
    await room.commit("two")
    await good.until_live(2)
    assert "of the sink" in caplog.text


async def test_who_becomes_live_before_the_telling_is_not_told_twice(room: Room) -> None:
    other = await room.subscribe().until_live(0)
    sinks: list[Recorder] = []

    def told(committed: Committed) -> None:
        sinks.append(room.subscribe())  # its pump runs before the telling at the end of this step
        room.hub.committed(committed.rows)

    await room.log.partition.commit(batch("one"), told)
    await other.until_live(1)
    await sinks[0].until_live(1)
    await room.commit("two")
    await sinks[0].until_live(2)
    assert other.seqs == sinks[0].seqs == [1, 2]


# -- the tail ring


async def test_the_tail_ring_is_bounded_in_rows_and_bytes(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    assert room.hub.recall(0) is None
    await room.commit(*(f"text {index}" for index in range(300)))
    assert room.hub.recall(43) is None
    assert (room.hub.recall(44) or [])[0].seq == 45
    assert [row.seq for row in room.hub.recall(299) or []] == [300]
    assert room.hub.recall(300) is None
    monkeypatch.setattr(hub_module, "TAIL_BYTES_MAX", 1000)
    await room.commit("x" * 950)
    assert room.hub.recall(299) is None
    assert [row.seq for row in room.hub.recall(300) or []] == [301]


async def test_a_recall_is_no_more_than_a_frame_holds(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    await room.commit(*(f"text {index}" for index in range(250)))
    assert len(room.hub.recall(0) or []) == 200
    monkeypatch.setattr(hub_module, "PUMP_BYTES_MAX", 1)
    assert len(room.hub.recall(0) or []) == 1


async def test_a_hole_in_the_tail_empties_it(room: Room) -> None:
    await room.commit("one")
    await room.log.partition.commit(batch("untold"))
    await room.commit("three")
    assert room.hub.recall(0) is None
    assert [row.seq for row in room.hub.recall(2) or []] == [3]


def row(seq: int, size: int = 10) -> Row:
    return Row(seq, 0, "ann", None, None, None, b'{"role":"user","content":"' + b"x" * size + b'"}')


@pytest.mark.parametrize(
    ("sizes", "rows_max", "bytes_max", "cut"),
    [
        ([], 2, 1000, []),
        ([10], 2, 1, [1]),
        ([10, 10, 10], 2, 100_000, [2, 1]),
        ([10, 10, 10, 10], 2, 100_000, [2, 2]),
        ([600, 600, 600], 10, 1000, [1, 1, 1]),
        ([5000, 10, 10], 10, 1000, [1, 2]),
    ],
)
def test_runs(sizes: list[int], rows_max: int, bytes_max: int, cut: list[int]) -> None:
    rows = [row(index + 1, size) for index, size in enumerate(sizes)]
    found = list(runs(rows, rows_max, bytes_max))
    assert [len(run) for run in found] == cut
    assert [one for run in found for one in run] == rows


# -- turns


async def test_rows_are_told_before_the_turns_that_were_told_behind_them(room: Room) -> None:
    sink = await room.subscribe().until_live(0)

    def told(rows: tuple[Row, ...]) -> None:
        room.hub.committed(rows)
        room.turn(rows[0].seq, "queued", 1)

    await room.log.partition.commit(batch("one"), lambda committed: told(committed.rows))
    room.turn(1, "running")
    await sink.until(lambda sink: len(sink.turns) == 2)
    assert [kind for kind in sink.kinds() if kind != "Presence"] == ["Live", "RowsTold", "TurnTold", "TurnTold"]


async def test_the_end_of_a_turn_comes_after_its_last_row_for_a_lagging_subscriber_too(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    sink.pause()
    await room.commit("question")
    room.turn(1, "running")
    await room.commit("answer")
    room.turn(1, "done")
    await steps(3)
    assert sink.turns == []
    sink.resume()
    await sink.until(lambda sink: bool(sink.turns))
    assert [kind for kind in sink.kinds() if kind != "Presence"] == ["Live", "RowsTold", "Live", "TurnTold"]
    assert sink.turns == [(1, "done")]


async def test_who_lagged_learns_what_runs_and_what_waits(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    sink.pause()
    await room.commit("one", "two")
    room.turn(1, "running")
    room.turn(2, "queued", 1)
    sink.resume()
    await sink.until(lambda sink: bool(sink.turns))
    assert sink.turns == [(1, "running"), (2, "queued")]


async def test_a_turn_told_before_the_subscription_is_part_of_its_answer(room: Room) -> None:
    room.turn(1, "running")
    sink = await room.subscribe().until_live(0)
    room.turn(1, "done")
    await sink.until(lambda sink: bool(sink.turns))
    assert sink.turns == [(1, "done")]


async def test_a_turn_is_told_once_to_who_becomes_live_in_the_step_that_tells_it(room: Room) -> None:
    other = await room.subscribe().until_live(0)
    sink = room.subscribe()
    room.turn(1, "running")  # is told at the end of this step; the pump makes the sink live before or after that
    await other.until(lambda sink: bool(sink.turns))
    await sink.until(lambda sink: bool(sink.turns))
    await steps(3)
    assert sink.turns == [(1, "running")]


async def test_a_turn_nobody_can_take_makes_him_lag(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "FAN_OUT_MAX", 1)
    sinks = [await room.subscribe().until_live(0) for _ in range(3)]
    sinks[2].pause()
    room.turn(1, "running")
    room.turn(1, "done")
    for sink in sinks[:2]:
        await sink.until(lambda sink: (1, "done") in sink.turns)
    assert sinks[0].turns == [(1, "running"), (1, "done")]
    assert sinks[1].turns == [(1, "done")]
    assert sinks[2].turns == []
    sinks[2].resume()
    await sinks[2].until(lambda sink: sink.turns == [(1, "done")])


# -- what is ephemeral


def signal(name: str, data: bytes | None = None, by: str = "bob") -> Signal:
    return Signal(NAME, name, data, by)


async def test_a_signal_goes_to_all_but_its_sender(room: Room) -> None:
    sender, one, two = [await room.subscribe().until_live(0) for _ in range(3)]
    room.hub.signal(signal("typing"), sender)
    assert [sink.count(Signal) for sink in (sender, one, two)] == [0, 1, 1]


async def test_signals_are_coalesced_by_name_and_author_for_who_lags(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    sink.pause()
    for name, data, by in (
        ("typing", b"1", "bob"),
        ("cursor", b"2", "bob"),
        ("typing", b"3", "eve"),
        ("typing", b"4", "bob"),
    ):
        room.hub.signal(signal(name, data, by), Recorder())
    assert sink.count(Signal) == 0
    sink.resume()
    told = [(event.name, event.data, event.by) for event in sink.events if isinstance(event, Signal)]
    assert told == [("cursor", b"2", "bob"), ("typing", b"3", "eve"), ("typing", b"4", "bob")]


async def test_a_newer_signal_does_not_overtake_an_older_one(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    sink.pause()
    room.hub.signal(signal("typing", b"true"), Recorder())
    sink.writable = True  # the sink says so a little later
    room.hub.signal(signal("typing", b"false"), Recorder())
    sink.resume()
    assert [event.data for event in sink.events if isinstance(event, Signal)] == [b"false"]


async def test_what_waits_for_who_lags_is_bounded_in_number_and_bytes(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    sink.pause()
    for index in range(100):
        room.hub.signal(signal(f"name {index}"), Recorder())
    sink.resume()
    assert [event.name for event in sink.events if isinstance(event, Signal)] == [f"name {n}" for n in range(68, 100)]
    sink.events.clear()
    sink.pause()
    for index in range(4):
        room.hub.signal(signal(f"name {index}", b"x" * 30_000), Recorder())
    sink.resume()
    assert [event.name for event in sink.events if isinstance(event, Signal)] == ["name 2", "name 3"]
    sink.pause()
    room.hub.signal(signal("huge", b"x" * 100_000), Recorder())
    sink.resume()
    assert sink.count(Signal) == 2


async def test_what_waits_stops_where_the_sink_takes_no_more(room: Room) -> None:
    class Small(Recorder):
        """Takes one event, then no more."""

        def tell(self, event: Event) -> None:
            super().tell(event)
            self.writable = False

    sink = Small()
    sink.writable = False
    sink.subscription = room.hub.subscribe(sink, "ann", 0)
    for name in "abc":
        room.hub.signal(signal(name), Recorder())
    for count in (1, 2, 3):
        sink.resume()
        assert sink.count(Signal) == count


async def test_presence_is_told_to_all_at_most_once_a_second(room: Room, clock: Clock) -> None:
    first = await room.subscribe(by="ann").until(lambda sink: sink.count(Presence) == 1)
    others = [room.subscribe(by=by) for by in ("bob", "ann", "eve")]
    assert others[0].subscription is not None
    await steps(5)
    assert [sink.count(Presence) for sink in (first, *others)] == [1, 0, 0, 0]
    await clock.advance(1.5)
    seen = [sink.count(Presence) for sink in (first, *others)]
    assert seen == [1, 0, 0, 0], "a client that was late with the one before would see it within a second"
    await clock.advance(0.51)
    assert [sink.count(Presence) for sink in (first, *others)] == [2, 1, 1, 1]
    told = first.events[-1]
    assert isinstance(told, Presence)
    assert (told.count, told.principals) == (3, ["ann", "bob", "eve"])
    others[0].subscription.unsubscribe()
    await clock.advance(2.01)
    told = first.events[-1]
    assert isinstance(told, Presence)
    assert (told.count, told.principals) == (2, ["ann", "eve"])
    assert others[0].count(Presence) == 1
    before = first.count(Presence)
    await clock.advance(10)
    assert first.count(Presence) == before


async def test_presence_names_up_to_a_hundred(room: Room, clock: Clock) -> None:
    sinks = [room.subscribe(by=f"user {index:03}") for index in range(101)]
    await clock.advance(1.01)
    told = next(event for event in sinks[0].events if isinstance(event, Presence))
    assert (told.count, told.principals) == (101, None)


async def test_presence_is_told_to_nobody_where_nobody_is_left(room: Room, clock: Clock) -> None:
    sink = room.subscribe()
    assert sink.subscription is not None
    sink.subscription.unsubscribe()
    await clock.advance(2)
    assert sink.events == []


# -- the end


async def test_an_ended_subscription_is_told_why_once(room: Room) -> None:
    sink = await room.subscribe().until_live(0)
    assert sink.subscription is not None
    for _ in range(2):
        room.hub.end(sink.subscription, "forbidden")
    await room.commit("one")
    await steps(3)
    assert sink.closed == ["forbidden"]
    assert isinstance(sink.events[-1], Closed)


async def test_close_ends_everything(room: Room, clock: Clock) -> None:
    await room.commit("one")
    live = await room.subscribe().until_live(1)
    room.hub.forget_tail()
    room.log.gate.clear()
    reading = room.subscribe()
    await room.log.entered.wait()
    told = len(live.events)
    room.hub.close()
    room.hub.close()
    await clock.advance(2)
    assert live.closed == reading.closed == ["draining"]
    assert len(live.events) == told + 1
    assert room.hub.idle
    assert not [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]


async def test_a_position_is_all_that_a_stuck_subscriber_costs_L24(room: Room, clock: Clock) -> None:
    sink = await room.subscribe().until_live(0)
    sink.pause()
    subscription = sink.subscription
    assert isinstance(subscription, Subscription)
    for index in range(20):
        await room.commit(*(f"text {index}" for _ in range(100)))
    assert subscription.position == 0
    assert not subscription.live
    assert len(subscription._pending) <= 1
    assert len(room.hub._tail) == 256
    assert not room.hub._fresh
    assert not room.hub._ready
    assert room.hub._pump is None
    sink.resume()
    await sink.until_live(2000)
    assert sink.seqs == list(range(1, 2001))
