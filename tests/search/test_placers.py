"""The list placers: what they promise, and Baechi's own results on its measured GNMT graph."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from forks import FLAT
from simdev import Oracle
from simdev.costs import CostModel
from simdev.lowering import Prepared
from simdev.nouns.cluster import Cluster
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.search import METHODS, confirm, prepare, search
from simdev.search.baechi import Relaxed, earliest_first, favourites, relaxed, topological_fill
from simdev.search.instance import Instance
from simdev.search.prepare import Grouped
from worlds.clusters import joined
from worlds.graphs import chain, dag, op
from worlds.measured_gnmt import cluster, gnmt, golden
from worlds.scenarios import worlds
from worlds.tape import drawn

pytest.importorskip("scipy")
PLACERS = [name for name, method in METHODS.items() if name not in FLAT and not method.splits]
QUEUED = pytest.mark.parametrize(
    "queues", ["half-duplex", pytest.param("parallel", marks=pytest.mark.slow)]
)
NETWORKS = [name for name in PLACERS if METHODS[name].torch]  # that take a second each


# Brute force


def enumerated(graph):
    """An oracle on two devices, and the step in ps of the best placement."""
    oracle = Oracle(graph, joined(2))
    placements = product(range(2), repeat=len(oracle.groups))
    return oracle, min(oracle(list(one)).step_ps for one in placements)


@settings(max_examples=12)
@given(drawn(dag))
def test_no_placer_beats_the_optimum(graph):
    oracle, best = enumerated(graph)
    for method in set(PLACERS) - set(NETWORKS):
        found = search(oracle, method, 100)
        assert found.cost.step_ps >= best
    assert search(oracle, "annealing", 500).cost.step_ps <= best * 1.2


@settings(max_examples=2)
@given(drawn(dag))
def test_no_network_beats_the_optimum(graph):
    oracle, best = enumerated(graph)
    for method in NETWORKS:
        assert search(oracle, method, 10).cost.step_ps >= best


@settings(max_examples=15)
@given(drawn(dag))
def test_placers_find_room_where_there_is_room(graph):
    """With the least memory in which some placement fits, methods that look on find one that
    fits.
    """
    free = Oracle(graph, joined(2))
    peaks = [max(free(list(one)).peaks) for one in product(range(2), repeat=len(free.groups))]
    tight = Oracle(graph, joined(2, memory=max(min(peaks) * 5 // 4, 1)))
    for method in ("m-topo", "m-etf", "m-sct", "heft", "critical-path", "greedy"):
        result = search(tight, method, 200)
        if result.cost.feasible:
            assert confirm(tight, result) == ()
        seen = [point.memory_excess for point in result.points]
        assert seen == sorted(seen, reverse=True)
    assert search(tight, "annealing", 1000).cost.feasible


@settings(max_examples=30)
@given(worlds(policies=("fifo",)))
def test_placers_answer_on_any_cluster(world):
    """Any queues and transfers, switches, staging hosts: each answer is what the reference engine
    says.
    """
    oracle = Oracle(world.graph, world.cluster)
    for method in ("round-robin", "heft", "critical-path", "m-topo", "m-etf", "m-sct", "annealing"):
        found = search(oracle, method, 20)
        assert confirm(oracle, found) == ()


# Baechi


def instance_of(ops: Sequence[Op], machine: Cluster) -> Instance:
    graph = Graph("g", tuple(ops))
    return Instance(Prepared(graph, machine, CostModel()), Grouped.of(graph))


def test_m_etf_starts_the_earliest_first():
    """a -> b, c: c moves to the idle device, since sending a takes 2 and waiting for b 5."""
    ops = [op("a", 1, size=2), op("b", 5, "a"), op("c", 4, "a")]
    assert earliest_first(instance_of(ops, joined(2)), [-1, -1])[0].tolist() == [0, 0, 1]
    near = [replace(ops[0], outputs=(Tensor(9),)), *ops[1:]]
    assert earliest_first(instance_of(near, joined(2)), [-1, -1])[0].tolist() == [0, 0, 0]


def test_m_etf_places_a_group_with_its_first_op():
    ops = [op("a", 5, colocate="x"), op("b", 5), op("c", 1, "b", colocate="x", size=1)]
    assert earliest_first(instance_of(ops, joined(2)), [-1, -1])[0].tolist() == [0, 1, 0]


def test_m_etf_keeps_to_the_memory():
    ops = [
        op("a", 1, param_bytes=4),
        op("b", 9, param_bytes=4),
        op("c", 1, "a", param_bytes=4, size=1),
    ]
    assert earliest_first(instance_of(ops, joined(2)), [-1, -1])[0].tolist() == [0, 1, 0]
    assert earliest_first(instance_of(ops, joined(2)), [4, 9])[0].tolist() == [0, 1, 1]


def test_m_sct_runs_the_favourite_child_before_what_is_not_urgent():
    """b ends at 3 on device 1; x and f could start there then, x on device 0 at 5. m-ETF takes x,
    m-SCT f.
    """
    ops = [op("a", 2, size=1), op("b", 3, size=2), op("x", 4, "b", size=1), op("f", 9, "a", "b")]
    instance = instance_of(ops, joined(2, queues="parallel"))
    assert earliest_first(instance, [-1, -1])[0].tolist() == [0, 1, 1, 0]
    assert earliest_first(instance, [-1, -1], np.array([-1, 3, -1, -1]))[0].tolist() == [0, 1, 0, 1]


def test_favourites_are_repaired_in_the_order_of_the_edges():
    ops = [op("a", 1), op("b", 1), op("c", 1, "a", "b"), op("d", 1, "b")]
    instance = instance_of(ops, joined(2))
    assert instance.edges == ((0, 2), (1, 2), (1, 3))
    assert favourites(instance, np.array([0.0, 0.0, 1.0])).tolist() == [-1, 2, -1, -1]
    assert favourites(instance, np.array([0.0, 0.05, 0.1])).tolist() == [-1, 3, -1, -1]
    assert favourites(instance, np.array([0.2, 1.0, 1.0])).tolist() == [-1] * 4


def test_the_relaxed_program_delays_one_of_two_children():
    """a (1) -> b (4), c (4) over 2: one child may follow at once, half of each in the relaxation: 1
    + 2 / 2 + 4.
    """
    ops = [op("a", 1, size=2), op("b", 4, "a"), op("c", 4, "a")]
    found = relaxed(instance_of(ops, joined(2)))
    assert found.solved
    assert found.makespan_ps == pytest.approx(6)
    assert found.delayed.sum() == pytest.approx(1)


def test_m_topo_fills_one_device_after_the_other():
    instance = instance_of(chain(*[1] * 6, param_bytes=2, size=1).ops, joined(2))
    # Persistent 12, outputs 5 that are read, one op's own 1: a share of 17 // 2 + 1 = 9 bytes,
    # three ops of 3.
    assert topological_fill(instance, [-1, -1]).tolist() == [0, 0, 0, 1, 1, 1]
    assert topological_fill(instance, [6, -1]).tolist() == [0, 0, 1, 1, 1, 1]


def test_without_numba_the_clock_and_the_splits_are_the_same():
    """In another process, where numba cannot be found."""
    code = """
import importlib.util as util
real = util.find_spec
util.find_spec = lambda name, *rest: None if name == "numba" else real(name, *rest)
import sys
sys.path[:0] = ["tests/search", "tests"]
from test_placers import plain_answers
print(plain_answers())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(plain_answers())


def plain_answers() -> list[object]:
    ops = [
        op(f"o{i}", 1 + i % 4, *([f"o{i - 2}"] if i > 1 else []), size=i % 3, param_bytes=1)
        for i in range(12)
    ]
    oracle = Oracle(Graph("g", tuple(ops)), joined(2, memory=24))
    found = [search(oracle, method) for method in ("m-etf", "m-sct", "dnn-contiguous")]
    return [(one.strategy.placement, one.cost.step_ps, one.objectives) for one in found]


def test_preparation_of_gnmt_gives_baechis_counts():
    graph = gnmt()
    assert len(Oracle(graph, cluster("parallel")).groups) == 1617
    grouped = prepare(graph, ["coplace"])
    assert len(Oracle(grouped.colocated, cluster("parallel")).groups) == 569
    fused = prepare(graph, ["coplace", "fuse"])
    instance = Instance(Prepared(graph, cluster("parallel"), CostModel()), fused)
    assert (len(fused.graph.ops), len(instance.edges)) == (576, 2212)


def test_m_etf_on_gnmt_places_every_op_as_baechi_does():
    """Baechi's clock says 134618 us, with transfers rounded to whole microseconds."""
    graph = gnmt()
    grouped = prepare(graph, ["coplace", "fuse"])
    instance = Instance(Prepared(graph, cluster("half-duplex"), CostModel()), grouped)
    placement, makespan_ps = earliest_first(instance, [-1] * 4)
    assert grouped.back(placement).tolist() == golden()["m_etf"]["placement"]
    assert makespan_ps / 1e6 == pytest.approx(134618, rel=1e-4)


def test_the_relaxed_makespan_of_gnmt_is_the_known_one():
    instance = Instance(Prepared(gnmt(), cluster("half-duplex"), CostModel()), Grouped.of(gnmt()))
    found = relaxed(instance)
    assert isinstance(found, Relaxed)
    assert found.makespan_ps / 1e9 == pytest.approx(82.8, abs=0.05)


@QUEUED
def test_baechi_on_gnmt_is_in_the_range_of_its_own_results(queues):
    mode = {"half-duplex": "sequential", "parallel": "parallel"}[queues]
    oracle = Oracle(gnmt(), cluster(queues))
    peer = golden()["m_etf"][f"{mode}_makespan_us"]
    for method in ("m-topo", "m-etf", "m-sct"):
        prepared, bare = search(oracle, method), search(oracle, method, prepare=[])
        mine = prepared.cost.step_ps / 1e6
        told = (
            f"{method} {queues}: {mine:.0f} us, Baechi's m-ETF {peer} us ({mine / peer - 1:+.1%})"
        )
        print(f"{told}; without preparation {bare.cost.step_ps / 1e6:.0f} us")
        assert prepared.cost.step_ps < bare.cost.step_ps
        assert mine < 1.05 * peer
        assert confirm(oracle, prepared) == ()


@QUEUED
def test_searches_beat_the_placers_on_gnmt(queues):
    """One device wins under half-duplex queues, so list placers lose to it; searches begin
    there.
    """
    oracle = Oracle(gnmt(), cluster(queues))
    placed = [
        search(oracle, method).cost.step_ps for method in ("single", "heft", "m-topo", "m-etf")
    ]
    for method in ("greedy", "annealing"):
        result = search(oracle, method, prepare=["coplace"])
        print(f"{method} {queues}: {result.cost.step_ps / 1e9:.1f} ms")
        assert result.cost.step_ps < min(placed)


@QUEUED
def test_every_placer_fits_gnmt_into_what_its_largest_op_leaves(queues):
    """72 % of the peak of a single device: less than a co-placement group needs.

    At 30 % one op alone is too large.
    """
    peak = max(Oracle(gnmt(), cluster(queues))([0] * 2494).peaks)
    tight = Oracle(gnmt(), cluster(queues, peak * 72 // 100))
    for method in ("round-robin", "heft", "critical-path", "m-topo", "m-etf", "m-sct"):
        found = search(tight, method)
        assert found.cost.feasible, method
        assert confirm(tight, found) == ()
    small = search(Oracle(gnmt(), cluster(queues, peak * 30 // 100)), "m-etf")
    assert not small.cost.feasible
    assert any("bytes to run, more than" in line for line in small.obstacles)
