"""The way from a thread into its loop: order, steps, errors, and loops that are gone or watch no descriptors."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import gc
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from parlatory.storage.waker import Waker


def asked(waker: Waker, *calls: Callable[[], object]) -> None:
    """Asks for calls, from a thread, in their order."""

    def ask() -> None:
        for call in calls:
            waker.call(call)

    in_thread(ask)


def in_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


async def all_of(said: list[Any], count: int, steps: int = 10_000) -> None:
    for _ in range(steps):
        if len(said) >= count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{len(said)} of {count} came: {said}")


def no_readers(*_: object) -> None:
    raise NotImplementedError


@pytest.fixture(params=["watched", "not watched"])
async def waker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Waker:
    if request.param == "not watched":
        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", no_readers)
    return Waker(asyncio.get_running_loop())


async def test_without_descriptors_the_loop_is_woken_in_its_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, "too many open files")

    before, said = open_files(), list[str]()
    monkeypatch.setattr(os, "pipe", none_left)
    waker = Waker(asyncio.get_running_loop())
    monkeypatch.undo()
    asked(waker, partial(said.append, "all the same"))
    await all_of(said, 1)
    waker.detach()
    del waker
    assert open_files() == before


async def test_calls_come_in_their_order_in_the_loop(waker: Waker) -> None:
    said: list[tuple[int, int]] = []

    def say(number: int) -> None:
        said.append((number, threading.get_ident()))

    asked(waker, *(partial(say, number) for number in range(100)))
    assert said == []
    await all_of(said, 100)
    assert said == [(number, threading.get_ident()) for number in range(100)]
    waker.detach()


async def test_each_has_a_step_of_its_own(waker: Waker) -> None:
    """What one fails with reaches the loop's handler, and the next one comes all the same."""
    loop, said, failed = asyncio.get_running_loop(), list[str](), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: failed.append(context))

    def fail() -> None:
        raise ValueError("it failed")

    asked(waker, fail, partial(said.append, "next"))
    await all_of(said, 1)
    assert [str(context["exception"]) for context in failed] == ["it failed"]
    waker.detach()


async def test_what_it_calls_is_no_part_of_who_made_it() -> None:
    place = contextvars.ContextVar("place", default="nowhere")
    place.set("here")
    waker, said = Waker(asyncio.get_running_loop()), list[str]()
    asked(waker, lambda: said.append(place.get()))
    await all_of(said, 1)
    assert said == ["nowhere"]
    waker.detach()


async def test_what_waits_can_be_called_at_once() -> None:
    loop, said, failed = asyncio.get_running_loop(), list[str](), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: failed.append(context))
    waker = Waker(loop)
    asked(waker, partial(said.append, "first"), lambda: 1 // 0, partial(said.append, "last"))
    waker.drain()
    assert said == ["first", "last"]
    assert [type(context["exception"]) for context in failed] == [ZeroDivisionError]
    asked(waker, partial(said.append, "later"))
    await all_of(said, 3)
    assert said == ["first", "last", "later"]
    waker.detach()


async def test_a_call_may_be_there_before_its_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who drains in between takes the call; the byte that comes then calls nothing."""
    waker, said = Waker(asyncio.get_running_loop()), list[str]()
    write = os.write

    asked_for, may_write = threading.Event(), threading.Event()

    def late(descriptor: int, data: bytes) -> int:
        asked_for.set()
        may_write.wait(60)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", late)
    asking = asyncio.create_task(asyncio.to_thread(waker.call, said.append, "once"))
    await asyncio.to_thread(asked_for.wait, 60)
    waker.drain()
    assert said == ["once"]
    may_write.set()
    await asking
    monkeypatch.undo()
    asked(waker, partial(said.append, "next"))
    await all_of(said, 2)
    assert said == ["once", "next"]
    waker.detach()


async def test_nothing_is_called_elsewhere() -> None:
    waker, said = Waker(asyncio.get_running_loop()), list[str]()
    asked(waker, partial(said.append, "here"))
    in_thread(waker.drain)
    assert said == []
    waker.drain()
    assert said == ["here"]
    waker.detach()


def open_files() -> set[int]:
    gc.collect()
    return {int(name) for name in os.listdir("/dev/fd")}


async def test_its_descriptors_go_once_nobody_can_write() -> None:
    before = open_files()
    waker = Waker(asyncio.get_running_loop())
    assert len(open_files() - before) == 2
    call = partial(waker.call, print, "is never called")
    waker.detach()
    del waker
    assert len(open_files() - before) == 2, "a thread may be about to write"
    in_thread(call)
    del call
    assert open_files() == before


async def test_it_can_be_let_go_from_another_thread() -> None:
    before = open_files()
    waker = Waker(asyncio.get_running_loop())
    in_thread(waker.detach)
    del waker
    for _ in range(10_000):
        if open_files() == before:
            return
        await asyncio.sleep(0)
    raise AssertionError(open_files() - before)


def test_a_loop_that_is_closed_lets_go() -> None:
    before, said = open_files(), list[str]()

    async def made() -> Waker:
        return Waker(asyncio.get_running_loop())

    waker = asyncio.run(made())
    asked(waker, partial(said.append, "nobody hears it"))
    waker.drain()
    waker.detach()
    del waker
    assert said == []
    assert open_files() == before
