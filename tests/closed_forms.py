"""Closed forms of collectives from the literature: n ranks, S bytes, a latency alpha per step and a
bandwidth B.

Sources are Thakur, Rabenseifner and Gropp (IJHPCA 2005), and NCCL's own model; simdev's answers are
compared with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from simdev.costs.collectives import Wire, flows_wire
from simdev.nouns.cluster import Cluster
from simdev.nouns.fabric import Fabric


def ring_wire(cluster: Cluster, devices: Sequence[int]) -> Wire:
    """The latency and bandwidth of a ring through the devices, in which each sends to the next."""
    return flows_wire(Fabric(cluster), list(zip(devices, [*devices[1:], devices[0]], strict=True)))


def seconds(wire: Wire, size: Fraction | int) -> Fraction:
    """The time of a round in which each flow sends ``size`` bytes."""
    return wire.latency + Fraction(size) / wire.bandwidth


def ring(collective: str, ranks: int, size: int, wire: Wire, chunks: int = 1) -> Fraction:
    """The seconds of a collective in a ring.

    all_reduce takes 2 (n-1) (alpha + S / (n B)); reduce_scatter, all_gather and all_to_all take
    half of that; broadcast and reduce along a chain in k chunks take (n + k - 2)
    (alpha + S / (k B)); p2p takes alpha + S / B.
    """
    if ranks == 1:
        return Fraction(0)
    if collective == "p2p":
        return seconds(wire, size)
    if collective in ("broadcast", "reduce"):
        return (ranks + chunks - 2) * seconds(wire, Fraction(size, chunks))
    steps = (2 if collective == "all_reduce" else 1) * (ranks - 1)
    return steps * seconds(wire, Fraction(size, ranks))
