"""Partitioners: dnn-partitioning's largest load, and PipeDream's pipeline with replicas."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings

from enumerated import WORKLOADS, best_chain, best_load, best_split, problem
from peers import PEERS
from profiles import layered
from simdev import Oracle
from simdev.execution.scenario import load_scenario
from simdev.formats import import_file
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Device
from simdev.nouns.graph import Graph
from simdev.nouns.structure import before_of, components, topological
from simdev.search import search
from simdev.search.ideals import ideals, leaves
from simdev.search.maxload.contiguous import blocks_of
from simdev.search.maxload.placers import integer_program
from simdev.search.maxload.problem import MaxLoadProblem, problem_of
from simdev.search.pipedream.plan import Level, levels_of, partition, profile_of
from worlds.clusters import joined
from worlds.graphs import op
from worlds.tape import Tape, drawn

# The largest load


@settings(max_examples=60)
@given(drawn(problem))
def test_the_dynamic_program_finds_what_enumeration_finds(one):
    best = best_load(one, ordered=True)
    if best == inf:
        with pytest.raises(InputError, match="runs on these devices"):
            best_split(blocks_of(one))
        return
    found = best_split(blocks_of(one))
    assert found.exact
    assert found.max_load_ms == pytest.approx(best)
    assert one.fits(found.devices)
    assert max(one.loads(found.devices).values()) == found.max_load_ms


@settings(max_examples=40)
@given(drawn(problem))
def test_the_integer_program_finds_what_enumeration_finds(one):
    pytest.importorskip("scipy")
    best = best_load(one, ordered=False)
    if best == inf:
        with pytest.raises(InputError, match="runs on these devices"):
            integer_program(one, 10)
        return
    found = integer_program(one, 10)
    assert found.value_ms == pytest.approx(best, rel=1e-5, abs=1e-5)
    assert found.bound_ms <= best + 1e-5


def test_loads_count_each_output_once_on_either_side():
    """a (cost 2) is read by b and c elsewhere: once where it leaves, once on each device it enters,
    but the CPU.
    """
    one = MaxLoadProblem(
        (1.0, 1.0, 1.0, 1.0),
        (10.0, 10.0, 10.0, 10.0),
        (2.0, 5.0, 5.0, 5.0),
        (0,) * 4,
        ((1, 2, 3), (), (), ()),
        (False,) * 4,
        (0, 1, 2, 3),
        (0, 1),
        (2,),
    )
    assert one.loads([0, 1, 1, 2]) == {0: 3.0, 1: 4.0, 2: 10.0}
    assert one.loads([0, 0, 0, 0]) == {0: 4.0}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_known_optima_of_published_workloads(name):
    imported = import_file(PEERS / "dnn_partitioning" / f"{name}.json.gz")
    oracle = Oracle(imported.graph, imported.cluster)
    found = search(oracle, "dnn-contiguous")
    assert found.objectives["max_load_ms"] == pytest.approx(WORKLOADS[name], rel=1e-9)
    assert found.details["exact"]
    assert found.details["ideals"] == {"LayerGraphs/gnmt_training": 17914}.get(
        name, found.details["ideals"]
    )
    assert found.cost.feasible
    task = problem_of(oracle)
    devices = [oracle.cluster.index[found.strategy.placement[op.name]] for op in oracle.graph.ops]
    assert max(task.loads(devices).values()) == found.objectives["max_load_ms"]
    assert in_order(task, devices)


def in_order(task: MaxLoadProblem, devices: list[int]) -> bool:
    """Whether the devices form no cycle along the forward order."""
    of_group = [devices[members[0]] for members in task.members]
    numbers = {device: at for at, device in enumerate(sorted(set(devices)))}
    edges = {
        (numbers[of_group[a]], numbers[of_group[b]])
        for a, b in task.order
        if of_group[a] != of_group[b]
    }
    return len(set(components(len(numbers), edges))) == len(numbers)


# Ideals


def order(tape: Tape) -> tuple[int, set[tuple[int, int]]]:
    count = 1 + tape.number(7)
    return count, {(a, b) for b in range(count) for a in range(b) if tape.number(2)}


@given(drawn(order))
def test_ideals_are_all_sets_closed_under_predecessors(drawn_order):
    count, edges = drawn_order
    closed = [s for s in range(1 << count) if all(s >> a & 1 or not s >> b & 1 for a, b in edges)]
    found = ideals(count, edges)
    assert sorted(found) == closed
    assert [one.bit_count() for one in found] == sorted(one.bit_count() for one in found)
    assert ideals(count, edges, most=len(closed) - 1) is None


def test_too_many_ideals_are_noticed_within_a_layer():
    """Of 4,000 blocks without an order the second layer alone would have eight million."""
    assert ideals(4_000, [], most=5_000) is None


def test_a_chain_of_layers_is_one_with_its_parameters():
    question = {
        "graph": {"model": "vgg-16", "batch": 32},
        "cluster": "4x-rtx-2080",
        "strategy": "expert",
    }
    found = search(load_scenario(question), "pipedream")
    assert found.details["exact"]


@given(drawn(order))
def test_components_and_depth_first_are_topological(drawn_order):
    count, edges = drawn_order
    ring = {(b, a) for a, b in edges if (a + b) % 3 == 0}
    block = components(count, edges | ring)
    assert all(block[a] <= block[b] for a, b in edges)
    assert all(block[a] == block[b] for b, a in ring)
    line = topological(before_of(count, edges), "branch")
    assert sorted(line) == list(range(count))
    assert all(line.index(a) < line.index(b) for a, b in edges)


def test_idle_leaves_are_tied_one_after_the_other():
    tied = leaves([True, True, False, True], [(0, 1), (1, 2), (2, 3)])
    assert components(4, [(0, 1), (1, 2), (2, 3), *tied]) == [0, 0, 0, 0]
    assert leaves([False, True, False], [(0, 1), (1, 2)]) == []


# PipeDream


@pytest.mark.parametrize(
    ("name", "seconds", "replicas"),
    [
        ("vgg16", 0.205520896, [3, 1]),
        ("resnet50", 0.162880924, [2, 2]),
        ("gnmt_large", 0.1371, [1, 1, 1, 1]),
    ],
)
def test_published_profiles_give_the_planners_own_answers(name, seconds, replicas):
    imported = import_file(PEERS / "pipedream" / name / "graph.txt")
    oracle = Oracle(imported.graph, imported.cluster)
    found = partition(profile_of(oracle), levels_of(oracle))
    assert found.seconds == pytest.approx(seconds, rel=3e-4 if name == "gnmt_large" else 1e-9)
    assert [stage.replicas for stage in found.stages] == replicas
    placed = search(oracle, "pipedream")
    assert placed.objectives["period_s"] == found.seconds
    assert placed.details["placed_period_s"] >= found.seconds


@pytest.mark.parametrize(("name", "seconds"), [("vgg16", 0.0671), ("resnet50", 0.0432)])
def test_published_profiles_on_two_levels(name, seconds):
    imported = import_file(PEERS / "pipedream" / name / "graph.txt")
    profile = profile_of(Oracle(imported.graph, imported.cluster))
    found = partition(profile, [Level(4, 1e10), Level(4, 1.25e9)])
    assert found.seconds == pytest.approx(seconds, abs=5e-5)
    assert sum(stage.replicas for stage in found.stages) == 16
    assert sorted(g for stage in found.stages for g in stage.groups) == list(
        range(len(profile.seconds))
    )


@given(drawn(layered, 5, 4, 1))
def test_partitions_of_chains_are_the_best_that_enumeration_finds(drawn_chain):
    profile, (level,) = drawn_chain
    found = partition(profile, [level])
    assert found.seconds == pytest.approx(best_chain(profile, level))
    assert sum(stage.replicas for stage in found.stages) == level.count
    straight = partition(profile, [level], straight=True)
    assert all(stage.replicas == 1 for stage in straight.stages)
    assert len(straight.stages) <= level.count


def test_backward_ops_need_a_group_with_a_forward_op():
    ops = [op("a", 1), op("b", 1, "a", phase="backward", attrs={"forward": "a"})]
    cluster = joined(2)
    oracle = Oracle(Graph("g", tuple(ops)), cluster)
    with pytest.raises(InputError, match='use the preparation "pair"'):
        profile_of(oracle)
    assert search(oracle, "pipedream").cost.step_ps == 2


def test_levels_follow_the_nodes_of_the_cluster():
    devices = [Device(f"g{d}", node=d // 2) for d in range(4)]
    cluster = joined(devices, bandwidth="10 GB/s")
    links = tuple(
        replace(one, bandwidth="1 GB/s") if one.ends == ("g0", "g2") else one
        for one in cluster.links
    )
    oracle = Oracle(Graph("one", (op("a", 1),)), replace(cluster, links=links))
    assert levels_of(oracle) == [Level(2, 1e10), Level(2, 1e9)]
    alone = Oracle(oracle.graph, joined(["a", "b"], bandwidth=5))
    assert levels_of(alone) == [Level(2, 5.0)]
