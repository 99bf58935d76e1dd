"""A file with hundreds of problems is refused in six lines, whatever the file and the door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simdev import InputError, load_scenario
from simdev.commands import main
from simdev.commands.server.errors import error_json
from worlds.costs import row_of

MANY = 300
DEVICES = [{"name": f"d{i}", "kind": "h100-sxm"} for i in range(2)]
CLUSTER = {"version": 1, "name": "c", "devices": DEVICES, "links": []}
GRAPH = {"version": 1, "name": "g", "ops": [{"name": "a", "time": 1}]}
ROW = row_of("relu", [[2]], [[2]], -1, dev="h100-sxm")
STRATEGY = {"version": 1, "placement": {"*": "d0"}}
pytestmark = pytest.mark.usefixtures("here")

FILES: dict[str, Any] = {
    "graph": {
        **GRAPH,
        "ops": [{"name": f"o{i}", "inputs": ["no"], "time": 1} for i in range(MANY)],
    },
    "cluster": {**CLUSTER, "links": [{"source": "d0", "destination": "no"}] * MANY},
    "strategy": {**STRATEGY, "placement": {f"o{i}": "no" for i in range(MANY)}},
    "profile": "\n".join(json.dumps(ROW | {"in": [[i]]}) for i in range(MANY)),
    "devices": {
        "version": 1,
        "kind": "k",
        "memory_bandwidth": "1 GB/s",
        "flops": {f"t{i}": "1 TFLOP/s" for i in range(MANY)},
    },
}


def question(**parts: Any) -> dict[str, Any]:
    return {"version": 1, "graph": GRAPH, "cluster": CLUSTER, "strategy": STRATEGY, **parts}


def few(lines: list[str]) -> bool:
    return len(lines) == 6 and lines[-1].startswith("... and ") and lines[-1].endswith(" more")


def written(name: str, value: Any) -> str:
    kind = "jsonl" if isinstance(value, str) else "json"
    file = name if "." in name else f"{name}.{kind}"
    Path(file).write_text(value if isinstance(value, str) else json.dumps(value))
    return file


@pytest.mark.parametrize("part", FILES)
def test_of_a_file_of_a_scenario(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = written("s", question(**{part: written(part, FILES[part])}))
    assert main(["simulate", file]) == 2
    assert few(capsys.readouterr().err.splitlines())
    with pytest.raises(InputError) as error:
        load_scenario(file)
    assert few(str(error.value).split("\n"))
    assert len(error.value.problems) >= MANY
    assert few(error_json(error.value)["problems"])


def run_file() -> str:
    """A saved run of which every task has lost its name."""
    ops = [{"name": f"o{i}", "time": 1} for i in range(MANY)]
    scenario = written("s", question(graph={**GRAPH, "ops": ops}))
    assert main(["simulate", scenario, "--save", "run.json"]) == 0
    run = json.loads(Path("run.json").read_text())
    run["tasks"]["name"] = [3] * len(run["tasks"]["name"])
    return written("broken", run)


DOORS: dict[str, Callable[[], list[str]]] = {
    "check": lambda: ["check", run_file()],
    "report": lambda: ["report", run_file(), "-o", "p.html"],
    "compare": lambda: ["compare", run_file(), "run.json"],
    "sweep": lambda: [
        "sweep", written("s", question()), "--grid",
        written("grid", {f"no.{i}": [1] for i in range(MANY)}),
    ],
    "search": lambda: [
        "search", written("s", question(graph=FILES["graph"])), "--method", "random"
    ],
    "strict": lambda: [
        "simulate", "--strict",
        written("s", question(graph={**GRAPH, "ops": [
            {"name": f"o{i}", "kind": "neg", "outputs": [{"bytes": 8, "shape": [2]}]}
            for i in range(MANY)
        ]})),
    ],
    "steps": lambda: [
        "calibrate", written("s", question()),
        written("steps.csv", "graph.no,step\n" + "1,x\n" * MANY),
    ],
}  # fmt: skip


@pytest.mark.parametrize("door", DOORS)
def test_at_every_door(door: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = DOORS[door]()
    capsys.readouterr()
    assert main(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) <= 6
