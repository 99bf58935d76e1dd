"""Split ops against the figures of FlexFlow, OptCNN and Tofu."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise

import pytest

from simdev.costs import CostModel
from simdev.lowering.partition.geometry import reading
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import SYNCS, Strategy
from simdev.nouns.taskgraph import COLLECTIVE
from simdev.nouns.trace import Trace
from split_cases import WEIGHT, C, simulated, vgg_fc1
from worlds.graphs import leaf, tensor
from worlds.sharded import sent_bytes
from worlds.split_graphs import cluster, linears


def starts(trace: Trace) -> dict[str, int]:
    """In whole seconds."""
    return {
        name: int(start) // 10**12
        for name, start in zip(trace.task_graph.tasks.name, trace.start, strict=True)
    }


# FlexFlow, figure 4 (reference G1)


def figure_4(parts_of_o3: int) -> Trace:
    """Six ops on three GPUs in a row; a part of a tensor is one byte and takes one second."""
    two = (Tensor(2, (2,), "int8"),)
    ops = [
        Op("x", "input", outputs=two, time=0),
        Op("o1", "relu", inputs=("x",), outputs=two, time="4 s"),
        Op("o2", "relu", inputs=("x",), outputs=two, time="4 s"),
        Op("o3", "relu", inputs=("o1",), outputs=two, time="2 s"),
        Op("o4", "add", inputs=("o2", "o3"), outputs=two, time="2 s"),
        Op("o5", "relu", inputs=("o3",), outputs=two, time="3 s"),
        Op("o6", "relu", inputs=("o4",), outputs=two, time="3 s"),
    ]
    on = Cluster(
        "row",
        tuple(Device(f"gpu:{i}") for i in (1, 2, 3)),
        (Link(("gpu:1", "gpu:2"), 1), Link(("gpu:2", "gpu:3"), 1)),
        queues="link",
    )
    split = {
        name: C({"sample": 2}, (gpu,), "divided")
        for name, gpu in (("o1", "gpu:1"), ("o2", "gpu:1"), ("o4", "gpu:2"))
    }
    split["o3"] = C({"sample": parts_of_o3}, ("gpu:2",), "divided")
    strategy = Strategy({"x": "gpu:1", "o5": "gpu:3", "o6": "gpu:3"}, partition=split)
    return simulated(Graph("figure 4", tuple(ops)), on, strategy, CostModel())


def test_equal_ops_are_read_alike() -> None:
    """One object for equal ops, which serves as a key; layouts that are no numbers tell nothing."""
    told: list[object] = [[[6, 1]], [[6, 1]], [["far", {}]], [None]]
    ops = [
        Op(f"y_{i}", "relu", inputs=("x",), outputs=(tensor(4, 6),), attrs={"strides": t})
        for i, t in enumerate(told)
    ]
    graph = Graph("alike", (leaf("x", 4, 6), *ops))
    found = [reading(graph, i) for i in range(1, 5)]
    assert found[0] is found[1]
    assert found[2] is found[3]
    assert (found[0].strides, found[2].strides) == (((6, 1),), (None,))


def test_flexflow_figure_4() -> None:
    trace = figure_4(2)
    found = starts(trace)
    assert [found[name] for name in ("o1#0", "o1#1", "o2#0", "o2#1")] == [0, 2, 4, 6]
    assert [found[f"{one}:0>gpu:2"] for one in ("o1#0", "o1#1", "o2#0", "o2#1")] == [2, 4, 6, 8]
    assert [found[name] for name in ("o3#0", "o3#1", "o4#0", "o4#1")] == [3, 5, 7, 9]
    assert [found[f"{one}:0>gpu:3"] for one in ("o3#0", "o3#1", "o4#0", "o4#1")] == [4, 6, 8, 10]
    assert (found["o5"], found["o6"]) == (7, 11)
    assert trace.end_ps == 14 * 10**12


def test_flexflow_figure_4_with_one_part_of_o3() -> None:
    trace = figure_4(1)
    found = starts(trace)
    assert (found["o3"], found["o3:0>gpu:3"], found["o4#0"], found["o4#1"]) == (5, 7, 7, 9)
    assert [found[f"o4#{i}:0>gpu:3"] for i in (0, 1)] == [9, 10]
    assert (found["o5"], found["o6"]) == (9, 12)
    assert trace.end_ps == 15 * 10**12


def carried(trace: Trace) -> dict[str, int]:
    """Bytes over each half-link."""
    tasks, found = (
        trace.task_graph.tasks,
        dict.fromkeys((one.name for one in trace.task_graph.resources), 0),
    )
    for held, size in zip(tasks.resources.lists(), tasks.bytes.tolist(), strict=True):
        for resource in held:
            found[trace.task_graph.resources[resource].name] += size
    return {name: size for name, size in found.items() if name.startswith("link ")}


@pytest.mark.parametrize("sync", SYNCS)
def test_optcnn_fc1_in_samples_sends_the_whole_gradient_each_way(sync: str) -> None:
    strategy = Strategy(partition={"x": C({"sample": 2})}, sync=sync)
    trace = simulated(vgg_fc1(64), cluster("link", 2), strategy)
    assert WEIGHT == 411_041_792
    assert carried(trace) == {"link gpu:0>gpu:1": WEIGHT, "link gpu:1>gpu:0": WEIGHT}


def test_optcnn_fc1_in_channels_sends_a_small_fraction() -> None:
    """Inputs gathered (32 samples each way) and partial input gradients added up; the weight stays
    where it is.
    """
    ops = [
        *vgg_fc1(64).ops,
        Op("before", "relu_backward", "backward", ("dx", "x"), outputs=(tensor(64, 25088),)),
    ]
    strategy = Strategy(partition={"x": C({"sample": 2}), "fc1": C({"n": 2})})
    trace = simulated(Graph("fc1", tuple(ops)), cluster("link", 2), strategy)
    half = 32 * 25088 * 4
    assert carried(trace) == {"link gpu:0>gpu:1": 2 * half, "link gpu:1>gpu:0": 2 * half}
    assert 4 * half < WEIGHT / 30


def test_a_ring_all_reduce_takes_its_closed_form() -> None:
    strategy = Strategy(partition={"x": C({"sample": 4})})
    for queues in [queues for queues in QUEUES if queues != "half-duplex"]:
        trace = simulated(vgg_fc1(64), cluster(queues), strategy)
        tasks = trace.task_graph.tasks
        task = tasks.kind.index(COLLECTIVE)
        exact = 6 * (Fraction(1, 10**6) + Fraction(WEIGHT // 4, 10**9)) * 10**12
        assert trace.finish[task] - trace.start[task] == exact
        assert tasks.bytes[task] == 6 * WEIGHT // 4
    half = simulated(vgg_fc1(64), cluster("half-duplex"), strategy)
    assert half.task_graph.tasks.duration[task] == 6 * (10**6 + 2 * WEIGHT // 4 * 1000)


@pytest.mark.parametrize("queues", QUEUES)
def test_a_collective_waits_for_the_queues_of_its_ring(queues: str) -> None:
    """Two all-reduces over the same links come one after the other, unless nothing queues."""
    graph = linears()
    strategy = Strategy(partition={"x": C({"sample": 4})})
    trace = simulated(graph, cluster(queues), strategy)
    tasks = trace.task_graph.tasks
    rows = [task for task, kind in enumerate(tasks.kind) if kind == COLLECTIVE]
    assert len(rows) == 3
    for one, other in pairwise(rows):
        held = set(tasks.resources[one].tolist()), set(tasks.resources[other].tolist())
        assert held[0] == held[1]
        assert bool(held[0]) == (queues not in ("parallel", "fair"))
    assert not any(
        trace.task_graph.resources[r].name.startswith("gpu:")
        for t in rows
        for r in tasks.resources[t]
    )


# Tofu, table of section 4.4: bytes over both groups of a two-way step


def two_way(
    graph: Graph, split: Mapping[str, int], stored: Mapping[str, int], made: int | None = None
) -> int:
    """Bytes sent when one op is cut so, its operands are stored halved along a dimension, and its
    output too.
    """
    configurations = {name: C({f"d{dimension}": 2}) for name, dimension in stored.items()}
    strategy = Strategy(
        partition=configurations | {"op": C(split)},
        tensors={} if made is None else {"op:0": {made: 2}},
    )
    return sent_bytes(simulated(graph, cluster(devices=2), strategy).task_graph)


def input_bytes(size: int, needed: int | None, stored: int) -> Fraction:
    """Needed half along a dimension, or whole (None)."""
    return Fraction(size) if needed is None else Fraction(0 if needed == stored else size, 2)


M, N, K = 8, 4, 6


@pytest.mark.parametrize("a", [0, 1])
@pytest.mark.parametrize("b", [0, 1])
@pytest.mark.parametrize("c", [0, 1, None])
def test_tofu_costs_of_a_matmul(a: int, b: int, c: int | None) -> None:
    graph = Graph(
        "matmul",
        (
            leaf("a", M, K),
            leaf("b", K, N),
            Op("op", "matmul", inputs=("a", "b"), outputs=(tensor(M, N),)),
        ),
    )
    for axis, needs_a, needs_b, makes in (("m", 0, None, 0), ("n", None, 1, 1), ("k", 1, 0, None)):
        wanted = input_bytes(4 * M * K, needs_a, a) + input_bytes(4 * K * N, needs_b, b)
        if c is not None:
            wanted += (
                Fraction(4 * M * N)
                if makes is None
                else Fraction(0 if makes == c else 4 * M * N, 2)
            )
        assert two_way(graph, {axis: 2}, {"a": a, "b": b}, c) == wanted, axis


@pytest.mark.parametrize("x", [0, 1])
@pytest.mark.parametrize("w", [0, 1])
@pytest.mark.parametrize("y", [0, 1, None])
def test_tofu_costs_of_a_convolution(x: int, w: int, y: int | None) -> None:
    """Split b, co, ci; x[n, c, h, w], weight[k, c, r, s], y[n, k, p, q]."""
    attrs = {"padding": [1, 1]}
    conv = Op("op", "conv2d", inputs=("x", "w"), outputs=(tensor(4, 6, 8, 8),), attrs=attrs)
    graph = Graph("conv", (leaf("x", 4, 2, 8, 8), leaf("w", 6, 2, 3, 3), conv))
    sizes = 4 * 4 * 2 * 64, 4 * 6 * 2 * 9, 4 * 4 * 6 * 64
    for axis, needs_x, needs_w, makes in (("n", 0, None, 0), ("k", None, 0, 1), ("c", 1, 1, None)):
        wanted = input_bytes(sizes[0], needs_x, x) + input_bytes(sizes[1], needs_w, w)
        if y is not None:
            wanted += (
                Fraction(sizes[2]) if makes is None else Fraction(0 if makes == y else sizes[2], 2)
            )
        assert two_way(graph, {axis: 2}, {"x": x, "w": w}, y) == wanted, axis


@pytest.mark.parametrize(
    ("kernel", "padding", "stride", "halo"), [(3, 1, 1, 2), (5, 2, 1, 4), (1, 0, 1, 0)]
)
def test_tofu_halos(kernel: int, padding: int, stride: int, halo: int) -> None:
    """Cut along the height, each half reads (kernel - 1) / 2 rows of the other; the weight is
    needed whole.
    """
    attrs = {"padding": [padding, padding], "stride": [stride, stride]}
    conv = Op("op", "conv2d", inputs=("x", "w"), outputs=(tensor(2, 6, 8, 8),), attrs=attrs)
    graph = Graph("conv", (leaf("x", 2, 4, 8, 8), leaf("w", 6, 4, kernel, kernel), conv))
    assert (
        two_way(graph, {"p": 2}, {"x": 2, "w": 0})
        == 4 * 2 * 4 * 8 * halo + 4 * 6 * 4 * kernel * kernel
    )


def test_tofu_backward_of_samples_costs_the_weight() -> None:
    """Split b, dW is a reduction: its partial results, stored halved, cost the weight."""
    attrs = {"padding": [1, 1]}
    back = Op(
        "op",
        "conv2d_backward_weight",
        inputs=("dy", "x"),
        outputs=(tensor(6, 2, 3, 3),),
        attrs=attrs,
    )
    graph = Graph("conv", (leaf("dy", 4, 6, 8, 8), leaf("x", 4, 2, 8, 8), back))
    assert two_way(graph, {"n": 2}, {"dy": 0, "x": 0}, 0) == 4 * 6 * 2 * 9
