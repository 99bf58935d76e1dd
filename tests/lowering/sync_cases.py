"""Workers and servers under a policy, from a list of layers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from simdev.costs import CostModel
from simdev.execution.check import check
from simdev.execution.engine import simulate
from simdev.execution.period import steady_state
from simdev.execution.scenario import Outcome, Scenario, execute
from simdev.lowering import Prepared
from simdev.nouns.cluster import Cluster, Device
from simdev.nouns.models.layers import Layer, layer_graph
from simdev.nouns.strategy import Strategy, Sync

PS = 10**12


WHOLE = {"slice_parameters": None, "even_parameters": None, "bucket": None}


def machines(workers: int, queues: str = "device", host: bool = False, **link: object) -> Cluster:
    """So many GPUs, and perhaps a host, any two joined by a link of 8 bytes a second."""
    devices = [Device(f"gpu:{r}") for r in range(workers)] + [Device("host:0", "cpu")] * host
    return Cluster.all_to_all("machines", devices, queues, **({"bandwidth": 8} | link))


def scenario_of(
    layers: list[Layer], cluster: Cluster, sync: Sync, engine: str = "simpy"
) -> Scenario:
    """Layers on all GPUs of a cluster."""
    workers = [device.name for device in cluster.devices if device.kind == "gpu"]
    graph, placement = layer_graph(layers, workers)
    return Scenario(graph, cluster, CostModel(), Strategy(placement, sync=sync), engine)


def answered(layers: list[Layer], cluster: Cluster, sync: Sync) -> Outcome:
    """What both engines and the checker agree on."""
    outcome = execute(scenario_of(layers, cluster, sync))
    other = simulate(outcome.trace.task_graph, "compiled")
    assert np.array_equal(outcome.trace.start, other.start)
    assert np.array_equal(outcome.trace.finish, other.finish)
    assert check(outcome.trace.task_graph, outcome.trace) == ()
    return outcome


def period(layers: list[Layer], cluster: Cluster, sync: Sync) -> Fraction:
    """The exact steady-state period in seconds."""
    steady = steady_state(answered(layers, cluster, sync).trace)
    assert steady is not None
    assert steady.repeats
    return steady.period_ps / PS


EXAMPLE = [Layer(1, 1, 3), Layer(1, 1, 6), Layer(1, 1, 3)]


def _question(layers: list[Layer], cluster: Cluster, sync: Sync) -> tuple[Prepared, Strategy]:
    scenario = scenario_of(layers, cluster, sync)
    return Prepared(scenario.graph, cluster, scenario.costs), scenario.strategy
