"""Splitting ops: known answers of FlexFlow, OptCNN and Tofu, and what becomes of leaves, updates
and followers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from sharded import (
    COSTS,
    cluster,
    convolutions,
    leaf,
    linears,
    parameter,
    sent_bytes,
    tensor,
    update,
)
from simdev import Oracle, Scenario, run
from simdev.calibrate import calibrate
from simdev.calibrate.measured import Measured
from simdev.check import check
from simdev.cluster import QUEUES, Cluster, Device, Link
from simdev.costs import CostModel
from simdev.engine import simulate
from simdev.errors import InputError, MissingCostError
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import Partitioned, Prepared, lower, lower_prepared, partition, split
from simdev.lowering.partition.geometry import reading
from simdev.strategy import SYNCS, Configuration, Order, Strategy, Sync
from simdev.taskgraph import COLLECTIVE, TRANSFER
from simdev.trace import Trace

C = Configuration


def parts(graph: Graph, split: Mapping[str, Configuration], **more: object) -> Partitioned:
    return partition(graph, cluster(), Strategy(partition=split, **more), COSTS)


def shards(found: Partitioned, op: str) -> list[str]:
    return [
        name
        for name, origin in found.origins.items()
        if origin.op == op and origin.role in ("shard", "copy")
    ]


def shape(found: Partitioned, name: str, output: int = 0) -> tuple[int, ...]:
    return found.graph.ops[found.graph.index[name]].outputs[output].shape


def op_of(found: Partitioned, name: str) -> Op:
    return found.graph.ops[found.graph.index[name]]


def simulated(graph: Graph, on: Cluster, strategy: Strategy, costs: CostModel = COSTS) -> Trace:
    trace = simulate(lower(graph, on, costs, strategy), "simpy")
    assert check(trace.task_graph, trace) == ()
    return trace


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


# OptCNN, figure 2: the first linear layer of VGG-16 on two GPUs

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
    for queues in ("device", "link", "egress", "fair", "parallel"):
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


# Leaves, updates and what follows


def test_one_part_keeps_the_name() -> None:
    found = parts(linears(), {"x": C(devices=("gpu:2",))})
    assert set(found.placement.values()) == {"gpu:2"}
    assert [op.name for op in found.graph.ops] == [op.name for op in linears().ops]


SOME_CHANNELS = {
    "x": C({"sample": 2}),
    "fc3": C({"n": 2}, ("gpu:2", "gpu:3")),
    "sum": C({"sample": 2}),
}


def test_leaves_lie_where_they_are_read() -> None:
    found = parts(linears(), SOME_CHANNELS)
    assert {found.placement[name]: shape(found, name) for name in shards(found, "w2")} == {
        "gpu:0": (8, 8),  # fc2 and the backward read all of it
        "gpu:1": (8, 8),
        "gpu:2": (4, 8),
        "gpu:3": (4, 8),
    }
    assert sum(op_of(found, name).param_bytes for name in shards(found, "w2")) == 3 * 256
    for name in shards(found, "w2"):
        assert not any(text.startswith(f"{name}:")
        and found.placement[op.name] != found.placement[name]
                       for op in found.graph.ops for text in op.inputs)  # fmt: skip


def test_an_update_runs_once_for_each_copy() -> None:
    found = parts(linears(), SOME_CHANNELS)
    where = {
        found.placement[name]: op_of(found, name).attrs["in"][0] for name in shards(found, "u2")
    }
    assert where == {"gpu:0": (8, 8), "gpu:1": (8, 8), "gpu:2": (4, 8), "gpu:3": (4, 8)}


def test_gradients_of_shared_weights_are_added_up_before_they_are_synchronised() -> None:
    found = parts(linears(), {"x": C({"sample": 2})})
    assert [op_of(found, name).kind for name in shards(found, "dw2")] == ["add", "add"]
    rings = {
        found.origins[op.name].op: op.inputs for op in found.graph.ops if op.kind == "all_reduce"
    }
    assert rings == {
        "dw2": ("dw2#0:0", "dw2#1:0"),
        "dw1": ("dw1#0:0", "dw1#1:0"),
        "db1": ("db1#0:0", "db1#1:0"),
    }


def test_backward_ops_follow_their_gradients() -> None:
    found = parts(convolutions(), {"x": C({"sample": 2}), "conv2": C({"k": 2}, ("gpu:2", "gpu:3"))})
    for name in ("pool", "dpool", "dy", "dw2"):
        assert {found.placement[one] for one in shards(found, name)} == {"gpu:2", "gpu:3"}, name
    assert [dict(found.origins[name].box) for name in shards(found, "dw2")] == [
        {"k": (0, 2)},
        {"k": (2, 4)},
    ]
    # dx2 is reduced over the channels of dy: partial results, added up in chunks of samples
    assert [dict(found.origins[name].box) for name in shards(found, "dx2")] == [
        {"k": (0, 2)},
        {"k": (2, 4)},
    ]
    assert [op_of(found, f"dx2#sum{i}").attrs["in"] for i in (0, 1)] == [((2, 4, 8, 8),) * 2] * 2


def test_the_server_of_a_gradient_is_its_first_holder() -> None:
    found = parts(
        linears(),
        {"x": C({"sample": 4}, ("gpu:3", "gpu:2", "gpu:1", "gpu:0"))},
        sync="parameter-server",
    )
    assert found.placement["dw1#sync0"] == "gpu:3"
    assert op_of(found, "dw1#sync0").inputs == ("dw1#0:0", "dw1#1:0", "dw1#2:0", "dw1#3:0")
    assert {op.inputs[1] for op in found.graph.ops if op.name.startswith("u1#")} == {"dw1#sync0:0"}


def test_parts_that_share_a_device_are_added_up_there_first() -> None:
    found = parts(linears(), {"x": C({"sample": 4}, ("gpu:0", "gpu:1"))})
    ring = next(
        op for op in found.graph.ops if op.kind == "all_reduce" and op.name.startswith("dw1")
    )
    assert ring.inputs == ("dw1#sum0:0", "dw1#sum1:0")
    assert [op_of(found, f"dw1#sum{i}").inputs for i in (0, 1)] == [
        ("dw1#0:0", "dw1#1:0"),
        ("dw1#2:0", "dw1#3:0"),
    ]
    alone = parts(linears(), {"x": C({"sample": 4}, ("gpu:0",))})
    assert not any(op.kind == "all_reduce" for op in alone.graph.ops)


def test_only_what_is_needed_of_a_tensor_is_sent() -> None:
    """Halves of the height of a padded convolution: one row of the other half, as a view."""
    found = parts(convolutions(), {"x": C({"d2": 2}), "conv2": C({"p": 2})})
    assert op_of(found, "conv2#0").inputs[:2] == ("relu1#0:0", "relu1#1:1")
    views = op_of(found, "relu1#1").outputs[1:]
    assert [(one.shape, one.view_of, one.bytes) for one in views[:1]] == [
        ((4, 4, 1, 8), 0, 4 * 4 * 4 * 8)
    ]
    # with its padding above and below
    assert op_of(found, "conv2#0").attrs["in"][0] == (4, 4, 6, 8)


def test_a_shard_has_the_key_of_an_op_of_its_shape() -> None:
    """Its cost is that of the same op built at that size."""
    strategy = Strategy(partition={"x": C({"sample": 2})})
    prepared = Prepared(vgg_fc1(64), cluster(devices=2), COSTS)
    own, _, _ = split(prepared, strategy)
    small = Prepared(vgg_fc1(32), cluster(devices=2), COSTS)
    for name in ("fc1", "dx", "dw", "dy"):
        assert own.cost(own.graph.index[f"{name}#1"], 0) == small.cost(small.graph.index[name], 0)


def test_ops_are_split_once_for_clusters_that_differ_in_their_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And anew for other devices, and for another split; the answers are those of a question of its
    own.
    """
    asked: list[Cluster] = []

    def counted(graph: Graph, on: Cluster, *more: object) -> Partitioned:
        asked.append(on)
        return partition(graph, on, *more)  # type: ignore[arg-type]

    monkeypatch.setattr("simdev.lowering.splitting.partition", counted)
    first = cluster()
    faster = replace(first, links=tuple(replace(link, bandwidth=10**9) for link in first.links))
    quiet = replace(first, queues="link", transfer="per-consumer")
    slow = replace(first, devices=(replace(first.devices[0], gap="1 ms"), *first.devices[1:]))
    split, sync = {"x": C({"sample": 4})}, Sync("parameter-server")
    prepared = Prepared(linears(), first, COSTS)
    for on, count in ((first, 1), (faster, 1), (quiet, 1), (first, 1), (slow, 2), (faster, 3)):
        for order in (Order(), Order("priority", {"fc1": -1, "fc2": 3})):
            for strategy in (
                Strategy(partition=split, order=order),
                Strategy(partition=split, order=order, sync=sync),
            ):
                found = lower_prepared(prepared.on(on), strategy)
                assert len(asked) == count
                alone = lower(linears(), on, COSTS, strategy)
                asked.pop()
                for name in ("name", "duration", "priority", "source", "bytes"):
                    assert list(getattr(found.tasks, name)) == list(getattr(alone.tasks, name))
    lower_prepared(prepared.on(faster), Strategy(partition={"x": C({"sample": 2})}))
    assert len(asked) == 4


def test_layers_without_weights_go_back_where_they_went_forward() -> None:
    """dr reads dx2, which lies in halves of the height, and relu1, which lies in samples."""
    found = parts(convolutions(), {"x": C({"sample": 2}), "conv2": C({"p": 2})})
    assert [dict(found.origins[name].box) for name in shards(found, "relu1")] == [
        {"d0": (0, 2)},
        {"d0": (2, 4)},
    ]
    assert [dict(found.origins[name].box) for name in shards(found, "dx2")] == [
        {"h": (0, 4)},
        {"h": (4, 8)},
    ]
    assert [dict(found.origins[name].box) for name in shards(found, "dr")] == [
        {"d0": (0, 2)},
        {"d0": (2, 4)},
    ]


def test_partial_results_are_added_up_as_they_are_read() -> None:
    """Each reader is cut as the chunks are: what it reads lies on its own device."""
    found = parts(linears(), {"x": C({"sample": 2}), "fc2": C({"k": 2}), "fc3": C({"k": 2})})
    assert [dict(found.origins[name].box) for name in shards(found, "fc3")] == [
        {"k": (0, 4)},
        {"k": (4, 8)},
    ]
    assert [shape(found, f"fc2#sum{i}") for i in (0, 1)] == [(8, 4), (8, 4)]
    assert [op_of(found, f"fc3#{i}").inputs[0] for i in (0, 1)] == ["fc2#sum0:0", "fc2#sum1:0"]


def test_a_batch_normalisation_goes_back_with_its_own_statistics() -> None:
    norm = Op(
        "norm",
        "batch_norm",
        inputs=("x", "w", "b", "mean", "var"),
        outputs=(tensor(8, 4, 2, 2), tensor(4), tensor(4)),
        attrs={"training": True},
    )
    back = Op(
        "back",
        "batch_norm_backward",
        "backward",
        ("norm", "x", "w", "mean", "var", "norm:1", "norm:2"),
        outputs=(tensor(8, 4, 2, 2), tensor(4), tensor(4)),
        attrs={"train": True},
    )
    leaves = [leaf("x", 8, 4, 2, 2), *(parameter(name, 4) for name in ("w", "b", "mean", "var"))]
    found = parts(Graph("norm", (*leaves, norm, back)), {"x": C({"sample": 4})})
    assert {origin.role for origin in found.origins.values()} == {"shard", "copy"}
    assert op_of(found, "back#3").inputs[-2:] == ("norm#3:1", "norm#3:2")


# Times


def timed(**configuration: object) -> Strategy:
    return Strategy(partition={"x": C({"sample": 2}), "y": C({"sample": 2}, **configuration)})


def graph_of(time: object) -> Graph:
    y = Op("y", "relu", inputs=("x",), outputs=(tensor(4, 4),), time=time)
    return Graph("timed", (leaf("x", 4, 4), y))


@pytest.mark.parametrize("time", ["4 ms", {"gpu": "4 ms", "tpu": "8 ms"}])
def test_a_time_given_for_the_whole_op_is_divided_only_when_asked(time: object) -> None:
    with pytest.raises(
        InputError, match=r'partition\["y"\]\.time: the time of op "y" is given for the whole op'
    ):
        partition(graph_of(time), cluster(), timed(), COSTS)
    trace = simulated(graph_of(time), cluster(), timed(time="divided"))
    assert trace.end_ps == 2 * 10**9


def test_divided_takes_the_cost_of_the_whole_op_from_the_ladder() -> None:
    graph = vgg_fc1(64)
    whole = Prepared(graph, cluster(), COSTS).cost(graph.index["fc1"], 0)
    found = parts(graph, {"fc1": C({"n": 4}, time="divided"), "x": C({"sample": 4})})
    assert whole is not None
    assert op_of(found, "fc1#0").time == {"gpu": whole.seconds / 4}
    assert op_of(found, "dy#0").time is not None  # what follows is divided as what it follows
    assert op_of(parts(graph, {"fc1": C({"n": 4}), "x": C({"sample": 4})}), "dy#0").time is None


def test_an_unknown_cost_is_no_zero() -> None:
    with pytest.raises(MissingCostError, match='no time for "fc1#0"'):
        lower(vgg_fc1(64), cluster(), CostModel(), Strategy(partition={"x": C({"sample": 2})}))


# Orders, the oracle, and the report


def test_a_priority_of_an_op_holds_for_its_shards() -> None:
    order = Order("priority", {"dw2": -2, "u2": -3, "dres": 5})
    strategy = Strategy(partition={"x": C({"sample": 2})}, order=order)
    task_graph = lower(linears(), cluster(), COSTS, strategy)
    column = dict(zip(task_graph.tasks.name, task_graph.tasks.priority.tolist(), strict=True))
    assert column["dw2#0"] == column["dw2#1"] == -2
    assert column["dres#1"] == 5
    assert column["dw2#sync0"] == -3  # the smallest of its readers
    with pytest.raises(InputError, match="no op of this name"):
        lower(
            linears(),
            cluster(),
            COSTS,
            Strategy(partition={"x": C()}, order=Order("priority", {"nobody": 1})),
        )


def test_fixed_sequences_name_shards() -> None:
    graph = graph_of(None)
    order = Order("fixed", sequence={"gpu:0": ("x#0", "y#0"), "gpu:1": ("x#1", "y#1")})
    strategy = Strategy(partition={"x": C({"sample": 2})}, order=order)
    assert simulated(graph, cluster(), strategy).end_ps > 0
    program = Strategy(partition={"x": C({"sample": 2})}, order="program")
    assert simulated(linears(), cluster(), program).end_ps > 0


def test_the_oracle_takes_split_strategies() -> None:
    oracle = Oracle(linears(), cluster(), COSTS)
    strategy = Strategy(partition={"x": C({"sample": 2})})
    trace = simulated(linears(), cluster(), strategy)
    assert oracle(strategy).step_ps == oracle.trace(strategy).end_ps == trace.end_ps
    assert [cost.step_ps for cost in oracle.batch([strategy, strategy], 2)] == [trace.end_ps] * 2


def test_the_report_tells_what_splits_cost() -> None:
    scenario = Scenario(
        vgg_fc1(64), cluster("link", 2), COSTS, Strategy(partition={"x": C({"sample": 2})})
    )
    report = run(scenario)
    rows = {one.op: one for one in report.splits}
    assert set(rows) == {"fc1", "dy", "dw", "dx", "update"}
    assert (rows["dw"].parts, dict(rows["dw"].split), rows["dw"].sync_bytes) == (
        2,
        {"k": 2},
        2 * WEIGHT,
    )
    assert rows["fc1"].bytes_in == 0
    assert rows["fc1"].summed_ps == 2 * rows["fc1"].longest_ps
    assert rows["fc1"].whole_ps is not None
    assert rows["fc1"].longest_ps < rows["fc1"].whole_ps < rows["fc1"].summed_ps
    assert report.transfer_bytes == 2 * WEIGHT
    told = report.to_json()["splits"]
    assert [one["op"] for one in told] == list(rows)
    assert "What splitting costs" in str(report)
    assert "What splitting costs" in report._repr_html_()


def test_fetched_bytes_are_told_of_their_reader() -> None:
    strategy = Strategy(partition={"x": C({"sample": 2}), "fc1": C({"n": 2})})
    rows = {
        one.op: one
        for one in run(Scenario(vgg_fc1(64), cluster("link", 2), COSTS, strategy)).splits
    }
    assert rows["fc1"].bytes_in == 64 * 25088 * 4
    assert rows["dw"].sync_bytes == 0


def test_steps_without_splits_have_no_such_table() -> None:
    report = run(Scenario(linears(), cluster(), COSTS, Strategy({"*": "gpu:0"})))
    assert report.splits == ()
    assert "splits" not in report.to_json()


def test_the_same_split_gives_the_same_graph() -> None:
    split = {"x": C({"sample": 2}), "fc2": C({"k": 2}), "fc3": C({"n": 4})}
    one, other = parts(linears(), split), parts(linears(), dict(reversed(split.items())))
    assert one.graph == other.graph
    assert one.placement == other.placement


@pytest.mark.parametrize("queues", QUEUES)
def test_a_measured_step_of_shards_calibrates(queues: str) -> None:
    """The link's numbers come back from a trace of shards, whose transfers are regions, views and
    sums.
    """
    pytest.importorskip("scipy")
    split = {"x": C({"sample": 2}), "fc2": C({"k": 2}, ("gpu:2", "gpu:3")), "fc3": C({"n": 4})}
    strategy = Strategy(partition=split)
    trace = simulated(linears(), cluster(queues, bandwidth="5.7 GB/s", latency="13 us"), strategy)
    spans = zip(
        trace.task_graph.tasks.name, trace.start.tolist(), trace.finish.tolist(), strict=True
    )
    measured = Measured({name: ((start, finish),) for name, start, finish in spans}, "trace")
    found = calibrate(
        Scenario(linears(), cluster(queues, bandwidth="2 GB/s", latency="3 us"), COSTS, strategy),
        measured,
    )
    link = found.scenario.cluster.links[0]
    assert (float(link.latency), float(link.bandwidth)) == pytest.approx((13e-6, 5.7e9), rel=1e-3)
    assert found.fitted_s * 1e12 == pytest.approx(trace.end_ps, rel=1e-5)


# Views and collectives in graphs written by hand


def test_a_view_keeps_its_base_alive() -> None:
    """Half of a's output is read late on its own device, the other half is sent: 8 bytes live until
    the reader ends.
    """
    outputs = (
        Tensor(8, (8,), "int8"),
        Tensor(4, (4,), "int8", view_of=0),
        Tensor(4, (4,), "int8", view_of=0),
    )
    ops = [
        Op("a", outputs=outputs, time=1),
        Op("late", inputs=("a:1",), time=5),
        Op("away", inputs=("a:2",), time=1),
    ]
    on = Cluster.all_to_all("two", [Device("gpu:0"), Device("gpu:1")], bandwidth=1)
    strategy = Strategy({"a": "gpu:0", "late": "gpu:0", "away": "gpu:1"})
    trace = simulated(Graph("views", tuple(ops)), on, strategy, CostModel())
    tasks = trace.task_graph.tasks
    assert [
        int(size) for size, kind in zip(tasks.bytes, tasks.kind, strict=True) if kind == TRANSFER
    ] == [4]
    assert [memory.peak for memory in trace.memory] == [8, 4]
    assert trace.memory[0].time.tolist() == [0, 6 * 10**12]
    oracle = Oracle(Graph("views", tuple(ops)), on)
    assert oracle.evaluator("fifo") is not None
    assert oracle(strategy).peaks == (8, 4)


@pytest.mark.parametrize(
    ("views", "reason"),
    [
        (
            (Tensor(4, view_of=0),),
            r"outputs\[0\]\.view_of: must be the number of an earlier output, got 0",
        ),
        (
            (Tensor(4), Tensor(8, view_of=0)),
            r"outputs\[1\]\.view_of: has 8 bytes, more than the 4 of output 0",
        ),
        (
            (Tensor(4), Tensor(4, view_of=0), Tensor(4, view_of=1)),
            r"outputs\[2\]\.view_of: output 1 is a view itself",
        ),
        ((Tensor(4), Tensor(4, view_of=True)), r"outputs\[1\]\.view_of: must be the number"),
    ],
)
def test_bad_views(views: tuple[Tensor, ...], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        Graph("bad", (Op("a", outputs=views),))


def ring(ranks: object, inputs: tuple[str, ...] = ("a", "b"), size: int = 8) -> Graph:
    made = tuple(Tensor(size) for _ in inputs)
    ops = [*(Op(name, outputs=(Tensor(8),), time=1) for name in ("a", "b"))]
    return Graph(
        "ring", (*ops, Op("sum", "all_reduce", inputs=inputs, outputs=made, attrs={"ranks": ranks}))
    )


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            ring(["gpu:0"], ("a",)),
            r"ops\[2\]\.attrs\.ranks: must name two devices at least, each once",
        ),
        (
            ring(["gpu:0", "gpu:0"]),
            r"ops\[2\]\.attrs\.ranks: must name two devices at least, each once",
        ),
        (ring("gpu:0"), r"ops\[2\]\.attrs\.ranks: must name two devices at least, each once"),
        (
            ring(["gpu:0", "gpu:9"]),
            r'ops\[2\]\.attrs\.ranks\[1\]: no device that runs ops is named "gpu:9"',
        ),
        (
            ring(["gpu:0", "gpu:1", "gpu:2"]),
            r"ops\[2\]\.inputs: 3 ranks need as many inputs and outputs",
        ),
        (
            ring(["gpu:0", "gpu:1"], size=4),
            r"ops\[2\]\.inputs: all inputs and outputs must have the same bytes",
        ),
        (ring(["gpu:0", "gpu:2"]), r'ops\[2\]\.inputs\[1\]: "b" lies on gpu:1, rank 1 is gpu:2'),
    ],
)
def test_bad_collectives(graph: Graph, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        lower(graph, cluster(), CostModel(), Strategy({"a": "gpu:0", "b": "gpu:1", "sum": "gpu:0"}))


def test_the_checker_knows_what_a_collective_sends() -> None:
    trace = simulated(
        ring(["gpu:0", "gpu:1"]), cluster(), Strategy({"a": "gpu:0", "*": "gpu:1"}), CostModel()
    )
    assert [memory.peak for memory in trace.memory[:2]] == [16, 16]
    tasks = trace.task_graph.tasks
    wrong = tasks.bytes.copy()
    wrong[tasks.kind.index(COLLECTIVE)] -= 1
    task_graph = replace(trace.task_graph, tasks=replace(tasks, bytes=wrong))
    found = check(task_graph, Trace(task_graph, trace.start, trace.finish, trace.engine))
    assert [one.rule for one in found] == ["bytes"]
