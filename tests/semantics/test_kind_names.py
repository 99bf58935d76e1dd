"""What holds for a kind of op stands in its registration: no other module lists kinds, or tests for
one by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from simdev.nouns.semantics import OP_CLASSES, kinds

ROOT = Path(__file__).resolve().parents[2] / "simdev"
KINDS = frozenset(kinds())
SEMANTICS = ROOT / "nouns" / "semantics"
OUTSIDE = sorted(set(ROOT.rglob("*.py")) - set(SEMANTICS.rglob("*.py")))
EXCEPTIONS = {
    "costs/roofline.py": "measured errors of each class of ops",
    "measure/profiles.py": "what is measured of each class of ops",
    "measure/ranks/recording.py": "names of PyTorch's operators that pass answers of checks on",
    "measure/timers.py": "names of PyTorch's operators, some of which kinds bear too",
    "learn/settings.py": "ways to pool and to scale, some of which kinds bear the name of",
}


def test_no_module_but_semantics_lists_kinds() -> None:
    """Two names of kinds or of classes in one literal, at least half of it: a trait that hides."""
    offenders = [f"{name}:{line}" for name, line in listed() if name not in EXCEPTIONS]
    assert not offenders, "\n  ".join(
        ["kinds listed outside semantics (give them a trait):", *offenders]
    )


def test_every_exception_is_needed() -> None:
    assert {name for name, _ in listed()} >= EXCEPTIONS.keys()


def test_no_module_but_semantics_tests_for_a_kind_by_name() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{line}" for path in OUTSIDE for line in _tests(_tree(path))
    ]
    assert not offenders, "\n  ".join(["kinds tested by name (ask for a trait):", *offenders])


@pytest.mark.parametrize(
    ("source", "is_list"),
    [
        ('X = frozenset({"view", "reshape"})', True),
        ('X = frozenset({"gemm", "conv"})', True),
        ('X = ("view", "no kind")', False),
        ('X = {"add": 1, "mul": 2}', True),
        ('X = ("view", "no kind", "neither")', False),
        ('X = ("sum",)', False),
    ],
)
def test_a_list_of_kinds_is_seen(source: str, is_list: bool) -> None:
    assert bool(list(_lists(ast.parse(source)))) == is_list


@pytest.mark.parametrize(
    ("source", "is_list"),
    [
        ('op.kind == "parameter"', True),
        ('"input" != graph.ops[i].kind', True),
        ('graph.ops[i].kind in ("relu",)', True),
        ('split.kind == "parameter"', False),
        ('traits_of(op.kind).leaf == "parameter"', False),
    ],
)
def test_a_test_for_a_kind_is_seen(source: str, is_list: bool) -> None:
    assert bool(list(_tests(ast.parse(source)))) == is_list


@cache
def listed() -> list[tuple[str, int]]:
    return [(str(path.relative_to(ROOT)), line) for path in OUTSIDE for line in _lists(_tree(path))]


def _lists(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Set | ast.Tuple | ast.List | ast.Dict):
            names = _texts(node.keys if isinstance(node, ast.Dict) else node.elts)
            listed = [name for name in names if name in KINDS or name in OP_CLASSES]
            if len(listed) >= 2 and 2 * len(listed) >= len(names):
                yield node.lineno


def _tests(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            names = _texts(
                [
                    comparator
                    for side in sides
                    for comparator in (
                        side.elts if isinstance(side, ast.Tuple | ast.Set) else [side]
                    )
                ]
            )
            if any(map(_is_kind_of_op, sides)) and not KINDS.isdisjoint(names):
                yield node.lineno


def _is_kind_of_op(node: ast.AST) -> bool:
    """``op.kind``, ``record.kind``, ``call.kind``, ``ops[i].kind``."""
    if not isinstance(node, ast.Attribute) or node.attr != "kind":
        return False
    return isinstance(node.value, ast.Subscript) or (
        isinstance(node.value, ast.Name)
        and node.value.id in ("op", "record", "call", "producer", "consumer")
    )


def _texts(nodes: list[ast.expr] | list[ast.expr | None]) -> list[str]:
    return [
        item.value
        for item in nodes
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]


def _tree(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))
