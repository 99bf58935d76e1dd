"""Collectives that send too little or too much are found, and those that are right are let pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from collective_ops import collective, lowered, mesh, two_nodes
from simdev.costs import CostModel
from simdev.costs.collectives import COLLECTIVES
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.files import read_preset
from simdev.lowering import Prepared, iterated, lower, lower_step
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from simdev.nouns.taskgraph import COLLECTIVE, TaskGraph
from worlds.runs import rules


def broken(task_graph: TaskGraph) -> set[str]:
    return rules(check(task_graph, simulate(task_graph)))


def with_bytes(task_graph: TaskGraph, more: int) -> TaskGraph:
    """The task graph whose collective sends so many bytes more (in its first task)."""
    sizes = task_graph.tasks.bytes.copy()
    sizes[np.flatnonzero(task_graph.of_kind(COLLECTIVE))[0]] += more
    return replace(task_graph, tasks=replace(task_graph.tasks, bytes=sizes))


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_byte_more_than_an_algorithm_sends_is_noticed(kind: str, ranks: int, cost: str) -> None:
    ranks = 2 if kind == "p2p" else ranks
    ops, place = collective("c", kind, [f"g{i}" for i in range(ranks)], 6000, cost=cost)
    graph = Graph("one", tuple(ops))
    task_graph = lower(graph, mesh(ranks, "device"), CostModel(), Strategy(place))
    assert broken(task_graph) == set()
    # Where not every rank both reads and is left with something, the checker knows only a bound.
    known = kind not in ("broadcast", "reduce", "p2p")
    assert ("bytes" in broken(with_bytes(task_graph, 1))) == known
    assert ("bytes" in broken(with_bytes(task_graph, -1))) == (kind != "reduce")


def test_a_rank_of_a_bucket_reads_all_its_tensors() -> None:
    reads = [Op(f"in{i}", outputs=(Tensor(8),), time=0) for i in range(4)]
    names = tuple(op.name for op in reads)
    attrs = {"ranks": ["g0", "g1"], "algorithm": "ring"}
    bucket = Op("c", "all_reduce", inputs=names, outputs=(Tensor(16), Tensor(16)), attrs=attrs)
    places = {"in0": "g0", "in1": "g0", "in2": "g1", "in3": "g1", "c": "g0"}
    graph = Graph("bucket", (*reads, bucket))
    task_graph = lower(graph, mesh(2, "device"), CostModel(), Strategy(places))
    assert broken(task_graph) == set()
    assert broken(with_bytes(task_graph, 1)) == {"bytes"}


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("algorithm", ["ring", "hierarchical"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all"])
def test_bytes_that_do_not_divide_evenly_tell_algorithms_apart(
    kind: str, algorithm: str, cost: str
) -> None:
    task_graph = lowered(two_nodes(3, "link"), kind, 6003, algorithm=algorithm, cost=cost)
    assert broken(task_graph) == set()
    assert broken(with_bytes(task_graph, 1)) == {"bytes"}


@pytest.mark.parametrize("cost", ["closed", "expanded"])
def test_a_ring_of_five_sends_padded_parts(cost: str) -> None:
    """A part of 6003 bytes is one of 1201."""
    task_graph = lowered(mesh(5, "device"), "all_reduce", 6003, algorithm="ring", cost=cost)
    assert broken(task_graph) == set()
    assert broken(with_bytes(task_graph, 1)) == {"bytes"}


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_rings_inside_nodes_pad_their_shares(kind: str) -> None:
    cluster = read_preset("p3-16xlarge", 2)
    task_graph = lowered(cluster, kind, 16 * 1001, algorithm="hierarchical")
    assert broken(task_graph) == set()


def unequal(kind: str) -> TaskGraph:
    """Parts of 1, 4 and 100 bytes, gathered on three ranks or scattered over them."""
    parts, whole = (1, 4, 100), (105, 105, 105)
    read, made = (parts, whole) if kind == "all_gather" else (whole, parts)
    reads = [Op(f"in{i}", outputs=(Tensor(size),), time=0) for i, size in enumerate(read)]
    names = tuple(op.name for op in reads)
    attrs = {"ranks": ["g0", "g1", "g2"], "algorithm": "ring"}
    op = Op("c", kind, inputs=names, outputs=tuple(map(Tensor, made)), attrs=attrs)
    places = {"in0": "g0", "in1": "g1", "in2": "g2", "c": "g0"}
    graph = Graph("unequal", (*reads, op))
    return lower(graph, mesh(3, "device"), CostModel(), Strategy(places))


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
def test_parts_of_unequal_sizes_are_padded_to_the_largest(kind: str) -> None:
    """Each rank sends two parts of 100 bytes. Of equal parts it could have sent 68 in all."""
    assert broken(unequal(kind)) == set()
    for more in (1, -1, 68 - 200):
        assert broken(with_bytes(unequal(kind), more)) == {"bytes"}


def test_every_rank_must_get_what_the_poorest_of_them_lacks() -> None:
    few = with_bytes(unequal("all_gather"), 103 - 200)
    told = list(map(str, check(few, simulate(few))))
    assert told == ['bytes: "c" sends 103 bytes a rank, but one must get 104']


def test_who_sums_up_must_get_the_parts_of_all_others() -> None:
    ops, place = collective("c", "reduce", ["g0", "g1", "g2"], 6000, cost="closed")
    task_graph = lower(Graph("one", tuple(ops)), mesh(3, "device"), CostModel(), Strategy(place))
    sent = int(task_graph.tasks.bytes[task_graph.of_kind(COLLECTIVE)].sum())
    assert broken(with_bytes(task_graph, 4000 - sent)) == set()
    assert broken(with_bytes(task_graph, 3999 - sent)) == {"bytes"}


def test_messages_of_each_step_are_counted_by_themselves() -> None:
    ops, place = collective("c", "all_reduce", ["g0", "g1", "g2"], 6000, cost="expanded")
    prepared = Prepared(Graph("one", tuple(ops)), mesh(3, "device"), CostModel())
    steps = iterated(lower_step(prepared, Strategy(place), True), 2)
    assert broken(steps) == set()
    assert broken(with_bytes(steps, 1)) == {"bytes"}


def test_a_collective_of_a_task_that_is_not_there_is_noticed() -> None:
    task_graph = lowered(mesh(3, "device"), "all_reduce", 6)
    tasks = task_graph.tasks
    beyond = np.where(task_graph.of_kind(COLLECTIVE), len(tasks), tasks.op)
    assert broken(replace(task_graph, tasks=replace(tasks, op=beyond))) == {"bytes"}
