"""A hub to watch, without a runtime."""

from __future__ import annotations

from parlatory.actors import TurnTold
from parlatory.actors.hub import Hub

from .fakes import GatedLog, Recorder, batch

NAME = "bot/ann"


class Room:
    """A hub on a real partition, with everything that is committed told to it."""

    def __init__(self, log: GatedLog) -> None:
        self.log = log
        self.hub = Hub(log)

    async def commit(self, *texts: str) -> None:
        await self.log.partition.commit(batch(*texts), lambda committed: self.hub.committed(committed.rows))

    def subscribe(self, position: int = 0, by: str = "ann") -> Recorder:
        sink = Recorder()
        sink.subscription = self.hub.subscribe(sink, by, position)
        return sink

    def turn(self, seq: int, state: str, queued: int | None = None) -> None:
        self.hub.tell_turn(TurnTold(NAME, seq, state, queued))  # type: ignore[arg-type]
