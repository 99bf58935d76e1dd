"""Bounds of a step while it is simulated: whether it must exceed a limit of time, and whether it is
sure to fit.

A step lasts at least until an op that starts now, and the longest path behind it (its tail), have
ended. Where a device has work that has not started, the step lasts at least until the device is
free again plus that work. An evaluation with a limit stops where either exceeds it.

A device runs its ops one by one, so it never holds more than persistent bytes, all tensors made or
received there, and the most that one of its ops needs while it runs. Where these totals
are within the capacity of every device, the placement fits, and no buffer has to be looked at.

``step.py`` and ``moves.py`` call it at each op. A rule that shortens a step or lengthens a buffer's
life has to keep both bounds true; what a buffer is, ``problem.Sizes`` tells. Split ops have bounds
of their own in ``splits/run.py``.
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

# Cells of Bounds: the ps that a step must not exceed; the least ps that it is known to take; and
# whether tails hold (ALL) or not yet (0), as a mask of their bits.
LIMIT, LEAST, TAILS, CELLS = range(4)
ALL = -1


class Bounds(NamedTuple):
    """Lower bounds of the time of one evaluation."""

    cell: Ints
    tail: Ints  # by op: ps that it and the longest path behind it take at least; 0: not known
    rest: Ints  # by device: ps of its ops that have not started


open_bounds = opener(Bounds)


def bounds_for(problem: PlacementProblem) -> Bounds:
    """Room for bounds; no tail is known."""
    return Bounds(*room(CELLS, problem.ops, problem.devices))


def fill_tails(problem: PlacementProblem, graph: Graph, tail: Ints) -> None:
    """Write tails that hold for every placement: each op on its fastest device, transfers free."""
    known = problem.duration.reshape(problem.ops, problem.devices)
    least = np.where(known < 0, NEVER, known).min(axis=1)
    tail[:] = longest_behind(graph, np.where(least == NEVER, 0, least).tolist())


@jitable
def begin_bounds(p: PlacementProblem, bounds: Bounds, placement: Ints, limit: int) -> None:
    """Nothing has started; ``limit`` in ps."""
    bounds.cell[LIMIT], bounds.cell[LEAST], bounds.cell[TAILS] = limit, 0, ALL
    for device in range(p.devices):
        bounds.rest[device] = 0
    for op in range(p.ops):
        device = placement[op]
        bounds.rest[device] += p.duration[op * p.devices + device]


@jitable
def bound(w: Work, bounds: Bounds, op: int, device: int, start: int, finish: int, ps: int) -> None:
    """An op of so many ps starts: the step takes at least what is behind it, and what is left on
    its device.
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
    """How many ps a transfer of a tensor holds the queues of a route."""
    return p.sending[tensor * p.classes + p.route_class[route]] + p.route_held[route]


@jitable
def tail_of(p: PlacementProblem, placement: Ints, tail: Ints, op: int) -> int:
    """The tail of an op under a placement, from the tails of its consumers.

    A transfer takes its own bytes over its own route, at least: one to several devices may last
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
# Sums by device are kept apart for every so many-th op, and added up at the end: one sum would wait
# for itself at every op.
BANKS = 4


class Totals(NamedTuple):
    """Bytes; from ``cell`` on, what one evaluation writes."""

    kept: Ints  # by op: throughout, and of the tensors that it makes
    running: Ints  # by op: while it runs
    sent: Ints  # by tensor: a copy of it
    room: Ints  # by device: its capacity, less what is reserved
    cell: Ints
    total: Ints  # by bank and device: what it ever holds
    most: Ints  # by bank and device: what an op needs while it runs


open_totals = opener(Totals)


def totals_for(problem: PlacementProblem, sizes: Sizes, limits: list[tuple[int, int]]) -> Totals:
    """The columns, and room for one evaluation; ``limits`` are devices and their capacities."""
    held = np.concatenate(([0], np.cumsum(sizes.held)))
    made = np.diff(held[problem.tensor_ptr])
    left = np.full(problem.devices, NEVER, np.int64)
    for device, capacity in limits:
        left[device] = min(capacity, NEVER) - sizes.reserved[device]
    sums, kept = BANKS * problem.devices, sizes.persistent + made
    return Totals(kept, sizes.running, sizes.sent, left, *room(PROVEN + 1, sums, sums))


def always_fits(problem: PlacementProblem, totals: Totals) -> bool:
    """Whether each device could hold everything: no placement is too large then."""
    copies = np.diff(problem.consumer_ptr) if problem.mode == PER_CONSUMER else 1
    received = int((totals.sent * copies).sum())
    most = int(totals.kept.sum()) + received + int(totals.running.max(initial=0))
    return most <= int(totals.room.min(initial=NEVER))


@jitable
def begin_totals(p: PlacementProblem, m: Totals, placement: Ints) -> None:
    """Each device holds what its own ops keep, before it has received anything."""
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
    """Compare, and write PROVEN."""
    proven = 1
    for device in range(p.devices):
        total, most = 0, 0
        for at in range(device, BANKS * p.devices, p.devices):
            total, most = total + m.total[at], max(most, m.most[at])
        if total + most > m.room[device]:
            proven = 0
    m.cell[PROVEN] = proven
