"""The architecture as a test: lengths, names, comments, and what importing simdev
may load. Lines of at most 100 columns are ruff's.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted((ROOT / "simdev").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_FUNCTION_LINES = 40
MAX_MODULE_LINES = 600
MIN_COMMENT_SHARE = 0.02
Function = ast.FunctionDef | ast.AsyncFunctionDef
HEAVY = ("matplotlib", "numba", "pandas", "pydantic", "simpy", "torch")
Documented = ast.Module | ast.ClassDef | Function
VAGUE = {"found", "one", "own", "told", "asked"}
"""Words that say nothing of what a name stands for."""
REFERRING = ("The same", "As ")
"""Docstrings that begin so can only be understood beside another one."""

# What is still to be mended: these lists get shorter, never longer.
LONG_FUNCTIONS: set[str] = set()
LONG_MODULES: set[str] = set()
LONG_TESTS: set[str] = set()
VAGUE_MODULES: set[str] = set()
REFERRING_MODULES: set[str] = set()


@dataclass(frozen=True)
class Contents:
    """Of a module: the lines of its functions, its docstrings, and every name that it gives or
    uses.
    """

    functions: tuple[tuple[str, int], ...]
    docstrings: tuple[str, ...]
    names: frozenset[str]


def test_every_folder_of_modules_is_a_package() -> None:
    """Without ``__init__.py`` a folder is left out of the wheel, and the floors do not see it."""
    offenders = sorted(
        {str(path.parent.relative_to(ROOT)) for path in MODULES if not _is_package(path.parent)}
    )
    assert not offenders, _listing("folders without __init__.py", offenders)


def test_functions_are_short() -> None:
    offenders = {
        f"{_name(path)} {name}"
        for path in MODULES
        for name, lines in _contents(path).functions
        if lines > MAX_FUNCTION_LINES
    }
    title = f"functions over {MAX_FUNCTION_LINES} lines without the docstring"
    _require_known(title, offenders, LONG_FUNCTIONS)


@pytest.mark.parametrize(("paths", "known"), [(MODULES, LONG_MODULES), (TESTS, LONG_TESTS)])
def test_modules_and_tests_are_short(paths: list[Path], known: set[str]) -> None:
    offenders = {
        _name(path) for path in paths if len(_source(path).splitlines()) > MAX_MODULE_LINES
    }
    _require_known(f"files over {MAX_MODULE_LINES} lines", offenders, known)


def test_comments_are_a_share_of_the_lines() -> None:
    lines = comments = 0
    for path in MODULES:
        source = _source(path)
        lines += len(source.splitlines())
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments += len({token.start[0] for token in tokens if token.type == tokenize.COMMENT})
    assert comments >= MIN_COMMENT_SHARE * lines, f"{comments} of {lines} lines hold a comment"


def test_docstrings_stand_by_themselves() -> None:
    offenders = {
        _name(path)
        for path in MODULES
        if any(text.startswith(REFERRING) for text in _contents(path).docstrings)
    }
    _require_known(f"docstrings that begin with {REFERRING}", offenders, REFERRING_MODULES)


def test_names_say_what_a_thing_is() -> None:
    offenders = {
        _name(path)
        for path in MODULES
        if any(name.strip("_") in VAGUE for name in _contents(path).names)
    }
    _require_known(f"modules with a name of {sorted(VAGUE)}", offenders, VAGUE_MODULES)


def test_importing_simdev_loads_nothing_heavy() -> None:
    loaded = "import sys, simdev; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    result = _python(loaded)
    assert result.returncode == 0, result.stderr
    offenders = sorted(set(HEAVY) & set(result.stdout.split()))
    assert not offenders, _listing("packages that `import simdev` must not load", offenders)


def test_a_function_is_counted_without_its_docstring() -> None:
    source = 'def f(\n    x,\n):\n    """One.\n\n    More.\n    """\n    y = x\n\n    return y\n'
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert _body_lines(function) == 3


def test_names_are_seen_wherever_they_are_given() -> None:
    source = "def one(own, *, told=1):\n    found = own.asked\n    return found\n"
    names = {name for node in ast.walk(ast.parse(source)) for name in _names(node)}
    assert names == {"one", "own", "told", "found", "asked"}


def _body_lines(function: Function) -> int:
    """Lines from the first statement after the docstring to the last, with the blank lines and
    comments between.
    """
    has_docstring = ast.get_docstring(function, clean=False) is not None
    body = function.body[1:] if has_docstring else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _names(node: ast.AST) -> Iterator[str]:
    """The name that a node gives or uses, if any."""
    if isinstance(node, Function | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id


def _require_known(title: str, offenders: set[str], known: set[str]) -> None:
    unknown = sorted(offenders - known)
    assert not unknown, _listing(title, unknown)


@cache
def _contents(path: Path) -> Contents:
    """Kept, since to walk a tree takes longer than all that is asked of it; the tree is not."""
    nodes = list(ast.walk(ast.parse(_source(path), str(path))))
    return Contents(
        tuple((node.name, _body_lines(node)) for node in nodes if isinstance(node, Function)),
        tuple(ast.get_docstring(node) or "" for node in nodes if isinstance(node, Documented)),
        frozenset(name for node in nodes for name in _names(node)),
    )


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def _source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _listing(title: str, offenders: list[str]) -> str:
    return "\n  ".join([f"{title}:", *offenders])
