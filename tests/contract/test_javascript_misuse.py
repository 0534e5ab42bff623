"""What the JavaScript client says of arguments that are none: it names them."""

from __future__ import annotations

import json

from .node import run_node

URL = "ws://127.0.0.1:1/v1"
SAID = {
    (URL, "nope"): 'misuse: "nope" is no conversation: it is <agent>/<name>, such as bot/ann',
    (URL, "Bot/ann"): 'misuse: "Bot/ann" is no conversation: it is <agent>/<name>, such as bot/ann',
    (URL, None): 'misuse: "null" is no conversation: it is <agent>/<name>, such as bot/ann',
    ("nowhere", "bot/ann"): 'misuse: "nowhere" is no address of a server, such as ws://localhost:8000/v1',
}


def test_it_names_the_value_that_is_none() -> None:
    said = run_node("javascript_misuse.mjs", text="\n".join(json.dumps(one) for one in SAID))
    assert said.splitlines() == list(SAID.values())
