"""The slider of speed under every policy of synchronisation and every choice of collectives: half
the speed is the graph of ops that take twice as long, lowered and simulated like any other.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

import simdev
from simdev import Cluster, Device, Graph, Op, Scenario, Strategy, Tensor
from simdev.commands.explorer import explorer_of
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import Collectives, sync_policy
from worlds.clusters import joined

POLICIES = ("parameter-server", "sliced", "p3", "bucketed", "tic", "tac")
ALGORITHMS = ("auto", "ring", "tree", "hierarchical")


def pair(workers: int, chance: Random) -> Cluster:
    devices = [Device(f"gpu:{r}", gap=chance.choice((0, "3 us"))) for r in range(workers)]
    queues = chance.choice(("device", "half-duplex", "link", "parallel"))
    rate = chance.choice((8 * 10**9, 10**9))
    return joined(devices, queues, bandwidth=rate, latency="1 us")


def synchronised(seed: int) -> Scenario:
    """Layers on all workers, whose gradients a policy synchronises."""
    chance = Random(seed)
    cluster = pair(chance.randint(2, 3), chance)
    times = [chance.randint(1, 900) * 10**-6 for _ in range(8)]
    layers = [Layer(times[2 * i], times[2 * i + 1], chance.randint(1, 10**5)) for i in range(3)]
    graph, placement = layer_graph(layers, [device.name for device in cluster.devices])
    policy = sync_policy(POLICIES[seed % len(POLICIES)])
    return Scenario(graph, cluster, simdev.CostModel(), Strategy(placement, sync=policy))


def with_collective(seed: int) -> Scenario:
    """An op on each of several devices, the sum of what they make, and an op that reads it."""
    chance = Random(seed)
    cluster = pair(chance.randint(2, 4), chance)
    names = [device.name for device in cluster.devices]
    size = chance.randint(1, 10**6)
    ops = [
        Op(f"op{r}", outputs=(Tensor(size),), time=f"{chance.randint(1, 99)} us")
        for r in range(len(names))
    ]
    reads, left = tuple(op.name for op in ops), tuple(Tensor(size) for _ in ops)
    ops.append(Op("sum", "all_reduce", inputs=reads, outputs=left, attrs={"ranks": names}))
    ops.append(Op("after", inputs=("sum",), time=f"{chance.randint(1, 99)} us"))
    places = dict(zip(reads, names, strict=True)) | {"sum": names[0], "after": names[0]}
    choice = Collectives(
        algorithm=ALGORITHMS[seed % len(ALGORITHMS)], cost=chance.choice(("closed", "expanded"))
    )
    strategy = Strategy(places, collectives=choice)
    return Scenario(Graph("sum", tuple(ops)), cluster, simdev.CostModel(), strategy)


def slower(scenario: Scenario, times: int) -> Scenario:
    """The scenario of ops that take so many times as long; collectives know no speed of devices."""
    graph = scenario.graph
    assert isinstance(graph, Graph)
    ops = tuple(op if op.time is None else replace(op, time=op.time * times) for op in graph.ops)
    return replace(scenario, graph=Graph(graph.name, ops))


def check_speed(scenario: Scenario, times: int) -> None:
    there = slower(scenario, times)
    page = explorer_of(scenario, "law").page({"speed": 1 / times}, tables=False)
    assert page["timeline"]["step"] == simdev.run(there).trace.end_ps
    expected = explorer_of(there, "law").page({}, tables=False)
    assert page["timeline"]["tasks"]["start"] == expected["timeline"]["tasks"]["start"]


@pytest.mark.parametrize("seed", range(8))
def test_half_the_speed_is_ops_of_twice_the_time(seed: int) -> None:
    check_speed(synchronised(seed), 2)
    check_speed(with_collective(seed), 2)


@pytest.mark.slow
def test_speed_on_a_thousand_random_questions() -> None:
    for seed in range(500):
        for times in (2, 4):
            check_speed(synchronised(seed) if seed % 2 else with_collective(seed), times)
