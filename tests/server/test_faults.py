"""Faults that repeat: whole once, then counted."""

from __future__ import annotations

import pytest

from parlatory.server import faults
from parlatory.server.faults import Faults


def fault(kind: type[Exception], text: str = "t") -> Exception:
    try:
        raise kind(text)
    except Exception as error:
        return error


def test_the_first_is_whole_and_the_others_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    made = Faults(lambda: now)
    for _ in range(100):
        made.log("an open frame failed", fault(KeyError), "connection 1: an open frame failed")
        now += 1
    first, second = caplog.records
    assert first.getMessage() == "connection 1: an open frame failed" and first.exc_info
    assert second.getMessage() == "an open frame failed again, 60 times within 60 s, with the KeyError of before"
    assert not second.exc_info


def test_another_kind_is_whole_again(caplog: pytest.LogCaptureFixture) -> None:
    made = Faults(lambda: 0.0)
    other = KeyError("never raised")
    for what, error in [("a", fault(KeyError)), ("b", fault(KeyError)), ("a", fault(OSError)), ("a", other)] * 3:
        made.log(what, error)
    assert len(caplog.records) == 4 and all(record.exc_info for record in caplog.records)


def test_kinds_are_bounded(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "KINDS_MAX", 2)
    made = Faults(lambda: 0.0)
    for what in ("a", "b", "c", "c", "a"):
        made.log(what, fault(KeyError))
    assert [record.getMessage() for record in caplog.records] == ["a", "b", "c", "a"]
