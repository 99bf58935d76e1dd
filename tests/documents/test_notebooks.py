"""The notebooks run from top to bottom, and what is committed of them is what a reader sees."""

from __future__ import annotations

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


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS] == [
        f"{k:02d}" for k in range(1, 1 + len(NOTEBOOKS))
    ]
    assert len(NOTEBOOKS) == 8


# The client runs an event loop and sockets of its own, and leaves their ends to the collector.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path):
    notebook = read(path)
    limits = {"timeout": int(HANGS), "startup_timeout": int(HANGS)}
    client = nbclient.NotebookClient(
        notebook, resources={"metadata": {"path": str(FOLDER)}}, **limits
    )
    client.execute()  # raises where a cell does
    images = [
        kind
        for cell in notebook.cells
        for out in cell.get("outputs", ())
        for kind in out.get("data", {})
    ]
    assert "image/png" in images or "text/plain" in images


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_committed_and_small(path):
    assert path.stat().st_size < LARGEST
    notebook = read(path)
    assert notebook.cells[0].cell_type == "markdown"
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert cell.execution_count, "run it before committing"
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", "warnings and bars are no outputs"
