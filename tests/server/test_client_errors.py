"""The errors of the client: one tree, stable codes, texts that say what to do."""

from __future__ import annotations

import pytest

from parlatory.server import client_errors
from parlatory.server.client_errors import (
    CancelTimeout,
    ClientError,
    ConnectionRefused,
    ConversationRefused,
    MediaFailed,
    Refused,
    SendRefused,
    SendTimeout,
)
from parlatory.storage import ParlatoryError


def test_one_tree() -> None:
    errors = [getattr(client_errors, name) for name in client_errors.__all__]
    assert all(issubclass(error, ClientError) and issubclass(error, ParlatoryError) for error in errors)
    assert issubclass(SendTimeout, TimeoutError) and issubclass(CancelTimeout, TimeoutError)


@pytest.mark.parametrize("cls", [Refused, ConversationRefused])
def test_l21_the_code_is_the_contract(cls: type[Refused]) -> None:
    """L21: a refusal carries the code of the server; nobody has to read its text."""
    error = cls("forbidden", "some text", "echo/a")
    assert (error.code, error.text, error.conversation) == ("forbidden", "some text", "echo/a")
    assert "some text" in str(error) and "echo/a" in str(error)
    assert cls.code == "client"


def test_l21_a_refused_send_names_the_message() -> None:
    error = SendRefused("too_large", "x", "echo/a", "id")
    assert (error.code, error.client_id) == ("too_large", "id")
    assert "message" in str(error)


def test_a_timeout_says_whether_it_was_sent() -> None:
    assert "was not sent" in str(SendTimeout("id", sent=False))
    assert "may still be appended" in str(SendTimeout("id", sent=True))
    assert SendTimeout.temporary


def test_a_stop_that_timed_out_says_whether_it_was_sent() -> None:
    assert "was not sent" in str(CancelTimeout("echo/a", sent=False))
    assert "may still take effect" in str(CancelTimeout("echo/a", sent=True))
    assert CancelTimeout.temporary


def test_a_refused_connection_carries_the_close_code() -> None:
    assert ConnectionRefused("x", 4403).close_code == 4403
    assert ConnectionRefused("x").close_code is None


def test_failed_media_say_whether_to_ask_again() -> None:
    """Of a server that is busy or not there, yes; of one that refuses, no."""
    errors = [MediaFailed("h", "text", status) for status in (None, 503, 401)]
    assert [error.temporary for error in errors] == [True, True, False]
    assert (errors[2].hash, errors[2].status, "text" in str(errors[2])) == ("h", 401, True)
