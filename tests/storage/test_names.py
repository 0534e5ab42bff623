from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parlatory.storage import InvalidName, check_name, split_name


@pytest.mark.parametrize(
    ("conversation", "parts"),
    [
        ("bot/ann", ("bot", "ann")),
        ("a/b/c", ("a", "b/c")),
        ("a//", ("a", "/")),
        ("a/..", ("a", "..")),
        ("a0-" + "x" * 29 + "/b", ("a0-" + "x" * 29, "b")),
        ("a/" + "x" * 512, ("a", "x" * 512)),
        ("a/" + "\U0001f600" * 128, ("a", "\U0001f600" * 128)),
        ("a/\u00e9", ("a", "\u00e9")),
        ("a/ ", ("a", " ")),
        ("a/\u2028", ("a", "\u2028")),
    ],
)
def test_well_formed(conversation: str, parts: tuple[str, str]) -> None:
    assert split_name(conversation) == parts
    assert check_name(conversation) is conversation


@pytest.mark.parametrize(
    ("conversation", "reason"),
    [
        ("", "<agent>/<name>"),
        ("bot", "<agent>/<name>"),
        ("/a", "agent"),
        ("Bot/a", "agent"),
        ("0bot/a", "agent"),
        ("bot_1/a", "agent"),
        ("b\u00f6t/a", "agent"),
        ("bot\n/a", "agent"),
        ("x" * 33 + "/a", "agent"),
        ("bot/", "1 to 512 bytes"),
        ("bot/" + "x" * 513, "1 to 512 bytes"),
        ("bot/" + "\U0001f600" * 128 + "x", "1 to 512 bytes"),
        ("bot/a\0", "control"),
        ("bot/a\nb", "control"),
        ("bot/\x7f", "control"),
        ("bot/\u0085", "control"),
        ("bot/e\u0301", "NFC"),
        ("bot/\ud83d", "surrogate"),
    ],
)
def test_refused(conversation: str, reason: str) -> None:
    with pytest.raises(InvalidName, match=reason) as caught:
        check_name(conversation)
    assert caught.value.name == conversation
    assert caught.value.code == "bad_frame"
    str(caught.value).encode()  # fit for a log, whatever the name holds


@given(st.text())
def test_anything_else_is_one_or_the_other(name: str) -> None:
    try:
        agent, rest = split_name(f"bot/{name}")
    except InvalidName:
        return
    assert (agent, rest) == ("bot", name)
    assert 1 <= len(name.encode()) <= 512
    assert name.isprintable() or not any(ord(character) < 32 for character in name)
