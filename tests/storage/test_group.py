"""What a group decides: seqs, instants, repeats, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from parlatory.storage import (
    Batch,
    ClientIdConflict,
    Committed,
    Conflict,
    Partition,
    UnknownMedia,
)
from parlatory.storage.group import ClientKey, First, Item, MediaKey, Plan, plan_group

from .batches import blob, partition, row, rows, seqs, with_media


async def plan(
    batches: Sequence[tuple[Partition, Batch]],
    known: dict[ClientKey, First] | None = None,
    now: int = 100,
    held: Collection[MediaKey] = (),
) -> Plan:
    loop = asyncio.get_running_loop()
    items = [Item(partition, batch, None, loop.create_future()) for partition, batch in batches]
    return plan_group(items, known or {}, 7, now, held)


def outcomes(plan: Plan) -> list[object]:
    return [outcome.seq if isinstance(outcome, Committed) else type(outcome) for _, outcome in plan.outcomes]


async def test_seqs_follow_the_head() -> None:
    old, new = partition("bot/old", key=3, head=9, at=50), partition("bot/new")
    found = await plan([(old, rows("a", "b")), (new, rows("c")), (old, rows("d"))])
    assert seqs(found.group) == [(3, 10), (3, 11), (7, 1), (3, 12)]
    assert found.group.names == [(7, "bot/new")]
    assert outcomes(found) == [11, 1, 12]
    assert (old.head, new.head, new.key) == (9, 0, None)  # a plan is not a commit


async def test_t17_instants_do_not_go_back() -> None:
    a = partition(key=1, head=1, at=500)
    for now, at in ((100, 500), (500, 500), (600, 600)):
        found = await plan([(a, rows("x", "y"))], now=now)
        assert [row.at for _, row, _ in found.group.rows] == [at, at]


async def test_a_refused_batch_takes_nothing() -> None:
    a = partition(key=1, head=4)
    batches = [
        (a, Batch(rows=[row()], expected_seq=3)),
        (a, rows("x")),
        (a, Batch(rows=[row()], puts={"k": b"1"}, expected_seq=4)),
        (a, Batch(rows=[row()], expected_seq=5)),
    ]
    found = await plan(batches)
    assert outcomes(found) == [Conflict, 5, Conflict, 6]
    assert not found.group.puts


async def test_a_conversation_that_is_only_refused_is_not_made() -> None:
    found = await plan([(partition(), Batch(rows=[row()], expected_seq=3))])
    assert not found.group
    assert found.tips == {}


async def test_repeats_inside_a_group() -> None:
    a = partition(key=1)
    send, other = Batch(rows=[row(client_id="c", digest=1)]), Batch(rows=[row(client_id="c", digest=2)])
    found = await plan([(a, send), (a, other), (a, send), (a, Batch(rows=send.rows, expected_seq=0))])
    assert outcomes(found) == [1, ClientIdConflict, 1, 1]
    assert [outcome.duplicate for _, outcome in found.outcomes if isinstance(outcome, Committed)] == [False, True, True]


async def test_repeats_of_what_is_known() -> None:
    a = partition(key=1, head=5)
    key = ("bot/a", "user", "c")
    found = await plan([(a, Batch(rows=[row(client_id="c", digest=1)], expected_seq=2))], {key: First(3, 1)})
    assert [outcome for _, outcome in found.outcomes] == [Committed(3, (), True)]
    assert not found.group
    refused = await plan([(a, Batch(rows=[row(client_id="c", digest=2)]))], {key: First(3, 1)})
    ((_, error),) = refused.outcomes
    assert isinstance(error, ClientIdConflict)
    assert (error.client_id, error.seq) == ("c", 3)


async def test_the_last_change_of_a_key_wins() -> None:
    a = partition(key=1)
    changes = [
        Batch(puts={"a": b"1", "b": b"1", "c": b"1"}),
        Batch(puts={"a": b"2"}, deletes=["b"]),
        Batch(puts={"d": b"1"}, deletes=["d"], timers={"t": 5, "u": 5}, work=True),
        Batch(puts={"b": b"3"}, timers={"t": None}, work=False),
    ]
    group = (await plan([(a, change) for change in changes])).group
    assert group.puts == {(1, "a"): b"2", (1, "b"): b"3", (1, "c"): b"1"}
    assert list(group.deletes) == [(1, "d")]
    assert group.timers == {(1, "t"): None, (1, "u"): 5}
    assert group.works == {1: None}
    assert (await plan([(a, Batch(work=True))], now=8)).group.works == {1: 8}


# -- media


async def test_media_are_used_by_the_last_row_that_refers_to_them() -> None:
    a = partition(key=3, head=9)
    batches = [with_media(blob("1"), blob("2")), Batch(uploads=[blob("3")]), with_media(refs=["1", "2"])]
    found = await plan([(a, batch) for batch in batches], now=70)
    assert found.group.blobs == [(3, 70, blob("1")), (3, 70, blob("2")), (3, 70, blob("3"))]
    assert found.group.uses == {(3, "1"): 11, (3, "2"): 11}
    assert found.group.bytes == 2 + 9
    assert found.group.lone_row is None


async def test_media_that_are_not_there_refuse_their_row_alone() -> None:
    """An upload of this group does not count: it may be a piece only."""
    a, b = partition(key=3), partition("bot/b", key=4)
    batches = [(a, with_media(refs=["1"])), (a, Batch(uploads=[blob("1")])), (a, with_media(refs=["1"]))]
    found = await plan([*batches, (b, with_media(refs=["1"])), (b, rows("x"))])
    assert outcomes(found) == [UnknownMedia, 0, UnknownMedia, UnknownMedia, 1]
    for held, outcome in ({("bot/b", "1")}, UnknownMedia), ({("bot/a", "1")}, 1):
        assert outcomes(await plan(batches[:1], held=held)) == [outcome]
