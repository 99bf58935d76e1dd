"""Clients of the oracle: ask and tell, and the Gymnasium environment."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

import simdev.search.env  # noqa: F401 (registers the environment)
from simdev import Oracle
from simdev.cluster import Cluster, Device, Link
from simdev.errors import InputError
from simdev.graph import Graph, Op
from simdev.oracle import Cost
from simdev.search import METHODS, Annealing, search
from strategies import UNIT, op

ID = "simdev/Placement-v0"


def forks(memory: int | None = None) -> Oracle:
    """Two chains of three ops between a source and a sink, on two devices: best apart, and not on one device."""
    ops = [op("source", 1, size=1, param_bytes=2)]
    for chain in "ab":
        ops += [op(f"{chain}{i}", 4, f"{chain}{i - 1}" if i else "source", size=1) for i in range(3)]
    ops.append(op("sink", 1, "a2", "b2"))
    ops = [replace(one, colocate="a01") if one.name in ("a0", "a1") else one for one in ops]
    devices = [Device("g0", memory=memory), Device("g1", memory=memory)]
    return Oracle(Graph("forks", tuple(ops)), Cluster.all_to_all("two", devices, bandwidth=UNIT))


def best_of_all(oracle: Oracle) -> Cost:
    found = map(oracle, product((0, 1), repeat=len(oracle.groups)))
    return min(found, key=lambda cost: (cost.memory_excess, cost.step_ps))


# Ask and tell


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("memory", [None, 5])
def test_small_questions_are_solved(method, memory):
    oracle = forks(memory)
    found = search(oracle, method, 1500, seed=1)
    assert found.cost == oracle(found.placement)
    assert found.cost.step_ps == best_of_all(oracle).step_ps
    assert found.cost.feasible
    assert len(found.placement) == len(oracle.groups) == 7


@pytest.mark.parametrize("method", METHODS)
def test_the_curve_falls_to_the_best(method):
    oracle = forks(5)
    found = search(oracle, method, 100, seed=2)
    assert len(found.curve) == oracle.evaluations == 100
    assert list(found.curve) == sorted(found.curve, reverse=True)
    assert found.curve[-1] == found.cost.seconds


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_decides(method):
    runs = [search(forks(), method, 30, seed) for seed in (3, 3, 4)]
    assert runs[0].curve == runs[1].curve
    assert runs[0].placement.tolist() == runs[1].placement.tolist()
    assert runs[0].curve != runs[2].curve


def test_annealing_beats_random_search():
    ops = [op(f"o{i}", 1 + i % 5, *([f"o{i - 3}"] if i > 2 else []), size=2) for i in range(60)]
    cluster = Cluster.all_to_all("four", [Device(f"g{d}") for d in range(4)], bandwidth=UNIT)
    oracle = Oracle(Graph("chains", tuple(ops)), cluster)
    found = {method: search(oracle, method, 3000).cost.step_ps for method in METHODS}
    assert found["annealing"] < 0.8 * found["random"]


def test_where_nothing_fits_the_least_excess_is_best():
    oracle = forks(1)
    found = search(oracle, "random", 500)
    assert not found.cost.feasible
    assert found.cost.memory_excess == best_of_all(oracle).memory_excess
    assert set(found.curve) == {math.inf}


def test_a_method_of_ones_own():
    class Sweep:
        """All on one device, then on the other; remembers what it is told."""

        def __init__(self) -> None:
            self.told: list[tuple[int, int]] = []

        def ask(self) -> np.ndarray:
            return np.full(7, len(self.told) % 2)

        def tell(self, placement: np.ndarray, cost: Cost) -> None:
            self.told.append((int(placement[0]), cost.step_ps))

    method = Sweep()
    assert search(forks(), method, 2).cost.step_ps == 26
    assert method.told == [(0, 26), (1, 26)]


def test_annealing_starts_where_it_is_told_and_may_have_nothing_to_move():
    method = Annealing([np.array([1]), np.array([0])], 5, 0, start=np.array([1, 0]))
    for _ in range(3):
        assert method.ask().tolist() == [1, 0]
        method.tell(method.ask(), Cost(1e-12, True, 0, 1, ()))


@pytest.mark.parametrize("method", METHODS)
def test_groups_keep_to_devices_that_can_run_them(method):
    ops = [Op("a", time={"gpu": 1}), Op("b", time={"cpu": 1}), Op("c", time={"gpu": 2, "cpu": 1})]
    devices = (Device("g0"), Device("c0", "cpu"), Device("hub", "switch"))
    links = (Link(("g0", "hub"), 1), Link(("c0", "hub"), 1))
    oracle = Oracle(Graph("mixed", tuple(ops)), Cluster("mixed", devices, links))
    found = search(oracle, method, 30)
    assert found.placement[:2].tolist() == [0, 1]
    nowhere = Oracle(Graph("none", (Op("a", time={"tpu": 1}),)), oracle.cluster)
    with pytest.raises(InputError, match=r'ops\[0\]: no device on which "a"'):
        search(nowhere, method, 30)


def test_what_search_refuses():
    with pytest.raises(InputError, match="must be one of random, annealing"):
        search(forks(), "magic", 3)
    with pytest.raises(InputError, match="at least 1"):
        search(forks(), "random", 0)


# The environment


def make(oracle: Oracle, **options: float) -> gymnasium.Env:
    return gymnasium.make(ID, oracle=oracle, **options)


@pytest.mark.parametrize("memory", [None, 5, 0])
def test_the_environment_passes_the_checker_of_gymnasium(memory):
    check_env(make(forks(memory)).unwrapped)


def episode(env: gymnasium.Env, actions: list[int]) -> tuple[float, dict[str, object]]:
    """The last reward and info; the others are 0."""
    observation, _ = env.reset(seed=0)
    for at, action in enumerate(actions):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, info = env.step(np.int64(action))
        assert (terminated, truncated) == (at == len(actions) - 1, False)
        assert terminated or reward == 0
    assert env.observation_space.contains(observation)
    return reward, info


def test_the_reward_is_the_step_relative_to_the_best_single_device():
    oracle, actions = forks(), [0, 0, 0, 1, 1, 1, 0]
    reward, info = episode(make(oracle), actions)
    cost = oracle(actions)
    assert oracle([0] * 7).step_ps == 26
    assert reward == -cost.step_ps / 26
    assert (info["seconds"], info["feasible"], info["memory_excess"]) == (cost.seconds, True, 0)
    assert info["placement"].tolist() == actions
    assert episode(make(oracle), [0] * 7)[0] == -1


def test_what_does_not_fit_is_penalised_by_its_relative_excess():
    oracle = forks(4)
    cost = oracle([0] * 7)
    assert cost.memory_excess == 1
    assert episode(make(oracle), [0] * 7)[0] == -1 - 1 / 4
    assert episode(make(oracle, penalty=10), [0] * 7)[0] == -1 - 10 / 4


def test_a_device_that_cannot_run_a_group_ends_the_episode():
    ops = (Op("a", time={"gpu": 1}), Op("b", time={"gpu": 3, "cpu": 2}))
    cluster = Cluster.all_to_all("two", [Device("g0"), Device("c0", "cpu")], bandwidth=1)
    env = make(Oracle(Graph("mixed", ops), cluster))
    _, info = env.reset()
    assert info["action_mask"].tolist() == [1, 0]
    reward, info = episode(env, [1])
    assert (reward, info["error"]) == (-2, "group 0 cannot stand on device 1")
    assert episode(env, [0, 1])[0] == -2 / 4


def test_a_placement_without_a_route_ends_the_episode():
    ops = (op("a", 1), op("b", 1, "a"))
    env = make(Oracle(Graph("apart", ops), Cluster("apart", (Device("g0"), Device("g1")))))
    reward, info = episode(env, [0, 1])
    assert reward == -2
    assert "no route joins them" in info["error"]


def test_the_observation_tells_loads_and_what_is_read_from_where():
    """Of a 26 ps graph: source on g1 (1 ps, 3 of 9 bytes), then a0 and a1 (8 ps), which read 1 of 7 bytes sent."""
    env = make(forks())
    env.reset()
    observation, *_ = env.step(np.int64(1))
    devices, group = observation[3:13].reshape(5, 2), observation[:3]
    assert group == pytest.approx([1 / 7, 2 / 9, 1 / 7])
    assert devices.ravel() == pytest.approx([8 / 26, 8 / 26, 1, 1, 0, 1 / 7, 0, 1 / 26, 0, 3 / 9])
    assert observation[13:].tolist() == [1, 0, 0, 0, 0, 0, 0]


def test_steps_out_of_place_raise():
    env = make(forks()).unwrapped
    with pytest.raises(ResetNeeded):
        env.step(np.int64(0))
    env.reset()
    for action in (-1, 2):
        with pytest.raises(InputError, match=r"is not in 0\.\.1"):
            env.step(np.int64(action))
    with pytest.raises(InputError, match="nothing to place"):
        make(Oracle(Graph("empty", ()), forks().cluster))
