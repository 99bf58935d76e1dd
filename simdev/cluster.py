"""The machine: Device, Link, Cluster, and the routes between devices.

A link is told once and normalised: its ends in the order of the devices, the links sorted by their ends, so that
listing them in another order changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any

from .errors import InputError
from .units import Number, is_count, name_problems, parse_bandwidth, parse_bytes, parse_time

QUEUES = ("parallel", "device", "half-duplex", "egress", "link", "fair")
TRANSFERS = ("once-per-device", "per-consumer", "multicast")
QUEUE_PREFIXES = ("send ", "recv ", "channel ", "link ", "lane ")  # queues are named by these and a device
DUPLEX = ("full", "half", "simplex")
HOST_WORDS = frozenset({"host", "cpu", "1core"})
"""Words of the kinds of hosts: "host-cpu", "cpu", and "epyc-1core", as profiles name the CPU that they measured."""
UNLIMITED = Fraction(10**30)  # bytes per second, beyond those of any link


@dataclass(frozen=True, slots=True)
class Device:
    """A place that runs ops and holds buffers, or (kind ``switch``) only carries routes.

    ``memory`` in bytes (None: unlimited); ``gap`` in seconds follows each op of positive duration; ``staging`` cuts
    routes through it into two transfers, in chunks of ``chunk`` bytes (None: one chunk). Where ``transit`` is false no
    route passes through it (a GPU does not forward what is meant for another). ``node`` is the machine it stands in.
    """

    name: str
    kind: str = "gpu"
    memory: Number | None = None
    gap: Number = 0
    staging: bool = False
    chunk: Number | None = None
    transit: bool = True
    node: int = 0

    def __post_init__(self) -> None:
        _normalise(self, memory=parse_bytes, gap=parse_time, chunk=parse_bytes)

    @property
    def runs_ops(self) -> bool:
        """Whether ops may be placed on it."""
        return self.kind != "switch"

    @property
    def is_host(self) -> bool:
        """Whether its kind names a CPU, or it stages what others send: a host where it stands beside accelerators."""
        return self.runs_ops and (self.staging or not HOST_WORDS.isdisjoint(self.kind.lower().split("-")))

    def problems(self) -> Iterator[str]:
        """What is wrong with it, as ``field: reason``."""
        yield from name_problems("name", self.name)
        yield from name_problems("kind", self.kind)
        if self.name.startswith(QUEUE_PREFIXES):
            yield f'name: "{self.name}" reads as a queue; it may not start with {", ".join(QUEUE_PREFIXES)}'
        if self.chunk == 0:
            yield "chunk: must be > 0, got 0"
        if self.chunk is not None and not self.staging:
            yield "chunk: only a staging device cuts transfers into chunks"
        if not is_count(self.node):
            yield f"node: must be a whole number, got {self.node!r}"


@dataclass(frozen=True, slots=True)
class Link:
    """A connection of two devices: ``bandwidth`` in bytes per second and direction, ``latency`` and ``gap`` in seconds.

    ``duplex`` is full (a half-link each way), half (both directions share one) or simplex (first end to second only).
    ``hold_latency`` says whether the latency occupies the queue. ``kind`` ("nvlink", "pcie") names what it is and
    where its provenance stands; ``lanes`` is how many physical links it bundles (None: not told): no time hangs on it.
    """

    ends: tuple[str, str]
    bandwidth: Number
    latency: Number = 0
    gap: Number = 0
    duplex: str = "full"
    hold_latency: bool = True
    kind: str = ""
    lanes: int | None = None

    def __post_init__(self) -> None:
        _normalise(self, bandwidth=parse_bandwidth, latency=parse_time, gap=parse_time)

    def problems(self, devices: Container[str]) -> Iterator[str]:
        """What is wrong with it between devices of these names, as ``field: reason``."""
        for side, end in enumerate(self.ends):
            if end not in devices:
                yield f'ends[{side}]: no device named "{end}"'
        if self.ends[0] == self.ends[1]:
            yield f'ends: "{self.ends[0]}" is linked to itself'
        if self.duplex not in DUPLEX:
            yield f'duplex: must be one of {", ".join(DUPLEX)}, got "{self.duplex}"'
        if self.kind:
            yield from name_problems("kind", self.kind)
        if self.lanes is not None and not (is_count(self.lanes) and self.lanes):
            yield f"lanes: must be a whole number > 0, got {self.lanes!r}"

    def between(self, first: str, second: str) -> Link:
        """The same link between two other devices. Its quantities are not parsed again: large clusters are made so."""
        copy = object.__new__(Link)
        for one in _LINK_FIELDS:
            object.__setattr__(copy, one, getattr(self, one))
        object.__setattr__(copy, "ends", (first, second))
        return copy


_LINK_FIELDS = tuple(one.name for one in fields(Link))


def _normalise(noun: object, **parsers: Callable[[Number], object]) -> None:
    problems = []
    for name, parse in parsers.items():
        value = getattr(noun, name)
        if value is None:
            continue
        try:
            object.__setattr__(noun, name, parse(value))
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise InputError(problems)


@dataclass(frozen=True, slots=True)
class HalfLink:
    """One direction of a link (both, where the link is half duplex): what transfers queue for or share."""

    name: str
    link: Link


@dataclass(frozen=True, slots=True)
class Route:
    """How bytes go from one device to another.

    ``devices`` are the indices passed, ends included, ``half_links`` those crossed. Latencies add up: ``held`` seconds
    occupy the queues, ``lag`` seconds do not; ``bandwidth`` is the smallest, ``gap`` the largest.
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


@dataclass(frozen=True)
class Cluster:
    """Devices, links and how transfers queue. Raises InputError with every problem at once.

    ``collectives`` names the tables of measured collectives that hold on its nodes ("" where there are none).
    ``provenance`` tells where the numbers come from; it is carried along and no part of a comparison.
    """

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    queues: str = "half-duplex"
    transfer: str = "once-per-device"
    collectives: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise InputError(problems)
        object.__setattr__(self, "links", tuple(sorted(map(self._oriented, self.links), key=self._link_order)))

    def _problems(self) -> Iterator[str]:
        if not self.devices:
            yield "devices: at least one is needed"
        names: dict[str, int] = {}
        for i, device in enumerate(self.devices):
            yield from (f"devices[{i}].{problem}" for problem in device.problems())
            if names.setdefault(device.name, i) != i:
                yield f'devices[{i}].name: "{device.name}" is already the name of devices[{names[device.name]}]'
        taken: dict[tuple[str, str], int] = {}
        for i, link in enumerate(self.links):
            yield from (f"links[{i}].{problem}" for problem in link.problems(names))
            for pair in [link.ends] if link.duplex == "simplex" else [link.ends, link.ends[::-1]]:
                if taken.setdefault(pair, i) != i:
                    yield f'links[{i}]: "{pair[0]}" and "{pair[1]}" are already linked by links[{taken[pair]}]'
                    break
        if self.queues not in QUEUES:
            yield f'queues: must be one of {", ".join(QUEUES)}, got "{self.queues}"'
        if self.transfer not in TRANSFERS:
            yield f'transfer: must be one of {", ".join(TRANSFERS)}, got "{self.transfer}"'

    def _oriented(self, link: Link) -> Link:
        first, second = (self.index[end] for end in link.ends)
        if link.duplex == "simplex" or first < second:
            return link
        return replace(link, ends=(link.ends[1], link.ends[0]))

    def _link_order(self, link: Link) -> tuple[int, int]:
        return self.index[link.ends[0]], self.index[link.ends[1]]

    @classmethod
    def all_to_all(
        cls,
        name: str,
        devices: Sequence[Device],
        queues: str = "half-duplex",
        transfer: str = "once-per-device",
        **link: object,
    ) -> Cluster:
        """Every two devices that run ops joined by a link of their own; ``link`` holds the fields of Link."""
        ends = [device.name for device in devices if device.runs_ops]
        one = Link(("", ""), **link)  # type: ignore[arg-type]
        links = tuple(one.between(a, b) for i, a in enumerate(ends) for b in ends[i + 1 :])
        return cls(name, tuple(devices), links, queues, transfer)

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each device by its name."""
        return {device.name: i for i, device in enumerate(self.devices)}

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """The devices over which a step is spread where nobody names them: no switch and, beside others, no host."""
        able = tuple(i for i, device in enumerate(self.devices) if device.runs_ops)
        return tuple(i for i in able if not self.devices[i].is_host) or able

    @cached_property
    def half_links(self) -> tuple[HalfLink, ...]:
        """Every directed half-link, in the order of the links; a half-duplex link has one for both directions."""
        found = []
        for link in self.links:
            a, b = link.ends
            if link.duplex == "half":
                found.append(HalfLink(f"link {a}<>{b}", link))
            else:
                found.append(HalfLink(f"link {a}>{b}", link))
                if link.duplex == "full":
                    found.append(HalfLink(f"link {b}>{a}", link))
        return tuple(found)

    @cached_property
    def neighbours(self) -> tuple[dict[int, int], ...]:
        """For each device, neighbour index -> half-link index."""
        found: tuple[dict[int, int], ...] = tuple({} for _ in self.devices)
        number = 0
        for link in self.links:
            a, b = (self.index[end] for end in link.ends)
            found[a][b] = number
            if link.duplex != "simplex":
                number += link.duplex == "full"
                found[b][a] = number
            number += 1
        return found

    @cached_property
    def _routes(self) -> dict[tuple[int, int], Route | None]:
        return {}

    def route(self, source: int, destination: int) -> Route | None:
        """The route between two devices (indices): fewest links, then largest bottleneck, then smallest indices."""
        key = (source, destination)
        if key not in self._routes:
            path = self._path(source, destination)
            self._routes[key] = None if path is None else self._route_along(path)
        return self._routes[key]

    def _path(self, source: int, destination: int) -> tuple[int, ...] | None:
        if destination in self.neighbours[source]:
            return source, destination
        depths, layers = self._reach(source)
        if destination not in depths:
            return None
        # Walk back from the destination over links that keep the bottleneck, then forward by the smallest index.
        layers = layers[: depths[destination] + 1]
        limit = layers[-1][destination]
        useful = [{destination}]
        for layer in reversed(layers[:-1]):
            before = {(d, e) for e in useful[-1] for d in self._before(e, layer) if d == source or self._carries[d]}
            useful.append({d for d, e in before if self._width(d, e) >= limit})
        path = [source]
        for ahead in useful[::-1][1:]:
            path.append(min(e for e in ahead if self._width(path[-1], e) >= limit))
        return tuple(path)

    def _reach(self, source: int) -> tuple[dict[int, int], list[dict[int, int]]]:
        """Devices by their distance from the source, each with the largest bottleneck of its shortest paths."""
        if source not in self._reached:
            depths, layers = {source: 0}, [{source: len(self.half_links) + 1}]
            while layers[-1]:
                ahead: dict[int, int] = {}
                for device, width in layers[-1].items():
                    if device == source or self._carries[device]:
                        for other, half_link in self.neighbours[device].items():
                            if other not in depths:
                                ahead[other] = max(ahead.get(other, 0), min(width, self._widths[half_link]))
                depths |= dict.fromkeys(ahead, len(layers))
                layers.append(ahead)
            self._reached[source] = depths, layers[:-1]
        return self._reached[source]

    def _before(self, device: int, layer: dict[int, int]) -> Iterator[int]:
        """The devices of a layer that have a half-link to a device."""
        candidates: Collection[int] = self._sources[device]
        first, second = (layer, candidates) if len(layer) < len(candidates) else (candidates, layer)
        return (d for d in first if d in second)

    @cached_property
    def _reached(self) -> dict[int, tuple[dict[int, int], list[dict[int, int]]]]:
        return {}

    @cached_property
    def _carries(self) -> tuple[bool, ...]:
        """For each device, whether routes may pass through it."""
        return tuple(device.transit for device in self.devices)

    @cached_property
    def _sources(self) -> tuple[set[int], ...]:
        """For each device, those with a half-link to it."""
        found: tuple[set[int], ...] = tuple(set() for _ in self.devices)
        for device, neighbours in enumerate(self.neighbours):
            for other in neighbours:
                found[other].add(device)
        return found

    @cached_property
    def _widths(self) -> tuple[int, ...]:
        """For each half-link, the rank of its bandwidth, from 1 up: routes only compare bandwidths, and fast."""
        rates = [Fraction(half_link.link.bandwidth) for half_link in self.half_links]
        ranks = {rate: rank for rank, rate in enumerate(sorted(set(rates)), 1)}
        return tuple(ranks[rate] for rate in rates)

    def _width(self, a: int, b: int) -> int:
        half_link = self.neighbours[a].get(b)
        return 0 if half_link is None else self._widths[half_link]

    def _route_along(self, path: tuple[int, ...]) -> Route:
        half_links = tuple(self.neighbours[a][b] for a, b in pairwise(path))
        # Most routes of a large cluster are alike, and sums of Fractions are slow: each sum is made once.
        alike = tuple(self.alike[h] for h in half_links)
        if alike not in self._quantities:
            self._quantities[alike] = _quantities([self.half_links[h].link for h in half_links])
        return Route(path, half_links, *self._quantities[alike])

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """For each half-link a number that it shares with those of the same quantities."""
        found: dict[tuple[object, ...], int] = {}
        links = (half_link.link for half_link in self.half_links)
        keys = [(link.bandwidth, link.latency, link.gap, link.hold_latency) for link in links]
        return tuple(found.setdefault(key, len(found)) for key in keys)

    @cached_property
    def _quantities(self) -> dict[tuple[int, ...], tuple[Fraction, Fraction, Fraction, Fraction]]:
        return {}

    def segments(self, source: int, destination: int) -> tuple[Route, ...] | None:
        """The route, cut at every staging device between its ends; None where there is no route."""
        route = self.route(source, destination)
        if route is None:
            return None
        cuts = [i for i, d in enumerate(route.devices) if 0 < i < len(route.devices) - 1 and self.devices[d].staging]
        if not cuts:
            return (route,)
        borders = [0, *cuts, len(route.devices) - 1]
        return tuple(self._route_along(route.devices[a : b + 1]) for a, b in pairwise(borders))

    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, {len(self.devices)} devices, {len(self.links)} links, {self.queues})"


def _quantities(links: Sequence[Link]) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """Bandwidth, held latency, lag and gap of a route over these links."""
    return (
        min((Fraction(link.bandwidth) for link in links), default=UNLIMITED),
        sum((Fraction(link.latency) for link in links if link.hold_latency), Fraction(0)),
        sum((Fraction(link.latency) for link in links if not link.hold_latency), Fraction(0)),
        max((Fraction(link.gap) for link in links), default=Fraction(0)),
    )
