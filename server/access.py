"""Access: who a socket is, and what it may do. The two hooks are the application's; everything else is denied."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Any, NamedTuple

import anyio
import msgspec

from ..storage import kind_of

__all__ = [
    "ANYBODY",
    "Access",
    "AccessRequest",
    "ActionName",
    "Authenticate",
    "Authorize",
    "ConversationName",
    "Grant",
    "Operator",
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

    def __repr__(self) -> str:
        return f"<Principal {self.name!r}>"  # claims may hold secrets, and this may end in a log


class Grant(msgspec.Struct, frozen=True):
    """Is an answer of `authorize` that allows a send in further roles: `Grant(roles={"user", "assistant"})`.

    Raises:
        TypeError: the roles are no set of strings.
    """

    roles: Set[str] = frozenset({"user"})

    def __post_init__(self) -> None:
        """Refuses a string, in which any part of it would be a role."""
        if not isinstance(self.roles, Set) or not all(isinstance(role, str) for role in self.roles):
            raise TypeError(f"the roles of a Grant are a set of strings, not {self.roles!r}")


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
        headers: the headers of the handshake, by lower-case name: `authorization`, `origin` ...; `cookie` only where
            `serve` was given `origins`, because browsers send cookies for whatever page asks them to.
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

    def __repr__(self) -> str:
        return f"<AccessRequest from {self.remote}>"  # the rest is secret, and this may end in a log


Authenticate = Callable[[AccessRequest], Principal | None | Awaitable[Principal | None]]
Operator = Callable[[Principal], bool | Awaitable[bool]]
Authorize = Callable[[Principal, ActionName, ConversationName], bool | Grant | Awaitable[bool | Grant]]

ALLOWED = Grant()
ANYBODY = "anonymous"
"""The name of a socket that says neither who it is nor of which installation."""


def anonymous_name(client: str | None) -> str:
    """Returns the name of a socket without authentication; the id of the installation is a secret and is hashed."""
    if client is None:
        return ANYBODY
    return "anonymous:" + hashlib.blake2b(client.encode(), digest_size=16, person=b"parlatory").hexdigest()


class Access:
    """Asks the application's hooks, and has an answer where there are none.

    Without `authenticate` everybody is anonymous. Without `authorize` everything is allowed, unless there is an
    `authenticate`: then nothing is.

    Args:
        authenticate: returns the principal of a request, or None to refuse it.
        authorize: says whether a principal may do something to a conversation.
        timeout_s: how long each may take.
        operator: says whether a principal runs the server: it sees everything.

    Raises:
        TypeError: one of the hooks is no function.
    """

    def __init__(
        self,
        authenticate: Authenticate | None,
        authorize: Authorize | None,
        timeout_s: float,
        operator: Operator | None = None,
    ) -> None:
        for name, hook in (("authenticate", authenticate), ("authorize", authorize), ("operator", operator)):
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} is a function, not {kind_of(hook)}")
        self._authenticate = authenticate
        self._authorize = authorize
        self._timeout_s = timeout_s
        self._operator = operator

    @property
    def open_to_all(self) -> bool:
        """Says that nobody is asked for anything."""
        return self._authenticate is None and self._authorize is None

    @property
    def authenticates(self) -> bool:
        """Says that the application decides who a socket is."""
        return self._authenticate is not None

    @property
    def has_operator(self) -> bool:
        """Says that the application decides who runs the server."""
        return self._operator is not None

    async def operates(self, principal: Principal) -> bool:
        """Says whether a principal runs the server; nobody does where nobody was asked.

        Raises:
            TypeError: the hook answered no bool.
            TimeoutError: it took too long.
        """
        if self._operator is None:
            return False
        answer = self._operator(principal)
        if inspect.isawaitable(answer):
            with anyio.fail_after(self._timeout_s):
                answer = await answer
        if not isinstance(answer, bool):
            raise TypeError(f"operator returned a {type(answer).__name__}: return True or False")
        return answer

    async def authenticate(self, request: AccessRequest) -> Principal | None:
        """Returns the principal of a request, or None where it is refused.

        Raises:
            TypeError, ValueError: the hook returned what may be no principal.
            TimeoutError: it took too long.
        """
        if self._authenticate is None:
            return request.anonymous
        answer = self._authenticate(request)
        if inspect.isawaitable(answer):
            with anyio.fail_after(self._timeout_s):
                answer = await answer
        if answer is not None:
            _check_principal(answer, request)
        return answer

    def authorize(
        self, principal: Principal, action: ActionName, conversation: ConversationName
    ) -> Grant | None | Awaitable[Grant | None]:
        """Returns what is granted, or something that brings it: a hook that need not wait costs no wait.

        Raises:
            TypeError: the hook answered neither bool nor Grant.
            TimeoutError: from what it returned, if that took too long.
        """
        if self._authorize is None:
            return ALLOWED if self._authenticate is None else None
        answer = self._authorize(principal, action, conversation)
        if answer is True:
            return ALLOWED
        return self._timed(answer) if inspect.isawaitable(answer) else _granted(answer)

    async def _timed(self, answer: Awaitable[bool | Grant]) -> Grant | None:
        with anyio.fail_after(self._timeout_s):
            return _granted(await answer)


def _granted(answer: bool | Grant) -> Grant | None:
    """Reads an answer of `authorize`. Another true value is no yes: it may be a mistake."""
    if isinstance(answer, bool):
        return ALLOWED if answer else None
    if isinstance(answer, Grant):
        return answer
    raise TypeError(f"authorize returned {kind_of(answer)}: return True, False or a Grant")


def _check_principal(principal: Principal, request: AccessRequest) -> None:
    """Refuses a principal that may not be; without quoting it, because it may be the token by mistake."""
    if not isinstance(principal, Principal):
        raise TypeError(f"authenticate returned {kind_of(principal)}: return a Principal, or None to refuse")
    name, expires_at = principal.name, principal.expires_at
    if expires_at is not None and not (isinstance(expires_at, int | float) and math.isfinite(expires_at)):
        raise ValueError("authenticate gave a principal an expires_at that is no number of seconds since 1970")
    if name == request.anonymous.name:
        return
    if not isinstance(name, str) or not 1 <= len(name) <= PRINCIPAL_MAX or not name.isprintable():
        raise ValueError(f"authenticate named a principal with other than 1 to {PRINCIPAL_MAX} printable characters")
    if name in RESERVED or name.startswith("anonymous:"):
        raise ValueError(
            f"authenticate named a principal {name.partition(':')[0]!r}, which is reserved; "
            "for anonymous access return request.anonymous"
        )
