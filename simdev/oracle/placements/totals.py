"""Whether a placement fits, by totals: bytes that are ever held on a device, summed up while it is
simulated.

A device runs its ops one by one, so it never holds more than what persists there, all tensors that
are made or received there, and the most that one of its ops needs while it runs. Where that is
within the capacity of every device, the placement fits, and no buffer has to be looked at.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import jitable, opener
from ...nouns.taskgraph import Ints
from ..heap import KEY_BITS
from .problem import PER_CONSUMER, PlacementProblem
from .sizes import Sizes

PROVEN, CELLS = range(2)  # whether the totals of the last run prove that it fits
# Sums by device are kept apart for every so many-th op, and added up at the end: one sum would wait
# for itself at every op.
BANKS = 4
UNLIMITED = 1 << KEY_BITS  # more than all buffers together


class Totals(NamedTuple):
    """Bytes by op, by tensor and by device; then what one evaluation writes, by device."""

    kept: Ints  # by op: throughout, and of the tensors that it makes
    running: Ints
    sent: Ints  # by tensor
    room: Ints  # by device: its capacity, less what is reserved
    cell: Ints
    total: Ints  # by bank and device
    most: Ints  # by bank and device: what an op needs while it runs


open_totals = opener(Totals)


def totals_for(problem: PlacementProblem, sizes: Sizes, limits: list[tuple[int, int]]) -> Totals:
    """The columns, and room for one evaluation; ``limits`` are devices and their capacities."""
    held = np.concatenate(([0], np.cumsum(sizes.held)))
    made = held[problem.tensor_ptr[1:]] - held[problem.tensor_ptr[:-1]]
    room = np.full(problem.devices, UNLIMITED, np.int64)
    for device, capacity in limits:
        room[device] = min(capacity, UNLIMITED) - sizes.reserved[device]
    sums = BANKS * problem.devices
    columns = (np.zeros(size, np.int64) for size in (CELLS, sums, sums))
    return Totals(sizes.persistent + made, sizes.running, sizes.sent, room, *columns)


def always_fits(problem: PlacementProblem, totals: Totals) -> bool:
    """Whether each device could hold everything: no placement is too large then."""
    copies = np.diff(problem.consumer_ptr) if problem.mode == PER_CONSUMER else 1
    received = int((totals.sent * copies).sum())
    most = int(totals.kept.sum()) + received + int(totals.running.max(initial=0))
    return most <= int(totals.room.min(initial=UNLIMITED))


@jitable
def begin_totals(p: PlacementProblem, m: Totals, placement: Ints) -> None:
    """What devices hold for the ops that stand there."""
    for at in range(BANKS * p.devices):
        m.total[at], m.most[at] = 0, 0
    for op in range(p.ops):
        at = (op & (BANKS - 1)) * p.devices + placement[op]
        m.total[at] += m.kept[op]
        m.most[at] = max(m.most[at], m.running[op])


@jitable
def arrive(m: Totals, tensor: int, device: int) -> None:
    """A device receives a copy of a tensor."""
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
