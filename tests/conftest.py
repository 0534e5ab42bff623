"""What holds for every test: a blocking call on the event loop fails it. And an engine for those that want one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from blockbuster import BlockBuster, BlockingError
from hypothesis import settings

from parlatory.storage import Engine, open_engine

# The time of one example says more about the machine than about the code.
settings.register_profile("parlatory", settings(), deadline=None)
settings.load_profile("parlatory")

TESTS = Path(__file__).parent


@pytest.fixture(scope="session")
def blockbuster() -> BlockBuster:
    """Watches calls that have a frame of the product on their stack; the tests' own files and threads are theirs."""
    watch = BlockBuster(["parlatory", "parlatory.actors", "parlatory.server", "parlatory.storage"])
    # Where the log goes is the operator's choice; the standard handlers write to it at once.
    for name in ("io.TextIOWrapper.write", "io.BufferedWriter.write"):
        watch.functions[name].can_block_in("logging/__init__.py", {"emit", "flush"})
    return watch


@pytest.fixture(autouse=True)
def nothing_blocks(
    request: pytest.FixtureRequest, blockbuster: BlockBuster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The simulation may block: its loop is its own, and its engine writes inline."""
    if request.path.is_relative_to(TESTS / "sim"):
        yield
        return
    blocked: list[str] = []
    original = BlockingError.__init__

    def record(self: BlockingError, function: str) -> None:
        blocked.append(function)  # the error may end in a handler that only logs it
        original(self, function)

    monkeypatch.setattr(BlockingError, "__init__", record)
    blockbuster.activate()
    try:
        yield
    finally:
        blockbuster.deactivate()
    assert not blocked, f"blocking calls on the event loop: {', '.join(blocked)}"


@pytest.fixture(params=["memory", "sqlite"])
def engine_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
async def engine(engine_kind: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine of each kind, fresh for each test and closed after it."""
    opened = await open_engine("memory:" if engine_kind == "memory" else f"sqlite:///{tmp_path / 'data'}")
    yield opened
    await opened.close()
