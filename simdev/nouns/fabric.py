"""The paths of bytes on a cluster: routes between devices, and the queues or links that transfers
on these routes hold or share. Lowering, the models of collectives, the oracle and calibration all
use the one ``Fabric`` of a cluster (``fabric_of``).

The cluster's queue mode, an entry of ``MODES``, says which queues a transfer holds: at its source,
at its destination and on the links that it crosses, or a share of these links. Only this module
knows the meaning of a mode. To add one, add its name to ``cluster.QUEUES`` too, and the kind of a
new bank to ``cluster.QUEUE_PREFIXES``. A bank follows from the two ends of a transfer; a queue of a
switch on the way would need a new value of ``QueueMode.links``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from ..ground.errors import InputError
from ..ground.units import MAX_PS, picoseconds, transmission_ps
from .cluster import UNLIMITED, Cluster, Device, HalfLink


@dataclass(frozen=True, slots=True)
class Route:
    """The path of bytes from one device to another.

    ``devices`` are the indices of all devices on the path, ends included, ``half_links`` the
    half-links crossed. Latencies add up: for ``held`` seconds the queues are occupied, for ``lag``
    seconds they are not. ``bandwidth`` is the smallest on the path, ``gap`` the largest.
    """

    devices: tuple[int, ...]
    half_links: tuple[int, ...]
    bandwidth: Fraction
    held: Fraction
    lag: Fraction
    gap: Fraction

    @property
    def source(self) -> int:
        """The index of the device where the route begins."""
        return self.devices[0]

    @property
    def destination(self) -> int:
        """The index of the device where the route ends."""
        return self.devices[-1]


class Routes:
    """The routes of one cluster. Routes already worked out are kept."""

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
        # A direct link is the route, even where a longer path is wider.
        if destination in self.cluster.neighbours[source]:
            return source, destination
        layers = self._layers(source, destination)
        if layers is None:
            return None
        # Collect, backwards from the destination, the devices on paths that keep the bottleneck;
        # then walk forward, always to the smallest index.
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
        """The devices at each distance from the source, up to the destination's distance, each with
        the largest bottleneck of a path to it. None where no path leads to the destination.

        Layers hold only the devices needed for this destination.
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
            # Two links away, only devices next to the destination matter: a switch may have
            # thousands of other neighbours.
            beside = self._ahead_beside(source, destination, last, depths)
            if beside:
                widths = [min(w, self._widths[d][destination]) for d, w in beside.items()]
                return [*layers, beside, {destination: max(widths)}]
            layers.append(self._ahead(source, last, depths))
            depths |= dict.fromkeys(layers[-1], len(layers) - 1)
        return layers[: depths[destination] + 1]

    def _ahead(self, source: int, last: dict[int, int], depths: dict[int, int]) -> dict[int, int]:
        """The devices one link beyond a layer that are not nearer, with their bottlenecks."""
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
        """The devices one link beyond a layer by which a route goes on to the destination."""
        ahead: dict[int, int] = {}
        for device in self._sources[destination]:
            if device not in depths and self.cluster.devices[device].transit:
                before = self._before(source, device, last)
                width = max((min(last[d], self._widths[d][device]) for d in before), default=0)
                if width:
                    ahead[device] = width
        return ahead

    def _before(self, source: int, device: int, layer: dict[int, int]) -> Iterator[int]:
        """The devices of a layer through which a route from the source can reach ``device``."""
        candidates: Collection[int] = self._sources[device]
        # Loop over the smaller: a switch may have a thousand neighbours, and so may a layer.
        first, second = (layer, candidates) if len(layer) < len(candidates) else (candidates, layer)
        return (
            d for d in first if d in second and (d == source or self.cluster.devices[d].transit)
        )

    @cached_property
    def _sources(self) -> tuple[set[int], ...]:
        """For each device, the devices with a half-link to it."""
        sources: tuple[set[int], ...] = tuple(set() for _ in self.cluster.devices)
        for device, neighbours in enumerate(self.cluster.neighbours):
            for other in neighbours:
                sources[other].add(device)
        return sources

    @cached_property
    def _widths(self) -> tuple[dict[int, int], ...]:
        """For each device the bandwidths to its neighbours, as ranks from 1 (the slowest) up.

        Routes only compare bandwidths, and comparing Fractions is slow.
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
        # Most routes of a large cluster cross equal links; sums of Fractions are slow, so kept.
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
        # A staging device stores the bytes, so each piece is a transfer by itself.
        borders = [0, *cuts, last]
        return tuple(self._route_along(route.devices[a : b + 1]) for a, b in pairwise(borders))


FREE, QUEUED, SHARED = "free", "queued", "shared"


@dataclass(frozen=True, slots=True)
class Bank:
    """Queues at devices, named by kind and owner; devices with the same owner share a queue."""

    kind: str
    owner: Callable[[Device], str] = attrgetter("name")


@dataclass(frozen=True, slots=True)
class QueueMode:
    """The queues that a transfer holds at its source and destination, and its use of half-links.

    ``links`` is FREE (any number of transfers cross a half-link at once), QUEUED (each half-link is
    a serial queue) or SHARED (a transfer is a flow, which holds no queue; flows share the bandwidth
    of a half-link max-min). Raises ValueError.
    """

    leaving: Bank | None = None
    arriving: Bank | None = None
    links: str = FREE

    def __post_init__(self) -> None:
        if self.links == SHARED and (self.leaving or self.arriving):
            raise ValueError("links: flows hold no queue")


_SEND, _RECV, _CHANNEL = Bank("send"), Bank("recv"), Bank("channel")
LINK_QUEUES = "link"
"""The mode in which each half-link is a queue, which transfers hold while they cross it."""
MODES: Mapping[str, QueueMode] = {
    "parallel": QueueMode(),
    "device": QueueMode(leaving=_SEND, arriving=_RECV),
    "half-duplex": QueueMode(leaving=_CHANNEL, arriving=_CHANNEL),
    "egress": QueueMode(leaving=_SEND),
    LINK_QUEUES: QueueMode(links=QUEUED),
    "fair": QueueMode(links=SHARED),
}


class Queue(NamedTuple):
    """A serial queue of transfers. ``device`` is the index of the only device that owns it, or -1
    for the queue of a link or of several devices.
    """

    name: str
    device: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A route, or the part of one between staging devices, that one transfer crosses.

    ``resources`` are the queues that the transfer holds, by their numbers in a task graph,
    ``flow_links`` the half-links that it shares as a flow; it has the first, the second, or
    neither. Times are in picoseconds: ``held_ps`` is the latency for which the queues are held (of
    a flow: before it enters its links), ``lag_ps`` the latency that holds nothing, ``gap_ps`` the
    time for which the queues rest before the next transfer.
    """

    route: Route
    resources: tuple[int, ...]
    flow_links: tuple[int, ...]
    held_ps: int
    lag_ps: int
    gap_ps: int

    @property
    def waits(self) -> bool:
        """Whether another transfer can delay a transfer over this segment."""
        return bool(self.resources or self.flow_links)


def transfer_ps(size: int, segment: Segment) -> int:
    """The ps of a transfer: bytes over bandwidth, plus the held latency, each rounded up.

    Raises InputError.
    """
    rate = segment.route.bandwidth
    duration = transmission_ps(size, rate) + segment.held_ps
    if duration > MAX_PS:
        speed = f"{float(rate):g} bytes/s"
        raise InputError(f"a transfer of {size} bytes at {speed} takes more than 53 days")
    return duration


class Fabric:
    """A cluster under its queue mode; ``fabric_of`` gives the shared object.

    A *carrier* is a queue that transfers wait for, numbered as in ``queues``, or in a mode of flows
    a half-link that they share. In a task graph the queues of transfers are numbered after the
    compute queues of all devices. Raises InputError where the queue mode is unknown.
    """

    def __init__(self, cluster: Cluster) -> None:
        mode = MODES.get(cluster.queues)
        if mode is None:
            raise InputError(f'queues: must be one of {", ".join(MODES)}, got "{cluster.queues}"')
        self.cluster, self.mode, self.routes = cluster, mode, Routes(cluster)
        self.first_queue = len(cluster.devices)  # its number in a task graph
        self._segments: dict[tuple[int, int], tuple[Segment, ...] | None] = {}

    @property
    def shares_rates(self) -> bool:
        """Whether transfers are flows, which share the half-links that they cross."""
        return self.mode.links == SHARED

    @property
    def links_serve(self) -> bool:
        """Whether transfers contend for links: they queue for them or share them."""
        return self.mode.links != FREE

    @property
    def has_queues(self) -> bool:
        """Whether transfers hold queues at all; only queues have a gap before the next transfer."""
        return self.mode.links == QUEUED or bool(self._sharing)

    @property
    def holds_several(self) -> bool:
        """Whether a transfer may hold several queues. A message can then hold them in turn."""
        return self.mode.links == QUEUED or None not in (self.mode.leaving, self.mode.arriving)

    @property
    def flow_links(self) -> tuple[HalfLink, ...]:
        """The half-links that flows share: all of them, or none in other modes."""
        return self.cluster.half_links if self.shares_rates else ()

    @cached_property
    def _sharing(self) -> dict[tuple[Bank, str], list[int]]:
        """The devices that share each queue, by bank and owner, in the order of queue numbers."""
        sharing: dict[tuple[Bank, str], list[int]] = {}
        # Where both sides have the same bank, sending and receiving share a queue: half duplex.
        for bank in filter(None, dict.fromkeys((self.mode.leaving, self.mode.arriving))):
            for d, device in enumerate(self.cluster.devices):
                sharing.setdefault((bank, bank.owner(device)), []).append(d)
        return sharing

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """Every queue of transfers by its number: queues at devices, then queues of half-links."""
        at_devices = (
            Queue(f"{bank.kind} {owner}", devices[0] if len(devices) == 1 else -1)
            for (bank, owner), devices in self._sharing.items()
        )
        links = self.cluster.half_links if self.mode.links == QUEUED else ()
        return (*at_devices, *(Queue(half_link.name, -1) for half_link in links))

    @cached_property
    def _first_link(self) -> int:
        """The number of the first carrier that is a half-link."""
        return len(self._sharing)

    @property
    def carrier_count(self) -> int:
        """The number of carriers; their numbers run from 0."""
        return self._first_link + self.links_serve * len(self.cluster.half_links)

    @cached_property
    def _ends(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The queues held at the source, for each source, and at the destination, for each
        destination.
        """
        number = {key: queue for queue, key in enumerate(self._sharing)}
        return tuple(
            tuple((number[bank, bank.owner(d)],) if bank else () for d in self.cluster.devices)
            for bank in (self.mode.leaving, self.mode.arriving)
        )

    def carriers(
        self, source: int, destination: int, half_links: tuple[int, ...]
    ) -> tuple[int, ...]:
        """The carriers of a transfer over these half-links, by number, in passing order."""
        # Millions of messages come through here, so the common modes return early.
        if not self._sharing:
            return half_links if self.links_serve else ()
        leaving, arriving = self._ends[0][source], self._ends[1][destination]
        if not self.links_serve:
            return leaving if leaving == arriving else leaving + arriving
        links = [self._first_link + half_link for half_link in half_links]
        return tuple(dict.fromkeys((*leaving, *links, *arriving)))

    def rate(self, carrier: int, like: Route) -> Fraction:
        """The bytes per second that a message over the route ``like`` gets from a carrier.

        A flow goes as fast as the link; a message that holds queues holds all of them for the same
        time.
        """
        return self._link_rate(carrier) if self.shares_rates else like.bandwidth

    def _link_rate(self, half_link: int) -> Fraction:
        return Fraction(self.cluster.half_links[half_link].link.bandwidth)

    def in_turn(self, segment: Segment) -> tuple[tuple[int, Fraction], ...]:
        """The queues of a segment with their rates (bytes per second), for messages that hold one
        queue after another (``Sync.hold``).

        The queue of a link has the rate of the link, the queue of a device the rate of the route.
        """
        first = self.first_queue + self._first_link
        return tuple(
            (queue, self._link_rate(queue - first) if queue >= first else segment.route.bandwidth)
            for queue in segment.resources
        )

    def segments(self, source: int, destination: int) -> tuple[Segment, ...] | None:
        """The route between two devices (indices), cut at staging devices; None: there is none."""
        key = source, destination
        if key not in self._segments:
            pieces = self.routes.pieces(source, destination)
            self._segments[key] = None if pieces is None else tuple(map(self._segment, pieces))
        return self._segments[key]

    def _segment(self, route: Route) -> Segment:
        held, lag = picoseconds(route.held), picoseconds(route.lag)
        if self.shares_rates:  # no gap follows a flow
            return Segment(route, (), route.half_links, held, lag, 0)
        carriers = self.carriers(route.source, route.destination, route.half_links)
        queues = tuple(self.first_queue + queue for queue in carriers)
        return Segment(route, queues, (), held, lag, picoseconds(route.gap))


_RECENT: deque[Fabric] = deque(maxlen=8)


def fabric_of(cluster: Cluster) -> Fabric:
    """The fabric of a cluster, shared by all callers, with the routes worked out so far.

    Clusters are compared by identity, since comparing thousands of links takes longer than a route.
    The last eight fabrics are kept.
    """
    # A copy, since another thread of the server may append meanwhile.
    for fabric in tuple(_RECENT):
        if fabric.cluster is cluster:
            return fabric
    fabric = Fabric(cluster)
    _RECENT.append(fabric)
    return fabric


def merged(segments: Sequence[Segment]) -> Segment:
    """The segment of a multicast: the queues of all routes, smallest bandwidth, largest times."""
    routes = [segment.route for segment in segments]
    half_links = tuple(sorted({half_link for route in routes for half_link in route.half_links}))
    # One send serves all readers, so it runs at the pace of the slowest route.
    slowest = min(routes, key=lambda route: route.bandwidth)
    return Segment(
        replace(slowest, devices=routes[0].devices, half_links=half_links),
        tuple(sorted({resource for segment in segments for resource in segment.resources})),
        tuple(sorted({half_link for segment in segments for half_link in segment.flow_links})),
        max(segment.held_ps for segment in segments),
        max(segment.lag_ps for segment in segments),
        max(segment.gap_ps for segment in segments),
    )
