"""Access: who a socket is, and what it may do. The two hooks are the application's; everything else is denied."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import anyio
import msgspec

__all__ = [
    "Access",
    "AccessRequest",
    "ActionName",
    "Authenticate",
    "Authorize",
    "ConversationName",
    "Grant",
    "Principal",
    "anonymous_name",
]

RESERVED = ("agent", "anonymous")
PRINCIPAL_MAX = 256

ActionName = str
"""What a client wants: `open` `page` `send` `signal` `cancel` `call`."""


class Principal(msgspec.Struct, frozen=True):
    """Is who a socket is.

    Attributes:
        name: stands as `by` in the rows; the same person has the same name for ever.
        expires_at: when the token ends, in seconds since 1970 (as `exp` of a JWT); the socket is warned, then closed.
        claims: whatever `authorize` wants to know.
    """

    name: str
    expires_at: float | None = None
    claims: Mapping[str, Any] = {}


class Grant(msgspec.Struct, frozen=True):
    """Is an answer of `authorize` that allows a send in further roles: `Grant(roles={"user", "assistant"})`."""

    roles: frozenset[str] | set[str] = frozenset({"user"})


class ConversationName(NamedTuple):
    """Is a conversation, in its two halves."""

    agent: str
    name: str

    def __str__(self) -> str:
        return f"{self.agent}/{self.name}"


class AccessRequest(msgspec.Struct, frozen=True):
    """Is what a socket says of itself.

    Attributes:
        token: the token of its hello (or of its `auth` frame), None without one.
        client: the random id of its installation, None without one.
        headers: the headers of the handshake, by lower-case name: `authorization`, `cookie`, `origin` ...
        remote: the address of the peer.
    """

    token: str | None
    client: str | None
    headers: Mapping[str, str]
    remote: str

    @property
    def anonymous(self) -> Principal:
        """Is the principal of a socket without authentication: always the same for the same installation."""
        return Principal(anonymous_name(self.client))


Authenticate = Callable[[AccessRequest], Principal | None | Awaitable[Principal | None]]
Authorize = Callable[[Principal, ActionName, ConversationName], bool | Grant | Awaitable[bool | Grant]]


def anonymous_name(client: str | None) -> str:
    """Returns the name of a socket without authentication; the id of the installation is a secret and is hashed."""
    if client is None:
        return "anonymous"
    return "anonymous:" + hashlib.blake2b(client.encode(), digest_size=16, person=b"parlatory").hexdigest()


class Access:
    """Asks the application's hooks, and has an answer where there are none.

    Without `authenticate` everybody is anonymous. Without `authorize` everything is allowed, unless there is an
    `authenticate`: then nothing is.

    Args:
        authenticate: returns the principal of a request, or None to refuse it.
        authorize: says whether a principal may do something to a conversation.
        timeout_s: how long each may take.
    """

    def __init__(self, authenticate: Authenticate | None, authorize: Authorize | None, timeout_s: float) -> None:
        self._authenticate = authenticate
        self._authorize = authorize
        self._timeout_s = timeout_s

    @property
    def open_to_all(self) -> bool:
        """Says that nobody is asked for anything."""
        return self._authenticate is None and self._authorize is None

    async def authenticate(self, request: AccessRequest) -> Principal | None:
        """Returns the principal of a request, or None where it is refused.

        Raises:
            ValueError: the hook returned a principal that may not be.
            TimeoutError: it took too long.
        """
        if self._authenticate is None:
            return request.anonymous
        with anyio.fail_after(self._timeout_s):
            answer = self._authenticate(request)
            principal = await answer if inspect.isawaitable(answer) else answer
        if principal is not None:
            _check_principal(principal, request)
        return principal

    def authorize(
        self, principal: Principal, action: ActionName, conversation: ConversationName
    ) -> bool | Grant | Awaitable[bool | Grant]:
        """Returns the answer of the hook, or something that brings it: a hook that need not wait costs no wait."""
        if self._authorize is None:
            return self._authenticate is None
        answer = self._authorize(principal, action, conversation)
        return self._timed(answer) if inspect.isawaitable(answer) else answer

    async def _timed(self, answer: Awaitable[bool | Grant]) -> bool | Grant:
        with anyio.fail_after(self._timeout_s):
            return await answer


def _check_principal(principal: Principal, request: AccessRequest) -> None:
    if not isinstance(principal, Principal):
        raise ValueError(f"authenticate returned {principal!r}: return a Principal, or None to refuse")
    name = principal.name
    if principal == request.anonymous:
        return
    if not isinstance(name, str) or not 1 <= len(name) <= PRINCIPAL_MAX or not name.isprintable():
        raise ValueError(f"authenticate named a principal {name!r}: 1 to {PRINCIPAL_MAX} printable characters")
    if name in RESERVED or name.startswith("anonymous:"):
        raise ValueError(f"authenticate named a principal {name!r}, which is reserved; for anonymous access return request.anonymous")
