"""Placing as a Gymnasium environment."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from forks import choosy, environment, forks
from simdev import Oracle
from simdev.ground.errors import InputError
from simdev.learn.env import IDS
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.graph import Graph
from worlds.clusters import joined
from worlds.graphs import op

ID = "simdev/Placement-v0"
make = partial(environment, ID)


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


def test_a_masked_action_costs_a_reference_step_and_goes_to_the_fastest_device():
    env = make(choosy())
    _, info = env.reset()
    assert info["action_mask"].tolist() == [1, 0]
    _, reward, terminated, _, info = env.step(np.int64(1))
    assert (reward, terminated, info["error"]) == (-1, False, "group 0 cannot stand on device 1")
    assert info["placement"].tolist() == [0, -1]
    assert "error" not in env.step(np.int64(1))[-1]
    assert episode(env, [0, 1])[0] == -2 / 4


def test_no_placement_that_runs_is_worse_than_one_without_a_route():
    ops = (op("a", 1, size=10), op("b", 1, "a"))
    apart = make(Oracle(Graph("apart", ops), Cluster("apart", (Device("g0"), Device("g1")))))
    reward, info = episode(apart, [0, 1])
    assert reward == -1000
    assert "no route joins them" in info["error"]
    slow = make(
        Oracle(
            Graph("slow", ops),
            joined(2, bandwidth=1),
        )
    )
    reward, info = episode(slow, [0, 1])
    assert reward == -1000
    assert info["seconds"] > 9


@pytest.mark.parametrize("seed", range(5))
def test_observations_are_those_of_a_dense_table(seed):
    """What is read from where and the loads so far, by loops over a random graph with groups."""
    luck = np.random.default_rng(seed)
    ops = [op("o0", 1, size=3)]
    for i in range(1, 12):
        inputs = [f"o{j}" for j in sorted(set(luck.integers(0, i, 3).tolist()))]
        ops.append(op(f"o{i}", i % 4, *inputs, size=int(luck.integers(0, 9))))
    ops = [replace(one, colocate=f"c{i % 2}") if i % 3 == 0 else one for i, one in enumerate(ops)]
    oracle = Oracle(
        Graph("dense", tuple(ops)),
        joined("abc"),
    )
    row = {i: at for at, members in enumerate(oracle.groups) for i in members}
    sent, tensors = np.zeros((len(oracle.groups),) * 2), set()
    for consumer, reads in enumerate(oracle.graph.reads):
        # A tensor goes to a group once, however many ops of it read it.
        tensors |= {(*tensor, row[consumer]) for tensor in reads}
    for producer, output, reader in tensors:
        if row[producer] != reader:
            sent[row[producer], reader] += oracle.graph.ops[producer].outputs[output].bytes
    time = [sum(float(ops[i].time) for i in members) for members in oracle.groups]
    env = make(oracle)
    observation, _ = env.reset()
    places = luck.integers(0, 3, len(oracle.groups)).tolist()
    for now, place in enumerate(places):
        read, load = np.zeros(3), np.zeros(3)
        for earlier in range(now):
            read[places[earlier]] += sent[earlier, now]
            load[places[earlier]] += time[earlier]
        assert observation[2] == pytest.approx(sent[now].sum() / sent.sum())
        assert observation[9:12] == pytest.approx(read / sent.sum())
        assert observation[12:15] == pytest.approx(load / sum(time))
        observation, *_ = env.step(np.int64(place))


def test_the_observation_tells_loads_and_what_is_read_from_where():
    """Of a 26 ps graph: source on g1 (1 ps, 3 of 9 bytes), then a0 and a1 (8 ps), which read 1 of 7
    bytes sent.
    """
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


def test_wrong_ids_and_arguments_are_answered_with_those_there_are() -> None:
    assert set(IDS) <= set(gymnasium.registry)
    with pytest.raises(gymnasium.error.NameNotFound, match="Did you mean: `Placement`"):
        gymnasium.make("simdev/Placment-v0", oracle=forks(None))
    with pytest.raises(InputError, match="pasess: no such argument; there are oracle, penalty, pa"):
        gymnasium.make("simdev/Improve-v0", oracle=forks(None), pasess=2)
    with pytest.raises(InputError, match=r"simdev/Placement-v0: oracle: missing, like oracle_of"):
        gymnasium.make("simdev/Placement-v0")
