"""Collective ops beside everything else: contention, random rank sets, memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collective_ops import (
    collective,
    lowered,
    mesh,
    two_nodes,
)
from simdev.costs import CostModel
from simdev.costs.collectives import COLLECTIVES
from simdev.lowering import lower
from simdev.nouns.cluster import QUEUES, Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.memory import MemoryModel
from simdev.nouns.strategy import Order, Strategy
from simdev.nouns.taskgraph import COLLECTIVE
from worlds.task_graphs import judged


@pytest.mark.parametrize("queues", ["device", "egress", "link"])
def test_k9_two_collectives_share_their_links_and_lose_nothing(queues: str) -> None:
    """One after the other as tasks, in turns as messages: both end when the links have carried all
    of it.
    """
    ends = []
    for cost in ("closed", "expanded"):
        names = ["g0", "g1", "g2"]
        first, place = collective("a", "all_reduce", names, 3000, cost=cost)
        second, more = collective("b", "all_reduce", names, 6000, cost=cost)
        graph = Graph("two", (*first, *second))
        trace = judged(
            lower(graph, mesh(3, queues, latency=0), CostModel(), Strategy(place | more))
        )
        ends.append(trace.end_ps)
    assert ends[0] == ends[1] == 4 * (1000 + 2000) * 1000


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize(("work", "size"), [(5, 2000), (3, 9000), (6, 4000)])
def test_k12_what_overlaps_takes_as_long_as_the_longer(cost: str, work: int, size: int) -> None:
    """A head of 2 us, then computation beside an all-reduce over two ranks, then a tail of 1 us."""
    ops, place = collective("c", "all_reduce", ["g0", "g1"], size, cost=cost)
    ops = [
        Op("head", time="2 us"),
        *(replace(op, control_inputs=("head",)) for op in ops[:1]),
        *ops[1:],
    ]
    ops += [
        Op("work", time=f"{work} us", control_inputs=("head",)),
        Op("tail", inputs=("c",), time="1 us", control_inputs=("work",)),
    ]
    place |= {"head": "g0", "work": "g0", "tail": "g0"}
    trace = judged(
        lower(
            Graph("overlap", tuple(ops)), mesh(2, "link", latency=0), CostModel(), Strategy(place)
        )
    )
    assert trace.end_ps == (2 + max(work, 2 * size // 2 // 1000) + 1) * 10**6


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=6
    )
)
def test_k13_priority_by_forward_order_is_never_slower(layers: list[tuple[int, int, int]]) -> None:
    """Backward from the last layer, gradients sent in slices, forward from the first: (backward,
    forward, slices).
    """
    ops, place, priority = [], {}, {}
    for i in reversed(range(len(layers))):
        before = (f"b{i + 1}",) if i + 1 < len(layers) else ()
        ops.append(Op(f"b{i}", inputs=before, outputs=(Tensor(8),), time=layers[i][0]))
        for k in range(layers[i][2]):
            attrs = {"ranks": ["g0", "g1"], "cost": "expanded"}
            ops.append(Op(f"s{i}_{k}", "p2p", inputs=(f"b{i}",), outputs=(Tensor(8),), attrs=attrs))
            priority[f"s{i}_{k}"] = i
    for i, (_, forward, slices) in enumerate(layers):
        reads = tuple(f"s{i}_{k}" for k in range(slices)) + ((f"f{i - 1}",) if i else ())
        ops.append(Op(f"f{i}", inputs=reads, outputs=(Tensor(0),), time=forward))
        place[f"f{i}"] = "g1"
    place |= {op.name: "g0" for op in ops if op.name not in place}
    cluster, graph = mesh(2, "link", latency=0, bandwidth=8), Graph("layers", tuple(ops))
    ends = [
        judged(lower(graph, cluster, CostModel(), Strategy(place, order))).end_ps
        for order in (Order(), Order("priority", priority))
    ]
    assert ends[1] <= ends[0]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Graph, Cluster, Strategy, MemoryModel]:
    """Collectives of every kind among other ops on any cluster; their outputs are read here and
    elsewhere.
    """
    shape = draw(st.sampled_from(["mesh", "nodes", "staged"]))
    queues = draw(st.sampled_from(QUEUES))
    if shape == "mesh":
        cluster = mesh(draw(st.integers(2, 4)), queues, latency=draw(st.sampled_from([0, "1 us"])))
    elif shape == "nodes":
        cluster = two_nodes(2, queues)
    else:
        devices = (
            Device("g0"),
            Device("g1"),
            Device("host", "cpu", staging=True, chunk=draw(st.sampled_from([None, 40]))),
        )
        cluster = Cluster(
            "staged", devices, tuple(Link((f"g{i}", "host"), 10**9) for i in range(2)), queues
        )
    cluster = replace(cluster, transfer=draw(st.sampled_from(["once-per-device", "per-consumer"])))
    names = [device.name for device in cluster.devices if device.runs_ops and device.name[0] == "g"]
    ops: list[Op] = [Op("alone", time="1 us", outputs=(Tensor(100),))]
    place = {"alone": names[0]}
    for i in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(COLLECTIVES))
        ranks = draw(st.permutations(names))[
            : 2 if kind == "p2p" else draw(st.integers(2, len(names)))
        ]
        size = len(ranks) * draw(st.integers(0, 60))
        algorithm = (
            draw(st.sampled_from(["ring", "tree", "direct", "auto"]))
            if kind != "all_to_all"
            else "ring"
        )
        attrs = {
            "algorithm": algorithm,
            "cost": draw(st.sampled_from(["closed", "expanded", "expanded"])),
        }
        own, where = collective(f"c{i}", kind, ranks, size, **attrs)
        own[-1] = replace(own[-1], control_inputs=("alone",) if draw(st.booleans()) else ())
        ops += own
        for output in range(len(own[-1].outputs)):
            reader = Op(
                f"r{i}_{output}",
                inputs=(f"c{i}:{output}",),
                time=draw(st.integers(0, 3)) * Fraction(1, 10**6),
            )
            ops.append(reader)
            where[reader.name] = draw(st.sampled_from(names))
        after = Op(f"after{i}", control_inputs=(f"c{i}",), time="2 us")
        ops.append(after)
        place |= where | {after.name: draw(st.sampled_from(names))}
    order = draw(st.sampled_from([Order(), Order("priority", {"c0": -1, "alone": 3})]))
    memory = MemoryModel(rounding=draw(st.sampled_from(["none", "pytorch"])))
    return Graph("random", tuple(ops)), cluster, Strategy(place, order), memory


@settings(max_examples=150)
@given(programs())
def test_engines_checker_and_memory_hold_everywhere(
    program: tuple[Graph, Cluster, Strategy, MemoryModel],
) -> None:
    graph, cluster, strategy, memory = program
    task_graph = lower(graph, cluster, CostModel(), strategy, memory)
    trace = judged(task_graph)
    starts = dict(zip(task_graph.tasks.name, trace.start.tolist(), strict=True))
    last: dict[int, int] = defaultdict(int)
    for task, kind in enumerate(task_graph.tasks.kind):
        if kind == COLLECTIVE:
            op = int(task_graph.tasks.op[task])
            last[op] = max(last[op], int(trace.finish[task] + task_graph.tasks.lag[task]))
    for i in range(3):
        if f"c{i}" in graph.index:
            assert starts[f"after{i}"] >= last[graph.index[f"c{i}"]]


def test_buffers_live_until_their_rank_is_done() -> None:
    """A chain of broadcasts: rank 0 is done when its one message has arrived, and gives its input
    back.
    """
    trace = judged(
        lowered(mesh(3, "link", latency=0), "broadcast", 1000, cost="expanded", chunks=1)
    )
    assert [memory.peak for memory in trace.memory] == [1000, 1000, 1000]
    ends = [
        dict(zip(memory.time.tolist(), memory.level.tolist(), strict=True))
        for memory in trace.memory
    ]
    assert ends == [{0: 1000, 10**6: 0}, {0: 1000, 2 * 10**6: 0}, {0: 1000, 2 * 10**6: 0}]
    closed = judged(lowered(mesh(3, "link", latency=0), "broadcast", 1000, cost="closed", chunks=1))
    assert [memory.peak for memory in closed.memory] == [1000, 1000, 1000]


def test_an_output_is_there_when_its_rank_is_done() -> None:
    ops, place = collective("c", "broadcast", ["g0", "g1", "g2"], 1000, cost="expanded", chunks=1)
    ops += [Op(f"r{i}", inputs=(f"c:{i}",), time="1 us") for i in range(2)] + [
        Op("far", inputs=("c:0",), time="1 us")
    ]
    place |= {"r0": "g1", "r1": "g2", "far": "g0"}
    trace = judged(
        lower(Graph("three", tuple(ops)), mesh(3, "link", latency=0), CostModel(), Strategy(place))
    )
    starts = dict(zip(trace.task_graph.tasks.name, trace.start.tolist(), strict=True))
    assert (starts["r0"], starts["r1"], starts["far"]) == (2 * 10**6, 2 * 10**6, 3 * 10**6)


def test_a_host_between_the_ranks_holds_what_passes() -> None:
    devices = (Device("g0"), Device("g1"), Device("host", "cpu", staging=True))
    cluster = Cluster(
        "staged", devices, tuple(Link((f"g{i}", "host"), 10**9) for i in range(2)), "link"
    )
    ops, place = collective("c", "all_reduce", ["g0", "g1"], 2000, cost="expanded")
    trace = judged(lower(Graph("staged", tuple(ops)), cluster, CostModel(), Strategy(place)))
    assert trace.memory[2].at_peak["staging"] == 2 * 1000
    assert trace.end_ps == 2 * 2 * 1000 * 1000
