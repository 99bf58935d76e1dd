"""Rings over lanes, and one answer at every door that asks for a collective."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from closed_forms import ring, ring_wire
from collective_ops import collective, seconds
from simdev.costs import CostModel
from simdev.costs.collectives import COLLECTIVES, bus_bandwidth, collective_model, lane_rings
from simdev.files import read_preset
from simdev.lowering import Prepared, lower, lower_step
from simdev.lowering.hybrid.durations import DATA, Durations, Timings
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import Configuration, Strategy, sync_policy
from simdev.nouns.strategy.parallelism import Parallelism
from simdev.nouns.taskgraph import COLLECTIVE
from test_collectives_cuts import cut_seconds
from worlds.costs import SPEC
from worlds.graphs import leaf, parameter, tensor, update
from worlds.task_graphs import judged

MIB = 2**20
SIZE = 256 * MIB


def require_rings(cluster: Cluster, ranks: Sequence[int], over_each: int = 1) -> int:
    """How many: each passes every rank once over direct links, no lane carries more than its
    share.
    """
    rings = lane_rings(cluster, ranks)
    crossed: Counter[int] = Counter()
    for one in rings:
        assert sorted(one) == sorted(ranks)
        crossed.update(cluster.neighbours[a][b] for a, b in pairwise([*one, one[0]]))
    for half_link, count in crossed.items():
        assert count <= over_each * (cluster.half_links[half_link].link.lanes or 0)
    return len(rings)


@pytest.mark.parametrize(
    ("name", "rings"),
    [("dgx-1v", 6), ("p3-16xlarge", 6), ("dgx-1p", 4), ("mi300x-8x", 7), ("c4140-4x-v100", 6)],
)
def test_rings_use_up_the_lanes_of_a_node(name: str, rings: int) -> None:
    """As NCCL lays them: six over a DGX-1V's cube mesh, every lane of every GPU in use."""
    cluster = read_preset(name)
    ranks = [i for i, device in enumerate(cluster.devices) if device.runs_ops]
    assert require_rings(cluster, ranks) == rings
    lanes = [
        sum(
            cluster.half_links[h].link.lanes or 0
            for other, h in cluster.neighbours[rank].items()
            if other in ranks
        )
        for rank in ranks
    ]
    assert set(lanes) == {rings}


def test_every_group_of_a_cube_mesh_has_rings_or_none() -> None:
    cluster = read_preset("dgx-1v")
    counts = [
        require_rings(cluster, group, 2) for n in range(3, 9) for group in combinations(range(8), n)
    ]
    assert 0 in counts
    assert max(counts) == 6


@st.composite
def laned(draw: st.DrawFn) -> Cluster:
    count = draw(st.integers(3, 6))
    pairs = [(f"g{a}", f"g{b}") for a, b in combinations(range(count), 2)]
    links = [
        Link(
            pair, 10**10, "1 us", lanes=draw(st.sampled_from([None, 1, 1, 2])), duplex=draw(DUPLEX)
        )
        for pair in pairs
    ]
    return Cluster("laned", tuple(Device(f"g{i}") for i in range(count)), tuple(links), "link")


DUPLEX = st.sampled_from(["full"] * 6 + ["half", "simplex"])


@settings(max_examples=100, deadline=None)
@given(laned())
def test_rings_over_any_lanes_are_rings(cluster: Cluster) -> None:
    ranks = range(len(cluster.devices))
    require_rings(cluster, ranks, 2)
    assert lane_rings(cluster, list(ranks)[::-1]) == lane_rings(cluster, ranks)
    listed = replace(cluster, links=cluster.links[::-1])
    assert lane_rings(listed, ranks) == lane_rings(cluster, ranks)


def test_links_that_tell_no_lanes_take_the_ring_of_the_ranks() -> None:
    """FlexFlow's P100s: what the fourth NVLink of each does is not told."""
    cluster = read_preset("flexflow-p100")
    assert lane_rings(cluster, range(4)) == ()
    found = collective_model(cluster).cost("all_reduce", range(4), 4 * MIB).seconds
    books = ring("all_reduce", 4, 4 * MIB, ring_wire(cluster, range(4)))
    assert books <= found <= books + Fraction(6, 10**12)  # each of six rounds is rounded up


def test_rings_over_a_full_mesh_are_as_measured() -> None:
    """MI300X: 312.9 GB/s are measured over 8 GPUs, 47.7 over 2."""
    found = collective_model(read_preset("mi300x-8x")).cost("all_reduce", range(8), 2**33).seconds
    assert float(bus_bandwidth("all_reduce", 8, 2**33, found)) / 1e9 == pytest.approx(
        312.9, rel=0.08
    )


# One answer


def as_an_op(cluster: Cluster, ranks: Sequence[int]) -> int:
    ops, place = collective("c", "all_reduce", [cluster.devices[rank].name for rank in ranks], SIZE)
    return judged(lower(Graph("one", tuple(ops)), cluster, CostModel(), Strategy(place))).end_ps


def of_a_split(cluster: Cluster, ranks: Sequence[int]) -> int:
    """The gradient of 256 MiB of parameters, whose product is split over its samples."""
    names = tuple(cluster.devices[rank].name for rank in ranks)
    batch = tensor(len(names), 8192)
    ops = [
        leaf("x", len(names), 8192),
        parameter("w", 8192, 8192),
        Op("y", "linear", inputs=("x", "w"), outputs=(batch,), attrs={"transpose_b": True}, time=0),
        Op(
            "dw",
            "matmul",
            "backward",
            ("y", "x"),
            (),
            (tensor(8192, 8192),),
            {"transpose_a": True},
            time=0,
        ),
        replace(update("u", "w", "dw"), time=0),
    ]
    split = {"x": Configuration({"sample": len(names)}, names)}
    task_graph = lower(
        Graph("product", tuple(ops)), cluster, CostModel(), Strategy(partition=split)
    )
    (task,) = [i for i, kind in enumerate(task_graph.tasks.kind) if kind == COLLECTIVE]
    return int(task_graph.tasks.duration[task])


def of_a_policy(cluster: Cluster, ranks: Sequence[int]) -> int:
    workers = [cluster.devices[rank].name for rank in ranks]
    graph, placement = layer_graph([Layer(0, 0, SIZE // 4)], workers)
    strategy = Strategy(placement, sync=sync_policy("bucketed"))
    task_graph = lower_step(Prepared(graph, cluster, CostModel()), strategy).task_graph
    times = {
        int(task_graph.tasks.duration[i])
        for i, k in enumerate(task_graph.tasks.kind)
        if k == COLLECTIVE
    }
    (found,) = times
    return found


def of_a_large_model(cluster: Cluster, ranks: Sequence[int]) -> int:
    used = set(ranks)
    usable = [i for i, device in enumerate(cluster.devices) if device.runs_ops]
    kind = cluster.devices[ranks[0]].kind
    p = Parallelism(
        dp=len(usable) if used == set(usable) else len(ranks), pp=len(usable) // len(ranks)
    )
    costs = CostModel(specs=(replace(SPEC, kind=kind),))
    durations = Durations(p, Timings(collective_model(cluster), costs))
    return int(durations.columns[durations.collective(DATA, 0, "all_reduce", SIZE)][0])


@pytest.mark.parametrize("name", ["dgx-1v", "dgx-1p", "p3-16xlarge", "flexflow-p100"])
def test_one_answer_at_every_door(name: str) -> None:
    """78.7 and 3.63 ms on a DGX-1V, before ops and large models asked one model."""
    cluster = read_preset(name)
    ranks = tuple(i for i, one in enumerate(cluster.devices) if one.runs_ops)[:8]
    told = {door(cluster, ranks) for door in (as_an_op, of_a_split, of_a_policy, of_a_large_model)}
    (ps,) = told
    assert ps == collective_model(cluster).cost("all_reduce", ranks, SIZE).ps
    assert ps <= ring("all_reduce", 8, SIZE, ring_wire(cluster, ranks)) * 10**12 + 1000
    # Each GPU gets the sum of what the others have.
    least = max(
        cut_seconds(cluster, frozenset([rank]), Fraction(SIZE), Fraction(SIZE)) for rank in ranks
    )
    assert least <= Fraction(ps, 10**12)
    if name in ("dgx-1v", "p3-16xlarge"):
        assert ps <= 4.4 * 10**9


@pytest.mark.parametrize("kind", COLLECTIVES[:6])
@pytest.mark.parametrize("queues", ["link", "fair"])
def test_rings_in_messages_are_their_closed_form(kind: str, queues: str) -> None:
    """Six rings over a cube mesh, two on links of two lanes: both engines, and the checker."""
    cluster, size = replace(read_preset("dgx-1v"), queues=queues), 48 * 2**16
    closed, expanded = (
        seconds(cluster, kind, size, 8, cost=cost, chunks=4) for cost in ("closed", "expanded")
    )
    if kind in ("all_reduce", "all_gather", "reduce_scatter") and queues == "link":
        assert closed == expanded
    elif kind != "all_to_all":
        # Over a link that two chains share a message of a later round may go first.
        assert expanded <= closed * Fraction(11, 10)


def test_a_collective_holds_the_links_of_its_rings_and_no_others() -> None:
    cluster = read_preset("dgx-1v")
    prepared = Prepared(Graph("none", ()), cluster, CostModel())
    held = prepared.communicators.ring("all_reduce", range(8), SIZE).resources
    names = [cluster.half_links[queue - len(cluster.devices)].name for queue in held]
    assert len(names) == 32  # both ways of all sixteen NVLinks
    assert not any("pcie" in name for name in names)
    fallen = prepared.communicators.ring("all_gather", (0, 2, 3, 5, 6), SIZE).resources
    assert any("pcie" in cluster.half_links[queue - len(cluster.devices)].name for queue in fallen)


def test_two_levels_take_the_rings_of_their_nodes() -> None:
    cluster = read_preset("p3-16xlarge", 2)
    ranks = [i for i, one in enumerate(cluster.devices) if one.runs_ops]
    prepared = Prepared(Graph("none", ()), cluster, CostModel())
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"):
        laned, plain = (
            Prepared(Graph("none", ()), one, CostModel())
            .communicators.ring(kind, ranks, SIZE, "hierarchical")
            .duration_ps
            for one in (
                cluster,
                replace(cluster, links=tuple(replace(link, lanes=None) for link in cluster.links)),
            )
        )
        assert laned < plain
    asked = [prepared.communicators.ring("all_reduce", ranks, SIZE, "auto").duration_ps]
    assert asked == [collective_model(cluster).cost("all_reduce", ranks, SIZE).ps]
    found = seconds(cluster, "all_reduce", 16 * 4096, algorithm="hierarchical", cost="expanded")
    assert found <= seconds(cluster, "all_reduce", 16 * 4096, algorithm="hierarchical")
