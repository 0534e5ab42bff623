"""Loading the agents of a Python file, with the hooks that stand beside them."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ..actors import Agent
from .access import Authenticate, Authorize, Operator
from .words import counted

__all__ = ["Application", "LoadError", "load_application"]

HOOKS = {"authenticate": 1, "authorize": 3, "operator": 1}
"""What may stand beside the agents, and with how many arguments it is called."""
ALIKE = 0.85  # how much alike a hook a function's name has to be to be taken for a misspelling of it


class LoadError(Exception):
    """Says why a file gives no agents; the text is for whoever wrote the file."""


class Application(NamedTuple):
    """Is what a file offers: its agents, and its functions `authenticate`, `authorize`, `operator`, or None."""

    agents: tuple[type[Agent], ...]
    authenticate: Authenticate | None
    authorize: Authorize | None
    operator: Operator | None


def load_application(target: str) -> Application:
    """Loads `FILE.py`, or `FILE.py:Agent,Other` for some of its agents. Its folder is put on `sys.path`.

    Raises:
        LoadError: there is no such file, it fails while it is loaded, or it holds no such agents.
    """
    path_text, colon, names = target.rpartition(":")
    if not colon or names.endswith(".py"):
        path_text, names = target, ""
    path = Path(path_text).resolve()
    if not path.is_file():
        raise LoadError(f"there is no file {path_text}")
    module = _load(path)
    agents = _agents(module, path_text, [name.strip() for name in names.split(",") if name.strip()])
    hooks = {name: _hook(module, name, arguments) for name, arguments in HOOKS.items()}
    _check_spelling(module, [name for name, hook in hooks.items() if hook is None])
    return Application(agents, **hooks)


def _load(path: Path) -> ModuleType:
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    if name in sys.modules or name in sys.stdlib_module_names:
        name = f"parlatory_file_{name}"  # it must not stand in for the module of that name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise LoadError(f"{path.name} failed while it was loaded: {type(error).__name__}: {error}") from error
    return module


def _agents(module: ModuleType, path: str, names: Sequence[str]) -> tuple[type[Agent], ...]:
    """Returns the named agents, or all that the file defines itself."""
    if names:
        found = []
        for name in names:
            agent = getattr(module, name, None)
            if not (inspect.isclass(agent) and issubclass(agent, Agent)):
                raise LoadError(f"{path} has no agent class {name}")
            found.append(agent)
        return tuple(found)
    own = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, Agent) and value.__module__ == module.__name__
    ]
    if not own:
        raise LoadError(
            f"{path} defines no agent, a class that extends parlatory.Agent; name those that it imports: {path}:Agent"
        )
    return tuple(dict.fromkeys(own))


def _hook(module: ModuleType, name: str, arguments: int) -> Any:
    hook = getattr(module, name, None)
    if hook is None or inspect.ismodule(hook):  # `import operator` is no hook
        return None
    if not callable(hook):
        raise LoadError(f"{name} of {module.__name__} is no function")
    try:
        inspect.signature(hook).bind(*range(arguments))
    except TypeError:
        raise LoadError(f"{name} of {module.__name__} does not take {counted(arguments, 'argument')}") from None
    return hook


def _check_spelling(module: ModuleType, absent: Sequence[str]) -> None:
    """Refuses a function that looks like an absent hook with a slip in its name: it would protect nothing."""
    for name, value in vars(module).items():
        if inspect.isfunction(value) and value.__module__ == module.__name__:
            for meant in get_close_matches(name, absent, 1, ALIKE):
                raise LoadError(
                    f"{name} of {module.__name__} would never be asked: write {meant}, or give it another name"
                )
