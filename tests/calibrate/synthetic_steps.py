"""Scenarios with wrong numbers, and steps simulated with the true ones, clean and noisy."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy")

from simdev import Scenario
from simdev.costs import CostModel
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.measure.calibrate import Calibration, Measured
from simdev.nouns.cluster import Cluster, Device, Link
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy
from simdev.nouns.taskgraph import TaskGraph
from simdev.nouns.trace import Trace

TRUE = {"gap": "5.7 us", "latency": "134 us", "bandwidth": "5.7 GB/s", "link_gap": "25 us"}
SIZES = (4096, 65_536, 1_000_000, 5_000_000)
KINDS = ("matmul", "conv2d", "relu")


def graph_of(count: int = 250, seed: int = 1, sizes: tuple[int, ...] = SIZES) -> Graph:
    """A random graph of ops that read up to two of the twelve previous ops."""
    draw, ops = random.Random(seed), list[Op]()
    for i in range(count):
        before = (
            sorted({draw.randrange(max(0, i - 12), i) for _ in range(draw.randint(0, 2))})
            if i
            else []
        )
        ops.append(
            Op(
                f"o{i}",
                kind=draw.choice(KINDS),
                inputs=tuple(f"o{j}" for j in before),
                outputs=(Tensor(draw.choice(sizes)),),
                time=f"{draw.randint(20, 900)} us",
            )
        )
    return Graph("g", tuple(ops))


def cluster_of(
    queues: str = "half-duplex",
    hold: bool = True,
    gap: str = "0 us",
    latency: str = "10 us",
    bandwidth: str = "2 GB/s",
    link_gap: str = "0 us",
) -> Cluster:
    """Four devices; by default with numbers that are far from TRUE."""
    links = {"bandwidth": bandwidth, "latency": latency, "hold_latency": hold, "gap": link_gap}
    return Cluster.all_to_all("c", [Device(f"gpu:{i}", gap=gap) for i in range(4)], queues, **links)


def spread(graph: Graph, seed: int = 2) -> Strategy:
    draw = random.Random(seed)
    return Strategy({op.name: f"gpu:{draw.randrange(4)}" for op in graph.ops})


def measured_of(trace: Trace, finish: np.ndarray | None = None) -> Measured:
    names, ends = trace.task_graph.tasks.name, trace.finish if finish is None else finish
    spans = zip(trace.start.tolist(), ends.tolist(), strict=True)
    return Measured({name: (span,) for name, span in zip(names, spans, strict=True)}, "trace")


def factors(draw: np.random.Generator, count: int, sigma: float) -> np.ndarray:
    return np.maximum(1 + sigma * draw.standard_normal(count), 0.2)


def noisy(task_graph: TaskGraph, seed: int, sigma: float = 0.05) -> Measured:
    """A measured step in which every duration, gap and lag is off by a random factor."""
    draw, tasks = np.random.default_rng(seed), task_graph.tasks
    changed = {
        name: np.round(getattr(tasks, name) * factors(draw, len(tasks), sigma)).astype(np.int64)
        for name in ("duration", "lag", "gap")
    }
    return measured_of(simulate(replace(task_graph, tasks=replace(tasks, **changed)), "simpy"))


def blurred(task_graph: TaskGraph, seed: int, sigma: float = 0.05) -> Measured:
    """A measured step with exact starts and wrong ends, so that spans of a queue overlap."""
    trace, draw = simulate(task_graph, "simpy"), np.random.default_rng(seed)
    length = np.round((trace.finish - trace.start) * factors(draw, len(trace.start), sigma)).astype(
        np.int64
    )
    return measured_of(trace, trace.start + length)


def question(
    queues: str = "half-duplex", hold: bool = True, graph: Graph | None = None
) -> tuple[Scenario, TaskGraph]:
    """A scenario with wrong numbers, and the task graph with the true ones."""
    graph = graph or graph_of()
    truth = TRUE if queues not in ("fair", "parallel") else TRUE | {"link_gap": "0 us"}
    task_graph = lower(graph, cluster_of(queues, hold, **truth), CostModel(), spread(graph))
    return Scenario(graph, cluster_of(queues, hold), CostModel(), spread(graph)), task_graph


def values(calibration: Calibration) -> dict[str, float]:
    """The fitted numbers by quantity; gaps of links have the prefix "link_"."""
    return {
        ("link_" if one.on_links and one.quantity == "gap" else "") + one.quantity: float(one.value)
        for one in calibration.parameters
        if one.fitted
    }


def near(found: Mapping[str, float], share: float, *names: str) -> None:
    wanted = {"gap": 5.7e-6, "latency": 134e-6, "bandwidth": 5.7e9, "link_gap": 25e-6}
    for name in names:
        assert found[name] == pytest.approx(wanted[name], rel=share), name


# A cluster with several classes of links


def mixed_cluster(nvlink: str, pcie: str, fast: str, slow: str) -> Cluster:
    """Two pairs on fast links; the pairs are joined through a switch by slow ones."""
    devices = [Device(f"gpu:{i}", transit=False) for i in range(4)] + [Device("hub", "switch")]
    fast_links = [Link((f"gpu:{i}", f"gpu:{i + 1}"), fast, nvlink, kind="nvlink") for i in (0, 2)]
    slow_links = [Link((f"gpu:{i}", "hub"), slow, pcie, kind="pcie") for i in range(4)]
    return Cluster("mixed", tuple(devices), (*fast_links, *slow_links), "link")


# What a trace does not tell


def notes(calibration: Calibration) -> dict[str, str]:
    return {
        ("link_" if one.on_links and one.quantity == "gap" else "") + one.quantity: one.note
        for one in calibration.parameters
        if not one.fitted
    }
