"""The ways of many messages at once, without a Route for each: an all-to-all of 1,000 ranks has a
million.

Where only one shortest route leads from one device to another, walking outwards from the first
finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..cluster import Cluster
from ..errors import InputError
from ..fabric import Fabric, Route

MANY = 8
"""From so many destinations of one source on, one walk is faster than a route each."""
# half-links, and a number that ways over links of the same quantities share
Way = tuple[tuple[int, ...], int]


class Leg(NamedTuple):
    """A piece of a message's way; ``like`` is a route of the same bandwidth, latencies and gap,
    itself or another.
    """

    source: int
    destination: int
    half_links: tuple[int, ...]
    like: Route


def legs(fabric: Fabric, flows: Sequence[tuple[int, int]]) -> Iterator[tuple[int, tuple[Leg, ...]]]:
    """The number of each flow (source, destination: device indices) with its pieces, source by
    source.

    Raises InputError where a flow has no route.
    """
    cluster, by_source = fabric.cluster, dict[int, list[tuple[int, int]]]()
    for number, (source, destination) in enumerate(flows):
        by_source.setdefault(source, []).append((number, destination))
    staged = any(device.staging for device in cluster.devices)
    numbers: dict[tuple[int, int], int] = {}
    like: dict[int, Route] = {}
    for source, asked in by_source.items():
        ways = {} if staged or len(asked) < MANY else _ways(cluster, source, numbers)
        for number, destination in asked:
            way = ways.get(destination)
            if way is None:
                pieces = pieces_of(fabric, source, destination)
                yield (
                    number,
                    tuple(Leg(one.source, one.destination, one.half_links, one) for one in pieces),
                )
                continue
            half_links, kind = way
            if kind not in like:
                (like[kind],) = pieces_of(fabric, source, destination)
            yield number, (Leg(source, destination, half_links, like[kind]),)


def pieces_of(fabric: Fabric, source: int, destination: int) -> tuple[Route, ...]:
    """The pieces of the route that a message takes. Raises InputError where there is none."""
    pieces = fabric.routes.pieces(source, destination)
    if pieces is None:
        names = [fabric.cluster.devices[device].name for device in (source, destination)]
        raise InputError(
            f'a collective sends from "{names[0]}" to "{names[1]}", but no route joins them'
        )
    return pieces


def _ways(cluster: Cluster, source: int, numbers: dict[tuple[int, int], int]) -> dict[int, Way]:
    """The ways to all devices that one shortest route leads to; ``numbers`` counts what ways are
    like, for all.
    """
    found: dict[int, Way] = {source: ((), -1)}
    several: set[int] = set()
    front = [source]
    while front:
        ahead: dict[int, Way] = {}
        for device in front:
            if device != source and not cluster.devices[device].transit:
                continue
            half_links, kind = found[device]
            for other, half_link in cluster.neighbours[device].items():
                if other in ahead:
                    several.add(other)
                elif other not in found:
                    like = numbers.setdefault((kind, cluster.alike[half_link]), len(numbers))
                    ahead[other] = (*half_links, half_link), like
                    if device in several:
                        several.add(other)
        found |= ahead
        front = list(ahead)
    return {device: way for device, way in found.items() if device not in several}
