"""Notebooks: what is committed of them is what a reader sees, and they run from top to bottom."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from waiting import HANGS

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 300_000  # bytes


def test_there_are_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS] == [
        f"{k:02d}" for k in range(1, 1 + len(NOTEBOOKS))
    ]
    assert len(NOTEBOOKS) == 12


def in_jupyter(notebook: Any) -> set[str]:
    """The kinds of what its cells display in a kernel, where every cell runs."""
    limits = {"timeout": int(HANGS), "startup_timeout": int(HANGS)}
    client = nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(FOLDER)}}, **limits
    )
    client.execute()  # raises where a cell does
    return {
        kind
        for cell in notebook.cells
        for out in cell.get("outputs", ())
        for kind in out.get("data", {})
    }


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_its_cells_take_of_simdev_is_there(path):
    """The site runs every cell (``make docs``), and the slow test below."""
    taken = 0
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            source = re.sub(r"^%.*$", "", cell.source, flags=re.MULTILINE)
            for module, name in names_of(ast.parse(source)):
                assert hasattr(import_module(module), name) or import_module(f"{module}.{name}")
                taken += 1
    assert taken


def names_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of what is imported from simdev, or read from the package itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("simdev"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "simdev":
            yield "simdev", node.attr


# The client runs an event loop and sockets of its own, and leaves their ends to the collector.
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_as_it_is_committed(path):
    kinds = in_jupyter(nbformat.read(path, as_version=4))
    assert "image/png" in kinds or "text/plain" in kinds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_committed_and_small(path):
    assert path.stat().st_size < LARGEST
    notebook = nbformat.read(path, as_version=4)
    assert notebook.cells[0].cell_type == "markdown"
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert cell.execution_count, "run it before committing"
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", "warnings and bars are no outputs"
