"""Routes between the devices of a cluster: found once, and remembered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from .cluster import UNLIMITED, Cluster, Link

Quantities = tuple[Fraction, Fraction, Fraction, Fraction]


@dataclass(frozen=True, slots=True)
class Route:
    """How bytes go from one device to another.

    ``devices`` are the indices passed, ends included, ``half_links`` those crossed. Latencies add
    up: ``held`` seconds occupy the queues, ``lag`` seconds do not; ``bandwidth`` is the smallest,
    ``gap`` the largest.
    """

    devices: tuple[int, ...]
    half_links: tuple[int, ...]
    bandwidth: Fraction
    held: Fraction
    lag: Fraction
    gap: Fraction

    @property
    def source(self) -> int:
        """The device (index) that it leaves."""
        return self.devices[0]

    @property
    def destination(self) -> int:
        """The device (index) at which it arrives."""
        return self.devices[-1]


class Routes:
    """The routes of one cluster. It holds those that were asked for, and is made once for many."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._routes: dict[tuple[int, int], Route | None] = {}
        self._reached: dict[int, tuple[dict[int, int], list[dict[int, int]]]] = {}
        self._quantities: dict[tuple[int, ...], Quantities] = {}

    def route(self, source: int, destination: int) -> Route | None:
        """The route between two devices (indices); None where there is none.

        It has the fewest links, then the largest bottleneck, then the smallest indices.
        """
        key = (source, destination)
        if key not in self._routes:
            path = self._path(source, destination)
            self._routes[key] = None if path is None else self._route_along(path)
        return self._routes[key]

    def _path(self, source: int, destination: int) -> tuple[int, ...] | None:
        if destination in self.cluster.neighbours[source]:
            return source, destination
        layers = self._layers(source, destination)
        if layers is None:
            return None
        # Back from the destination over links that keep the bottleneck, then forward by index.
        limit = layers[-1][destination]
        useful = [{destination}]
        for layer in reversed(layers[:-1]):
            steps = ((d, e) for e in useful[-1] for d in self._before(e, layer))
            before = {(d, e) for d, e in steps if d == source or self._carries[d]}
            useful.append({d for d, e in before if self._width(d, e) >= limit})
        path = [source]
        for ahead in useful[::-1][1:]:
            path.append(min(e for e in ahead if self._width(path[-1], e) >= limit))
        return tuple(path)

    def _layers(self, source: int, destination: int) -> list[dict[int, int]] | None:
        """Devices by distance from the source up to the destination's; None where there is no way.

        Each has the largest bottleneck on the way. Farther ones are not looked at.
        """
        depths, layers = self._reached.setdefault(
            source, ({source: 0}, [{source: len(self.cluster.half_links) + 1}])
        )
        while destination not in depths:
            last = layers[-1]
            before = [d for d in self._before(destination, last) if d == source or self._carries[d]]
            if before:
                return [
                    *layers,
                    {destination: max(min(last[d], self._width(d, destination)) for d in before)},
                ]
            if not last:
                return None
            layers.append(self._ahead(source, last, depths))
            depths |= dict.fromkeys(layers[-1], len(layers) - 1)
        return layers[: depths[destination] + 1]

    def _ahead(self, source: int, last: dict[int, int], depths: dict[int, int]) -> dict[int, int]:
        """The devices one link beyond a layer, but for those that are nearer."""
        ahead: dict[int, int] = {}
        for device, width in last.items():
            if device == source or self._carries[device]:
                for other, half_link in self.cluster.neighbours[device].items():
                    if other not in depths:
                        bottleneck = min(width, self._widths[half_link])
                        ahead[other] = max(ahead.get(other, 0), bottleneck)
        return ahead

    def _before(self, device: int, layer: dict[int, int]) -> Iterator[int]:
        """The devices of a layer that have a half-link to a device."""
        candidates: Collection[int] = self._sources[device]
        first, second = (layer, candidates) if len(layer) < len(candidates) else (candidates, layer)
        return (d for d in first if d in second)

    @cached_property
    def _carries(self) -> tuple[bool, ...]:
        """For each device, whether routes may pass through it."""
        return tuple(device.transit for device in self.cluster.devices)

    @cached_property
    def _sources(self) -> tuple[set[int], ...]:
        """For each device, those with a half-link to it."""
        found: tuple[set[int], ...] = tuple(set() for _ in self.cluster.devices)
        for device, neighbours in enumerate(self.cluster.neighbours):
            for other in neighbours:
                found[other].add(device)
        return found

    @cached_property
    def _widths(self) -> tuple[int, ...]:
        """The rank of each half-link's bandwidth, from 1 up: routes only compare them, and fast."""
        alike = dict(zip(self.cluster.alike, self.cluster.half_links, strict=True))
        rates = {number: Fraction(half_link.link.bandwidth) for number, half_link in alike.items()}
        ranks = {rate: rank for rank, rate in enumerate(sorted(set(rates.values())), 1)}
        ranked = {number: ranks[rate] for number, rate in rates.items()}
        return tuple(ranked[number] for number in self.cluster.alike)

    def _width(self, a: int, b: int) -> int:
        half_link = self.cluster.neighbours[a].get(b)
        return 0 if half_link is None else self._widths[half_link]

    def _route_along(self, path: tuple[int, ...]) -> Route:
        half_links = tuple(self.cluster.neighbours[a][b] for a, b in pairwise(path))
        # Most routes of a large cluster are alike, and sums of Fractions slow: each is made once.
        alike = tuple(self.cluster.alike[h] for h in half_links)
        if alike not in self._quantities:
            links = [self.cluster.half_links[h].link for h in half_links]
            self._quantities[alike] = _quantities(links)
        return Route(path, half_links, *self._quantities[alike])

    def pieces(self, source: int, destination: int) -> tuple[Route, ...] | None:
        """The route, cut at every staging device between its ends; None where there is no route."""
        route = self.route(source, destination)
        if route is None:
            return None
        last = len(route.devices) - 1
        between = enumerate(route.devices[1:last], 1)
        cuts = [i for i, d in between if self.cluster.devices[d].staging]
        if not cuts:
            return (route,)
        borders = [0, *cuts, last]
        return tuple(self._route_along(route.devices[a : b + 1]) for a, b in pairwise(borders))


def _quantities(links: Sequence[Link]) -> Quantities:
    """Bandwidth, held latency, lag and gap of a route over these links."""
    return (
        min((Fraction(link.bandwidth) for link in links), default=UNLIMITED),
        sum((Fraction(link.latency) for link in links if link.hold_latency), Fraction(0)),
        sum((Fraction(link.latency) for link in links if not link.hold_latency), Fraction(0)),
        max((Fraction(link.gap) for link in links), default=Fraction(0)),
    )
