"""Adaptive annealing: the clusters that move, the policy that draws them, and what they are for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median

import numpy as np
import pytest

from simdev import Oracle
from simdev.nouns.graph import Graph
from simdev.search import search
from simdev.search.annealing import MOST, UNIFORM, Clusters, Mixture
from simdev.search.features import group_edges
from toys import curve, toy, until_optimum
from worlds.clusters import joined
from worlds.graphs import op


def strands(count: int, length: int, size: int) -> Oracle:
    """Chains of ops that hand on ``size`` bytes each, on four devices: a chain that is cut waits
    for its transfers, so that only whole chains are worth moving.
    """
    ops = [
        op(f"{chain}.{i}", 10, *([f"{chain}.{i - 1}"] if i else []), size=size)
        for chain in range(count)
        for i in range(length)
    ]
    return Oracle(Graph("strands", tuple(ops)), joined(4))


def test_clusters_are_connected_and_stand_on_one_device():
    oracle, random = strands(4, 6, 1), np.random.default_rng(0)
    clusters, grown = Clusters(oracle), set[int]()
    source, target, _ = group_edges(oracle)
    edges = set(zip(source.tolist(), target.tolist(), strict=True))
    for _ in range(300):
        where, group = random.integers(3, size=24), int(random.integers(24))
        size = int(random.integers(1, 9))
        cluster, elsewhere = clusters.around(group, size, where, random)
        members = cluster.tolist()
        assert len(set(members)) == len(members) <= size
        assert members[0] == group
        assert set(where[cluster]) == {where[group]}
        # A part of a chain without gaps is connected.
        assert all((a, b) in edges for a, b in pairwise(sorted(members)))
        assert where[group] not in elsewhere
        beside = {b for a, b in edges | {(b, a) for a, b in edges} if a in members}
        assert set(elsewhere.tolist()) <= {where[other] for other in beside}
        grown.add(len(members))
    assert grown >= {1, 2, 3}


def test_a_cluster_is_as_large_as_it_may_be_and_its_neighbours_are_all_met():
    clusters, random = Clusters(strands(2, 8, 1)), np.random.default_rng(1)
    where = np.array([0] * 5 + [1] * 3 + [2] * 8)
    cluster, elsewhere = clusters.around(2, 16, where, random)
    assert sorted(cluster.tolist()) == [0, 1, 2, 3, 4]
    assert elsewhere.tolist() == [1]
    assert len(clusters.around(12, 8, where, random)[0]) == 8


def test_the_policy_prefers_what_gains_and_keeps_trying_the_rest():
    random, mixture = np.random.default_rng(0), Mixture(4)
    assert mixture.chances == pytest.approx([0.25] * 4)
    gains = [-1.0, 0.0, 1.0, 0.0]
    for _ in range(400):
        mixture.learn([(kind, random.normal(gains[kind])) for kind in mixture.draw(random, 64)])
    assert mixture.chances.sum() == pytest.approx(1.0)
    assert mixture.chances.argmax() == 2
    assert mixture.chances[2] > 0.5
    assert mixture.chances.min() >= UNIFORM / 4
    assert mixture.chances.min() < UNIFORM / 4 + np.exp(-MOST / 2)


def test_gains_of_any_scale_teach_the_same():
    first, second = Mixture(3), Mixture(3)
    for mixture, scale in ((first, 1.0), (second, 1e-6)):
        mixture.learn([])
        mixture.learn([(0, 0.0), (1, scale), (1, 2 * scale), (2, -scale)])
    assert first.chances == pytest.approx(second.chances)
    assert first.chances[1] > first.chances[0] > first.chances[2]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_meets_the_optimum_of_the_toy(seed: int):
    assert until_optimum(search(toy(), "adaptive", 2000, seed=seed)) is not None


def test_whole_chains_move_where_single_moves_lose():
    """Eight chains of ten ops: two on each device take 200 ps, and a cut costs 30 ps of a link."""
    oracle = strands(8, 10, 30)
    steps = {
        method: median(search(oracle, method, 1500, seed=s).cost.step_ps for s in range(5))
        for method in ("annealing", "adaptive")
    }
    assert steps["adaptive"] == 200 < steps["annealing"]


def test_what_does_not_fit_is_left():
    assert search(toy(least=15), "adaptive", 1000).cost.feasible


def test_steps_of_no_time_are_answered():
    oracle = strands(2, 3, 0)
    ops = tuple(replace(one, time=0) for one in oracle.graph.ops)
    assert search(oracle.on(Graph("none", ops)), "adaptive", 50).cost.step_ps == 0


def test_the_same_seed_gives_the_same_curve():
    first, second = (search(toy(), "adaptive", 400, seed=3) for _ in range(2))
    steps = [curve(r) for r in (first, second)]
    assert steps[0] == steps[1]
    assert len(first.points) > 1
