"""Whole questions (graph, cluster and strategy): by hand, random, and in the format of files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from simdev import Oracle, Scenario, load_scenario
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, TRANSFERS, Cluster, Device, Host
from simdev.nouns.graph import Graph, Op
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import Order, Strategy, Sync
from simdev.nouns.taskgraph import TaskGraph
from simdev.nouns.trace import Trace
from simdev.oracle import Cost
from worlds.clusters import make_cluster
from worlds.graphs import make_graph
from worlds.sequences import in_line
from worlds.tape import Tape, drawn


@dataclass(frozen=True)
class World:
    """A whole question: a graph, a cluster, and a strategy (placement and order)."""

    graph: Graph
    cluster: Cluster
    strategy: Strategy

    @classmethod
    def of(
        cls, ops: Sequence[Op], cluster: Cluster, placement: Sequence[int], order: Order = Order()
    ) -> World:
        """The world of these ops; ``placement`` holds the device index of each op."""
        names = {one.name: cluster.devices[d].name for one, d in zip(ops, placement, strict=True)}
        return cls(Graph("world", tuple(ops)), cluster, Strategy(names, order))

    @cached_property
    def task_graph(self) -> TaskGraph:
        return lower(self.graph, self.cluster, CostModel(), self.strategy)

    @cached_property
    def trace(self) -> Trace:
        return simulate(self.task_graph, engine="simpy")

    @property
    def step(self) -> int:
        return self.trace.end_ps

    def but(self, **changes: object) -> World:
        """The question with another graph, cluster or strategy."""
        return replace(self, **changes)

    def ordered(self, order: Order) -> World:
        return self.but(strategy=replace(self.strategy, order=order))

    def with_ops(self, change: Callable[[Op], Op]) -> World:
        return self.but(graph=Graph(self.graph.name, tuple(map(change, self.graph.ops))))

    def with_links(self, **fields: object) -> World:
        links = tuple(replace(link, **fields) for link in self.cluster.links)
        return self.but(cluster=replace(self.cluster, links=links))


def fixed_order(world: World, keys: Sequence[int]) -> Order:
    """A sequence for every queue, from one topological order of all tasks by ``keys``, which are
    repeated as needed.
    """
    task_graph = world.ordered(Order()).task_graph
    names = task_graph.tasks.name
    sequences = in_line(task_graph, [keys[i % len(keys)] for i in range(len(names))])
    pairs = zip(task_graph.resources, sequences, strict=True)
    return Order(
        "fixed",
        sequence={queue.name: tuple(names[task] for task in tasks) for queue, tasks in pairs},
    )


def make_world(
    tape: Tape, policies: Sequence[str], queues: Sequence[str], transfers: Sequence[str]
) -> World:
    """A random world; see ``worlds``."""
    policy = tape.pick(*policies)
    graph, cluster = make_graph(tape), make_cluster(tape, queues, transfers)
    hosts = [d for d, device in enumerate(cluster.devices) if device.runs_ops]
    world = World.of(graph.ops, cluster, [tape.pick(*hosts) for _ in graph.ops])
    if policy == "priority":
        return world.ordered(Order("priority", {one.name: tape.number(3) for one in graph.ops}))
    if policy == "fixed":
        return world.ordered(fixed_order(world, tape.column(24, 0, 1, 2, 3).tolist()))
    # Program order would deadlock where ops are listed backwards.
    if policy == "program" and graph.ops[0].name == "o0":
        return world.ordered(Order("program"))
    return world


def worlds(
    policies: Sequence[str] = ("fifo", "fifo", "priority", "fixed", "program"),
    queues: Sequence[str] = QUEUES,
    transfers: Sequence[str] = TRANSFERS,
) -> st.SearchStrategy[World]:
    """Random worlds of up to 8 ops on up to 4 devices, placed at random, under some policy."""
    return drawn(make_world, policies, queues, transfers)


def expected(world: World) -> Cost:
    """The cost that an oracle must return: step and peaks of the reference engine's trace."""
    trace = simulate(lower(world.graph, world.cluster, CostModel(), world.strategy), "simpy")
    peaks = tuple(memory.peak for memory in trace.memory)
    return Cost(trace.end_ps / 1e12, trace.feasible, trace.memory_excess, trace.end_ps, peaks)


def column(world: World) -> list[int]:
    """The index of the device of each op."""
    return [world.cluster.index[world.strategy.placement[one.name]] for one in world.graph.ops]


def oracle_of(world: World, **options: object) -> Oracle:
    """An oracle for placements of a world's ops."""
    return Oracle(world.graph, world.cluster, order=world.strategy.order, **options)


def placed(world: World, placement: Sequence[int]) -> World:
    """The world whose ops run on the devices of these indices."""
    names = [device.name for device in world.cluster.devices]
    by_name = {one.name: names[d] for one, d in zip(world.graph.ops, placement, strict=True)}
    return world.but(strategy=replace(world.strategy, placement=by_name))


def question(graph: Any, cluster: Any, strategy: Any, **more: Any) -> dict[str, Any]:
    """A scenario in the format of files."""
    return {"version": 1, "graph": graph, "cluster": cluster, "strategy": strategy, **more}


def scenario_of(graph: Any, cluster: Any, strategy: Any, **more: Any) -> Scenario:
    """The scenario loaded from parts in the format of files."""
    return load_scenario(question(graph, cluster, strategy, **more))


def pipelined(graph: Any, cluster: Any = "dgx-h100", **pipeline: Any) -> dict[str, Any]:
    """A scenario of a large model with this ``pipeline``, in the format of files."""
    return question(graph, cluster, {"pipeline": pipeline})


def lenet(cluster: Any = "c4140-4x-v100", batch: int = 8, **strategy: Any) -> dict[str, Any]:
    """A scenario of LeNet in the format of files: data-parallel, unless ``strategy`` has a
    pipeline.
    """
    model = {"model": "lenet", "batch": batch}
    return question(model, cluster, strategy if "pipeline" in strategy else PARALLEL | strategy)


def alone(
    graph: Graph,
    kind: str = "gpu",
    host: Host | None = None,
    costs: CostModel = CostModel(),
    **more: Any,
) -> Scenario:
    """The scenario of a graph on one device, with the host."""
    cluster = Cluster("one", (Device("gpu:0", kind),), host=host)
    return Scenario(graph, cluster, costs, Strategy({"*": "gpu:0"}), **more)


def synchronised(
    layers: Sequence[Layer], cluster: Cluster, sync: Sync, engine: str = "simpy"
) -> Scenario:
    """The scenario of layers trained on all GPUs of a cluster."""
    workers = [device.name for device in cluster.devices if device.kind == "gpu"]
    graph, placement = layer_graph(layers, workers)
    return Scenario(graph, cluster, CostModel(), Strategy(placement, sync=sync), engine)


def written(path: Path, value: Any) -> Path:
    """The path, with the value as JSON in its file."""
    path.write_text(json.dumps(value))
    return path


PARALLEL = {"version": 1, "short": "data-parallel"}
GPT = {"model": "gpt-1.7b", "layers": 4, "length": 512}
"""A large model with few layers and short sequences."""
TINY: dict[str, Any] = {
    "version": 1,
    "graph": {
        "ops": [
            {"name": "a", "time": "1 us", "outputs": [{"bytes": 8000}]},
            {"name": "b", "time": "1 us", "inputs": ["a"]},
        ]
    },
    "cluster": {
        "devices": [{"name": "gpu:0"}, {"name": "gpu:1"}],
        "links": {"all_to_all": {"bandwidth": "1 GB/s"}},
    },
    "strategy": {"a": "gpu:0", "b": "gpu:1"},
}
"""Two ops of 1 us on two devices, with 8,000 bytes between them, which take 8 us."""


def bandwidths(count: int) -> dict[str, list[str]]:
    """A grid over TINY with ``count`` bandwidths."""
    return {"cluster.bandwidth": [f"{i} MB/s" for i in range(1, count + 1)]}
