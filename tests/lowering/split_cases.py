"""Shards of a graph, and their simulated step."""

from __future__ import annotations

from collections.abc import Mapping

from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.lowering import Partitioned, lower, partition
from simdev.nouns.cluster import Cluster
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Configuration, Strategy
from simdev.nouns.trace import Trace
from worlds.costs import COSTS
from worlds.graphs import leaf, parameter, tensor, update
from worlds.split_graphs import cluster

C = Configuration


def parts(graph: Graph, split: Mapping[str, Configuration], **more: object) -> Partitioned:
    return partition(graph, cluster(), Strategy(partition=split, **more), COSTS)


def simulated(graph: Graph, on: Cluster, strategy: Strategy, costs: CostModel = COSTS) -> Trace:
    trace = simulate(lower(graph, on, costs, strategy), "simpy")
    assert check(trace.task_graph, trace) == ()
    return trace


WEIGHT = 25088 * 4096 * 4


def vgg_fc1(batch: int) -> Graph:
    ops = [
        leaf("x", batch, 25088),
        parameter("w", 4096, 25088),
        Op(
            "fc1",
            "linear",
            inputs=("x", "w"),
            outputs=(tensor(batch, 4096),),
            attrs={"transpose_b": True},
        ),
        Op("dy", "relu_backward", "backward", ("fc1", "fc1"), outputs=(tensor(batch, 4096),)),
        Op(
            "dw",
            "matmul",
            "backward",
            ("dy", "x"),
            outputs=(tensor(4096, 25088),),
            attrs={"transpose_a": True},
        ),
        Op("dx", "matmul", "backward", ("dy", "w"), outputs=(tensor(batch, 25088),)),
        update("update", "w", "dw"),
    ]
    return Graph("fc1", tuple(ops))


def graph_of(time: object) -> Graph:
    y = Op("y", "relu", inputs=("x",), outputs=(tensor(4, 4),), time=time)
    return Graph("timed", (leaf("x", 4, 4), y))


def ring(ranks: object, inputs: tuple[str, ...] = ("a", "b"), size: int = 8) -> Graph:
    made = tuple(Tensor(size) for _ in inputs)
    ops = [*(Op(name, outputs=(Tensor(8),), time=1) for name in ("a", "b"))]
    return Graph(
        "ring", (*ops, Op("sum", "all_reduce", inputs=inputs, outputs=made, attrs={"ranks": ranks}))
    )
