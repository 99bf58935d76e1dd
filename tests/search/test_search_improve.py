"""Improving a whole placement as a Gymnasium environment."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from forks import choosy, environment, forks, mixed
from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph
from simdev.search.features import features_of
from worlds.clusters import joined
from worlds.graphs import op

ID = "simdev/Improve-v0"
make = partial(environment, ID)
SCALARS = 3


def random_oracle(seed: int, count: int = 14, devices: int = 3) -> Oracle:
    """Ops of random times and reads, some of them in two groups, which may be on cycles."""
    luck = np.random.default_rng(seed)
    ops = []
    for i in range(count):
        inputs = [f"o{j}" for j in sorted(set(luck.integers(0, i, 2).tolist()))] if i else []
        fields = {"param_bytes": int(luck.integers(0, 3))}
        ops.append(op(f"o{i}", i % 4, *inputs, size=int(luck.integers(0, 9)), **fields))
    ops = [replace(one, colocate=f"c{i % 2}") if i % 4 == 0 else one for i, one in enumerate(ops)]
    return Oracle(Graph("random", tuple(ops)), joined(devices, memory=30))


def value(oracle: Oracle, placement: Any, penalty: float = 1.0) -> float:
    """How bad a placement is, in units of the best single device."""
    cost = oracle(placement)
    devices = len(oracle.cluster.devices)
    single = min(oracle([d] * len(oracle.groups)).step_ps for d in range(devices))
    over = [peak - 30 for peak in cost.peaks]
    return cost.step_ps / single + penalty * max(*over, 0) / 30


@pytest.mark.parametrize("options", [{}, {"start": "random", "order": "random", "passes": 2}])
@pytest.mark.parametrize("memory", [None, 5, 0])
def test_the_environment_passes_the_checker_of_gymnasium(memory, options):
    check_env(make(forks(memory), **options).unwrapped)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("penalty", [1.0, 3.0])
def test_rewards_telescope(seed, penalty):
    """The return from any step on is t there minus t at the end."""
    oracle, luck = random_oracle(seed), np.random.default_rng(seed)
    env = make(oracle, penalty=penalty, start="random", order="random", passes=2)
    observation, info = env.reset(seed=seed)
    values, rewards = [value(oracle, info["placement"], penalty)], []
    over = False
    while not over:
        assert env.observation_space.contains(observation)
        group, action = info["group"], int(luck.integers(3))
        observation, reward, over, truncated, info = env.step(np.int64(action))
        assert not truncated
        assert info["placement"][group] == action
        assert info["seconds"] == oracle(info["placement"]).seconds
        assert info["feasible"] == oracle(info["placement"]).feasible
        starts = oracle.starts(info["placement"]).group_ps / 1e12
        assert info["starts"] == pytest.approx(starts)
        rewards.append(reward)
        values.append(value(oracle, info["placement"], penalty))
    assert len(rewards) == 2 * len(oracle.groups)
    for at, before in enumerate(values):
        assert sum(rewards[at:]) == pytest.approx(before - values[-1], abs=1e-9)
    assert not info["action_mask"].any()
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))


def test_visits_are_in_topological_order_in_every_pass():
    oracle = random_oracle(1)
    expected = np.argsort(features_of(oracle).order).tolist()
    for order, same in (("topological", True), ("random", False)):
        env = make(oracle, passes=2, order=order)
        visits, over = [env.reset(seed=3)[1]["group"]], False
        while not over:
            *_, over, _, info = env.step(np.int64(0))
            visits.append(info["group"])
        assert visits[-1] == -1
        halves = visits[: len(expected)], visits[len(expected) : -1]
        assert [half == expected for half in halves] == [same, same]
        assert [sorted(half) for half in halves] == [sorted(expected)] * 2
        assert (halves[0] == halves[1]) == same


def test_an_episode_starts_where_it_is_told():
    oracle = random_oracle(2)
    groups = len(oracle.groups)
    best = min(range(3), key=lambda device: oracle([device] * groups).step_ps)
    env = make(oracle)
    assert env.reset()[1]["placement"].tolist() == [best] * groups
    given = np.arange(groups) % 3
    for start in (given, oracle.named(given)):
        assert env.reset(options={"start": start})[1]["placement"].tolist() == given.tolist()
        assert make(oracle, start=start).reset()[1]["placement"].tolist() == given.tolist()
    assert env.reset(options={"start": "first"})[1]["placement"].tolist() == [0] * groups
    random = [env.reset(seed=s, options={"start": "random"})[1]["placement"] for s in (1, 1, 2)]
    assert random[0].tolist() == random[1].tolist() != random[2].tolist()
    assert set(random[0].tolist()) == {0, 1, 2}
    assert env.reset()[1]["placement"].tolist() == [best] * groups


def test_where_no_device_runs_all_each_starts_where_it_may_or_is_fastest():
    oracle = mixed()
    for start, expected in (("first", [0, 1, 0]), ("single", [0, 1, 1])):
        assert make(oracle, start=start).reset()[1]["placement"].tolist() == expected
    for seed in range(5):
        drawn = make(oracle, start="random").reset(seed=seed)[1]["placement"]
        assert drawn[:2].tolist() == [0, 1]
        assert drawn[2] in (0, 1)


def test_a_masked_action_costs_a_reference_step_and_goes_to_the_fastest_device():
    env = make(choosy())
    _, info = env.reset()
    assert (info["group"], info["action_mask"].tolist()) == (0, [1, 0])
    _, reward, _, _, info = env.step(np.int64(1))
    assert (reward, info["error"]) == (-1, "group 0 cannot stand on device 1")
    assert info["placement"].tolist() == [0, 0]
    _, reward, over, _, info = env.step(np.int64(1))
    assert (reward, over, info["placement"].tolist()) == ((4 - 2) / 4, True, [0, 1])


def test_a_placement_without_a_route_is_as_bad_as_any_can_be():
    ops = (op("a", 1, size=10), op("b", 1, "a"))
    env = make(Oracle(Graph("apart", ops), Cluster("apart", (Device("g0"), Device("g1")))))
    env.reset()
    _, reward, _, _, info = env.step(np.int64(1))
    assert (reward, info["seconds"], info["feasible"]) == (1 - 1000, np.inf, False)
    assert "no route joins them" in info["error"]
    _, reward, _, _, info = env.step(np.int64(1))
    assert (reward, info["seconds"]) == (1000 - 1, 2e-12)
    assert "error" not in info


def test_a_group_that_stays_costs_no_evaluation():
    oracle = forks()
    env = make(oracle)
    env.reset()
    before = oracle.evaluations
    env.step(np.int64(0))
    assert oracle.evaluations == before
    env.step(np.int64(1))
    assert oracle.evaluations == before + 1


def test_the_length_of_an_observation_depends_on_the_devices_alone():
    shapes = [make(random_oracle(0, count)).observation_space.shape for count in (3, 9, 14)]
    assert len(set(shapes)) == 1
    assert make(forks()).observation_space.shape != shapes[0]


@pytest.mark.parametrize("seed", range(4))
def test_an_observation_tells_the_group_its_surroundings_and_its_pools(seed):
    """Everything beside the own features, by loops over a random graph with groups."""
    oracle = random_oracle(seed)
    nodes, groups, devices = features_of(oracle), len(oracle.groups), 3
    env = make(oracle, start="random")
    observation, info = env.reset(seed=seed)
    features = len(nodes.columns)
    assert observation[:features] == pytest.approx(nodes.scaled()[info["group"]])
    place, group, starts = info["placement"], info["group"], info["starts"] / info["seconds"]
    t = value(oracle, place)
    scalars = observation[features : features + SCALARS]
    assert scalars == pytest.approx([0, t / (1 + t), starts[group]])
    edges = list(zip(nodes.source.tolist(), nodes.target.tolist(), nodes.edge_bytes, strict=True))
    traffic = [sum(size for a, b, size in edges if at in (a, b)) for at in range(groups)]
    time = nodes.seconds[range(groups), place] / nodes.seconds.max(axis=1).sum()
    held = nodes.persistent_bytes + nodes.output_bytes + nodes.workspace_bytes
    expected = np.zeros((5, devices))
    expected[0, place[group]] = 1
    for a, b, size in edges:
        if b == group:
            expected[1, place[a]] += size / max(traffic)
        if a == group:
            expected[2, place[b]] += size / max(traffic)
    for at in range(groups):
        expected[3, place[at]] += time[at]
        expected[4, place[at]] += held[at] / held.sum()
    by_device = observation[features + SCALARS : features + SCALARS + 5 * devices]
    assert by_device == pytest.approx(expected.ravel(), abs=1e-6)
    below = reached(group, [(a, b) for a, b, _ in edges])
    above = reached(group, [(b, a) for a, b, _ in edges])
    others = set(range(groups)) - below - above - {group}
    read, readers = {a for a, b, _ in edges if b == group}, {b for a, b, _ in edges if a == group}
    for k, pool in enumerate((above, below, others, read, readers)):
        at = features + SCALARS + 5 * devices + k * (devices + 2)
        work = [sum(time[i] for i in pool if place[i] == d) for d in range(devices)]
        later = np.mean([starts[i] - starts[group] for i in pool]) if pool else 0
        assert observation[at : at + devices] == pytest.approx(work, abs=1e-6)
        tail = observation[at + devices : at + devices + 2]
        assert tail == pytest.approx([len(pool) / groups, later], abs=1e-6)


def reached(node: int, edges: list[tuple[int, int]]) -> set[int]:
    """The nodes to which edges lead from a node, without it."""
    seen, waiting = {node}, [node]
    while waiting:
        at = waiting.pop()
        for a, b in edges:
            if a == at and b not in seen:
                seen.add(b)
                waiting.append(b)
    return seen - {node}


@pytest.mark.parametrize("name", [ID, "simdev/Placement-v0"])
def test_a_reset_tells_the_graph_as_arrays(name):
    oracle = random_oracle(3)
    _, info = gymnasium.make(name, oracle=oracle).reset()
    nodes = features_of(oracle)
    assert info["nodes"] == pytest.approx(nodes.scaled())
    assert info["edges"].tolist() == [nodes.source.tolist(), nodes.target.tolist()]
    assert info["edge_bytes"] == pytest.approx(nodes.edge_bytes / nodes.edge_bytes.max())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"start": "anywhere"}, "start: must be one of single, first, random or a placement"),
        ({"start": [0] * 6}, "must have 8 devices"),
        ({"start": [0] * 6 + [2]}, "is not in 0"),
        ({"start": {"*": "g9"}}, "g9"),
        ({"order": "backwards"}, "order: must be one of topological, random"),
        ({"passes": 0}, "passes: must be a whole number from 1 on, got 0"),
        ({"passes": 1.5}, "passes: must be a whole number"),
    ],
)
def test_options_that_are_none_are_refused(options, reason):
    with pytest.raises(InputError, match=reason):
        make(forks(), **options)
    if "passes" not in options:
        with pytest.raises(InputError, match=reason):
            make(forks()).reset(options=options)


def test_other_misuse_is_refused():
    env = make(forks()).unwrapped
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))
    with pytest.raises(InputError, match="options: start and order are known, got begin, end"):
        env.reset(options={"end": 1, "begin": 2})
    env.reset()
    for action in (-1, 2):
        with pytest.raises(InputError, match=r"is not in 0\.\.1"):
            env.step(np.int64(action))
    with pytest.raises(InputError, match="nothing to place"):
        make(Oracle(Graph("empty", ()), forks().cluster))
    with pytest.raises(InputError, match="start: group 0 cannot stand on device 1"):
        make(mixed(), start=[1, 1, 1])
