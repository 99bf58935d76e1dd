"""Clusters and sizes that the tests of collectives share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

from simdev.costs import CostModel
from simdev.costs.collectives import CollectiveTable, bus_bandwidth
from simdev.execution.engine import simulate
from simdev.lowering import lower
from simdev.nouns.cluster import Cluster
from simdev.nouns.graph import Graph, Op, Tensor
from simdev.nouns.strategy import Strategy


def ring_graph(ranks: int, size: int) -> tuple[Graph, dict[str, str]]:
    """A ring all-reduce as a graph of sends: in each of 2 (n-1) steps every rank sends S/n to the
    next.
    """
    ops, place = [], {}
    for step, rank in itertools.product(range(2 * (ranks - 1) + 1), range(ranks)):
        reads = (f"s{step - 1}r{(rank - 1) % ranks}",) if step else ()
        ops.append(Op(f"s{step}r{rank}", inputs=reads, outputs=(Tensor(size // ranks),), time=0))
        place[f"s{step}r{rank}"] = rank
    return Graph("ring", tuple(ops)), place  # type: ignore[return-value]


def simulated_ring(cluster: Cluster, devices: Sequence[int], size: int) -> Fraction:
    """The seconds of a ring all-reduce that is executed send by send on a cluster."""
    graph, place = ring_graph(len(devices), size)
    names = {op: cluster.devices[devices[rank]].name for op, rank in place.items()}  # type: ignore[index]
    trace = simulate(lower(graph, cluster, CostModel(), Strategy(names)))
    return Fraction(trace.end_ps, 10**12)


def bus(collective: str, ranks: int, size: int, seconds: Fraction) -> float:
    return float(bus_bandwidth(collective, ranks, size, seconds)) / 1e9


TABLE = CollectiveTable(
    "all_reduce",
    4,
    ((512, Fraction(10, 10**6)), (1024, Fraction(12, 10**6)), (4096, Fraction(30, 10**6))),
)
