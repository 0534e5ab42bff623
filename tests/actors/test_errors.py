from __future__ import annotations

import pytest

from parlatory.actors import Draining, MailboxFull, UnknownAgent
from parlatory.storage import ParlatoryError


@pytest.mark.parametrize(
    ("error", "code", "temporary", "text"),
    [
        (
            UnknownAgent("bot", ("echo", "relay")),
            "forbidden",
            False,
            "no agent 'bot' in this runtime; it has echo, relay",
        ),
        (UnknownAgent("bot", ()), "forbidden", False, "no agent 'bot' in this runtime; it has none"),
        (MailboxFull("bot/ann", 3), "busy", True, "3 items wait for 'bot/ann'"),
        (Draining(), "draining", True, "the runtime is stopping"),
    ],
)
def test_errors(error: ParlatoryError, code: str, temporary: bool, text: str) -> None:
    assert isinstance(error, ParlatoryError)
    assert (error.code, error.temporary, str(error)) == (code, temporary, text)


def test_errors_carry_data() -> None:
    unknown, full = UnknownAgent("bot", ("echo",)), MailboxFull("bot/ann", 3)
    assert isinstance(unknown, LookupError)
    assert (unknown.agent, unknown.agents) == ("bot", ("echo",))
    assert (full.name, full.limit) == ("bot/ann", 3)
