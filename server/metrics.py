"""`/metrics`: what is counted anyway, in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ..storage import Latency

if TYPE_CHECKING:
    from .app import Server

__all__ = ["CONTENT_TYPE", "metrics_of"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_of(server: Server) -> str:
    """Returns all metrics of a server, its runtime and its storage."""
    lines = [*_sockets(server), *_runtime(server), *_storage(server)]
    return "\n".join(lines) + "\n"


def _sockets(server: Server) -> Iterator[str]:
    counters, reaper = server.counters, server.reaper
    yield from _labelled("gauge", "info", "The release that runs.", "version", {server.version: 1})
    yield from _plain("gauge", "draining", "1 once the server stops.", int(server.draining))
    yield from _plain("gauge", "connections", "Connections, let in or not yet.", server.connections)
    yield from _plain("gauge", "connections_pending", "Connections that are not let in yet.", server.pending)
    yield from _plain("counter", "connections_total", "Connections taken.", counters.accepted)
    yield from _plain("counter", "connections_dropped_total", "Dropped: too many were pending.", counters.dropped)
    yield from _labelled("counter", "handshakes_refused_total", "Handshakes refused.", "status", counters.refused)
    yield from _labelled("counter", "sockets_closed_total", "Sockets closed by the server.", "code", counters.closed)
    aborted = {kind: getattr(reaper, kind) for kind in ("stalled", "silent", "dribbling", "lingering")}
    yield from _labelled("counter", "sockets_aborted_total", "Sockets aborted by the reaper.", "reason", aborted)
    yield from _plain("counter", "acks_total", "Sends acknowledged.", counters.acks)
    yield from _plain("counter", "duplicates_total", "Sends acknowledged that were repeats.", counters.duplicates)
    yield from _labelled("counter", "errors_total", "Frames refused.", "code", counters.errors)
    yield from _plain("gauge", "loop_lag_seconds", "How late the last timer of the event loop was.", reaper.lag_s)


def _runtime(server: Server) -> Iterator[str]:
    runtime = server.runtime
    now, counters = runtime.statistics(), runtime.counters
    yield from _plain("gauge", "conversations", "Conversations in memory.", now.conversations)
    yield from _plain("counter", "conversations_released_total", "Conversations let go.", counters.released)
    yield from _plain("gauge", "agents_resident", "Agent instances in memory.", len(runtime.residency))
    yield from _plain("counter", "agents_evicted_total", "Agent instances let go.", counters.evictions)
    yield from _plain("gauge", "subscriptions", "Subscriptions.", now.subscriptions)
    yield from _plain("gauge", "subscriptions_lagging", "Subscriptions served from the log.", now.lagging)
    yield from _plain("gauge", "turns_running", "Turns that run.", now.running)
    yield from _plain("gauge", "turns_queued", "Messages that wait for their turn.", now.queued)
    yield from _labelled("counter", "turns_total", "Turns that ended.", "outcome", counters.turns)
    yield from _plain("gauge", "drafts_open", "Drafts being written.", now.drafts)


def _storage(server: Server) -> Iterator[str]:
    engine = server.runtime.engine
    done = engine.statistics
    yield from _plain("gauge", "storage_failed", "1 once storage has failed for good.", int(engine.failed is not None))
    yield from _plain("counter", "rows_total", "Rows committed.", done.rows)
    yield from _plain("counter", "repeats_total", "Appends that storage knew already.", done.duplicates)
    yield from _plain("gauge", "commit_queue_rows", "Rows that wait to be committed.", done.queued_rows)
    yield from _histogram("commit_seconds", "How long a transaction takes, its flush included.", done.commits)
    yield from _plain("counter", "wal_pinned_total", "Times another program's reader held the WAL.", done.pinned)


def _head(kind: str, name: str, what: str) -> Iterator[str]:
    yield f"# HELP parlatory_{name} {what}"
    yield f"# TYPE parlatory_{name} {kind}"


def _plain(kind: str, name: str, what: str, value: float) -> Iterator[str]:
    yield from _head(kind, name, what)
    yield f"parlatory_{name} {value:g}" if isinstance(value, float) else f"parlatory_{name} {value}"


def _labelled(
    kind: str, name: str, what: str, label: str, values: Mapping[int, int] | Mapping[str, int]
) -> Iterator[str]:
    yield from _head(kind, name, what)
    for key, value in values.items():
        yield f'parlatory_{name}{{{label}="{key}"}} {value}'


def _histogram(name: str, what: str, latency: Latency) -> Iterator[str]:
    yield from _head("histogram", name, what)
    for bound, count in latency.cumulated():
        yield f'parlatory_{name}_bucket{{le="{"+Inf" if math.isinf(bound) else format(bound, "g")}"}} {count}'
    yield f"parlatory_{name}_sum {latency.total_s:.6f}"
    yield f"parlatory_{name}_count {latency.count}"
