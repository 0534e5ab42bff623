"""The rules of CONTRIBUTING.md that can be read off the source: direction, exports, sizes, who imports what."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BELOW = {"storage": set[str](), "actors": {"storage"}, "server": {"actors", "storage"}}  # what each folder may import
FOLDERS = {*BELOW, "parlatory", "tests", "examples", "docs"}
MADE = {"build", "dist", "demo-data", "htmlcov", "__pycache__", "parlatory.egg-info"}  # left by tools, ignored by git
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


PRODUCT = modules("parlatory", *BELOW)
EVERY = modules("parlatory", "tests", "examples", *BELOW)


def label(value: object) -> str:
    return value.relative_to(ROOT).as_posix() if isinstance(value, Path) else str(value)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), label(path))


def exports(tree: ast.Module) -> list[str] | None:
    """The literal `__all__` of a module; None without one."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return list(ast.literal_eval(value))
    return None


def package(path: Path) -> list[str]:
    """The package a module of the product lies in, as import names: server/web/files.py is in parlatory.server.web."""
    parts = path.relative_to(ROOT).parent.parts
    return list(parts) if parts[0] == "parlatory" else ["parlatory", *parts]


def imports(path: Path) -> Iterator[tuple[int, bool, list[str], str | None]]:
    """Each import of a module, at any depth: line, whether it is relative, the module, the name taken from it."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, False, alias.name.split("."), None
        elif isinstance(node, ast.ImportFrom):
            base = package(path)[: len(package(path)) - node.level + 1] if node.level else []
            source = [*base, *(node.module.split(".") if node.module else [])]
            for alias in node.names:
                yield node.lineno, node.level > 0, source, alias.name


def judge(path: Path) -> Iterator[str]:
    """What is wrong with the imports of one module between the folders."""
    here = package(path)[1] if len(package(path)) > 1 else "parlatory"
    allowed = set(BELOW) if here == "parlatory" else BELOW[here]
    for line, relative, source, name in imports(path):
        place = f"{label(path)}:{line}"
        if not relative:
            if source[0] in {"parlatory", "actors", "server", "storage", "tests", "examples"}:
                yield f"{place}: imports {'.'.join(source)} absolutely"
        elif source == ["parlatory"]:
            if name != "__version__" and here != "parlatory":
                yield f"{place}: takes {name} from the package itself; only __version__ may be"
        elif source[:1] != ["parlatory"]:
            yield f"{place}: reaches outside of the package"
        elif source[1] != here:
            folder = source[1]
            if folder not in allowed:
                yield f"{place}: {here} may not import {folder}"
            elif len(source) > 2:
                yield f"{place}: imports {'.'.join(source)}, not what {folder} exports"
            elif folder in BELOW and name not in (exports(parse(ROOT / folder / "__init__.py")) or []):
                yield f"{place}: {folder} does not export {name}"


def run(code: str) -> set[str]:
    """The names of the modules that are loaded after `code`, in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint(*sys.modules)"
    command = [sys.executable, "-P", "-c", script]  # -P: a checkout beside it may be named parlatory
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_top_level_folders() -> None:
    found = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert found - MADE <= FOLDERS


def test_packages_are_listed() -> None:
    """A package that setuptools does not know is missing from the wheel only."""
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = {".".join(package(path)) for path in PRODUCT}
    assert found <= set(setup["packages"])
    assert set(setup["packages"]) == set(setup["package-dir"])
    assert all((ROOT / folder / "py.typed").exists() for folder in ("parlatory", *BELOW))


def test_parlatory_is_only_its_init() -> None:
    assert [label(path) for path in modules("parlatory")] == ["parlatory/__init__.py"]


@pytest.mark.parametrize("path", PRODUCT, ids=label)
def test_imports_between_folders(path: Path) -> None:
    assert list(judge(path)) == []


@pytest.mark.parametrize("path", PRODUCT, ids=label)
def test_who_imports_what(path: Path) -> None:
    roots = {source[0] for _, relative, source, _ in imports(path) if not relative}
    assert "websockets" not in roots or package(path)[1:2] == ["server"]
    assert "aiosqlite" not in roots or label(path) == "storage/connection.py"


@pytest.mark.parametrize("path", PRODUCT, ids=label)
def test_exports_are_declared(path: Path) -> None:
    assert path.stem != "utils"
    names = exports(parse(path))
    assert names is not None, "no literal __all__"
    assert len(names) == len(set(names))


@pytest.mark.parametrize("path", EVERY, ids=label)
def test_sizes(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES_MAX
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < FUNCTION_LINES_MAX, f"{node.name}, line {node.lineno}"


@pytest.mark.parametrize("folder", BELOW)
def test_exports_resolve(folder: str) -> None:
    module = importlib.import_module(f"parlatory.{folder}")
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = module.no_such_name


def test_package_resolves() -> None:
    package = importlib.import_module("parlatory")
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_inits_are_lazy() -> None:
    names = ["parlatory", *(f"parlatory.{folder}" for folder in BELOW)]
    watched = {"parlatory", "aiosqlite", "anyio", "msgspec", "websockets"}
    assert {name for name in run(f"import {', '.join(names)}") if name.split(".")[0] in watched} == set(names)


def test_version_is_the_distribution_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert importlib.import_module("parlatory").__version__ == project["version"]


def test_client_loads_neither_engine_nor_runtime() -> None:
    loaded = run("from parlatory import Client, connect")
    assert "parlatory.server" in loaded
    assert {name for name in loaded if name.split(".")[0] in {"aiosqlite", "sqlite3"}} == set()
    assert {name for name in loaded if name.startswith("parlatory.actors")} == set()


@pytest.mark.parametrize("folder", ["actors", "server", "storage"])
def test_no_export_is_named_like_a_module(folder: str) -> None:
    """Once the module is imported, its name in the package would be the module, not what is exported."""
    exported = set(importlib.import_module(f"parlatory.{folder}").__all__)
    assert not exported & {path.stem for path in (ROOT / folder).glob("*.py")}
