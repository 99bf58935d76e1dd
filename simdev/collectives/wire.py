"""What a collective's steps find on a cluster: one latency and one bandwidth, with the links that its flows share."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..cluster import UNLIMITED
from ..errors import InputError
from ..fabric import Fabric
from ..routes import Route
from ..units import MAX_PS, picoseconds, transmission_ps
from .legs import Leg, legs

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wire:
    """The latency of a step in seconds, and the bandwidth of each flow in bytes per second while all of them run."""

    latency: Fraction
    bandwidth: Fraction

    def seconds(self, size: Fraction | int) -> Fraction:
        """The time of one step that sends so many bytes a flow."""
        return self.latency + Fraction(size) / self.bandwidth


def flows_wire(fabric: Fabric, flows: Sequence[tuple[int, int]]) -> Wire:
    """The wire of flows (source, destination: device indices) of equal size that run at the same time.

    What they share is what transfers queue for or share on the fabric: a link that two flows cross
    gives each half. The slowest flow counts: the steps of a collective wait for each other. Raises
    InputError where a flow has no route.
    """
    alike: dict[tuple[int, ...], tuple[Leg, ...]] = {}
    crossing: dict[int, Counter[int]] = {}  # how many flows alike cross each resource
    for _, pieces in legs(fabric, flows):
        alike[tuple([id(piece.like) for piece in pieces])] = pieces
        for piece in pieces:
            crossing.setdefault(id(piece.like), Counter()).update(fabric.carriers(piece))
    latency, slowest = Fraction(0), 1 / UNLIMITED
    for pieces in alike.values():
        routes = [piece.like for piece in pieces]
        latency = max(latency, sum((route.held + route.lag + route.gap for route in routes), Fraction(0)))
        times = [1 / route.bandwidth for route in routes]
        slowest = max(slowest, max(times) if _chunked(fabric, pieces) else sum(times, Fraction(0)))
    like = {id(piece.like): piece.like for pieces in alike.values() for piece in pieces}
    return Wire(latency, 1 / max(slowest, _most_loaded(fabric, crossing, like)))


def _most_loaded(fabric: Fabric, crossing: Mapping[int, Mapping[int, int]], like: Mapping[int, Route]) -> Fraction:
    """The largest time per byte of a resource: the sum over the flows that cross it."""
    mixes: dict[int, list[tuple[int, Fraction]]] = {}
    for route, counts in crossing.items():
        for carrier, count in counts.items():
            mixes.setdefault(carrier, []).append((count, fabric.rate(carrier, like[route])))
    different = {tuple((count, id(rate)) for count, rate in mix): mix for mix in mixes.values()}  # Fractions are slow
    loads = (sum((count / rate for count, rate in mix), Fraction(0)) for mix in different.values())
    return max(loads, default=Fraction(0))


@dataclass(frozen=True, slots=True)
class Step:
    """How long one step of a collective takes, in ps: until everything has arrived, until the next one can begin.

    ``latency`` is the part that does not grow with the bytes.
    """

    arrival: int
    next: int
    latency: int


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps one by one, and how many of their messages cross each carrier of the fabric."""

    steps: list[Step]
    crossed: Mapping[int, int]


def steps_of(fabric: Fabric, steps: Sequence[Sequence[tuple[int, int]]], size: int) -> Steps:
    """The steps in each of which every flow (source, destination: device indices) sends ``size`` bytes, as transfers.

    As ``flows_wire``, but every time is rounded up as that of a transfer is, and a flow that shares nothing has its own
    latency and bandwidth. Raises InputError where a flow has no route.
    """
    keys, rows = array("q"), array("q")  # by message and carrier: step x count + carrier, a row of what it is like
    number_of = [number for number, flows in enumerate(steps) for _ in flows]
    alike: dict[tuple[int, ...], int] = {}
    pieces_like: list[tuple[Leg, tuple[int, int, int]]] = []  # with the times of the whole message
    seen: set[tuple[int, int]] = set()
    count = fabric.carrier_count
    for flow, pieces in legs(fabric, [flow for flows in steps for flow in flows]):
        row = alike.setdefault(tuple([id(piece.like) for piece in pieces]), len(pieces_like))
        if row == len(pieces_like):
            times = _times(fabric, pieces, size)
            pieces_like += [(piece, times) for piece in pieces]
        seen.add((number_of[flow], row))
        base = number_of[flow] * count
        for j, piece in enumerate(pieces):
            carriers = fabric.carriers(piece)
            keys.extend([base + carrier for carrier in carriers])
            rows.extend([row + j] * len(carriers))
    found = np.zeros((len(steps), 3), np.int64)
    for number, row in seen:
        arrival, latency, wait = pieces_like[row][1]
        found[number] = np.maximum(found[number], (arrival, arrival + wait, latency))
    if not keys:
        return Steps([Step(*row) for row in found.tolist()], {})
    at, like = np.frombuffer(keys, np.int64), np.frombuffer(rows, np.int64)
    sending = _sending(fabric, at % count, like, [piece.like for piece, _ in pieces_like], size)
    _share(found, at, sending, np.array([times[1:] for _, times in pieces_like], np.int64)[like], count)
    carriers_crossed, crossing = np.unique(at % count, return_counts=True)
    crossed = dict(zip(carriers_crossed.tolist(), crossing.tolist(), strict=True))
    return Steps([Step(*row) for row in found.tolist()], crossed)


def _sending(fabric: Fabric, carriers: Ints, rows: Ints, like: Sequence[Route], size: int) -> Ints:
    """For how long (ps) each message would hold each of its carriers alone."""
    if not fabric.shares_rates:
        return np.array([_sending_ps(size, route.bandwidth) for route in like], np.int64)[rows]
    found = np.zeros(fabric.carrier_count, np.int64)
    for carrier in np.unique(carriers).tolist():
        found[carrier] = _sending_ps(size, fabric.rate(carrier, like[0]))
    return found[carriers]


def _times(fabric: Fabric, pieces: Sequence[Leg], size: int) -> tuple[int, int, int]:
    """In ps: until a message that shares nothing has arrived, its latency, and for how long its link's gap lasts on."""
    routes = [piece.like for piece in pieces]
    latency = sum(picoseconds(route.held) + picoseconds(route.lag) for route in routes)
    times = [_sending_ps(size, route.bandwidth) for route in routes]
    queued = fabric.has_queues and len(routes) == 1
    wait = max(0, picoseconds(routes[0].gap) - picoseconds(routes[0].lag)) if queued else 0
    return latency + (max(times) if _chunked(fabric, pieces) else sum(times)), latency, wait


def _sending_ps(size: int, rate: Fraction) -> int:
    found = transmission_ps(size, rate)
    if found > MAX_PS:
        raise InputError(f"a message of {size} bytes takes more than 53 days")
    return found


def _share(found: Ints, keys: Ints, sending: Ints, times: Ints, count: int) -> None:
    """Lengthen the steps (arrival, next) to what their carriers need that several messages cross."""
    order = np.argsort(keys, kind="stable")
    keys, sending, times = keys[order], sending[order], times[order]
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    if np.add.reduceat(sending.astype(np.float64), first).max() > MAX_PS:
        raise InputError("a step of a collective takes more than 53 days")
    needed = np.add.reduceat(sending, first)
    latency, wait = np.maximum.reduceat(times[:, 0], first), np.maximum.reduceat(times[:, 1], first)
    step = keys[first] // count
    np.maximum.at(found[:, 0], step, needed + latency)
    np.maximum.at(found[:, 1], step, needed + latency + wait)


def ring_wire(fabric: Fabric, devices: Sequence[int]) -> Wire:
    """The wire of a ring through the devices in this order, every one sending to the next."""
    return flows_wire(fabric, [(a, b) for a, b in zip(devices, [*devices[1:], devices[0]], strict=True) if a != b])


def direct_wire(fabric: Fabric, devices: Sequence[int]) -> Wire | None:
    """The wire of rings over all direct links among the devices at once, each taking its part of the bytes.

    Its bandwidth is the smallest sum over a device's links to the others: reached where the links split into rings, as
    on hybrid cube meshes and full meshes. None where direct links do not connect the devices, or transfers queue for
    devices rather than for links.
    """
    cluster, group, found = fabric.cluster, set(devices), []
    if fabric.devices_serve or len(group) < 2:
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


def _chunked(fabric: Fabric, pieces: Sequence[Leg]) -> bool:
    """Whether chunks keep all pieces of a staged route busy at once."""
    return all(fabric.cluster.devices[piece.destination].chunk is not None for piece in pieces[:-1])
