from __future__ import annotations

import pytest

from parlatory.server import Principal
from parlatory.server.shares import Shares, asker


def test_each_has_a_share_and_gives_it_back() -> None:
    shares = Shares(2)
    with shares.one("ann"):
        assert not shares.used_up("ann")
        with pytest.raises(ZeroDivisionError), shares.one("ann"):
            assert shares.used_up("ann")
            assert not shares.used_up("bob")
            raise ZeroDivisionError
        assert not shares.used_up("ann")
    assert not shares._taken, "who has nothing is forgotten"


def test_who_says_no_name_is_told_apart_by_the_network() -> None:
    assert asker(Principal("user:ann"), "192.0.2.7") == "user:ann"
    assert asker(Principal("anonymous"), "192.0.2.7") == "192.0.2.7"
    assert asker(Principal("anonymous"), "2001:db8::1") == asker(Principal("anonymous"), "2001:db8::2")
