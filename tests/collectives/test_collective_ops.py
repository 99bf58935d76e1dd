"""Collective ops: closed forms, tables and expansion are one answer where they must be, on every
engine.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peers import measured_all_reduces
from sharded import COSTS, linears
from simdev.check import check
from simdev.cluster import QUEUES, Cluster, Device, Link
from simdev.collectives import CollectiveTable, bus_bandwidth, phases, table_of_rows
from simdev.costs import CostModel
from simdev.engine import simulate
from simdev.errors import InputError
from simdev.files import read_preset, read_strategy, write_strategy
from simdev.files.collectives import read_collectives
from simdev.files.run import read_run, write_run
from simdev.graph import Graph, Op, Tensor
from simdev.lowering import Prepared, lower
from simdev.memory import MemoryModel
from simdev.oracle import Oracle
from simdev.report import run
from simdev.report.measures.spans import Window, timeline_rows
from simdev.report.measures.splits import sent_bytes
from simdev.report.measures.usage import link_use
from simdev.scenario import Scenario, load_scenario
from simdev.strategy import Collectives, Configuration, Order, Strategy
from simdev.taskgraph import COLLECTIVE, TaskGraph
from simdev.trace import Trace

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p")
EXACT = ("parallel", "device", "egress", "link")
MIB = 2**20


def mesh(ranks: int, queues: str, **link: Any) -> Cluster:
    link = {"bandwidth": 10**9, "latency": "3 us"} | link
    return Cluster.all_to_all("mesh", [Device(f"g{i}") for i in range(ranks)], queues, **link)


def two_nodes(local: int, queues: str, nodes: int = 2) -> Cluster:
    """Nodes of equal GPUs around a switch each; their switches meet in one."""
    count = local * nodes
    devices = [Device(f"g{i}", node=i // local, transit=False) for i in range(count)]
    devices += [Device(f"s{node}", "switch", node=node) for node in range(nodes)] + [
        Device("core", "switch")
    ]
    links = [Link((f"g{i}", f"s{i // local}"), 10**10, "1 us") for i in range(count)]
    links += [Link((f"s{node}", "core"), 10**9, "5 us") for node in range(nodes)]
    return Cluster("nodes", tuple(devices), tuple(links), queues)


def operands(kind: str, ranks: int, size: int) -> tuple[list[int], list[int]]:
    """Bytes of the inputs and of the outputs of a collective of ``size`` bytes, a multiple of the
    ranks.
    """
    match kind:
        case "all_gather":
            return [size // ranks] * ranks, [size] * ranks
        case "reduce_scatter":
            return [size] * ranks, [size // ranks] * ranks
        case "broadcast" | "p2p":
            return [size], [size] * (ranks - 1)
        case "reduce":
            return [size] * ranks, [size]
        case _:
            return [size] * ranks, [size] * ranks


def collective(
    name: str, kind: str, ranks: Sequence[str], size: int, **attrs: Any
) -> tuple[list[Op], dict[str, str]]:
    """The op, with the ops that make what it reads, and their places."""
    read, made = operands(kind, len(ranks), size)
    sources = [Op(f"{name}_in{i}", outputs=(Tensor(one),), time=0) for i, one in enumerate(read)]
    inputs = tuple(op.name for op in sources)
    whole = Op(
        name,
        kind,
        inputs=inputs,
        outputs=tuple(map(Tensor, made)),
        attrs={"ranks": list(ranks)} | attrs,
    )
    return [*sources, whole], dict(zip(inputs, ranks, strict=False)) | {name: ranks[0]}


def lowered(cluster: Cluster, kind: str, size: int, ranks: int = 0, **attrs: Any) -> TaskGraph:
    names = [device.name for device in cluster.devices if device.runs_ops][: ranks or None]
    ops, place = collective("c", kind, names, size, **attrs)
    return lower(Graph("one", tuple(ops)), cluster, CostModel(), Strategy(place))


def checked(task_graph: TaskGraph) -> Trace:
    """The trace, the same from both engines and without violations."""
    trace = simulate(task_graph, "simpy")
    other = simulate(task_graph, "compiled")
    assert (trace.start == other.start).all()
    assert (trace.finish == other.finish).all()
    assert check(trace.task_graph, trace) == ()
    return trace


def seconds(cluster: Cluster, kind: str, size: int, ranks: int = 0, **attrs: Any) -> Fraction:
    return Fraction(checked(lowered(cluster, kind, size, ranks, **attrs)).end_ps, 10**12)


# K7 and G10: the closed forms, as one task and as messages

ALPHA, RATE, SIZE = Fraction(3, 10**6), 10**9, 24 * 10**5
FORMS = {
    # collective, algorithm: rounds, and bytes of each over S
    ("all_reduce", "ring"): lambda n: (2 * (n - 1), Fraction(1, n)),
    ("all_gather", "ring"): lambda n: (n - 1, Fraction(1, n)),
    ("reduce_scatter", "ring"): lambda n: (n - 1, Fraction(1, n)),
    ("all_to_all", "ring"): lambda n: (n - 1, Fraction(1, n)),
    ("all_reduce", "tree"): lambda n: (2 * (n - 1).bit_length(), Fraction(1)),
    ("broadcast", "tree"): lambda n: ((n - 1).bit_length(), Fraction(1)),
    ("reduce", "tree"): lambda n: ((n - 1).bit_length(), Fraction(1)),
    ("all_gather", "tree"): lambda n: (
        (n - 1).bit_length(),
        Fraction(n - 1, n * (n - 1).bit_length()),
    ),
    ("reduce_scatter", "tree"): lambda n: (
        (n - 1).bit_length(),
        Fraction(n - 1, n * (n - 1).bit_length()),
    ),
    ("p2p", "ring"): lambda n: (1, Fraction(1)),
}


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("queues", EXACT)
@pytest.mark.parametrize(("kind", "algorithm"), FORMS)
def test_k7_closed_forms_as_one_task_and_as_messages(
    kind: str, algorithm: str, queues: str, cost: str
) -> None:
    for ranks in (2,) if kind == "p2p" else (2, 3, 4, 6, 8):
        rounds, share = FORMS[kind, algorithm](ranks)
        found = seconds(mesh(ranks, queues), kind, SIZE, algorithm=algorithm, cost=cost)
        assert found == rounds * (ALPHA + share * SIZE / RATE), ranks


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("queues", EXACT)
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_k7_a_chain_in_chunks(kind: str, queues: str, cost: str) -> None:
    for ranks, chunks in ((2, 1), (4, 3), (5, 12), (3, 1)):
        found = seconds(mesh(ranks, queues), kind, SIZE, cost=cost, chunks=chunks)
        assert found == (ranks + chunks - 2) * (ALPHA + Fraction(SIZE, chunks * RATE))


@pytest.mark.parametrize("queues", [*EXACT, "fair"])
def test_a_chain_is_cut_so_that_it_is_fastest(queues: str) -> None:
    best = seconds(mesh(5, queues), "broadcast", SIZE)
    assert (
        best
        <= min(seconds(mesh(5, queues), "broadcast", SIZE, chunks=k) for k in (1, 4, 16, 64, 256))
        * 1.02
    )


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize("queues", EXACT)
def test_two_levels_add_up(queues: str, cost: str) -> None:
    """4 ranks on each of 2 nodes: 7 us and 10 GB/s inside, 12 us and 1 GB/s between (2 and 12 us by
    the links).
    """

    def inside(share: Fraction) -> Fraction:
        return Fraction(2, 10**6) + share * SIZE / 10**10

    def between(share: Fraction) -> Fraction:
        # All places at once cross the link between the nodes, one after the other where links are
        # what is queued for.
        crossing = 4 if queues == "link" else 1
        return Fraction(12, 10**6) + crossing * share * SIZE / 10**9

    wanted = {
        "all_reduce": 6 * inside(Fraction(1, 4)) + 2 * between(Fraction(1, 8)),
        "all_gather": 3 * inside(Fraction(1, 4)) + between(Fraction(1, 8)),
        "reduce_scatter": 3 * inside(Fraction(1, 4)) + between(Fraction(1, 8)),
        "all_to_all": 3 * inside(Fraction(1, 4)) + between(Fraction(1, 2)),
    }
    for kind, closed in wanted.items():
        found = seconds(two_nodes(4, queues), kind, SIZE, algorithm="hierarchical", cost=cost)
        if queues == "link" and cost == "expanded":
            # The latency of this link is held: each of the four messages that cross it has its own.
            assert closed <= found <= closed + 2 * 3 * Fraction(12, 10**6)
        else:
            assert found == closed, kind


def test_two_levels_are_the_ring_where_there_is_one() -> None:
    cluster = two_nodes(4, "link")
    for kind in KINDS[:-1]:
        assert phases(kind, "hierarchical", ((0, 1, 2, 3),), 1000) == phases(
            kind, "ring", ((0, 1, 2, 3),), 1000
        )
        assert phases(kind, "hierarchical", ((0,), (1,)), 1000) == phases(
            kind, "ring", ((0, 1),), 1000
        )
    rows = [
        lowered(cluster, "all_reduce", SIZE, 4, algorithm=one).tasks.duration
        for one in ("ring", "hierarchical")
    ]
    assert (rows[0] == rows[1]).all()


@st.composite
def questions(draw: st.DrawFn) -> tuple[Cluster, str, int, dict[str, Any]]:
    """A collective over links that are all alike; nothing divides evenly."""
    ranks, kind = draw(st.integers(2, 7)), draw(st.sampled_from(KINDS))
    ranks = 2 if kind == "p2p" else ranks
    cluster = mesh(
        ranks,
        draw(st.sampled_from(EXACT)),
        bandwidth=draw(st.sampled_from([10**9, 7 * 10**8, 123456789])),
        latency=draw(st.sampled_from([0, "1 us", "333333 ps"])),
        gap=draw(st.sampled_from([0, 0, "2 us", "100 ps"])),
        hold_latency=draw(st.booleans()),
    )
    trees = () if kind == "all_to_all" else ("tree",)
    attrs = {"algorithm": draw(st.sampled_from(("ring", "hierarchical", *trees)))}
    if kind in ("broadcast", "reduce"):
        attrs["chunks"] = draw(st.integers(1, 6))
    return cluster, kind, ranks * draw(st.integers(0, 10**6)), attrs


@settings(max_examples=120)
@given(questions())
def test_expanded_is_closed_to_the_picosecond_over_equal_links(
    question: tuple[Cluster, str, int, Any],
) -> None:
    cluster, kind, size, attrs = question
    closed, expanded = (
        simulate(lowered(cluster, kind, size, cost=cost, **attrs)).end_ps
        for cost in ("closed", "expanded")
    )
    if any(link.gap for link in cluster.links) and (
        attrs["algorithm"] == "tree" or kind not in KINDS[:3]
    ):
        # Where a round takes other links than the one before, it does not wait for its gap.
        assert expanded <= closed
    else:
        assert expanded == closed


@st.composite
def uneven(draw: st.DrawFn) -> Cluster:
    """A mesh of links of their own speeds and latencies, held or not."""
    ranks = draw(st.integers(2, 5))
    speeds, latencies = (
        st.sampled_from([10**8, 10**9, 3 * 10**9]),
        st.sampled_from([0, "1 us", "40 us"]),
    )
    links = [
        Link((f"g{a}", f"g{b}"), draw(speeds), draw(latencies), hold_latency=draw(st.booleans()))
        for a in range(ranks)
        for b in range(a + 1, ranks)
    ]
    return Cluster(
        "uneven",
        tuple(Device(f"g{i}") for i in range(ranks)),
        tuple(links),
        draw(st.sampled_from(EXACT)),
    )


@settings(max_examples=80)
@given(uneven(), st.integers(0, 10**6), st.sampled_from(KINDS[:3]))
def test_an_expanded_ring_is_closed_over_any_links(cluster: Cluster, size: int, kind: str) -> None:
    """Every step waits for its slowest message: whoever is slowest waits for itself, in each
    step.
    """
    size *= len(cluster.devices)
    both = [
        simulate(lowered(cluster, kind, size, cost=cost)).end_ps for cost in ("closed", "expanded")
    ]
    assert both[0] == both[1]


@settings(max_examples=80)
@given(
    uneven(),
    st.integers(0, 10**5),
    st.sampled_from(KINDS[:-1]),
    st.sampled_from(["ring", "tree", "auto"]),
)
def test_no_expansion_is_slower_than_its_rounds(
    cluster: Cluster, size: int, kind: str, algorithm: str
) -> None:
    if (kind, algorithm) == ("all_to_all", "tree"):
        return
    size *= len(cluster.devices)
    attrs = {"algorithm": algorithm, "chunks": 3}
    both = [
        simulate(lowered(cluster, kind, size, cost=cost, **attrs)).end_ps
        for cost in ("closed", "expanded")
    ]
    assert both[1] <= both[0]


def test_on_half_duplex_a_ring_starts_as_a_wave() -> None:
    """Frozen, in messages: 4 (n-1) by the closed form, 5 n - 6 (n even) or 5 n - 3 (n odd) in
    order.

    A message holds the channel of its source and that of its destination, and the first round
    becomes ready at once, in the order of the ranks. So the message of rank 1 stands behind that of
    rank 0 on the channel of rank 1, that of rank 2 behind it, and so on: the first round is a wave
    of n messages, where two turns would do. Every later round follows its wave at a distance of two
    messages, which is what the closed form says of each. A ring of odd length has no two turns
    (three ranks have one message under way at a time), and pays three messages more.
    """
    unit = 1000  # bytes, and ns
    for ranks in range(2, 10):
        cluster = mesh(ranks, "half-duplex", latency=0)
        figures = [
            seconds(cluster, "all_reduce", ranks * unit, cost=cost) * 10**9 / unit
            for cost in ("closed", "expanded")
        ]
        wave = 0 if ranks == 2 else 5 * ranks - (3 if ranks % 2 else 6)
        assert figures == [4 * (ranks - 1), wave or 4]
    trace = simulate(
        lowered(mesh(4, "half-duplex", latency=0), "all_reduce", 4 * unit, cost="expanded")
    )
    starts = dict(zip(trace.task_graph.tasks.name, (trace.start // 10**6).tolist(), strict=True))
    assert [starts[f"c[0] g{a}>g{(a + 1) % 4}"] for a in range(4)] == [0, 1, 2, 3]
    assert [starts[f"c[1] g{a}>g{(a + 1) % 4}"] for a in range(4)] == [4, 3, 4, 5]
    assert [starts[f"c[5] g{a}>g{(a + 1) % 4}"] for a in range(4)] == [12, 11, 12, 13]


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_fair_links_give_the_closed_form_too(kind: str) -> None:
    for cost in ("closed", "expanded"):
        found = seconds(mesh(4, "fair"), kind, SIZE, cost=cost)
        rounds, share = FORMS[kind, "ring"](4)
        assert found == rounds * (ALPHA + share * SIZE / RATE)


@pytest.mark.parametrize("workers", [2, 3, 5, 8])
def test_g10_sharded_servers_move_two_s_over_w_each_way(workers: int) -> None:
    """W servers sharded over the W workers, no latency: 2 S (W-1) / (W B) per NIC and direction, on
    in-order queues.
    """
    names, size = [f"g{i}" for i in range(workers)], workers * 10**6
    push, place = collective(
        "push", "reduce_scatter", names, size, algorithm="direct", cost="expanded"
    )
    pull = Op(
        "pull",
        "all_gather",
        inputs=tuple(f"push:{i}" for i in range(workers)),
        outputs=(Tensor(size),) * workers,
        attrs={"ranks": names, "algorithm": "direct", "cost": "expanded"},
    )
    graph = Graph("servers", (*push, pull))
    for queues in ("device", "egress"):
        trace = checked(
            lower(
                graph,
                mesh(workers, queues, latency=0),
                CostModel(),
                Strategy(place | {"pull": "g0"}),
            )
        )
        assert trace.end_ps == 2 * size * (workers - 1) // workers * 1000


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_k8_a_server_with_one_card_takes_in_and_sends_out(workers: int) -> None:
    """N workers push S bytes to one server and pull them: 2 N S / B."""
    names, size = [f"g{i}" for i in range(workers + 1)], 10**6
    push, place = collective("push", "reduce", names, size, algorithm="direct", cost="expanded")
    attrs = {"ranks": names, "algorithm": "direct", "cost": "expanded"}
    pull = Op("pull", "broadcast", inputs=("push",), outputs=(Tensor(size),) * workers, attrs=attrs)
    cluster = mesh(workers + 1, "device", latency=0)
    trace = checked(
        lower(
            Graph("server", (*push, pull)), cluster, CostModel(), Strategy(place | {"pull": "g0"})
        )
    )
    assert trace.end_ps == 2 * workers * size * 1000


# K9, K12, K13: contention with everything else


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
        trace = checked(
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
    trace = checked(
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
        checked(lower(graph, cluster, CostModel(), Strategy(place, order))).end_ps
        for order in (Order(), Order("priority", priority))
    ]
    assert ends[1] <= ends[0]


# Everything at once: random rank sets, clusters and queues


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
        kind = draw(st.sampled_from(KINDS))
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
    trace = checked(task_graph)
    starts = dict(zip(task_graph.tasks.name, trace.start.tolist(), strict=True))
    last: dict[int, int] = defaultdict(int)
    for task, kind in enumerate(task_graph.tasks.kind):
        if kind == COLLECTIVE:
            op = int(task_graph.tasks.op[task])
            last[op] = max(last[op], int(trace.finish[task] + task_graph.tasks.lag[task]))
    for i in range(3):
        if f"c{i}" in graph.index:
            assert starts[f"after{i}"] >= last[graph.index[f"c{i}"]]


# Memory


def test_buffers_live_until_their_rank_is_done() -> None:
    """A chain of broadcasts: rank 0 is done when its one message has arrived, and gives its input
    back.
    """
    trace = checked(
        lowered(mesh(3, "link", latency=0), "broadcast", 1000, cost="expanded", chunks=1)
    )
    assert [memory.peak for memory in trace.memory] == [1000, 1000, 1000]
    ends = [
        dict(zip(memory.time.tolist(), memory.level.tolist(), strict=True))
        for memory in trace.memory
    ]
    assert ends == [{0: 1000, 10**6: 0}, {0: 1000, 2 * 10**6: 0}, {0: 1000, 2 * 10**6: 0}]
    closed = checked(
        lowered(mesh(3, "link", latency=0), "broadcast", 1000, cost="closed", chunks=1)
    )
    assert [memory.peak for memory in closed.memory] == [1000, 1000, 1000]


def test_an_output_is_there_when_its_rank_is_done() -> None:
    ops, place = collective("c", "broadcast", ["g0", "g1", "g2"], 1000, cost="expanded", chunks=1)
    ops += [Op(f"r{i}", inputs=(f"c:{i}",), time="1 us") for i in range(2)] + [
        Op("far", inputs=("c:0",), time="1 us")
    ]
    place |= {"r0": "g1", "r1": "g2", "far": "g0"}
    trace = checked(
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
    trace = checked(lower(Graph("staged", tuple(ops)), cluster, CostModel(), Strategy(place)))
    assert trace.memory[2].at_peak["staging"] == 2 * 1000
    assert trace.end_ps == 2 * 2 * 1000 * 1000


# Pictures, the checker, saved runs


def test_messages_stand_in_the_rows_of_their_links() -> None:
    trace = checked(lowered(mesh(3, "link"), "all_gather", 3000, cost="expanded"))
    rows = {
        row.name: [trace.task_graph.tasks.name[task] for task in row.tasks]
        for row in timeline_rows(trace)
    }
    assert rows["link g0>g1"] == ["c[0] g0>g1", "c[1] g0>g1"]
    assert list(rows)[:3] == ["g0", "g1", "g2"]
    assert not any("c" in names for names in rows.values())
    use = {
        one.name: (one.transfers, one.bytes)
        for one in link_use(trace, Window(0, trace.end_ps))
        if one.transfers
    }
    assert use == {f"link g{a}>g{(a + 1) % 3}": (2, 2000) for a in range(3)}
    assert sent_bytes(trace.task_graph) == 6000


def test_what_collectives_send_in_all_is_told_right() -> None:
    for kind, algorithm in (
        *FORMS,
        ("broadcast", "ring"),
        ("reduce", "ring"),
        ("all_reduce", "direct"),
    ):
        ranks = 2 if kind == "p2p" else 4
        told = {
            cost: sent_bytes(
                lowered(mesh(ranks, "link"), kind, 4096, algorithm=algorithm, cost=cost, chunks=4)
            )
            for cost in ("closed", "expanded")
        }
        assert told["closed"] == told["expanded"], (kind, algorithm)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_the_checker_misses_no_lost_byte(kind: str) -> None:
    for cost in ("closed", "expanded"):
        trace = simulate(lowered(mesh(4, "link"), kind, 4096, cost=cost, chunks=1))
        tasks = trace.task_graph.tasks
        less = tasks.bytes.copy()
        less[[task for task, one in enumerate(tasks.kind) if one == COLLECTIVE][-1]] -= 1
        broken = replace(trace.task_graph, tasks=replace(tasks, bytes=less))
        found = check(broken, Trace(broken, trace.start, trace.finish, trace.engine))
        assert {one.rule for one in found} == {"bytes"}, cost


def test_the_checker_sees_a_message_that_overtakes() -> None:
    trace = simulate(lowered(mesh(4, "link"), "all_reduce", 4096, cost="expanded"))
    late = trace.task_graph.tasks.name.index("c[3] g1>g2")
    start, finish = trace.start.copy(), trace.finish.copy()
    start[late], finish[late] = start[late] - 10, finish[late] - 10
    found = check(trace.task_graph, Trace(trace.task_graph, start, finish, trace.engine))
    assert "precedence" in {one.rule for one in found}


@pytest.mark.parametrize("slowdown", [1, "1.3"])
def test_saved_runs_hold_the_messages(slowdown: object, tmp_path: Path) -> None:
    ops, place = collective("c", "all_reduce", ["g0", "g1", "g2"], 3000, cost="expanded")
    strategy = Strategy(place | {"work": "g1"}, collectives=Collectives(slowdown=slowdown))  # type: ignore[arg-type]
    graph = Graph("saved", (*ops, Op("work", time="4 us")))
    trace = checked(lower(graph, mesh(3, "device"), CostModel(), strategy))
    write_run(trace, tmp_path / "run.json.gz")
    again = read_run(tmp_path / "run.json.gz").trace
    assert (again.start == trace.start).all()
    assert check(again.task_graph, again) == ()


# Which algorithm, and how it is costed


def test_the_strategy_says_how_unless_the_op_does() -> None:
    cluster, choice = mesh(4, "link"), Collectives("tree", "expanded")
    names = [device.name for device in cluster.devices]
    ops, place = collective("c", "all_reduce", names, SIZE)
    graph = Graph("one", tuple(ops))
    by_strategy = lower(graph, cluster, CostModel(), Strategy(place, collectives=choice))
    assert (
        by_strategy.tasks.duration
        == lowered(cluster, "all_reduce", SIZE, algorithm="tree", cost="expanded").tasks.duration
    ).all()
    own, _ = collective("c", "all_reduce", names, SIZE, algorithm="ring", cost="closed")
    by_op = lower(
        Graph("one", tuple(own)), cluster, CostModel(), Strategy(place, collectives=choice)
    )
    assert (by_op.tasks.duration == lowered(cluster, "all_reduce", SIZE).tasks.duration).all()


def test_auto_takes_the_least_closed_form() -> None:
    cluster = two_nodes(4, "link")
    for size in (8, 8 * 10**4, 8 * 10**7):
        closed = {
            one: simulate(lowered(cluster, "all_reduce", size, algorithm=one)).end_ps
            for one in ("ring", "tree", "hierarchical", "auto")
        }
        assert closed["auto"] == min(closed.values())
        assert len(set(closed.values())) > 1


@pytest.mark.parametrize("queues", QUEUES)
@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "auto"])
def test_gradients_of_a_split_model_under_every_algorithm(queues: str, algorithm: str) -> None:
    """Data parallelism over four GPUs: one task for each of three gradients, or the messages of
    each.
    """
    devices, cluster = [f"g{i}" for i in range(4)], two_nodes(2, queues)
    count = {}
    for cost in ("closed", "expanded"):
        split = {"x": Configuration({"sample": 4}, tuple(devices))}
        strategy = Strategy(partition=split, collectives=Collectives(algorithm, cost))
        task_graph = lower(linears(), cluster, COSTS, strategy)
        checked(task_graph)
        count[cost] = sum(kind == COLLECTIVE for kind in task_graph.tasks.kind)
    assert count["closed"] == 3
    assert count["expanded"] in {3 * 24, 3 * 6, 3 * 16}


def test_the_oracle_and_the_simulation_agree() -> None:
    split = {"x": Configuration({"sample": 4}, tuple(f"g{i}" for i in range(4)))}
    for choice in (Collectives(cost="expanded"), Collectives("tree"), Collectives(slowdown=1.3)):  # type: ignore[arg-type]
        strategy = Strategy(partition=split, collectives=choice)
        step = simulate(lower(linears(), two_nodes(2, "link"), COSTS, strategy)).end_ps
        assert Oracle(linears(), two_nodes(2, "link"), COSTS)(strategy).step_ps == step
    ops, place = collective("c", "all_reduce", [f"g{i}" for i in range(4)], 4000)
    oracle = Oracle(Graph("one", tuple(ops)), two_nodes(2, "link"))
    for algorithm in ("ring", "tree", "hierarchical", "direct"):
        step = simulate(
            lowered(two_nodes(2, "link"), "all_reduce", 4000, algorithm=algorithm)
        ).end_ps
        assert oracle(Strategy(place, collectives=Collectives(algorithm))).step_ps == step


def test_messages_take_the_priority_of_their_collective() -> None:
    """Two all-reduces over one link, the second of which is wanted first: it overtakes between two
    messages.
    """
    first, place = collective("a", "all_reduce", ["g0", "g1"], 4000, cost="expanded")
    second, more = collective("b", "all_reduce", ["g0", "g1"], 4000, cost="expanded")
    graph, cluster = Graph("two", (*first, *second)), mesh(2, "link", latency=0)
    order = Order("priority", {"a": 5, "b": -1})
    trace = checked(lower(graph, cluster, CostModel(), Strategy(place | more, order)))
    starts = dict(zip(trace.task_graph.tasks.name, trace.start.tolist(), strict=True))
    assert [starts[f"{name} g0>g1"] // 10**6 for name in ("a[0]", "b[0]", "b[1]", "a[1]")] == [
        0,
        2,
        4,
        6,
    ]


# Tables


def table_op(
    cluster: Cluster, kind: str, size: int, ranks: int, tables: Sequence[CollectiveTable]
) -> Fraction:
    names = [device.name for device in cluster.devices if device.runs_ops][:ranks]
    ops, place = collective("c", kind, names, size)
    strategy = Strategy(place, collectives=Collectives(cost="table", tables=tuple(tables)))
    return Fraction(
        checked(lower(Graph("one", tuple(ops)), cluster, CostModel(), strategy)).end_ps, 10**12
    )


@pytest.mark.parametrize("queues", ["link", "fair", "parallel"])
def test_an_op_takes_the_time_of_its_table(queues: str) -> None:
    cluster = replace(read_preset("dgx-h100"), queues=queues)
    tables = read_collectives("h100-sxm")
    for table in tables:
        for size, wanted in table.anchors:
            if size % table.ranks == 0:
                found = table_op(cluster, table.collective, size, table.ranks, tables)
                assert abs(found - wanted) <= Fraction(1, 10**9) * max(1, wanted * 10**6), (
                    table.collective,
                    size,
                )


def test_tables_are_those_of_the_cluster_where_a_scenario_names_none() -> None:
    size, names = 8 * MIB, [f"gpu:{i}" for i in range(8)]
    ops, place = collective("c", "all_reduce", names, size)
    told = [
        {
            "name": op.name,
            "kind": op.kind,
            "inputs": list(op.inputs),
            "attrs": dict(op.attrs),
            "time": 0,
        }
        | {"outputs": [{"bytes": tensor.bytes} for tensor in op.outputs]}
        for op in ops
    ]
    strategy = {"version": 1, "placement": place, "collectives": {"cost": "table"}}
    scenario = {
        "version": 1,
        "graph": {"version": 1, "name": "one", "ops": told},
        "cluster": "dgx-h100",
        "strategy": strategy,
    }
    (table,) = [
        one
        for one in read_collectives("h100-sxm")
        if (one.collective, one.ranks) == ("all_reduce", 8)
    ]
    assert run(load_scenario(scenario)).seconds == pytest.approx(
        float(table.seconds(size)), rel=1e-9
    )
    strategy["collectives"] = {"cost": "table", "tables": "a100-sxm"}
    assert run(load_scenario(scenario)).seconds != pytest.approx(
        float(table.seconds(size)), rel=1e-3
    )


def test_left_out_sizes_through_the_op() -> None:
    """vTrain's all-reduces on 2 to 8 A100: tables of every second size, the others asked as ops."""
    for ranks, measured in measured_all_reduces().items():
        table = table_of_rows("all_reduce", ranks, measured[::2])
        left = measured[1::2][:: max(1, len(measured) // 40)]
        cluster = mesh(ranks, "link")
        errors = [
            abs(float(table_op(cluster, "all_reduce", size, ranks, [table])) / took - 1)
            for size, took in left
        ]
        print(
            f"{ranks} GPUs: {len(left)} sizes left out, mean {np.mean(errors):.2%}, "
            f"largest {max(errors):.1%}"
        )
        assert np.mean(errors) <= 0.02


@pytest.mark.parametrize("name", ["l40s-8x", "rtx-pro-6000-8x"])
def test_pcie_boxes_fall_with_more_gpus_by_table_and_by_message(name: str) -> None:
    box, size = read_preset(name), 512 * MIB
    tables = read_collectives(box.collectives)

    def rate(took: Fraction, ranks: int) -> float:
        return float(bus_bandwidth("all_reduce", ranks, size, took)) / 1e9

    measured = [rate(table_op(box, "all_reduce", size, n, tables), n) for n in (2, 4, 8)]
    expanded = [rate(seconds(box, "all_reduce", size, n, cost="expanded"), n) for n in (2, 4, 8)]
    closed = [rate(seconds(box, "all_reduce", size, n), n) for n in (2, 4, 8)]
    print(f"{name}: table {measured}, expanded {expanded}, closed {closed} GB/s")
    assert measured[0] > measured[1] > measured[2]
    assert expanded == closed
    if name == "l40s-8x":
        assert expanded == [pytest.approx(one, rel=0.05) for one in measured]


# Computation that shares its device with a collective (G7)


def beside(
    work: int, sending: int, cost: str = "closed", slowdown: object = "1.3", queues: str = "link"
) -> Trace:
    """``work`` seconds of computation on one of two ranks, beside an all-reduce of so many
    seconds.
    """
    ops, place = collective("c", "all_reduce", ["g0", "g1"], sending, cost=cost)
    graph = Graph("two", (*ops, Op("work", time=work)))
    choice = Collectives(slowdown=slowdown)  # type: ignore[arg-type]
    cluster = mesh(2, queues, latency=0, bandwidth=1)
    return checked(
        lower(graph, cluster, CostModel(), Strategy(place | {"work": "g0"}, collectives=choice))
    )


@pytest.mark.parametrize("cost", ["closed", "expanded"])
@pytest.mark.parametrize(
    ("work", "sending", "step"), [(10, 6, "11.8"), (5, 12, "13.5"), (4, 4, "5.2"), (3, 0, "3")]
)
def test_g7_overlap_slows_both(work: int, sending: int, step: str, cost: str) -> None:
    trace = beside(work, sending, cost)
    assert abs(trace.end_ps - Fraction(step) * 10**12) <= 2  # every slowed task rounds up
    assert beside(work, sending, cost, 1).end_ps == max(work, sending) * 10**12
    assert beside(work, sending, cost, queues="parallel").end_ps == trace.end_ps


def test_nothing_slows_what_shares_no_device() -> None:
    ops, place = collective("c", "all_reduce", ["g0", "g1"], 6)
    graph = Graph("apart", (*ops, Op("work", time=10)))
    strategy = Strategy(place | {"work": "g2"}, collectives=Collectives(slowdown=2))  # type: ignore[arg-type]
    trace = checked(lower(graph, mesh(3, "link", latency=0, bandwidth=1), CostModel(), strategy))
    assert trace.end_ps == 10 * 10**12


@pytest.mark.parametrize(
    ("works", "sending", "ends"),
    [
        # each is slowed to 4 s, and the collective by 4 s twice
        ("work 2, rest 3, work 2", 20, (11, 24)),
        ("work 2, rest 3, work 2", 4, (9, 6)),  # it ends between the two: the second runs alone
        (
            "work 2, rest 3, work 2",
            6,
            (10, 9),
        ),  # it ends 2 s after the second began
        ("rest 3, work 2, rest 1, work 1", 4, (8, 5)),  # it begins alone, and ends amid the first
    ],
)
def test_stretches_that_lie_apart_slow_each_for_itself(
    works: str, sending: int, ends: tuple[int, int]
) -> None:
    """An all-reduce of two devices beside works of one in a row, with rests (on a third), at half
    speed together.
    """
    ops, place = collective("c", "all_reduce", ["g0", "g1"], sending)
    row = [part.split() for part in works.split(", ")]
    for i, (what, took) in enumerate(row):
        ops.append(Op(f"w{i}", control_inputs=(f"w{i - 1}",) if i else (), time=int(took)))
        place[f"w{i}"] = "g0" if what == "work" else "g2"
    strategy = Strategy(place, collectives=Collectives(slowdown=2))
    cluster = mesh(3, "link", latency=0, bandwidth=1)
    trace = checked(lower(Graph("apart", tuple(ops)), cluster, CostModel(), strategy))
    finish = dict(zip(trace.task_graph.tasks.name, trace.finish.tolist(), strict=True))
    assert (finish[f"w{len(row) - 1}"], finish["c"]) == tuple(end * 10**12 for end in ends)


def together(trace: Trace, tasks: Sequence[int], others: Sequence[int]) -> Iterator[int]:
    """For each task the ps that it runs beside any of the others, counted between all starts and
    finishes.
    """
    marks = sorted({*trace.start.tolist(), *trace.finish.tolist()})
    for task in tasks:
        yield sum(
            end - begin
            for begin, end in pairwise(marks)
            if trace.start[task] <= begin < trace.finish[task]
            and any(trace.start[one] <= begin < trace.finish[one] for one in others)
        )


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["g0", "g1", "g2"]), st.integers(1, 9)), min_size=1, max_size=5
    ),
    st.lists(
        st.tuples(st.permutations(["g0", "g1", "g2"]), st.integers(1, 9)), min_size=1, max_size=3
    ),
    st.sampled_from(["closed", "expanded"]),
    st.sampled_from(["1.1", "1.3", "2"]),
)
def test_slowed_durations_are_those_under_rates(
    works: list[tuple[str, int]], sums: list[tuple[list[str], int]], cost: str, slowdown: str
) -> None:
    """Alone d, slowed for o: each task lasts d + ceil((k - 1) / k x o)."""
    ops, place = (
        [Op(f"w{i}", time=time) for i, (_, time) in enumerate(works)],
        {f"w{i}": on for i, (on, _) in enumerate(works)},
    )
    for i, (ranks, size) in enumerate(sums):
        own, where = collective(f"c{i}", "all_reduce", ranks[:2], 2 * size, cost=cost)
        ops, place = [*ops, *own], place | where
    graph, cluster = Graph("many", tuple(ops)), mesh(3, "link", latency=0, bandwidth=1)
    plain = lower(graph, cluster, CostModel(), Strategy(place))
    trace = checked(
        lower(
            graph, cluster, CostModel(), Strategy(place, collectives=Collectives(slowdown=slowdown))
        )
    )  # type: ignore[arg-type]
    tasks = trace.task_graph.tasks
    on: dict[int, set[str]] = {}
    for task, kind in enumerate(tasks.kind):
        if kind == COLLECTIVE:
            ends = (int(tasks.source[task]), int(tasks.destination[task]))
            on[task] = {f"g{end}" for end in ends}
    share = 1 - 1 / Fraction(slowdown)
    for i, (device, _) in enumerate(works):
        (slow,) = together(trace, [i], [task for task, devices in on.items() if device in devices])
        assert tasks.duration[i] == plain.tasks.duration[i] - (
            -slow * share.numerator // share.denominator
        )
    for task, devices in on.items():
        (slow,) = together(
            trace, [task], [i for i, (device, _) in enumerate(works) if device in devices]
        )
        assert tasks.duration[task] == plain.tasks.duration[task] - (
            -slow * share.numerator // share.denominator
        )


# Bad input


@pytest.mark.parametrize(
    ("kind", "changes", "attrs", "problem"),
    [
        (
            "all_reduce",
            {},
            {"algorithm": "star"},
            r"ops\[3\]\.attrs\.algorithm: must be one of ring, tree, hier.*, got \"star\"",
        ),
        (
            "all_reduce",
            {},
            {"cost": 3},
            r"ops\[3\]\.attrs\.cost: must be one of closed, table, expanded, got 3",
        ),
        (
            "broadcast",
            {},
            {"chunks": 0},
            r"ops\[1\]\.attrs\.chunks: must be a whole number > 0, at most 2\^60, got 0",
        ),
        (
            "all_to_all",
            {},
            {"algorithm": "tree"},
            r'ops\[3\]: "c": algorithm: all_to_all has no tree algorithm',
        ),
        ("all_reduce", {}, {"cost": "table"}, r'ops\[3\]: "c": cost: "table" needs tables'),
        (
            "all_reduce",
            {"outputs": (Tensor(600),) * 2},
            {},
            r"ops\[3\]\.inputs: 3 ranks need as many inputs and outputs",
        ),
        (
            "all_gather",
            {"outputs": (Tensor(599),) * 3},
            {},
            r"ops\[3\]\.outputs: each must have the 600 bytes of all inputs together",
        ),
        (
            "reduce_scatter",
            {"outputs": (Tensor(1),) * 3},
            {},
            r"ops\[3\]\.inputs: each must have the 3 bytes of all outputs together",
        ),
        (
            "broadcast",
            {"outputs": (Tensor(600),) * 3},
            {},
            r"ops\[1\]\.inputs: broadcast of 3 ranks has 1 inputs and 2 outputs",
        ),
        (
            "reduce",
            {"outputs": (Tensor(600),) * 3},
            {},
            r"ops\[3\]\.inputs: reduce of 3 ranks has 3 inputs and 1 outputs",
        ),
        ("p2p", {}, {}, r"ops\[1\]\.attrs\.ranks: p2p joins two, got 3"),
        (
            "all_to_all",
            {"outputs": (Tensor(5),) * 3},
            {},
            r"ops\[3\]\.inputs: all inputs and outputs must have the same bytes",
        ),
        (
            "all_reduce",
            {},
            {"ranks": ["g0", "g1", "g7"]},
            r'ops\[3\]\.attrs\.ranks\[2\]: no device that runs ops is named "g7"',
        ),
        (
            "all_reduce",
            {},
            {"ranks": [["g0"], "g1", "g2"]},
            r"ops\[3\]\.attrs\.ranks: must name two devices at least",
        ),
    ],
)
def test_bad_collective_ops(
    kind: str, changes: dict[str, Any], attrs: dict[str, Any], problem: str
) -> None:
    ops, place = collective("c", kind, ["g0", "g1", "g2"], 600)
    ops[-1] = replace(ops[-1], attrs=dict(ops[-1].attrs) | attrs, **changes)
    with pytest.raises(InputError, match=problem):
        lower(Graph("bad", tuple(ops)), mesh(3, "link"), CostModel(), Strategy(place))


def test_an_op_that_names_no_ranks_is_told_to() -> None:
    ops, place = collective("c", "all_reduce", ["g0", "g1", "g2"], 600)
    ops[-1] = replace(ops[-1], attrs={})
    with pytest.raises(
        InputError, match=r'no time for "c" .*a collective names its devices in attrs\.ranks'
    ):
        lower(Graph("bad", tuple(ops)), mesh(3, "link"), CostModel(), Strategy(place))


def test_a_chain_of_a_billion_chunks_is_counted_not_walked() -> None:
    """n + k - 2 rounds of one byte; as lists of rounds they would not fit into memory."""
    cluster = mesh(3, "link", bandwidth=10**12, latency=0)
    prepared = Prepared(Graph("none", ()), cluster, CostModel())
    chosen = prepared.of(prepared.graph, Collectives(chunks=10**12))
    found = chosen.communicators.ring("broadcast", range(3), 10**12)
    assert found.duration_ps == 10**12 + 1


def test_groups_that_do_not_match_are_named() -> None:
    with pytest.raises(
        InputError, match="hierarchical needs equally many ranks on each node; there are 4, 1"
    ):
        lowered(two_nodes(4, "link"), "all_reduce", 500, 5, algorithm="hierarchical")
    with pytest.raises(
        InputError, match=r'"c": a collective sends from "g0" to "g1", but no route joins them'
    ):
        lowered(Cluster("apart", (Device("g0"), Device("g1"))), "all_reduce", 500)
    with pytest.raises(InputError, match=r'"c": an? .* takes more than 53 days'):
        lowered(mesh(2, "link", bandwidth=1), "all_reduce", 10**8)
    with pytest.raises(
        InputError, match=r"an all-reduce of \d+ bytes over 8 ranks takes more than 53 days"
    ):
        lowered(mesh(8, "link", bandwidth=1), "all_reduce", 3 * 10**6 * 8)
    with pytest.raises(InputError, match=r"slowdown: not under fair links"):
        beside(10, 6, queues="fair")


def test_an_expansion_too_large_is_refused() -> None:
    cluster = mesh(64, "link")
    prepared = Prepared(Graph("none", ()), cluster, CostModel())
    ring = prepared.communicators.ring("broadcast", range(64), 2**30, cost="expanded")
    assert ring.expanded
    with pytest.raises(InputError, match=r"cost: expanded makes more than 5000000 messages"):
        lowered(cluster, "broadcast", 2**30, cost="expanded", chunks=100_000)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], r"collectives: must be an object, got a list"),
        ({"algorithm": "rings"}, r"collectives\.algorithm: must be one of ring, tree"),
        ({"cost": "guess"}, r"collectives\.cost: must be one of closed, table, expanded"),
        ({"chunks": -1}, r"collectives\.chunks: must be a whole number > 0"),
        ({"slowdown": 0.5}, r"collectives\.slowdown: must be from 1 to 2, got 0.5"),
        ({"slowdown": "fast"}, r"collectives\.slowdown: must be a number"),
        (
            {"tables": "h200"},
            r'collectives\.tables: none are shipped as "h200"; there are those of a100-sxm',
        ),
        (
            {
                "tables": {
                    "version": 1,
                    "tables": [{"collective": "all_reduce", "ranks": 1, "anchors": []}],
                }
            },
            r"tables\[0\]\.ranks",
        ),
        (
            {"algorithms": "ring"},
            r'collectives\.algorithms: unknown key; did you mean "algorithm"\?',
        ),
    ],
)
def test_bad_choices_in_a_strategy(value: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_strategy({"version": 1, "placement": {"a": "g0"}, "collectives": value})


def test_choices_survive_a_file(tmp_path: Path) -> None:
    tables = read_collectives("h100-sxm")
    for choice in (
        Collectives(),
        Collectives("tree", "expanded", (), 7, Fraction(13, 10)),
        Collectives("auto", "table", tables),
    ):
        strategy = Strategy({"a": "g0"}, collectives=choice)
        write_strategy(strategy, tmp_path / "strategy.json")
        assert read_strategy(tmp_path / "strategy.json") == strategy
    with pytest.raises(InputError, match="collectives: must be Collectives"):
        Strategy({"a": "g0"}, collectives="ring")  # type: ignore[arg-type]


def test_the_page_on_collectives_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "collectives.md").read_text()
    (question,) = (
        json.loads(source) for source in re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    )
    steps = []
    for cost in ("expanded", "closed"):
        question["strategy"]["collectives"]["cost"] = cost
        steps.append(run(load_scenario(question)).step_ps)
    assert steps[0] == steps[1]
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(source, "collectives.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(
        r"^    (\w+ [\d.]+ ms, holds \d+ queues)$", page, re.MULTILINE
    )


@pytest.mark.parametrize("queues", QUEUES)
def test_a_collective_is_exposed_on_every_rank(queues: str) -> None:
    """Ranks between the first and the last wait for it too."""
    names = ["g0", "g1", "g2", "g3"]
    ops, place = collective("c", "all_reduce", names, 4000)
    report = run(Scenario(Graph("one", tuple(ops)), mesh(4, queues), CostModel(), Strategy(place)))
    exposed = {device.exposed_ps for device in report.devices}
    assert len(exposed) == 1
    assert exposed.pop() > 0
