"""Appends to a conversation, one message after another, and prints how long the acknowledgements took.

    python -m tests.bench.probe PORT SECONDS

A process of its own with one blocking socket, so that nothing but the server is measured. Used by the other benchmarks
for what the appends of other conversations feel.
"""

from __future__ import annotations

import argparse
import json
import secrets
import time

from .wire import frame, greet, hear, percentile

PAUSE_S = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    options = parser.parse_args()
    print(json.dumps(measure(options.port, options.seconds)))  # noqa: T201


def measure(port: int, seconds: float) -> dict[str, float]:
    """Returns how many appends there were, and percentiles of their time in ms."""
    name = f"relay/{secrets.token_hex(4)}"
    took: list[float] = []
    with greet(port) as sock:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            client_id = f"probe-{len(took)}-{name[6:]}"
            body = {"role": "user", "content": "x" * 100}
            wire = frame(type="send", conversation=name, clientId=client_id, message=body)
            before = time.perf_counter()
            sock.sendall(wire)
            heard = b""
            while client_id.encode() not in heard:  # a beat may come in between
                heard += hear(sock)
            took.append((time.perf_counter() - before) * 1000)
            time.sleep(PAUSE_S)
    took.sort()
    return {"appends": len(took), "p50": percentile(took, 50), "p99": percentile(took, 99)}


if __name__ == "__main__":
    main()
