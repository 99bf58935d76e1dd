"""What a collective's steps find on a cluster: one latency and one bandwidth, with the links that its flows share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..cluster import UNLIMITED, Cluster, Route
from ..errors import InputError


@dataclass(frozen=True, slots=True)
class Wire:
    """The latency of a step in seconds, and the bandwidth of each flow in bytes per second while all of them run."""

    latency: Fraction
    bandwidth: Fraction

    def seconds(self, size: Fraction | int) -> Fraction:
        """The time of one step that sends so many bytes a flow."""
        return self.latency + Fraction(size) / self.bandwidth


def flows_wire(cluster: Cluster, flows: Sequence[tuple[int, int]]) -> Wire:
    """The wire of flows (source, destination: device indices) of equal size that run at the same time.

    What they share is what transfers queue for or share under the cluster's ``queues``: a link that two flows cross
    gives each half. The slowest flow counts: the steps of a collective wait for each other. Raises InputError where a
    flow has no route.
    """
    latency, slowest = Fraction(0), 1 / UNLIMITED
    load: dict[Hashable, Fraction] = {}
    for flow in flows:
        pieces = _pieces(cluster, *flow)
        latency = max(latency, sum((piece.held + piece.lag + piece.gap for piece in pieces), Fraction(0)))
        times = [1 / piece.bandwidth for piece in pieces]
        slowest = max(slowest, max(times) if _chunked(cluster, pieces) else sum(times, Fraction(0)))
        for piece in pieces:
            for resource, rate in _resources(cluster, piece):
                load[resource] = load.get(resource, Fraction(0)) + 1 / rate
    return Wire(latency, 1 / max([slowest, *load.values()]))


def ring_wire(cluster: Cluster, devices: Sequence[int]) -> Wire:
    """The wire of a ring through the devices in this order, every one sending to the next."""
    return flows_wire(cluster, [(a, b) for a, b in zip(devices, [*devices[1:], devices[0]], strict=True) if a != b])


def direct_wire(cluster: Cluster, devices: Sequence[int]) -> Wire | None:
    """The wire of rings over all direct links among the devices at once, each taking its part of the bytes.

    Its bandwidth is the smallest sum over a device's links to the others: reached where the links split into rings, as
    on hybrid cube meshes and full meshes. None where direct links do not connect the devices, or transfers queue for
    devices rather than for links.
    """
    group, found = set(devices), []
    if cluster.queues not in ("link", "fair", "parallel") or len(group) < 2:
        return None
    latency, seen, front = Fraction(0), {devices[0]}, [devices[0]]
    for device in devices:
        links = [cluster.half_links[h].link for other, h in cluster.neighbours[device].items() if other in group]
        halves = [Fraction(link.bandwidth) / (2 if link.duplex == "half" else 1) for link in links]
        found.append(sum(halves, Fraction(0)))
        latency = max([latency, *(Fraction(link.latency) + Fraction(link.gap) for link in links)])
    while front:
        reached = {other for other in cluster.neighbours[front.pop()] if other in group} - seen
        seen |= reached
        front += reached
    return Wire(latency, min(found)) if seen == group else None


def _pieces(cluster: Cluster, source: int, destination: int) -> tuple[Route, ...]:
    pieces = cluster.segments(source, destination)
    if pieces is None:
        names = cluster.devices[source].name, cluster.devices[destination].name
        raise InputError(f'a collective sends from "{names[0]}" to "{names[1]}", but no route joins them')
    return pieces


def _chunked(cluster: Cluster, pieces: Sequence[Route]) -> bool:
    """Whether chunks keep all pieces of a staged route busy at once."""
    return all(cluster.devices[piece.devices[-1]].chunk is not None for piece in pieces[:-1])


def _resources(cluster: Cluster, route: Route) -> Iterator[tuple[Hashable, Fraction]]:
    """What a transfer over the route holds or shares, each with the rate at which it is held."""
    source, destination = route.devices[0], route.devices[-1]
    match cluster.queues:
        case "device":
            yield from ((("send", source), route.bandwidth), (("recv", destination), route.bandwidth))
        case "half-duplex":
            yield from ((source, route.bandwidth), (destination, route.bandwidth))
        case "egress":
            yield source, route.bandwidth
        case "link":
            yield from ((half_link, route.bandwidth) for half_link in route.half_links)
        case "fair":
            links = cluster.half_links
            yield from ((half_link, Fraction(links[half_link].link.bandwidth)) for half_link in route.half_links)
