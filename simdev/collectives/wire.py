"""What flows that run at the same time find: one latency, and one bandwidth as they share links."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..cluster import UNLIMITED
from ..fabric import Fabric, Route
from .legs import Leg, legs


@dataclass(frozen=True, slots=True)
class Wire:
    """The latency of a step in seconds, and the bandwidth of each flow in bytes per second while
    all of them run.
    """

    latency: Fraction
    bandwidth: Fraction

    def seconds(self, size: Fraction | int) -> Fraction:
        """The time of one step that sends so many bytes a flow."""
        return self.latency + Fraction(size) / self.bandwidth


def flows_wire(fabric: Fabric, flows: Sequence[tuple[int, int]]) -> Wire:
    """The wire of flows (source, destination: device indices) of equal size that run at once.

    What they share is what transfers queue for or share on the fabric: a link that two flows cross
    gives each half. The slowest flow counts: the steps of a collective wait for each other. Raises
    InputError where a flow has no route.
    """
    alike: dict[tuple[int, ...], tuple[Leg, ...]] = {}
    crossing: dict[int, Counter[int]] = {}  # how many flows alike cross each resource
    for _, pieces in legs(fabric, flows):
        alike[tuple([id(piece.like) for piece in pieces])] = pieces
        for piece in pieces:
            crossing.setdefault(id(piece.like), Counter()).update(fabric.carriers(*piece[:3]))
    latency, slowest = Fraction(0), 1 / UNLIMITED
    for pieces in alike.values():
        routes = [piece.like for piece in pieces]
        latency = max(
            latency, sum((route.held + route.lag + route.gap for route in routes), Fraction(0))
        )
        times = [1 / route.bandwidth for route in routes]
        slowest = max(slowest, max(times) if chunked(fabric, pieces) else sum(times, Fraction(0)))
    like = {id(piece.like): piece.like for pieces in alike.values() for piece in pieces}
    return Wire(latency, 1 / max(slowest, _most_loaded(fabric, crossing, like)))


def _most_loaded(
    fabric: Fabric, crossing: Mapping[int, Mapping[int, int]], like: Mapping[int, Route]
) -> Fraction:
    """The largest time per byte of a resource: the sum over the flows that cross it."""
    mixes: dict[int, list[tuple[int, Fraction]]] = {}
    for route, counts in crossing.items():
        for carrier, count in counts.items():
            mixes.setdefault(carrier, []).append((count, fabric.rate(carrier, like[route])))
    # Fractions are slow
    different = {tuple((count, id(rate)) for count, rate in mix): mix for mix in mixes.values()}
    loads = (sum((count / rate for count, rate in mix), Fraction(0)) for mix in different.values())
    return max(loads, default=Fraction(0))


def chunked(fabric: Fabric, pieces: Sequence[Leg]) -> bool:
    """Whether chunks keep all pieces of a staged route busy at once."""
    return all(fabric.cluster.devices[piece.destination].chunk is not None for piece in pieces[:-1])
