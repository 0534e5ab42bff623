from __future__ import annotations

import asyncio
import logging

import pytest

from parlatory.actors import MailboxFull
from parlatory.actors.mailbox import Mailbox


class Worker:
    """Handles items one at a time; each waits for a leave of the test."""

    def __init__(self, limit: int = 2) -> None:
        self.mailbox: Mailbox[str] = Mailbox(self.handle, limit=limit, name="bot/ann")
        self.done: list[str] = []
        self.running = 0
        self.leave = asyncio.Semaphore(0)
        self.begun = asyncio.Event()

    def open(self) -> None:
        for _ in range(10):
            self.leave.release()

    async def handle(self, item: str) -> None:
        self.running += 1
        assert self.running == 1
        self.begun.set()
        try:
            await self.leave.acquire()
            if item == "fail":
                raise RuntimeError("of the item")
            self.done.append(item)
        finally:
            self.running -= 1


def test_a_mailbox_takes_at_least_one_item() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Mailbox(lambda item: item, limit=0, name="bot/ann")


async def test_an_idle_mailbox_has_no_task() -> None:
    worker = Worker()
    assert worker.mailbox.idle
    assert worker.mailbox.statistics() == (0, False, 0)
    await worker.mailbox.join()
    worker.open()
    worker.mailbox.post_nowait("a")
    assert not worker.mailbox.idle
    await worker.mailbox.join()
    assert worker.mailbox.idle
    assert worker.done == ["a"]


async def test_items_are_handled_in_order_and_never_two_at_once() -> None:
    worker = Worker(limit=10)
    for item in "abcde":
        worker.mailbox.post_nowait(item)
    worker.open()
    await worker.mailbox.join()
    assert worker.done == list("abcde")


async def test_a_full_mailbox_refuses() -> None:
    worker = Worker()
    worker.mailbox.post_nowait("a")
    await worker.begun.wait()
    worker.mailbox.post_nowait("b")
    worker.mailbox.post_nowait("c")
    with pytest.raises(MailboxFull, match="2 items wait for 'bot/ann'"):
        worker.mailbox.post_nowait("d")
    assert worker.mailbox.statistics() == (2, True, 0)
    worker.open()
    await worker.mailbox.join()
    assert worker.done == ["a", "b", "c"]


async def test_posts_that_wait_for_room_are_served_in_order_and_nobody_overtakes_them() -> None:
    worker = Worker(limit=1)
    worker.mailbox.post_nowait("a")
    await worker.begun.wait()
    await worker.mailbox.post("b")
    posts = []
    for item in "cde":
        posts.append(asyncio.ensure_future(worker.mailbox.post(item)))
        await asyncio.sleep(0)
    assert worker.mailbox.statistics() == (1, True, 3)
    worker.leave.release()
    await posts[0]
    # The place that was made went to the next in the line, in the same step: there is none left to steal.
    with pytest.raises(MailboxFull):
        worker.mailbox.post_nowait("late")
    worker.open()
    await asyncio.gather(*posts)
    await worker.mailbox.join()
    assert worker.done == list("abcde")


async def test_a_cancelled_post_leaves_nothing_behind() -> None:
    worker = Worker(limit=1)
    worker.mailbox.post_nowait("a")
    await worker.begun.wait()
    worker.mailbox.post_nowait("b")
    given_up = asyncio.ensure_future(worker.mailbox.post("c"))
    kept = asyncio.ensure_future(worker.mailbox.post("d"))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait({given_up})
    assert worker.mailbox.statistics().blocked == 1
    worker.open()
    await kept
    await worker.mailbox.join()
    assert worker.done == ["a", "b", "d"]


async def test_a_post_cancelled_in_the_step_that_makes_room_is_passed_over() -> None:
    worker = Worker(limit=1)
    worker.mailbox.post_nowait("a")
    await worker.begun.wait()
    worker.mailbox.post_nowait("b")
    given_up = asyncio.ensure_future(worker.mailbox.post("c"))
    kept = asyncio.ensure_future(worker.mailbox.post("d"))
    await asyncio.sleep(0)
    given_up.cancel()
    worker.mailbox.clear()  # makes room before the cancelled task has run
    await asyncio.wait({given_up, kept})
    worker.open()
    await worker.mailbox.join()
    assert worker.done == ["a", "d"]


async def test_an_item_that_fails_costs_itself_only(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(limit=3)
    worker.open()
    for item in ("a", "fail", "b"):
        worker.mailbox.post_nowait(item)
    with caplog.at_level(logging.ERROR, "parlatory.actors"):
        await worker.mailbox.join()
    assert worker.done == ["a", "b"]
    assert "of the item" in caplog.text


async def test_clear_forgets_what_waits() -> None:
    worker = Worker(limit=2)
    for item in "ab":
        worker.mailbox.post_nowait(item)
    await worker.begun.wait()
    worker.mailbox.clear()
    worker.open()
    await worker.mailbox.join()
    assert worker.done == ["a"]
