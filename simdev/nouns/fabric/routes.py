"""Routes between the devices of a cluster, each worked out once."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

from ..cluster import UNLIMITED, Cluster


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
    """The routes of one cluster; those once worked out are kept."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._routes: dict[tuple[int, int], Route | None] = {}
        self._reached: dict[int, tuple[dict[int, int], list[dict[int, int]]]] = {}
        self._quantities: dict[tuple[int, ...], tuple[Fraction, ...]] = {}

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
        # No longer way is looked at where a link joins the two, even over a wider one.
        if destination in self.cluster.neighbours[source]:
            return source, destination
        layers = self._layers(source, destination)
        if layers is None:
            return None
        # Back from the destination over links that keep the bottleneck, then forward by index.
        limit = layers[-1][destination]
        useful = [{destination}]
        for layer in reversed(layers[:-1]):
            steps = ((d, e) for e in useful[-1] for d in self._before(source, e, layer))
            useful.append({d for d, e in steps if self._widths[d].get(e, 0) >= limit})
        path = [source]
        for ahead in useful[::-1][1:]:
            path.append(min(e for e in ahead if self._widths[path[-1]].get(e, 0) >= limit))
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
            before = self._before(source, destination, last)
            widths = [min(last[d], self._widths[d][destination]) for d in before]
            if widths:
                return [*layers, {destination: max(widths)}]
            if not last:
                return None
            # Two links away only what is next to the destination matters: behind a switch there
            # may be thousands more.
            beside = self._ahead_beside(source, destination, last, depths)
            if beside:
                widths = [min(w, self._widths[d][destination]) for d, w in beside.items()]
                return [*layers, beside, {destination: max(widths)}]
            layers.append(self._ahead(source, last, depths))
            depths |= dict.fromkeys(layers[-1], len(layers) - 1)
        return layers[: depths[destination] + 1]

    def _ahead(self, source: int, last: dict[int, int], depths: dict[int, int]) -> dict[int, int]:
        """The devices one link beyond a layer, but for those that are nearer."""
        ahead: dict[int, int] = {}
        for device, width in last.items():
            if device == source or self.cluster.devices[device].transit:
                for other, beyond in self._widths[device].items():
                    if other not in depths:
                        ahead[other] = max(ahead.get(other, 0), min(width, beyond))
        return ahead

    def _ahead_beside(
        self, source: int, destination: int, last: dict[int, int], depths: dict[int, int]
    ) -> dict[int, int]:
        """Those devices one link beyond a layer from which a route may end at the destination."""
        ahead: dict[int, int] = {}
        for device in self._sources[destination]:
            if device not in depths and self.cluster.devices[device].transit:
                before = self._before(source, device, last)
                width = max((min(last[d], self._widths[d][device]) for d in before), default=0)
                if width:
                    ahead[device] = width
        return ahead

    def _before(self, source: int, device: int, layer: dict[int, int]) -> Iterator[int]:
        """The devices of a layer from which routes from the source may go on to a device."""
        candidates: Collection[int] = self._sources[device]
        # Through the smaller: a switch has a thousand neighbours, and so may a layer.
        first, second = (layer, candidates) if len(layer) < len(candidates) else (candidates, layer)
        return (
            d for d in first if d in second and (d == source or self.cluster.devices[d].transit)
        )

    @cached_property
    def _sources(self) -> tuple[set[int], ...]:
        """For each device, those with a half-link to it."""
        sources: tuple[set[int], ...] = tuple(set() for _ in self.cluster.devices)
        for device, neighbours in enumerate(self.cluster.neighbours):
            for other in neighbours:
                sources[other].add(device)
        return sources

    @cached_property
    def _widths(self) -> tuple[dict[int, int], ...]:
        """For each device the ranks, from 1 up, of the bandwidths to its neighbours.

        Routes only compare bandwidths, and Fractions compare slowly.
        """
        alike = dict(zip(self.cluster.alike, self.cluster.half_links, strict=True))
        rates = {number: Fraction(half_link.link.bandwidth) for number, half_link in alike.items()}
        ranks = {rate: rank for rank, rate in enumerate(sorted(set(rates.values())), 1)}
        widths = [ranks[rates[number]] for number in self.cluster.alike]
        return tuple(
            {other: widths[half_link] for other, half_link in neighbours.items()}
            for neighbours in self.cluster.neighbours
        )

    def _route_along(self, path: tuple[int, ...]) -> Route:
        half_links = tuple(self.cluster.neighbours[a][b] for a, b in pairwise(path))
        # Most routes of a large cluster are alike, and sums of Fractions slow: each is made once.
        alike = tuple(self.cluster.alike[h] for h in half_links)
        if alike not in self._quantities:
            links = [self.cluster.half_links[h].link for h in half_links]
            latencies = [(Fraction(link.latency), link.hold_latency) for link in links]
            self._quantities[alike] = (
                min((Fraction(link.bandwidth) for link in links), default=UNLIMITED),
                sum((latency for latency, holds in latencies if holds), Fraction(0)),
                sum((latency for latency, holds in latencies if not holds), Fraction(0)),
                max((Fraction(link.gap) for link in links), default=Fraction(0)),
            )
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
        # A staging device holds the bytes, so what follows is a transfer of its own.
        borders = [0, *cuts, last]
        return tuple(self._route_along(route.devices[a : b + 1]) for a, b in pairwise(borders))
