"""Rounds of a collective: the time of each round, and the time for which it occupies each carrier,
at any size of messages.

Every message takes its route, and every carrier (a queue of transfers, or a half-link) serves the
messages that cross it one after the other. So no round sends more bytes over a link, or over any
cut of the links, than these can carry. A closed form is the sum of the rounds.

``CollectiveModel`` asks for closed forms, ``lowering.hybrid`` for the wire of neighbouring ranks.
Carriers and rates are the fabric's (``nouns/fabric.py``), where a queue mode is added.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np

from ...ground.errors import InputError
from ...ground.units import MAX_PS, PS_PER_SECOND, picoseconds, transmission_ps
from ...nouns.cluster import UNLIMITED, Cluster
from ...nouns.fabric import Fabric, Route
from ...nouns.taskgraph import Ints
from .phases import Phase

LEAST_CHUNK = 4096  # bytes: no message is cut into smaller ones

# Ways of many messages at once, without a Route for each: an all-to-all of 1,000 ranks has a
# million messages. Where only one shortest route leads from one device to another, a walk outwards
# from the first device gives it.

Flow = tuple[int, int]
# From this number of destinations of one source on, one walk is faster than a route for each.
MANY = 8
# Half-links, and the number of the kind of way: ways over links of equal quantities are of a kind.
Way = tuple[tuple[int, ...], int]
# For each device its neighbours, and the half-link to each.
Near = dict[int, dict[int, int]]


class Leg(NamedTuple):
    """A piece of a message's way. ``like`` is a route of the same bandwidth, latencies and gap."""

    source: int
    destination: int
    half_links: tuple[int, ...]
    like: Route


def legs(fabric: Fabric, flows: Sequence[Flow]) -> Iterator[tuple[int, tuple[Leg, ...]]]:
    """Yields the position of each flow (source, destination) in ``flows``, and the pieces of its
    way; all flows of one source come together.

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
    """The devices through which ways between the ``ends`` may lead, with their half-links. A walk
    over a large cluster would else meet thousands of devices.
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
    """The ways from the source to all devices of ``near`` to which a single shortest route leads.
    ``numbers`` numbers the kinds of ways and is extended.

    The walk goes layer by layer. Behind a device that several ways lead to, all devices have
    several ways, too.
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


class RoundTime(NamedTuple):
    """Times of a round in ps from its begin: ``arrival``, when all its messages have arrived;
    ``next``, when the next round can begin. ``latency`` is the part of ``arrival`` that does not
    grow with the bytes.
    """

    arrival: int
    next: int
    latency: int


@dataclass(frozen=True, slots=True)
class MessageKind:
    """Messages whose ways have the same quantities: for each piece of the way the number of its
    rate; latency and gap in ps.

    ``wait`` is the part of the gap that delays the next message. A ``chunked`` message is passed on
    in chunks, which keep all pieces of its way busy at once.
    """

    rates: tuple[int, ...]
    chunked: bool
    latency: int
    gap: int
    wait: int

    def sending(self, times: Sequence[int] | Sequence[Fraction]) -> int | Fraction:
        """The time that sending a message takes when it shares no piece of its way, given the time
        at each rate.
        """
        pieces = [times[rate] for rate in self.rates]
        return max(pieces) if self.chunked else sum(pieces)


@dataclass(frozen=True, slots=True)
class Wire:
    """The latency of a round in seconds, and the bytes per second of a flow while all flows run."""

    latency: Fraction
    bandwidth: Fraction


@dataclass(frozen=True)
class Rounds:
    """Rounds in which all messages have one size, which is not yet fixed.

    ``seen`` pairs rounds with the kinds of messages sent in them. A *crossing* is the number of
    messages that cross a carrier of the fabric in a round at one rate; crossings are sorted by
    round and carrier, and those of one carrier in one round begin at a position in ``first``.
    """

    count: int
    rates: tuple[Fraction, ...]
    kinds: tuple[MessageKind, ...]
    seen: Ints  # (round, kind)
    crossings: Ints  # (number of messages, number of the rate)
    first: Ints
    held: Ints  # by round and carrier: (round, carrier, messages, latency, wait)

    def at(self, size: int) -> tuple[list[RoundTime], Ints]:
        """The times of the rounds when a message has ``size`` bytes, and for how long (ps) the
        carrier of each row of ``held`` is busy.

        Raises InputError where a round takes more than 53 days.
        """
        sending = [_sending_ps(size, rate) for rate in self.rates]
        arrivals = [kind.latency + kind.sending(sending) for kind in self.kinds]
        ends = zip(arrivals, self.kinds, strict=True)
        times = np.array([(end, end + kind.wait, kind.latency) for end, kind in ends], np.int64)
        rounds = np.zeros((self.count, 3), np.int64)
        np.maximum.at(rounds, self.seen[:, 0], times.reshape(-1, 3)[self.seen[:, 1]])
        busy = np.zeros(0, np.int64)
        if len(self.first):
            messages, each = self.crossings[:, 0], np.array(sending, np.int64)
            each = each[self.crossings[:, 1]]
            # In floats first, for the products and sums may leave 63 bits.
            if np.add.reduceat(messages * each.astype(np.float64), self.first).max() > MAX_PS:
                raise InputError("a step of a collective takes more than 53 days")
            busy = np.add.reduceat(messages * each, self.first)
            number, latency, wait = self.held[:, 0], self.held[:, 3], self.held[:, 4]
            np.maximum.at(rounds[:, 0], number, busy + latency)
            np.maximum.at(rounds[:, 1], number, busy + latency + wait)
        return [RoundTime(*row) for row in rounds.tolist()], busy

    def crossed(self) -> Mapping[int, int]:
        """The number of messages that cross each carrier in all rounds together."""
        crossed = Counter[int]()
        for carrier, messages in self.held[:, 1:3].tolist():
            crossed[carrier] += messages
        return crossed

    def wire(self) -> Wire:
        """The latency and bandwidth of the slowest flow while all flows run."""
        per_byte = [1 / rate for rate in self.rates]
        # A flow can be slower than any carrier on it: staged without chunks, its pieces add up.
        slowest = max(Fraction(kind.sending(per_byte)) for kind in self.kinds)
        rows, borders = self.crossings.tolist(), [*self.first.tolist(), len(self.crossings)]
        # Most carriers have the same crossings, and sums of Fractions are slow.
        mixes = {tuple(map(tuple, rows[a:b])) for a, b in pairwise(borders)}
        loads = (sum(count * per_byte[rate] for count, rate in mix) for mix in mixes)
        latency = max(kind.latency + kind.gap for kind in self.kinds)
        return Wire(Fraction(latency, PS_PER_SECOND), 1 / max(slowest, 1 / UNLIMITED, *loads))


def flows_wire(fabric: Fabric, flows: Sequence[Flow]) -> Wire:
    """The latency and bandwidth of flows (source, destination: device indices) of equal size that
    run at once.

    They share the carriers of the fabric: a link that two flows cross gives half its bandwidth to
    each. Raises InputError where a flow has no route.
    """
    return rounds_of(fabric, [flows]).wire()


def best_chunks(stations: int, size: Fraction | int, wire: Wire) -> int:
    """The number of chunks with which a message of ``size`` bytes passes ``stations`` hops soonest.

    k chunks take (stations + k - 1) (alpha + S / (k B)), least at the root of (stations - 1) S /
    (alpha B). The answer is the better of the two whole numbers around the root; on a tie the
    smaller one.
    """
    most = max(1, int(size) // LEAST_CHUNK)
    if wire.latency == 0:
        return most
    root = isqrt(int((stations - 1) * Fraction(size) / (wire.latency * wire.bandwidth)))

    def seconds(chunks: int) -> Fraction:
        return (stations + chunks - 1) * (wire.latency + size / (chunks * wire.bandwidth))

    return min((min(most, max(1, chunks)) for chunks in (root, root + 1)), key=seconds)


def rounds_of(fabric: Fabric, rounds: Sequence[Sequence[Flow]]) -> Rounds:
    """Rounds, given the flows (source, destination: device indices) that send in each of them.

    Times are rounded up, as the times of transfers are. Raises InputError where a flow has no
    route.
    """
    # An entry for each message and carrier: round x count + carrier in ``keys``, the number of the
    # piece in ``rows``. They are arrays, for an all-to-all of 1,000 ranks has a million messages.
    keys, rows = array("q"), array("q")
    number_of = [number for number, flows in enumerate(rounds) for _ in flows]
    alike: dict[tuple[int, ...], tuple[int, int]] = {}  # number of a kind and of its first piece
    pieces_like: list[Leg] = []
    kinds: list[tuple[Leg, ...]] = []
    seen: set[tuple[int, int]] = set()
    count = fabric.carrier_count
    for flow, pieces in legs(fabric, [flow for flows in rounds for flow in flows]):
        like = tuple([id(piece.like) for piece in pieces])
        kind, row = alike.setdefault(like, (len(kinds), len(pieces_like)))
        if kind == len(kinds):
            kinds.append(pieces)
            pieces_like += pieces
        seen.add((number_of[flow], kind))
        base = number_of[flow] * count
        for j, piece in enumerate(pieces):
            carriers = fabric.carriers(*piece[:3])
            keys.extend([base + carrier for carrier in carriers])
            rows.extend([row + j] * len(carriers))
    rates: dict[Fraction, int] = {}
    message_kinds = tuple(_kind(fabric, pieces, rates) for pieces in kinds)
    owner = [kind for kind, pieces in zip(message_kinds, kinds, strict=True) for _ in pieces]
    crossings, first, held = _crossings(
        fabric, np.array(keys), np.array(rows), (pieces_like, owner, rates), count
    )
    # Kinds were told apart by the identity of their routes, which is quick; many of them are equal.
    distinct = {kind: number for number, kind in enumerate(dict.fromkeys(message_kinds))}
    pairs = sorted({(number, distinct[message_kinds[kind]]) for number, kind in seen})
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return Rounds(len(rounds), tuple(rates), tuple(distinct), table, crossings, first, held)


def _crossings(
    fabric: Fabric,
    keys: Ints,
    rows: Ints,
    pieces: tuple[list[Leg], list[MessageKind], dict[Fraction, int]],
    count: int,
) -> tuple[Ints, Ints, Ints]:
    """The fields ``crossings``, ``first`` and ``held`` of ``Rounds``."""
    if not len(keys):
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros((0, 5), np.int64)
    legs_like, kinds, rates = pieces
    pairs, messages = np.unique(keys * len(legs_like) + rows, return_counts=True)
    keys, rows = np.divmod(pairs, len(legs_like))
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    # The number of the rate at which the messages of a row cross a carrier.
    taken = list(zip((keys % count).tolist(), rows.tolist(), strict=True))
    numbers = {
        (carrier, row): rates.setdefault(fabric.rate(carrier, legs_like[row].like), len(rates))
        for carrier, row in dict.fromkeys(taken)
    }
    waits = np.array([(kind.latency, kind.wait) for kind in kinds], np.int64)[rows]
    held = np.column_stack(
        (
            *np.divmod(keys[first], count),
            np.add.reduceat(messages, first),
            np.maximum.reduceat(waits, first),
        )
    )
    return np.column_stack((messages, [numbers[key] for key in taken])), first, held


def _kind(fabric: Fabric, pieces: Sequence[Leg], rates: dict[Fraction, int]) -> MessageKind:
    routes, devices = [piece.like for piece in pieces], fabric.cluster.devices
    gap = sum(picoseconds(route.gap) for route in routes)
    # A later piece of a staged route hides the gap of the one before it.
    queued = fabric.has_queues and len(routes) == 1
    return MessageKind(
        tuple(rates.setdefault(route.bandwidth, len(rates)) for route in routes),
        all(devices[piece.destination].chunk is not None for piece in pieces[:-1]),
        sum(picoseconds(route.held) + picoseconds(route.lag) for route in routes),
        gap,
        max(0, gap - picoseconds(routes[0].lag)) if queued else 0,
    )


def _sending_ps(size: int, rate: Fraction) -> int:
    ps = transmission_ps(size, rate)
    if ps > MAX_PS:
        raise InputError(f"a message of {size} bytes takes more than 53 days")
    return ps


@dataclass(frozen=True, slots=True)
class Closed:
    """A closed form in ps, the part of it that is latency, and its number of rounds."""

    ps: int
    latency: int
    rounds: int


class ClosedForms:
    """Closed forms on a fabric. Ways of messages are walked once and kept for every size."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self._rounds: dict[tuple[tuple[tuple[int, int, int], ...], bool], Rounds] = {}

    def closed(self, phases: Sequence[Phase]) -> Closed:
        """The sum over the rounds of all phases.

        A link's gap after the last round is left out, for nothing waits for it. Raises InputError
        where a route is missing or a round takes more than 53 days.
        """
        total = latency = count = trailing = 0
        for phase in phases:
            rounds, together = self._of(phase)
            times, _ = rounds.at(phase.size)
            # The last round is repeated, maybe millions of times: it is multiplied, not walked.
            last, again = times[-1], phase.repeats - 1 - together
            total += sum(time.next for time in times) + again * last.next
            latency += sum(time.latency for time in times) + again * last.latency
            count += len(times) + again
            trailing = last.next - last.arrival
        return Closed(total - trailing, latency, count)

    def crossed(self, phases: Sequence[Phase]) -> Mapping[int, int]:
        """The bytes that cross each carrier, sorted by when a carrier is first crossed."""
        crossed = Counter[int]()
        for phase in phases:
            rounds, together = self._of(phase)
            for carrier, messages in sorted(rounds.crossed().items()):
                crossed[carrier] += messages // (1 + together) * phase.size * phase.repeats
        return crossed

    def busy(self, phases: Sequence[Phase]) -> Ints:
        """The ps for which the messages occupy each carrier, without latencies."""
        total = np.zeros(self.fabric.carrier_count, np.int64)
        for phase in phases:
            rounds, together = self._of(phase)
            _, busy = rounds.at(phase.size)
            np.add.at(total, rounds.held[:, 1], busy // (1 + together) * phase.repeats)
        return total

    def _of(self, phase: Phase) -> tuple[Rounds, bool]:
        """The first rounds of a phase, and whether one more round follows in which all of their
        messages are sent at once.

        It follows where a phase of several first rounds is repeated.
        """
        together = phase.repeats > 1 and any(first for _, _, first in phase.messages)
        key = phase.messages, together
        if key not in self._rounds:
            firsts = phase.by_first()
            every = [[flow for flows in firsts for flow in flows]] if together else []
            self._rounds[key] = rounds_of(self.fabric, [*firsts, *every])
        return self._rounds[key], together
