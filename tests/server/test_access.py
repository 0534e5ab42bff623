from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parlatory.server import AccessRequest, ConversationName, Grant, Principal
from parlatory.server.access import Access, anonymous_name

TOKEN = "s3cret"
REQUEST = AccessRequest(TOKEN, "c" * 22, {"cookie": TOKEN}, "127.0.0.1")
ANN = Principal("user:ann")
PLACE = ConversationName("relay", "x/y")


def access(authenticate: Any = None, authorize: Any = None, timeout_s: float = 5) -> Access:
    return Access(authenticate, authorize, timeout_s)


def answering(value: object) -> Any:
    return lambda *_: value


def answering_later(value: object) -> Any:
    async def hook(*_: object) -> object:
        return value

    return hook


async def never(*_: object) -> bool:
    await asyncio.get_running_loop().create_future()
    return True


async def granted(rules: Access) -> Grant | None:
    grant = rules.authorize(ANN, "send", PLACE)
    return grant if isinstance(grant, Grant | None) else await grant


def test_anonymous_names_hide_the_installation() -> None:
    assert anonymous_name(None) == "anonymous"
    name = anonymous_name("c" * 22)
    assert name == anonymous_name("c" * 22) != anonymous_name("d" * 22)
    assert name.startswith("anonymous:") and "ccc" not in name
    assert REQUEST.anonymous == Principal(name)


def test_secrets_are_not_in_what_may_be_logged() -> None:
    assert TOKEN not in repr(REQUEST)
    assert repr(Principal("user:ann", claims={"token": TOKEN})) == "<Principal 'user:ann'>"
    assert str(PLACE) == "relay/x/y"


async def test_without_hooks_everybody_may_do_everything() -> None:
    rules = access()
    assert rules.open_to_all and not rules.authenticates
    assert await rules.authenticate(REQUEST) == REQUEST.anonymous
    assert await granted(rules) == Grant()


async def test_authenticate_alone_allows_nothing() -> None:
    rules = access(answering(ANN))
    assert not rules.open_to_all and rules.authenticates
    assert await rules.authenticate(REQUEST) == ANN
    assert await granted(rules) is None


async def test_authorize_alone_asks_about_anonymous() -> None:
    rules = access(None, answering(False))
    assert not rules.open_to_all and not rules.authenticates
    assert await granted(rules) is None


@pytest.mark.parametrize("hook", [answering, answering_later])
async def test_hooks_may_wait(hook: Any) -> None:
    assert await access(hook(None)).authenticate(REQUEST) is None
    assert await access(hook(ANN)).authenticate(REQUEST) == ANN
    assert await access(hook(REQUEST.anonymous)).authenticate(REQUEST) == REQUEST.anonymous
    wide = Grant(roles={"user", "assistant"})
    for answer, expected in ((True, Grant()), (False, None), (wide, wide)):
        assert await granted(access(None, hook(answer))) == expected


async def test_a_hook_that_need_not_wait_costs_no_wait() -> None:
    assert access(None, answering(True)).authorize(ANN, "send", PLACE) == Grant()


@pytest.mark.parametrize("hook", [answering, answering_later])
@pytest.mark.parametrize("answer", [None, 1, "yes", [True], {"user"}, ANN])
async def test_only_true_or_a_grant_is_a_yes(hook: Any, answer: object) -> None:
    with pytest.raises(TypeError, match="return True, False or a Grant"):
        await granted(access(None, hook(answer)))


@pytest.mark.parametrize("answer", [TOKEN, True, {"name": TOKEN}])
async def test_a_principal_is_a_principal(answer: object) -> None:
    with pytest.raises(TypeError, match="return a Principal, or None to refuse") as raised:
        await access(answering(answer)).authenticate(REQUEST)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("name", ["", "x" * 257, "a\nb", "a\0", "\ud800", 7, "agent", "anonymous", "anonymous:x"])
async def test_names_that_no_principal_has(name: Any) -> None:
    with pytest.raises(ValueError, match="authenticate named a principal"):
        await access(answering(Principal(name))).authenticate(REQUEST)


@pytest.mark.parametrize("expires_at", [float("nan"), float("inf"), "soon"])
async def test_a_token_ends_at_an_instant(expires_at: Any) -> None:
    with pytest.raises(ValueError, match="expires_at"):
        await access(answering(Principal("user:ann", expires_at))).authenticate(REQUEST)


async def test_an_anonymous_principal_may_expire() -> None:
    principal = Principal(REQUEST.anonymous.name, 1e9)
    assert await access(answering(principal)).authenticate(REQUEST) == principal


async def test_hooks_have_a_time_limit() -> None:
    rules = access(never, never, timeout_s=0.01)
    with pytest.raises(TimeoutError):
        await rules.authenticate(REQUEST)
    with pytest.raises(TimeoutError):
        await granted(rules)


@pytest.mark.parametrize("roles", ["user", ["user"], {1}, None])
def test_roles_are_a_set_of_strings(roles: Any) -> None:
    with pytest.raises(TypeError, match="a set of strings"):
        Grant(roles=roles)


# -- who runs the server


async def test_nobody_runs_a_server_without_the_hook() -> None:
    assert not access().has_operator
    assert not await access().operates(ANN)


@pytest.mark.parametrize("answer", [answering, answering_later])
async def test_the_hook_says_who_runs_the_server(answer: Any) -> None:
    for value in (True, False):
        rules = Access(None, None, 5, answer(value))
        assert rules.has_operator
        assert await rules.operates(ANN) is value
    with pytest.raises(TypeError, match="operator returned a str"):
        await Access(None, None, 5, answer("yes")).operates(ANN)
    with pytest.raises(TimeoutError):
        await Access(None, None, 0.001, never).operates(ANN)
