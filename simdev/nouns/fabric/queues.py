"""What transfers hold or share on their way, by the queue mode of the cluster.

A mode is an entry of ``MODES``: which queues a transfer holds where it leaves, where it arrives and
on the links that it crosses, or whether it shares these. What a mode means stands here alone; to
add one, add its name to ``cluster.QUEUES`` too, and the kind of a new bank to
``cluster.QUEUE_PREFIXES``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple

from ...ground.errors import InputError
from ...ground.units import MAX_PS, picoseconds, transmission_ps
from ..cluster import Cluster, Device, HalfLink
from .routes import Route, Routes

FREE, QUEUED, SHARED = "free", "queued", "shared"


@dataclass(frozen=True, slots=True)
class Bank:
    """Queues at devices, named by kind and owner; devices of one owner have one queue."""

    kind: str
    owner: Callable[[Device], str] = attrgetter("name")


@dataclass(frozen=True, slots=True)
class QueueMode:
    """What a transfer holds of its source and of its destination, and what half-links are to it.

    ``links`` is FREE (crossed at once by any number), QUEUED (a serial queue each) or SHARED (the
    transfer is a flow, which shares their bandwidth max-min and holds no queue). Raises ValueError.
    """

    leaving: Bank | None = None
    arriving: Bank | None = None
    links: str = FREE

    def __post_init__(self) -> None:
        if self.links == SHARED and (self.leaving or self.arriving):
            raise ValueError("links: flows hold no queue")


_SEND, _RECV, _CHANNEL = Bank("send"), Bank("recv"), Bank("channel")
LINK_QUEUES = "link"
"""The mode in which transfers hold the half-links that they cross, each as a queue."""
MODES: Mapping[str, QueueMode] = {
    "parallel": QueueMode(),
    "device": QueueMode(leaving=_SEND, arriving=_RECV),
    "half-duplex": QueueMode(leaving=_CHANNEL, arriving=_CHANNEL),
    "egress": QueueMode(leaving=_SEND),
    LINK_QUEUES: QueueMode(links=QUEUED),
    "fair": QueueMode(links=SHARED),
}


class Queue(NamedTuple):
    """A serial queue of transfers; ``device`` (index) alone owns it (-1: a link, or several)."""

    name: str
    device: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A route that transfers take in one piece, in picoseconds.

    ``resources`` are the queues that they hold, numbered as those of a task graph; ``flow_links``
    the half-links that they share as flows: a transfer has one or the other, or neither.
    ``held_ps`` is the latency that the queues are held for, ``lag_ps`` that which holds nothing,
    ``gap_ps`` how long the queues rest before the next transfer.
    """

    route: Route
    resources: tuple[int, ...]
    flow_links: tuple[int, ...]
    held_ps: int
    lag_ps: int
    gap_ps: int

    @property
    def waits(self) -> bool:
        """Whether a transfer over it can be held up by another."""
        return bool(self.resources or self.flow_links)


def transfer_ps(size: int, segment: Segment) -> int:
    """Duration of a transfer in ps: bytes over bandwidth, and the held latency, each rounded up.

    Raises InputError.
    """
    rate = segment.route.bandwidth
    duration = transmission_ps(size, rate) + segment.held_ps
    if duration > MAX_PS:
        speed = f"{float(rate):g} bytes/s"
        raise InputError(f"a transfer of {size} bytes at {speed} takes more than 53 days")
    return duration


class Fabric:
    """A cluster under its queue mode; ``fabric_of`` gives the shared one.

    A *carrier* is what transfers contend for: a queue, numbered as in ``queues``, or where they
    share rates a half-link. In a task graph the queues follow the compute queues of all devices.
    Raises InputError where no mode has the name that stands in the cluster.
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
        """Whether transfers queue for links or share them."""
        return self.mode.links != FREE

    @property
    def has_queues(self) -> bool:
        """Whether transfers hold queues at all, on which gaps keep the next one waiting."""
        return self.mode.links == QUEUED or bool(self._banks)

    @property
    def holds_several(self) -> bool:
        """Whether a transfer may hold several queues, which a message can pass in turn."""
        return self.mode.links == QUEUED or None not in (self.mode.leaving, self.mode.arriving)

    @property
    def flow_links(self) -> tuple[HalfLink, ...]:
        """The half-links that flows share: all, or none."""
        return self.cluster.half_links if self.shares_rates else ()

    @cached_property
    def _banks(self) -> dict[Bank, tuple[int, ...]]:
        """The queue of every device, in each bank of the mode."""
        banks: dict[Bank, tuple[int, ...]] = {}
        # One bank on both sides is one set of queues: half duplex.
        for bank in filter(None, (self.mode.leaving, self.mode.arriving)):
            owners = [bank.owner(device) for device in self.cluster.devices]
            first = len(set().union(*banks.values()))
            number = {owner: first + i for i, owner in enumerate(dict.fromkeys(owners))}
            banks.setdefault(bank, tuple(number[owner] for owner in owners))
        return banks

    @cached_property
    def queues(self) -> tuple[Queue, ...]:
        """Every queue of transfers by its number: those at devices, then those of half-links."""
        queues: list[Queue] = []
        for bank in self._banks:
            members: dict[str, list[int]] = {}
            for d, device in enumerate(self.cluster.devices):
                members.setdefault(bank.owner(device), []).append(d)
            for owner, group in members.items():
                queues.append(Queue(f"{bank.kind} {owner}", group[0] if len(group) == 1 else -1))
        links = self.cluster.half_links if self.mode.links == QUEUED else ()
        return (*queues, *(Queue(half_link.name, -1) for half_link in links))

    @cached_property
    def _first_link(self) -> int:
        """The number of the first carrier that is a half-link."""
        return len(set().union(*self._banks.values()))

    @property
    def carrier_count(self) -> int:
        """How many carriers there are: all numbers are below."""
        return self._first_link + self.links_serve * len(self.cluster.half_links)

    @cached_property
    def _ends(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """By device what a transfer holds that leaves it, and what one holds that arrives."""
        sides = self.mode.leaving, self.mode.arriving
        nothing: tuple[tuple[int, ...], ...] = ((),) * len(self.cluster.devices)
        return tuple(tuple((q,) for q in self._banks[side]) if side else nothing for side in sides)

    def carriers(
        self, source: int, destination: int, half_links: tuple[int, ...]
    ) -> tuple[int, ...]:
        """What a transfer over these half-links holds or shares, by number, in passing order."""
        # Millions of messages come through here: what no mode needs is not put together.
        if not self._banks:
            return half_links if self.links_serve else ()
        leaving, arriving = self._ends[0][source], self._ends[1][destination]
        if not self.links_serve:
            return leaving if leaving == arriving else leaving + arriving
        links = [self._first_link + half_link for half_link in half_links]
        return tuple(dict.fromkeys((*leaving, *links, *arriving)))

    def rate(self, carrier: int, like: Route) -> Fraction:
        """Bytes per second at which a message over such a route takes a carrier.

        A flow goes as fast as the link can; what holds queues holds all for as long.
        """
        return self._link_rate(carrier) if self.shares_rates else like.bandwidth

    def _link_rate(self, half_link: int) -> Fraction:
        return Fraction(self.cluster.half_links[half_link].link.bandwidth)

    def in_turn(self, segment: Segment) -> tuple[tuple[int, Fraction], ...]:
        """The queues of a segment with their rates (bytes per second), for messages that hold one
        queue after another (``Sync.hold``).

        The queue of a link serves at the rate of that link, those of devices at that of the route.
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
    """The fabric of a cluster, made once for all who ask: it keeps the routes worked out so far.

    Clusters are compared by identity, for comparing thousands of links takes longer than a route.
    A few are kept, those used last.
    """
    # A copy: another thread of the server may add one meanwhile.
    for fabric in tuple(_RECENT):
        if fabric.cluster is cluster:
            return fabric
    fabric = Fabric(cluster)
    _RECENT.append(fabric)
    return fabric


def merged(segments: Sequence[Segment]) -> Segment:
    """A multicast over several routes: all their queues, the smallest bandwidth, largest times."""
    routes = [segment.route for segment in segments]
    half_links = tuple(sorted({half_link for route in routes for half_link in route.half_links}))
    # One send serves all readers, so it goes at the pace of the slowest.
    slowest = min(routes, key=lambda route: route.bandwidth)
    return Segment(
        replace(slowest, devices=routes[0].devices, half_links=half_links),
        tuple(sorted({resource for segment in segments for resource in segment.resources})),
        tuple(sorted({half_link for segment in segments for half_link in segment.flow_links})),
        max(segment.held_ps for segment in segments),
        max(segment.lag_ps for segment in segments),
        max(segment.gap_ps for segment in segments),
    )
