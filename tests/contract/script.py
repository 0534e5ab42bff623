"""The cases of `cases.json`, written out: macros are replaced, frames get what every one of them has.

A case is a list of steps, which both drivers carry out. What a server does:

    ["socket"]          the client has opened a socket: accept it; the steps below are about this one
    ["say", frame]      send a frame; `"$name"` stands for what `expect` has met
    ["raw", text]       send text as it is
    ["cut"]             the connection is lost
    ["close", code]     close
    ["down"], ["up"]    refuse connections, or accept them again

What the client does meanwhile:

    ["expect", frame]   the next frame of the client is exactly this; `"*"` stands for anything, `"$name"` keeps it
    ["quiet"]           there is no further frame
    ["none"]            no further socket was opened
    ["tries", n]        so many connections were tried
    ["stays"], ["gone"] the socket is still open, or was closed by the client
    ["see", view]       what the application sees now

What the application does: `["send", clientId, text]`, `["page", before, limit]`, `["cancel", turn?]`,
`["signal", name, data]`, `["end"]`. And `["advance", seconds]` lets time pass.

Rows are `[seq, text, clientId?, by?, turn?, finish?]`. Steps that only one client knows are in cases of its own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["CONVERSATION", "Case", "load"]

Case = dict[str, Any]

CONVERSATION = "echo/a"
LIMITS = {"frame": 4 << 20, "message": 1 << 20, "inflight": 32, "conversations": 32, "page": 200}
# Frames that are about a socket, not about a conversation.
BARE = {"hello", "auth", "welcome", "beat", "bye", "ping", "pong", "authExpiring", "error"}
SAID: dict[str, dict[str, Any]] = {
    "welcome": {
        "version": "0",
        "connection": "k",
        "principal": "me",
        "beatMs": 10_000,
        "limits": LIMITS,
        "boot": "b",
    },
    "opened": {"epoch": "e1", "floor": 0, "head": 0, "from": 0, "turn": {"state": "idle"}},
    "reset": {"epoch": "e1", "floor": 0, "head": 0, "from": 0, "turn": {"state": "idle"}},
    "rows": {"epoch": "e1"},
    "page": {"epoch": "e1"},
}


def load(name: str) -> dict[str, Case]:
    """Returns the cases of a file, written out, by name."""
    folder = Path(__file__).parent
    macros = json.loads((folder / "cases.json").read_text(encoding="utf-8"))["macros"]
    cases = json.loads((folder / name).read_text(encoding="utf-8"))["cases"]
    return {
        title: {"options": _whole(case.get("options", {})), "steps": _steps(case["steps"], macros)}
        for title, case in cases.items()
    }


def _steps(steps: list[Any], macros: dict[str, list[Any]]) -> list[list[Any]]:
    found: list[list[Any]] = []
    for step in steps:
        if isinstance(step, str):
            found += _steps(macros[step], macros)
        elif step[0] in ("say", "expect"):
            found.append([step[0], _frame(_whole(step[1]), SAID.get(step[1]["type"], {}) if step[0] == "say" else {})])
        else:
            found.append(_whole(step))
    return found


def _frame(frame: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    made = rest | frame
    if made["type"] not in BARE or made.keys() & {"clientId", "id"}:
        made = {"conversation": CONVERSATION} | made
    if isinstance(made.get("rows"), list):
        made["rows"] = [_row(*row) for row in made["rows"]]
    return made


def _row(
    seq: int,
    text: str,
    client_id: str | None = None,
    by: str | None = None,
    turn: int | None = None,
    finish: str | None = None,
) -> dict[str, Any]:
    by = by or ("agent" if client_id is None else "me")
    role = "assistant" if by == "agent" else "user"
    row = {"seq": seq, "at": f"2026-11-30T00:00:00.{seq:06}Z", "by": by, "clientId": client_id, "turn": turn}
    row |= {"finish": finish, "message": {"role": role, "content": text}}
    return {key: value for key, value in row.items() if value is not None}


def _whole(value: Any) -> Any:
    """Returns the value with its long texts, which are written `{"repeat": text, "times": n}`."""
    if isinstance(value, dict):
        if value.keys() == {"repeat", "times"}:
            return value["repeat"] * value["times"]
        return {key: _whole(one) for key, one in value.items()}
    return [_whole(one) for one in value] if isinstance(value, list) else value
