"""The ways of many messages at once, without a Route for each.

An all-to-all of 1,000 ranks has a million messages. Where only one shortest route leads from one
device to another, walking outwards from the first gives it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...ground.errors import InputError
from ...nouns.cluster import Cluster
from ...nouns.fabric import Fabric, Route

Flow = tuple[int, int]
# From so many destinations of one source on, one walk is faster than a route each.
MANY = 8
# Half-links, and a number that ways over links of equal quantities share.
Way = tuple[tuple[int, ...], int]
# By device the half-links to others.
Near = dict[int, dict[int, int]]


class Leg(NamedTuple):
    """A piece of a message's way; ``like`` is a route of equal bandwidth, latencies and gap."""

    source: int
    destination: int
    half_links: tuple[int, ...]
    like: Route


def legs(fabric: Fabric, flows: Sequence[Flow]) -> Iterator[tuple[int, tuple[Leg, ...]]]:
    """The number of each flow (source, destination) with its pieces, source by source.

    Raises InputError where a flow has no route.
    """
    by_source: dict[int, list[tuple[int, int]]] = {}
    for number, (source, destination) in enumerate(flows):
        by_source.setdefault(source, []).append((number, destination))
    # Staged routes are cut into pieces, which a walk does not see.
    staged = any(device.staging for device in fabric.cluster.devices)
    numbers: dict[tuple[int, int], int] = {}
    like: dict[int, Route] = {}
    near: Near = {}
    for source, wanted in by_source.items():
        ways: dict[int, Way] = {}
        if not staged and len(wanted) >= MANY:
            near = near or _between(fabric.cluster, {device for flow in flows for device in flow})
            ways = _ways(fabric.cluster, near, source, numbers)
        for number, destination in wanted:
            if destination in ways:
                half_links, kind = ways[destination]
                if kind not in like:
                    (like[kind],) = pieces_of(fabric, source, destination)
                yield number, (Leg(source, destination, half_links, like[kind]),)
            else:
                pieces = pieces_of(fabric, source, destination)
                yield number, tuple([Leg(p.source, p.destination, p.half_links, p) for p in pieces])


def pieces_of(fabric: Fabric, source: int, destination: int) -> tuple[Route, ...]:
    """The pieces of the route that a message takes. Raises InputError where there is none."""
    pieces = fabric.routes.pieces(source, destination)
    if pieces is None:
        names = [fabric.cluster.devices[device].name for device in (source, destination)]
        raise InputError(
            f'a collective sends from "{names[0]}" to "{names[1]}", but no route joins them'
        )
    return pieces


def _between(cluster: Cluster, ends: set[int]) -> Near:
    """The ends, and the devices over which ways between these may lead: a walk over a large cluster
    meets thousands of others.
    """
    counts = [device.transit or number in ends for number, device in enumerate(cluster.devices)]
    near = {
        device: {other: half_link for other, half_link in others.items() if counts[other]}
        for device, others in enumerate(cluster.neighbours)
        if counts[device]
    }
    sources: dict[int, set[int]] = {device: set() for device in near}
    for device, others in near.items():
        for other in others:
            sources[other].add(device)
    waiting = list(near.keys() - ends)
    while waiting:
        device = waiting.pop()
        if device not in near or max(len(near[device]), len(sources[device])) > 1:
            continue
        around = near[device].keys() | sources[device]
        if len(around) > 1:  # in from one, out to another
            continue
        del near[device]
        for other in around:
            sources[other].discard(device)
            near[other].pop(device, None)
        waiting += around - ends
    return near


def _ways(
    cluster: Cluster, near: Near, source: int, numbers: dict[tuple[int, int], int]
) -> dict[int, Way]:
    """The ways to all devices near that one shortest route leads to; ``numbers`` counts kinds of
    ways.

    Layer by layer from the source; behind a device with several ways, all have several.
    """
    ways: dict[int, Way] = {source: ((), -1)}
    several: set[int] = set()
    front = [source]
    while front:
        ahead: dict[int, Way] = {}
        for device in front:
            if device != source and not cluster.devices[device].transit:
                continue
            half_links, kind = ways[device]
            for other, half_link in near[device].items():
                if other in ahead:
                    several.add(other)
                elif other not in ways:
                    like = numbers.setdefault((kind, cluster.alike[half_link]), len(numbers))
                    ahead[other] = (*half_links, half_link), like
                    if device in several:
                        several.add(other)
        ways |= ahead
        front = list(ahead)
    return {device: way for device, way in ways.items() if device not in several}
