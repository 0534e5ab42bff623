"""What comes from this machine: addresses that reach it alone, and requests of whoever sits at it."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from .http import HttpRequest

__all__ = ["from_this_machine", "host_of", "is_loopback", "is_own_page", "network_of"]

HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9.-]+))(?::[0-9]+)?")
# A request that was passed on comes from elsewhere, whoever passes it on.
PASSED_ON = re.compile(r"forwarded|via|x-forwarded-.*|x-real-ip|.*-(?:client|connecting)-ip")


def is_loopback(host: str) -> bool:
    """Says whether an address reaches this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(origin: str) -> str:
    """Returns the host of an `Origin`, or nothing where it has none."""
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""


def from_this_machine(request: HttpRequest) -> bool:
    """Says whether a request comes from this machine and from no web page of another.

    The peer is not enough: a page that has its own name resolve to this machine asks from here (DNS rebinding), and
    names itself as the host; a proxy on this machine asks for others.
    """
    headers = request.headers
    host = HOST.fullmatch(headers.get("host", "").lower())
    if host is None or not is_loopback(host[1] or host[2]) or not is_loopback(request.remote):
        return False
    origin = headers.get("origin")
    return (origin is None or is_loopback(host_of(origin))) and not any(map(PASSED_ON.fullmatch, headers))


def is_own_page(origin: str, host: str) -> bool:
    """Says whether an `Origin` is a page of the very server that was asked under this `Host`, on the reader's machine.

    That the two are equal says nothing where the host is a name: a page of evil.example that has its name resolve to
    the server is equal too (DNS rebinding), and plain http://chat.example equals the host of https://chat.example.
    What only loopback has as its name cannot be made to resolve elsewhere, so no page from elsewhere can have it.
    """
    scheme, _, authority = origin.lower().partition("://")
    return scheme in ("http", "https") and authority == host.lower() and is_loopback(host_of(origin))


def network_of(address: str) -> str:
    """Returns what counts as one peer: an IPv4 address, or the /64 that an IPv6 address lies in."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((int(parsed) >> 64 << 64, 64)))
