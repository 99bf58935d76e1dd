"""Collectives that send too little or too much are found, and those that are right are let pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collective_ops import KINDS, collective, mesh
from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from simdev.nouns.taskgraph import COLLECTIVE, TaskGraph


def rules(task_graph: TaskGraph) -> set[str]:
    return {fault.rule for fault in check(task_graph, simulate(task_graph))}


def with_bytes(task_graph: TaskGraph, more: int) -> TaskGraph:
    """The task graph whose collective sends so many bytes more (in its first task)."""
    sizes = task_graph.tasks.bytes.copy()
    sizes[np.flatnonzero(task_graph.of_kind(COLLECTIVE))[0]] += more
    return replace(task_graph, tasks=replace(task_graph.tasks, bytes=sizes))


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_byte_more_than_an_algorithm_sends_is_noticed(kind: str, ranks: int, cost: str) -> None:
    ranks = 2 if kind == "p2p" else ranks
    ops, place = collective("c", kind, [f"g{i}" for i in range(ranks)], 6000, cost=cost)
    graph = Graph("one", tuple(ops))
    task_graph = lower(graph, mesh(ranks, "device"), CostModel(), Strategy(place))
    assert rules(task_graph) == set()
    # Where not every rank both reads and is left with something, the checker knows only a bound.
    known = kind not in ("broadcast", "reduce", "p2p")
    assert ("bytes" in rules(with_bytes(task_graph, 1))) == known
    assert ("bytes" in rules(with_bytes(task_graph, -1))) == (kind != "reduce")


def test_a_rank_of_a_bucket_reads_all_its_tensors() -> None:
    reads = [Op(f"in{i}", outputs=(Tensor(8),), time=0) for i in range(4)]
    names = tuple(op.name for op in reads)
    attrs = {"ranks": ["g0", "g1"], "algorithm": "ring"}
    bucket = Op("c", "all_reduce", inputs=names, outputs=(Tensor(16), Tensor(16)), attrs=attrs)
    places = {"in0": "g0", "in1": "g0", "in2": "g1", "in3": "g1", "c": "g0"}
    graph = Graph("bucket", (*reads, bucket))
    task_graph = lower(graph, mesh(2, "device"), CostModel(), Strategy(places))
    assert rules(task_graph) == set()
    assert rules(with_bytes(task_graph, 1)) == {"bytes"}
