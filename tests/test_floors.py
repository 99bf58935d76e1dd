"""The house as a test: every folder of simdev/ is a floor, and a module imports only from its own
floor and those below. A new module needs no edit here, a new floor its place in FLOORS.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

grimp = pytest.importorskip("grimp")

PACKAGE = Path(__file__).resolve().parent.parent / "simdev"
# The lowest first.
FLOORS = (
    "ground", "nouns", "costs", "files", "lowering", "execution", "oracle", "report", "search",
    "learn", "measure", "formats", "commands", "__main__",
)  # fmt: skip
WINGS = {"learn", "measure", "formats"}
"""Floors that nothing but the commands imports: the core runs without them."""


@cache
def house() -> nx.DiGraph[str]:
    """Which module imports which, at any line, SimPy among them."""
    imports = grimp.build_graph("simdev", include_external_packages=True, cache_dir=None)
    arrows = nx.DiGraph()
    for module in imports.modules:
        arrows.add_node(module)
        arrows.add_edges_from(
            (module, to) for to in imports.find_modules_directly_imported_by(module)
        )
    return arrows


def floor(module: str) -> str:
    return module.split(".")[1]


def inside() -> list[tuple[str, str]]:
    """The imports between modules below simdev/, without those of the package itself."""
    return [edge for edge in house().edges if all(name.startswith("simdev.") for name in edge)]


def test_every_entry_of_the_package_is_a_floor() -> None:
    entries = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("__py")}
    assert entries == {*FLOORS, "__init__", "py"}
    assert len(entries) <= 16


def test_no_arrow_goes_up() -> None:
    up = [(a, b) for a, b in inside() if FLOORS.index(floor(a)) < FLOORS.index(floor(b))]
    assert not up


def test_only_commands_know_the_wings() -> None:
    known = [(a, b) for a, b in inside() if floor(b) in WINGS - {floor(a)}]
    assert {floor(a) for a, _ in known} <= {"commands"}, known


def test_no_folder_holds_a_circle() -> None:
    """Between the children of any folder, each taken with all that is in it."""
    parents = {name.rpartition(".")[0] for name in house() if name.startswith("simdev")}
    for parent in sorted(parents - {""}):
        depth = parent.count(".") + 2
        children = nx.DiGraph()
        for a, b in house().edges:
            a, b = (".".join(name.split(".")[:depth]) for name in (a, b))
            if a != b and a.startswith(f"{parent}.") and b.startswith(f"{parent}."):
                children.add_edge(a, b)
        assert nx.is_directed_acyclic_graph(children), nx.find_cycle(children)


def test_no_module_imports_the_folder_that_imports_it() -> None:
    circles = [names for names in nx.strongly_connected_components(house()) if len(names) > 1]
    assert not circles


def test_the_checker_shares_no_code_with_the_engines_and_one_module_knows_simpy() -> None:
    judged = [
        (a, b)
        for a, b in house().edges
        if a.startswith("simdev.execution.check") and b.startswith("simdev.execution.engine")
    ]
    assert not judged
    assert [*house().predecessors("simpy")] == ["simdev.execution.engine.simpy_engine"]


def test_no_import_hides_in_a_string() -> None:
    """But for what the package itself registers (ground/registry.py), a string names a module of
    its own floor or of one below.
    """
    hidden = []
    for path in PACKAGE.rglob("*.py"):
        here = path.relative_to(PACKAGE).parts[0]
        if here == "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = re.fullmatch(r"(?:simdev\.)?(\w+)(\.\w+)*(:\w+)?", node.value)
                if not named or named[1] not in FLOORS or named[0].isidentifier():
                    continue
                if FLOORS.index(named[1]) > FLOORS.index(here.removesuffix(".py")):
                    hidden.append((path.name, node.lineno, node.value))
    assert not hidden
