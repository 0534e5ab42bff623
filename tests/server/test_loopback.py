from __future__ import annotations

import pytest

from parlatory.server.http import HttpRequest
from parlatory.server.loopback import from_this_machine, is_own_page, network_of


@pytest.mark.parametrize(
    ("headers", "remote", "local"),
    [
        ({"host": "127.0.0.1:8000"}, "127.0.0.1", True),
        ({"host": "localhost"}, "127.0.0.1", True),
        ({"host": "LocalHost:1"}, "::1", True),
        ({"host": "[::1]:8000"}, "::1", True),
        ({"host": "localhost", "origin": "http://127.0.0.1:8000"}, "127.0.0.1", True),
        ({"host": "localhost"}, "10.0.0.1", False),
        ({"host": "localhost"}, "", False),
        # a page whose name was made to resolve to this machine
        ({"host": "evil.example"}, "127.0.0.1", False),
        ({"host": "localhost.evil.example"}, "127.0.0.1", False),
        ({"host": "127.0.0.1:8000, evil.example"}, "127.0.0.1", False),
        ({"host": "evil.example@127.0.0.1"}, "127.0.0.1", False),
        ({"host": "[::1"}, "127.0.0.1", False),
        ({"host": ""}, "127.0.0.1", False),
        ({}, "127.0.0.1", False),
        # a page of another site
        ({"host": "localhost", "origin": "https://evil.example"}, "127.0.0.1", False),
        ({"host": "localhost", "origin": "null"}, "127.0.0.1", False),
        ({"host": "localhost", "origin": "http://[bad"}, "127.0.0.1", False),
        # a proxy on this machine
        ({"host": "localhost", "x-forwarded-for": "10.0.0.1"}, "127.0.0.1", False),
        ({"host": "localhost", "forwarded": "for=10.0.0.1"}, "127.0.0.1", False),
        ({"host": "localhost", "via": "1.1 proxy"}, "127.0.0.1", False),
        ({"host": "localhost", "x-forwarded-proto": "https"}, "127.0.0.1", False),
        ({"host": "localhost", "cf-connecting-ip": "10.0.0.1"}, "127.0.0.1", False),
        ({"host": "localhost", "true-client-ip": "10.0.0.1"}, "127.0.0.1", False),
        ({"host": "localhost", "user-agent": "curl"}, "127.0.0.1", True),
    ],
)
def test_what_comes_from_this_machine(headers: dict[str, str], remote: str, local: bool) -> None:
    assert from_this_machine(HttpRequest("/", "", headers, remote)) is local


@pytest.mark.parametrize(
    ("origin", "host", "own"),
    [
        ("http://localhost:8000", "localhost:8000", True),
        ("https://LOCALHOST:8443", "localhost:8443", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://127.0.0.1", "127.0.0.1", True),
        # another page of this machine
        ("http://localhost:3000", "localhost:8000", False),
        ("http://localhost:8000", "127.0.0.1:8000", False),
        ("file://localhost", "localhost", False),
        ("null", "null", False),
        ("", "", False),
        # a page whose name was made to resolve to the server, and one of another scheme
        ("http://evil.example:8000", "evil.example:8000", False),
        ("http://localhost.evil.example", "localhost.evil.example", False),
        ("http://chat.example", "chat.example", False),
        ("http://10.0.0.1:8000", "10.0.0.1:8000", False),
        ("http://[::1", "[::1", False),
    ],
)
def test_the_page_of_the_server_itself(origin: str, host: str, own: bool) -> None:
    assert is_own_page(origin, host) is own


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("", ""),
        ("/run/socket", "/run/socket"),
    ],
)
def test_an_ipv6_peer_is_its_network(address: str, network: str) -> None:
    assert network_of(address) == network
