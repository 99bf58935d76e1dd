"""An all_reduce of so many bytes over a group takes as long by every door that leads to it."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from random import Random
from typing import Any

import pytest

from simdev import Graph, Op, Scenario, Strategy, run
from simdev.costs import CostModel, DeviceSpec
from simdev.costs.collectives import collective_model
from simdev.files import read_preset
from simdev.lowering import Prepared
from simdev.lowering.hybrid.durations import DATA, Durations, Timings
from simdev.nouns.cluster import Cluster
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import Collectives, Configuration, Parallelism, sync_policy
from simdev.nouns.taskgraph import COLLECTIVE
from simdev.oracle import oracle_of
from simdev.search.soap.optcnn import Wires
from worlds.graphs import leaf, parameter, tensor, update

MIB = 2**20
ROWS, COLUMNS = 48, 2**10
PLACES = [
    ("dgx-h100", 1, 8), ("dgx-h100", 1, 6), ("dgx-h100", 2, 16), ("dgx-a100-80", 2, 16),
    ("l40s-8x", 1, 8), ("dgx-1v", 2, 16), ("flexflow-p100", 2, 8),
]  # fmt: skip


def gradients(size: int) -> Graph:
    """A product whose weight has so many bytes: split along its rows, its gradient is summed."""
    columns = size // (4 * COLUMNS)
    product = ("x", "dy")
    ops = [
        leaf("x", ROWS, COLUMNS),
        leaf("dy", ROWS, columns),
        parameter("w", COLUMNS, columns),
        Op("y", "matmul", inputs=("x", "w"), outputs=(tensor(ROWS, columns),)),
        Op("dw", "matmul", "backward", product, outputs=(tensor(COLUMNS, columns),),
           attrs={"transpose_a": True}),
        update("u", "w", "dw"),
    ]  # fmt: skip
    return Graph("product", tuple(ops))


def summed(scenario: Scenario) -> int:
    """How long the one collective of a step takes; the oracle has the step, too."""
    report = run(scenario)
    tasks = report.trace.task_graph
    # A policy follows several steps, and each has its own.
    (duration,) = set(tasks.tasks.duration[tasks.of_kind(COLLECTIVE)].tolist())
    assert isinstance(duration, int)
    assert oracle_of(scenario)(scenario.strategy).step_ps == report.step_ps
    return duration


def as_op(cluster: Cluster, group: list[str], size: int, **strategy: Any) -> int:
    graph, placement = layer_graph([Layer(1e-3, 1e-3, size // 4)], group)
    return summed(Scenario(graph, cluster, CostModel(), Strategy(placement, **strategy)))


def as_data_parallel(cluster: Cluster, group: list[str], size: int, **strategy: Any) -> int:
    there = Strategy(short="data-parallel", sync="all-reduce", **strategy)
    return summed(Scenario(gradients(size), cluster, CostModel(), there))


def as_split(cluster: Cluster, group: list[str], size: int, **strategy: Any) -> int:
    graph, parts = gradients(size), Configuration({"k": len(group)}, tuple(group))
    placement = {op.name: group[0] for op in graph.ops}
    there = Strategy(placement, partition={"dw": parts}, sync="all-reduce", **strategy)
    return summed(Scenario(graph, cluster, CostModel(), there))


def as_estimated(cluster: Cluster, group: list[str], size: int, **strategy: Any) -> int:
    """By the sums that OptCNN's dynamic program adds up."""
    choice = strategy.get("collectives", Collectives())
    prepared = Prepared(Graph("none", ()), cluster, CostModel(), collectives=choice)
    devices = [cluster.index[name] for name in group]
    seconds = Wires(prepared, devices).sync("all-reduce", range(len(group)), size)
    return round(seconds * 10**12)


def in_a_large_model(cluster: Cluster, group: list[str], size: int, **strategy: Any) -> int:
    rate, kinds = Fraction(10**12), dict.fromkeys(cluster.devices[d].kind for d in cluster.workers)
    sheets = [DeviceSpec(kind, {"bfloat16": rate}, rate) for kind in kinds]
    timings = Timings(collective_model(cluster), CostModel(specs=sheets))
    durations = Durations(Parallelism(dp=len(group)), timings)
    (duration,) = durations.columns[durations.collective(DATA, 0, "all_reduce", size)].tolist()
    assert isinstance(duration, int)
    return duration


DOORS: dict[str, Callable[..., int]] = {
    "op": as_op, "policy": partial(as_op, sync=sync_policy("bulk-synchronous")),
    "data parallel": as_data_parallel, "split": as_split,
    "estimated": as_estimated, "large model": in_a_large_model,
}  # fmt: skip


def check_doors(preset: str, nodes: int, ranks: int, size: int) -> None:
    cluster = read_preset(preset, nodes)
    group = [cluster.devices[d].name for d in cluster.workers][:ranks]
    assert len(group) == ranks
    expected = collective_model(cluster).cost("all_reduce", group, size).ps
    whole = ranks == len(cluster.workers)
    all_ranks = ("data parallel", "large model")
    doors = {name: door for name, door in DOORS.items() if whole or name not in all_ranks}
    assert {name: door(cluster, group, size) for name, door in doors.items()} == dict.fromkeys(
        doors, expected
    )


@pytest.mark.parametrize(("preset", "nodes", "ranks"), PLACES)
def test_an_all_reduce_takes_as_long_by_every_door(preset: str, nodes: int, ranks: int) -> None:
    check_doors(preset, nodes, ranks, 256 * MIB)
    check_doors(preset, nodes, ranks, 4 * COLUMNS * Random(ranks).randint(1, 2000))


@pytest.mark.parametrize(("preset", "nodes"), [("dgx-h100", 2), ("l40s-8x", 1)])
@pytest.mark.parametrize("choice", [{"cost": "closed"}, {"algorithm": "tree"}, {"cost": "table"}])
def test_whatever_a_strategy_chooses_every_door_has_it(
    preset: str, nodes: int, choice: dict[str, str]
) -> None:
    cluster = read_preset(preset, nodes)
    group = [cluster.devices[d].name for d in cluster.workers]
    chosen = Collectives(**choice)  # type: ignore[arg-type]
    doors = {name: door for name, door in DOORS.items() if name != "large model"}
    steps = {door(cluster, group, 64 * MIB, collectives=chosen) for door in doors.values()}
    assert len(steps) == 1
