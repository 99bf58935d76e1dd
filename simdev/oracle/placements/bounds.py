"""What a step takes at least, known while it is simulated: bounds that always hold.

A step ends no earlier than an op that starts now plus the longest path behind it (its tail), nor,
where work is left that has not started on a device, than when the device is free again plus that
work. An evaluation with a limit stops where either exceeds it. Instants and lengths as in
PlacementProblem.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import jitable, opener
from ...nouns.graph import Graph
from ...nouns.structure import longest_behind
from ...nouns.taskgraph import Ints
from ..heap import KEY_BITS
from .problem import PlacementProblem

NEVER = 1 << KEY_BITS  # a limit that nothing reaches
# Cells of Bounds: the instant that a step must not reach; the least that is known of its end;
# whether tails hold (ALL) or not yet (0), as a mask of their bits.
LIMIT, LEAST, TAILS, CELLS = range(4)
ALL = -1


class Bounds(NamedTuple):
    """Columns by op and by device."""

    cell: Ints
    tail: Ints  # what an op and the longest path behind it take at least; 0: not known
    rest: Ints  # work of a device that has not started


open_bounds = opener(Bounds)


def bounds_for(problem: PlacementProblem) -> Bounds:
    """Room for bounds; no tail is known."""
    sizes = (CELLS, problem.ops, problem.devices)
    return Bounds(*(np.zeros(size, np.int64) for size in sizes))


def limit_instant(problem: PlacementProblem, limit_ps: int | None) -> int:
    """The first instant beyond a limit in ps (None: there is none)."""
    if limit_ps is None or limit_ps >= (NEVER >> problem.round_bits) - 1:
        return NEVER
    return max(limit_ps, -1) + 1 << problem.round_bits


def fill_tails(problem: PlacementProblem, graph: Graph, tail: Ints) -> None:
    """Write tails that hold for every placement: each op on its fastest device, transfers free."""
    known = problem.duration.reshape(problem.ops, problem.devices)
    least = np.where(known < 0, NEVER, known).min(axis=1)
    tail[:] = longest_behind(graph, np.where(least == NEVER, 0, least).tolist())


@jitable
def begin_bounds(p: PlacementProblem, bounds: Bounds, placement: Ints, limit: int) -> None:
    """Nothing has started."""
    bounds.cell[LIMIT], bounds.cell[LEAST], bounds.cell[TAILS] = limit, 0, ALL
    for device in range(p.devices):
        bounds.rest[device] = 0
    if limit < NEVER:
        for op in range(p.ops):
            device = placement[op]
            bounds.rest[device] += p.duration[op * p.devices + device]


@jitable
def start_op(bounds: Bounds, op: int, device: int, start: int, length: int, finish: int) -> None:
    """An op starts: the step takes at least what is behind it, and what is left on its device."""
    rest = bounds.rest[device] - length
    bounds.rest[device] = rest
    least = max(start + (bounds.tail[op] & bounds.cell[TAILS]), finish + rest)
    bounds.cell[LEAST] = max(bounds.cell[LEAST], least)


@jitable
def is_exceeded(bounds: Bounds) -> bool:
    """Whether the step takes longer than the limit."""
    return bounds.cell[LEAST] >= bounds.cell[LIMIT]


@jitable
def tail_of(p: PlacementProblem, placement: Ints, tail: Ints, op: int) -> int:
    """The tail of an op under a placement, from those of its consumers.

    A transfer takes its own bytes over its own route, at least: one to several devices may last
    longer.
    """
    device, longest = placement[op], 0
    for tensor in range(p.tensor_ptr[op], p.tensor_ptr[op + 1]):
        for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            consumer = p.consumer[e]
            behind, other = tail[consumer], placement[consumer]
            if other != device:
                route = device * p.devices + other
                sending = p.sending[tensor * p.classes + p.route_class[route]]
                behind += sending + p.route_held[route] + p.route_lag[route]
            longest = max(longest, behind)
    return p.duration[op * p.devices + device] + longest
