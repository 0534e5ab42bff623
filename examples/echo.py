"""Three agents for trying a client: `relay` passes rows on, `echo` answers, `vault` is closed to everybody.

    parlatory serve examples/echo.py --data ./echo-data

Tokens are `user:<name>`; without one a client is anonymous.
"""

from __future__ import annotations

import asyncio
import re

from parlatory import Agent
from parlatory.server import AccessRequest, ConversationName, Principal
from parlatory.storage import StoredMessage

TOKEN = re.compile(r"user:[a-z0-9][a-z0-9._-]{0,63}")


class Relay(Agent):
    """Rows in, rows out."""


class Vault(Agent):
    """Is there, and nobody may use it."""


class Echo(Agent):
    """Answers what it is told; `/stream N MS`, `/sleep MS`, `/fail` and `/quiet` do as they say."""

    async def on_message(self, row: StoredMessage) -> None:
        command, *words = row.text.split() or [""]
        if command == "/quiet":
            return
        if command == "/fail":
            raise RuntimeError("told to fail")
        if command == "/sleep" and len(words) == 1:
            await asyncio.sleep(int(words[0]) / 1000)
            await self.say(f"slept {words[0]}")
        elif command == "/stream" and len(words) == 2:
            count, pause_ms = map(int, words)
            async with self.reply() as draft:
                for index in range(count):
                    await draft.write(f"w{index} ")
                    await asyncio.sleep(pause_ms / 1000)
        else:
            await self.say(f"echo: {row.text}")


def authenticate(request: AccessRequest) -> Principal | None:
    if request.token is None:
        return request.anonymous
    return Principal(request.token) if TOKEN.fullmatch(request.token) else None


def authorize(principal: Principal, action: str, conversation: ConversationName) -> bool:
    return conversation.agent != "vault"
