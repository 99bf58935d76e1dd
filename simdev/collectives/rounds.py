"""Rounds of a collective: how long each takes and holds each carrier, at any size of messages.

Every message goes its route, and every carrier (a queue of transfers, or a half-link) serves those
that cross it one after the other: so no round sends more bytes over a link than it carries, and no
cut of the links is ever exceeded.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..fabric import Fabric, Route
from ..units import MAX_PS, picoseconds, transmission_ps
from .legs import Leg, legs
from .wire import chunked

Ints = NDArray[np.int64]
Flow = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Step:
    """In ps how long a step of a collective takes: until all has arrived, until the next can begin.

    ``latency`` is the part that does not grow with the bytes.
    """

    arrival: int
    next: int
    latency: int


@dataclass(frozen=True, slots=True)
class Kind:
    """Messages alike: the numbers of their pieces' rates, in ps their latency and what a gap
    adds.
    """

    rates: tuple[int, ...]
    chunked: bool
    latency: int
    wait: int

    def arrival(self, sending: Sequence[int]) -> int:
        """When a message that shares nothing has arrived; chunks keep all pieces of a route
        busy.
        """
        times = [sending[rate] for rate in self.rates]
        return self.latency + (max(times) if self.chunked else sum(times))


@dataclass(frozen=True)
class Rounds:
    """Steps in each of which every flow sends as many bytes; whatever their number.

    ``seen`` has the kinds of messages of each step. The messages on each carrier of the fabric in
    each step are *crossings*, in rows by step and carrier: how many there are at which rate; those
    of one carrier in one step begin at ``first``.
    """

    count: int
    rates: tuple[Fraction, ...]
    kinds: tuple[Kind, ...]
    seen: Ints  # (step, kind)
    crossings: Ints  # (number of messages, number of the rate)
    first: Ints
    held: Ints  # by step and carrier: (step, carrier, messages, latency, wait)

    def at(self, size: int) -> tuple[list[Step], Ints]:
        """The steps with messages of so many bytes, and how long (ps) each row of ``held`` is busy.

        Raises InputError where a time is absurd.
        """
        sending = [_sending_ps(size, rate) for rate in self.rates]
        arrivals = [kind.arrival(sending) for kind in self.kinds]
        times = np.array(
            [(end, end + k.wait, k.latency) for end, k in zip(arrivals, self.kinds, strict=True)],
            np.int64,
        ).reshape(-1, 3)
        found = np.zeros((self.count, 3), np.int64)
        np.maximum.at(found, self.seen[:, 0], times[self.seen[:, 1]])
        busy = np.zeros(0, np.int64)
        if len(self.first):
            each = np.array(sending, np.int64)[self.crossings[:, 1]]
            if (
                np.add.reduceat(self.crossings[:, 0] * each.astype(np.float64), self.first).max()
                > MAX_PS
            ):
                raise InputError("a step of a collective takes more than 53 days")
            busy = np.add.reduceat(self.crossings[:, 0] * each, self.first)
            steps, latency, wait = self.held[:, 0], self.held[:, 3], self.held[:, 4]
            np.maximum.at(found[:, 0], steps, busy + latency)
            np.maximum.at(found[:, 1], steps, busy + latency + wait)
        return [Step(*row) for row in found.tolist()], busy

    def crossed(self) -> Mapping[int, int]:
        """How many messages cross each carrier, in all steps."""
        carriers, rows = np.unique(self.held[:, 1], return_inverse=True)
        counts = np.zeros(len(carriers), np.int64)
        np.add.at(counts, rows, self.held[:, 2])
        return dict(zip(carriers.tolist(), counts.tolist(), strict=True))


def rounds_of(fabric: Fabric, steps: Sequence[Sequence[Flow]]) -> Rounds:
    """The rounds in each of which these flows (source, destination: device indices) send.

    Times are rounded up as those of transfers are. Raises InputError where a flow has no route.
    """
    keys, rows = (
        array("q"),
        array("q"),
    )  # by message and resource: step x count + carrier; which piece of which kind
    number_of = [number for number, flows in enumerate(steps) for _ in flows]
    alike: dict[tuple[int, ...], tuple[int, int]] = {}  # number of a kind and of its first piece
    pieces_like: list[Leg] = []
    kinds: list[tuple[Leg, ...]] = []
    seen: set[tuple[int, int]] = set()
    count = fabric.carrier_count
    for flow, pieces in legs(fabric, [flow for flows in steps for flow in flows]):
        kind, row = alike.setdefault(
            tuple([id(piece.like) for piece in pieces]), (len(kinds), len(pieces_like))
        )
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
    alike_kinds = tuple(_kind(fabric, pieces, rates) for pieces in kinds)
    owner = [kind for kind, pieces in zip(alike_kinds, kinds, strict=True) for _ in pieces]
    crossings, first, table = _crossings(
        fabric, np.array(keys), np.array(rows), (pieces_like, owner, rates), count
    )
    own = np.array(sorted(seen), np.int64).reshape(-1, 2)
    return Rounds(len(steps), tuple(rates), alike_kinds, own, crossings, first, table)


def _crossings(
    fabric: Fabric,
    keys: Ints,
    rows: Ints,
    pieces: tuple[list[Leg], list[Kind], dict[Fraction, int]],
    count: int,
) -> tuple[Ints, Ints, Ints]:
    """``crossings``, ``first`` and ``held`` of Rounds."""
    if not len(keys):
        return np.zeros((0, 2), np.int64), np.zeros(0, np.int64), np.zeros((0, 5), np.int64)
    legs_like, kinds, rates = pieces
    pairs, messages = np.unique(keys * len(legs_like) + rows, return_counts=True)
    keys, rows = pairs // len(legs_like), pairs % len(legs_like)
    first = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    numbers = np.array(list(_rate_numbers(fabric, keys % count, rows, legs_like, rates)), np.int64)
    waits = np.array([(kind.latency, kind.wait) for kind in kinds], np.int64)[rows]
    held = np.column_stack(
        [
            keys[first] // count,
            keys[first] % count,
            np.add.reduceat(messages, first),
            np.maximum.reduceat(waits[:, 0], first),
            np.maximum.reduceat(waits[:, 1], first),
        ]
    )
    return np.column_stack([messages, numbers]), first, held


def _rate_numbers(
    fabric: Fabric, carriers: Ints, rows: Ints, like: Sequence[Leg], rates: dict[Fraction, int]
) -> Iterator[int]:
    """The number of the rate at which messages of a row take a carrier; new rates get numbers."""
    known: dict[tuple[int, int], int] = {}
    for carrier, row in zip(carriers.tolist(), rows.tolist(), strict=True):
        if (carrier, row) not in known:
            rate = fabric.rate(carrier, like[row].like)
            known[carrier, row] = rates.setdefault(rate, len(rates))
        yield known[carrier, row]


def _kind(fabric: Fabric, pieces: Sequence[Leg], rates: dict[Fraction, int]) -> Kind:
    routes: list[Route] = [piece.like for piece in pieces]
    numbers = tuple(rates.setdefault(route.bandwidth, len(rates)) for route in routes)
    latency = sum(picoseconds(route.held) + picoseconds(route.lag) for route in routes)
    queued = fabric.has_queues and len(routes) == 1
    wait = max(0, picoseconds(routes[0].gap) - picoseconds(routes[0].lag)) if queued else 0
    return Kind(numbers, chunked(fabric, pieces), latency, wait)


def _sending_ps(size: int, rate: Fraction) -> int:
    found = transmission_ps(size, rate)
    if found > MAX_PS:
        raise InputError(f"a message of {size} bytes takes more than 53 days")
    return found
