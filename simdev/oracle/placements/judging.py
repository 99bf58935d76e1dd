"""Bounds of a step while it is simulated: whether it must exceed a time limit, and whether its
memory is sure to fit.

A step lasts at least until an op that starts now, and the longest path behind the op (its tail),
have ended. It also lasts at least until a device is free again, plus all its work that has not
started. An evaluation with a limit stops where either bound exceeds the limit.

A device runs its ops one by one, so it never holds more than its persistent bytes, all tensors made
or received there, and the most that one of its ops needs while it runs. Where these totals are
within the capacity of every device, the placement fits, and buffers need not be computed.

``step.py`` and ``moves.py`` call these functions at each op. A new rule that shortens a step or
lengthens a buffer's life must keep both bounds true; ``problem.Sizes`` defines the buffers. Split
ops have other bounds (``splits/run.py``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import jitable, opener
from ...nouns.graph import Graph
from ...nouns.structure import longest_behind
from ...nouns.taskgraph import Ints
from ..cost import NEVER
from ..heap import ps_of, room
from .problem import PER_CONSUMER, PlacementProblem, Sizes, Work

# Cells of Bounds: the ps that a step must not exceed; the least ps that it is known to take; and a
# mask of tails, which is ALL where tails hold, or 0 where they do not hold yet.
LIMIT, LEAST, TAILS, CELLS = range(4)
ALL = -1


class Bounds(NamedTuple):
    """Lower bounds of the time of one evaluation."""

    cell: Ints
    tail: Ints  # by op: the least ps of the op and the longest path behind it; 0: not known
    rest: Ints  # by device: ps of its ops that have not started


open_bounds = opener(Bounds)


def bounds_for(problem: PlacementProblem) -> Bounds:
    """Bounds without known tails."""
    return Bounds(*room(CELLS, problem.ops, problem.devices))


def fill_tails(problem: PlacementProblem, graph: Graph, tail: Ints) -> None:
    """Write tails that hold for every placement: each op on its fastest device, transfers free."""
    known = problem.duration.reshape(problem.ops, problem.devices)
    least = np.where(known < 0, NEVER, known).min(axis=1)
    tail[:] = longest_behind(graph, np.where(least == NEVER, 0, least).tolist())


@jitable
def begin_bounds(p: PlacementProblem, bounds: Bounds, placement: Ints, limit: int) -> None:
    """Set the bounds before the first op; ``limit`` is in ps."""
    bounds.cell[LIMIT], bounds.cell[LEAST], bounds.cell[TAILS] = limit, 0, ALL
    for device in range(p.devices):
        bounds.rest[device] = 0
    for op in range(p.ops):
        device = placement[op]
        bounds.rest[device] += p.duration[op * p.devices + device]


@jitable
def bound(w: Work, bounds: Bounds, op: int, device: int, start: int, finish: int, ps: int) -> None:
    """Raise the lower bound when an op of ``ps`` starts: by its tail, and by the work left on its
    device.
    """
    rest = bounds.rest[device] - ps
    bounds.rest[device] = rest
    behind = ps_of(w, start) + (bounds.tail[op] & bounds.cell[TAILS])
    bounds.cell[LEAST] = max(bounds.cell[LEAST], behind, ps_of(w, finish) + rest)


@jitable
def is_exceeded(bounds: Bounds) -> bool:
    """Whether the step takes longer than the limit."""
    return bounds.cell[LEAST] > bounds.cell[LIMIT]


@jitable
def lasting(p: PlacementProblem, tensor: int, route: int) -> int:
    """The ps for which a transfer of a tensor holds the queues of a route."""
    return p.sending[tensor * p.classes + p.route_class[route]] + p.route_held[route]


@jitable
def tail_of(p: PlacementProblem, placement: Ints, tail: Ints, op: int) -> int:
    """The tail of an op under a placement, from the tails of its consumers.

    Each transfer counts with its tensor's bytes over its route, a lower bound: a multicast may take
    longer.
    """
    device, longest = placement[op], 0
    for tensor in range(p.tensor_ptr[op], p.tensor_ptr[op + 1]):
        for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            behind, other = tail[p.consumer[e]], placement[p.consumer[e]]
            if other != device:
                route = device * p.devices + other
                behind += lasting(p, tensor, route) + p.route_lag[route]
            longest = max(longest, behind)
    return p.duration[op * p.devices + device] + longest


# Totals

PROVEN = 0  # the cell of Totals: whether the totals of the last run prove that it fits
# Each device has BANKS partial sums, taken in turn by ops and added up at the end: with a single
# sum every addition would wait for the one before it in the processor.
BANKS = 4


class Totals(NamedTuple):
    """Columns in bytes; an evaluation writes those from ``cell`` on."""

    kept: Ints  # by op: its persistent bytes and the tensors that it makes
    running: Ints  # by op: bytes needed only while it runs
    sent: Ints  # by tensor: a copy of it
    room: Ints  # by device: its capacity, less the reserved bytes
    cell: Ints
    total: Ints  # by bank and device: all bytes that the device ever holds
    most: Ints  # by bank and device: the most that an op needs while it runs


open_totals = opener(Totals)


def totals_for(problem: PlacementProblem, sizes: Sizes, limits: list[tuple[int, int]]) -> Totals:
    """Totals with room for an evaluation; ``limits`` are pairs of device and capacity."""
    held = np.concatenate(([0], np.cumsum(sizes.held)))
    made = np.diff(held[problem.tensor_ptr])
    left = np.full(problem.devices, NEVER, np.int64)
    for device, capacity in limits:
        left[device] = min(capacity, NEVER) - sizes.reserved[device]
    sums, kept = BANKS * problem.devices, sizes.persistent + made
    return Totals(kept, sizes.running, sizes.sent, left, *room(PROVEN + 1, sums, sums))


def always_fits(problem: PlacementProblem, totals: Totals) -> bool:
    """Whether the smallest device could hold everything, so that every placement fits."""
    copies = np.diff(problem.consumer_ptr) if problem.mode == PER_CONSUMER else 1
    received = int((totals.sent * copies).sum())
    most = int(totals.kept.sum()) + received + int(totals.running.max(initial=0))
    return most <= int(totals.room.min(initial=NEVER))


@jitable
def begin_totals(p: PlacementProblem, m: Totals, placement: Ints) -> None:
    """Set the totals before any transfer: the bytes that the ops of each device keep."""
    for at in range(BANKS * p.devices):
        m.total[at], m.most[at] = 0, 0
    for op in range(p.ops):
        at = (op & (BANKS - 1)) * p.devices + placement[op]
        m.total[at] += m.kept[op]
        m.most[at] = max(m.most[at], m.running[op])


@jitable
def arrive(m: Totals | None, tensor: int, device: int) -> None:
    """A device receives a copy of a tensor."""
    if m is not None:
        m.total[device] += m.sent[tensor]


@jitable
def end_totals(p: PlacementProblem, m: Totals) -> None:
    """Compare the totals with the capacities, and write PROVEN."""
    proven = 1
    for device in range(p.devices):
        total, most = 0, 0
        for at in range(device, BANKS * p.devices, p.devices):
            total, most = total + m.total[at], max(most, m.most[at])
        if total + most > m.room[device]:
            proven = 0
    m.cell[PROVEN] = proven
