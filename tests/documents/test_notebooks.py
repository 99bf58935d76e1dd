"""The notebooks run from top to bottom, and what is committed of them is what a reader sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import apart
from waiting import HANGS

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
LARGEST = 300_000  # bytes

# AlexNet as it was measured instead of GNMT, on the same four cores
ON_FOUR_CORES = """simdev.load_scenario({
    "graph": "../profiles/graphs/alexnet-b128.json",
    "cluster": "../scenarios/clusters/4x-cpu.json",
    "profile": ["../profiles/alexnet.epyc-1core.jsonl"],
    "strategy": {"*": "cpu:0"},
})"""
P3_OF_LENET = """simdev.load_scenario({
    "graph": {"model": "lenet"},
    "cluster": "c4140-4x-v100",
    "strategy": {"short": "data-parallel", "sync": {"policy": "p3"}},
})"""
SMALLER = {
    "01-simulate-a-placement": {'search(scenario, "m-sct"': 'search(scenario, "m-topo"'},
    "02-sequential-or-parallel": {
        'simdev.load_scenario("gnmt-4x-cpu")': ON_FOUR_CORES,
        "[50, 200, 800, 3200]": "[200]",
        "budget=300": "budget=50",
    },
    "03-p3-against-bandwidth": {
        "fields = {": 'fields = {"graph": [{"model": "lenet"}],',
        "[1, 2, 4, 5, 6, 10]": "[4]",
        "[5, 10, 12, 15]": "[12]",
        'simdev.load_scenario("p3-resnet-50")': P3_OF_LENET,
    },
    "05-strategies": {
        '"inception-v3", "batch": 128': '"alexnet", "batch": 128',
        '"nmt", "batch": 256, "length": 5': '"rnnlm", "batch": 64, "length": 2',
        '"flexflow", 60': '"flexflow", 5',
    },
    "06-what-to-buy": {
        '{"model": "resnet-50", "batch": 512}': '{"model": "lenet", "batch": 512}',
        '{"model": "resnet-50", "batch": 1024}': '{"model": "lenet", "batch": 1024}',
        'rates = ["10 Gbit/s", "25 Gbit/s", "100 Gbit/s", "400 Gbit/s"]': 'rates = ["10 Gbit/s"]',
        '{"cluster": list(price_per_hour)}': '{"cluster": ["l40s-8x", "dgx-h100"]}',
    },
    "07-write-your-own-optimizer": {
        'simdev.load_scenario("gnmt-4x-cpu")': ON_FOUR_CORES,
        "proposals=5_000": "proposals=500",
        "budget=5_000": "budget=500",
    },
    "08-from-pytorch-to-a-prediction": {"seconds=5": "seconds=0.5"},
    "09-learning-to-place": {
        "budget=500, seeds=3": "budget=50, seeds=1",
        '"post", "colocrl"]': '"post"]',
        '    "colocrl": {"question": question, "warm": "m-sct"},\n': "",
        "name, budget=500": "name, budget=50",
        "short[:4], budget=1200": "short[:1], budget=30",
        "method, budget=100": "method, budget=10",
        "for scenario in nmt.held_out": "for scenario in nmt.held_out[:1]",
        "for sizes in nmt.unseen": "for sizes in nmt.unseen[:1]",
    },
    "10-which-plan": {
        "global_batch=128": "global_batch=16",
        '"tp": [4, 8]': '"tp": 8',
        '"pp": [2, 4, 8]': '"pp": [2, 4]',
        '["1F1B", "Interleaved1F1B"]': '"1F1B"',
        '    "1600 Gbit/s": {"network": "1600 Gbit/s"},': "",
    },
    "11-how-much-is-the-host": {
        '"resnet-50": 64, "rnnlm": 64, "small": 1, ': "",
        '("vgg-19", "resnet-50", "mlp")': '("mlp",)',
    },
    "12-a-script-on-16-gpus": {
        "WIDTH, LAYERS, LENGTH, BATCH = 2048, 6": "WIDTH, LAYERS, LENGTH, BATCH = 256, 2"
    },
}
"""By notebook, what stands for what: fewer points, smaller models and shorter searches. The whole
notebooks are slow tests.
"""


def test_there_are_notebooks():
    assert [path.name[:2] for path in NOTEBOOKS] == [
        f"{k:02d}" for k in range(1, 1 + len(NOTEBOOKS))
    ]
    assert len(NOTEBOOKS) == 12


def smaller(notebook: Any, texts: dict[str, str]) -> Any:
    """The notebook with every text replaced, each of which stands in it once."""
    for text, other in texts.items():
        (cell,) = (cell for cell in notebook.cells if text in cell.source)
        cell.source = cell.source.replace(text, other)
    return notebook


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
def test_every_cell_runs(path):
    """In a process that shares nothing of simdev; in a kernel of Jupyter as a slow test."""
    notebook = smaller(nbformat.read(path, as_version=4), SMALLER.get(path.stem, {}))
    wrong, kinds = apart.cells(
        [cell.source for cell in notebook.cells if cell.cell_type == "code"], FOLDER
    )
    assert not wrong, wrong
    assert "image/png" in kinds or "text/plain" in kinds


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
