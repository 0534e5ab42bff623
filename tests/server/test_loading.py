from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlatory.server.loading import LoadError, load_application

AGENTS = "from parlatory import Agent\nclass A(Agent):\n    pass\nclass B(Agent):\n    pass\n"


@pytest.fixture(autouse=True)
def clean_modules() -> Iterator[None]:
    modules, path = dict(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    sys.path[:] = path


def written(folder: Path, text: str, name: str = "bots.py") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_all_agents_of_a_file(tmp_path: Path) -> None:
    application = load_application(written(tmp_path, AGENTS + "Other = A\n"))
    assert [agent.__name__ for agent in application.agents] == ["A", "B"]
    assert application.authenticate is None and application.authorize is None


def test_some_agents_of_a_file(tmp_path: Path) -> None:
    written(tmp_path, AGENTS, "library.py")
    path = written(tmp_path, "from library import A\nfrom library import B as C\n")
    assert [agent.__name__ for agent in load_application(f"{path}:C, A,").agents] == ["B", "A"]
    with pytest.raises(LoadError, match="defines no agent.*name those that it imports"):
        load_application(path)


def test_a_folder_may_have_a_colon(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    path = written(folder, AGENTS)
    assert len(load_application(path).agents) == 2
    assert len(load_application(f"{path}:A").agents) == 1


def test_hooks_beside_the_agents(tmp_path: Path) -> None:
    hooks = "async def authenticate(request): ...\ndef authorize(principal, action, conversation, *, extra=1): ...\n"
    application = load_application(written(tmp_path, AGENTS + hooks))
    assert application.authenticate is not None and application.authorize is not None
    assert application.operator is None
    application = load_application(written(tmp_path, AGENTS + "def operator(principal): return True\n", "run.py"))
    assert application.operator is not None


def test_the_module_operator_is_no_hook(tmp_path: Path) -> None:
    assert load_application(written(tmp_path, AGENTS + "import operator\n")).operator is None


@pytest.mark.parametrize("name", ["json", "pytest", "colorsys"])
def test_a_file_takes_no_module_s_place(name: str, tmp_path: Path) -> None:
    before = sys.modules.get(name)
    (agent, _) = load_application(written(tmp_path, AGENTS, f"{name}.py")).agents
    assert sys.modules.get(name) is before
    assert agent.__module__ == f"parlatory_file_{name}" and agent.__module__ in sys.modules
    assert json.loads("1") == 1


@pytest.mark.parametrize(
    ("text", "suffix", "error"),
    [
        ("", "", "defines no agent, a class that extends parlatory.Agent"),
        (AGENTS, ":Nosuch", "has no agent class Nosuch"),
        (AGENTS + "x = 1\n", ":x", "has no agent class x"),
        ("import nosuchmodule", "", "failed while it was loaded: ModuleNotFoundError: No module named 'nosuchmodule'"),
        ("x =", "", "failed while it was loaded: SyntaxError"),
        ("import sys; sys.exit(3)", "", "failed while it was loaded: SystemExit: 3"),
        (AGENTS + "authenticate = 1\n", "", "authenticate of bots is no function"),
        (AGENTS + "def authenticate(): ...\n", "", r"does not take 1 argument$"),
        (AGENTS + "def operator(): ...\n", "", r"operator of bots does not take 1 argument$"),
        (AGENTS + "def authorize(principal): ...\n", "", r"does not take 3 arguments$"),
        (AGENTS + "def authentcate(request): ...\n", "", "authentcate of bots would never .* write authenticate"),
        (AGENTS + "async def authorise(p, a, c): ...\n", "", "authorise of bots would never .* write authorize"),
        (AGENTS + "def autorize(p, a, c): ...\n", "", "autorize of bots would never be asked: write authorize"),
        (AGENTS + "operater = lambda principal: True\n", "", "operater of bots would never be asked: write operator"),
    ],
)
def test_what_is_wrong_with_a_file(text: str, suffix: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=error):
        load_application(written(tmp_path, text) + suffix)


def test_what_only_resembles_a_hook_may_stand_beside_it(tmp_path: Path) -> None:
    text = "import types as operatr\nauthorizer = 1\ndef operate(): ...\ndef authority(): ...\nclass Operators: ...\n"
    text += "from os.path import exists as authorised\ndef authenticate(r): ...\ndef authenticated(r): ...\n"
    application = load_application(written(tmp_path, AGENTS + text))
    assert application.authenticate is not None and application.authorize is None


def test_a_module_that_failed_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(LoadError):
        load_application(written(tmp_path, "1 / 0", "failing.py"))
    assert "failing" not in sys.modules


def test_there_is_no_such_file(tmp_path: Path) -> None:
    for target in (str(tmp_path / "nosuch.py"), str(tmp_path), f"{tmp_path}/nosuch.py:A"):
        with pytest.raises(LoadError, match="there is no file"):
            load_application(target)
    with pytest.raises(LoadError, match="is no Python file"):
        load_application(written(tmp_path, AGENTS, "agents.txt"))
