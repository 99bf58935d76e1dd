"""The whole steps that were measured on an H100, as scenarios: graph, profile, cluster, strategy.

``profiles/h100/measured/steps.jsonl`` tells each step's model, sizes and optimizer. Where no graph
of these sizes is shipped the step is captured from PyTorch; then rows for it may be missing, and
the ladder answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from simdev.costs import CostModel, Profile, op_key
from simdev.execution.scenario import Scenario
from simdev.files import read_device, read_graph, read_profile
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph
from simdev.nouns.strategy import Order, Strategy

H100 = Path(__file__).resolve().parents[1] / "profiles" / "h100"
KIND, MEMORY = "h100-sxm", 85_017_493_504  # bytes, as CUDA tells of the card that was measured
UPDATES = {"sgd-momentum": ("sgd_momentum_update", 1), "adam": ("adam_update", 2)}
"""By optimizer the kind of its updates, and how many states a parameter has."""


@dataclass(frozen=True)
class MeasuredStep:
    """A step that was measured: what ran, and all that was told of it."""

    model: str
    sizes: Mapping[str, int]
    optimizer: str
    figures: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Model and batch, as graphs are named; the length where one model has several."""
        return f"{self.model}-b{self.sizes['batch']}"

    @property
    def profile_path(self) -> Path:
        """Where the rows of its model are."""
        return H100 / f"{self.model}.{KIND}.jsonl"

    def shipped_graph(self) -> Path | None:
        """The graph that was captured of it; None where none is shipped for these sizes."""
        path = H100 / "graphs" / f"{self.name}.json.gz"
        sizes = _captured_sizes(path) if path.exists() else {}
        differs = any(sizes.get(name, size) != size for name, size in self.sizes.items())
        return None if differs or not path.exists() else path


@cache
def _captured_sizes(path: Path) -> Mapping[str, int]:
    from simdev.files.reading import read_json

    provenance = read_json(path).get("provenance", {})
    return dict(provenance.get("sizes", {}))


def measured_steps(path: Path = H100 / "measured" / "steps.jsonl") -> Iterator[MeasuredStep]:
    """Every step of a file, in its order."""
    for line in path.read_text().splitlines():
        figures = json.loads(line)
        name = figures["model"].replace("_", "-")
        yield MeasuredStep(name, figures["sizes"], figures["optimizer"], figures)


def with_optimizer(graph: Graph, optimizer: str) -> Graph:
    """The graph of a captured step, updated by another optimizer (a name of UPDATES)."""
    kind, states = UPDATES[optimizer]
    updated = {op.colocate for op in graph.ops if op.phase == "update"}
    ops = [
        replace(op, kind=kind)
        if op.phase == "update"
        else replace(op, state_bytes=states * op.param_bytes)
        if op.name in updated
        else op
        for op in graph.ops
    ]
    return replace(graph, ops=tuple(ops))


@cache
def profile_of(path: Path) -> Profile:
    """A profile, read once."""
    return read_profile(path)


def scenario_of(step: MeasuredStep, graph: Graph) -> Scenario:
    """A step on one device of the measured kind, in program order."""
    cluster = Cluster("one", (Device("gpu:0", KIND, MEMORY),))
    costs = CostModel((profile_of(step.profile_path),), (read_device(KIND),))
    placement = {op.name: "gpu:0" for op in graph.ops}
    return Scenario(graph, cluster, costs, Strategy(placement, Order("program")))


def graph_of(step: MeasuredStep) -> Graph | None:
    """The graph of a step with its optimizer; None where none is shipped."""
    path = step.shipped_graph()
    return None if path is None else with_optimizer(read_graph(path), step.optimizer)


def captured_graph(step: MeasuredStep) -> Graph:
    """The graph of a step as PyTorch runs it here, on fake tensors of its sizes. Needs torch."""
    from simdev.measure.building import built, resolve
    from simdev.measure.capture import capture

    chosen = resolve(step.model, "cuda", dict(step.sizes), step.optimizer)
    module, inputs, loss = built(chosen, step.model, "cpu")
    return read_graph(capture(module, inputs, loss, step.optimizer, step.name).graph)


def is_measured(step: MeasuredStep, graph: Graph) -> bool:
    """Whether most of a step's operators have rows in its profile."""
    rows = profile_of(step.profile_path).rows
    computing = [i for i, op in enumerate(graph.ops) if op.phase != "update" and op.time is None]
    known = sum(op_key(graph, i, KIND) in rows for i in computing)
    return 2 * known > len(computing)
