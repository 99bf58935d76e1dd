"""Exact re-simulation of a placement in which a few ops have moved.

The base run leaves snapshots of its state, evenly spaced in ops taken up. A move first matters when a predecessor of a
moved op is taken up (is its consumer here or away?) or the op itself, so the run restarts at the last snapshot before
that. At every later snapshot it is compared with the base: where the moved ops are done, the same ops are taken and
pending, and every instant that still matters differs by one and the same shift, the rest of the run is the base's rest,
shifted. (Instants before now cannot matter any more and count as now.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit import jit, jitable
from ..taskgraph import Ints
from .cost import TOO_LONG
from .kernel import LATE, NOBODY, TAKEN, clear, compute, happen, take
from .question import Question, Work

SNAPSHOTS = 32
# Cells of a snapshot: size of the heap, the key beside it, now, the last finish so far, until the next one, afterwards.
SIZE, BESIDE, NOW, LAST, NEXT, REST, CELLS = range(7)


class Base(NamedTuple):
    """The snapshots of a base run, one row each, flat; ``position`` is how many ops were taken before each op."""

    stride: int
    rows: Ints  # [0]: how many snapshots there are; [1]: from which one the last replay started
    cell: Ints
    missing: Ints
    ready: Ints
    finish: Ints
    behind: Ints
    free: Ints
    line_end: Ints
    heap: Ints
    position: Ints


def base_for(question: Question) -> Base:
    """Room for the snapshots."""
    ops = len(question.waits)
    stride = max(ops // SNAPSHOTS + 1, 1)
    rows = ops // stride + 2
    return Base(
        stride,
        np.zeros(2, np.int64),
        np.empty(rows * CELLS, np.int64),
        np.empty(rows * ops, np.int64),
        np.empty(rows * ops, np.int64),
        np.empty(rows * ops, np.int64),
        np.empty(rows * ops, np.int64),
        np.empty(rows * question.queues, np.int64),
        np.empty(rows * question.devices, np.int64),
        np.empty(rows * (ops + question.devices + 2), np.int64),
        np.empty(ops, np.int64),
    )


@jitable
def save(q: Question, w: Work, b: Base, row: int, now: int, last: int) -> None:
    """Write the state to a snapshot."""
    ops = len(q.waits)
    for i in range(ops):
        at = row * ops + i
        b.missing[at], b.ready[at], b.finish[at], b.behind[at] = w.missing[i], w.ready[i], w.finish[i], w.behind[i]
    for i in range(q.queues):
        b.free[row * q.queues + i] = w.free[i]
    for i in range(q.devices):
        b.line_end[row * q.devices + i] = w.line_end[i]
    for i in range(w.cell[0]):
        b.heap[row * len(w.heap) + i] = w.heap[i]
    at = row * CELLS
    b.cell[at + SIZE], b.cell[at + BESIDE], b.cell[at + NOW], b.cell[at + LAST] = w.cell[0], w.cell[1], now, last
    b.cell[at + NEXT] = 0


@jitable
def restore(q: Question, w: Work, b: Base, row: int) -> None:
    """Read the state of a snapshot."""
    ops = len(q.waits)
    for i in range(ops):
        at = row * ops + i
        w.missing[i], w.ready[i], w.finish[i], w.behind[i] = b.missing[at], b.ready[at], b.finish[at], b.behind[at]
    for i in range(q.queues):
        w.free[i] = b.free[row * q.queues + i]
    for i in range(q.devices):
        w.line_end[i] = b.line_end[row * q.devices + i]
    w.cell[0], w.cell[1] = b.cell[row * CELLS + SIZE], b.cell[row * CELLS + BESIDE]
    for i in range(w.cell[0]):
        w.heap[i] = b.heap[row * len(w.heap) + i]


@jitable
def same_rest(q: Question, w: Work, b: Base, row: int, now: int, moved: Ints) -> bool:
    """Whether the moved ops are done, and the state is that of the snapshot, shifted in time."""
    before = b.cell[row * CELLS + NOW]
    shift = now - before
    if shift & ((1 << q.round_bits) - 1):
        return False
    for k in range(len(moved)):
        if w.missing[moved[k]] != TAKEN or w.finish[moved[k]] != NOBODY:
            return False
    for i in range(q.queues):
        if max(w.free[i], now) - max(b.free[row * q.queues + i], before) != shift:
            return False
    return same_ops(q, w, b, row, now, shift)


@jitable
def same_ops(q: Question, w: Work, b: Base, row: int, now: int, shift: int) -> bool:
    """Whether every op stands as in the snapshot, its instants shifted."""
    for i in range(len(q.waits)):
        at = row * len(q.waits) + i
        if w.missing[i] != b.missing[at] or (w.finish[i] == NOBODY) != (b.finish[at] == NOBODY):
            return False
        if w.finish[i] != NOBODY and w.finish[i] - b.finish[at] != shift:
            return False
        if w.missing[i] != TAKEN and max(w.ready[i], now) - max(b.ready[at], now - shift) != shift:
            return False
    return True


@jit
def record_base(q: Question, w: Work, b: Base, placement: Ints, row: int) -> int:
    """Run a placement from a snapshot on (row -1: from the start), and leave snapshots.

    Returns the step time in ps, or TOO_LONG (see ``step``): then there is no base.
    """
    if row < 0:
        clear(q, w)
        row = 0
        save(q, w, b, 0, 0, 0)
    restore(q, w, b, row)
    b.cell[row * CELLS + NEXT] = 0
    taken, last, key, ops, mask = row * b.stride, b.cell[row * CELLS + LAST], 0, len(placement), (1 << q.id_bits) - 1
    while True:
        if taken < len(q.roots):
            task = q.roots[taken]
            finish = compute(q, w, None, placement, task, 0)
        else:
            key = take(w)
            if key == LATE:
                break
            task = key & mask
            finish = happen(q, w, None, placement, key)
        last = max(last, finish)
        b.cell[row * CELLS + NEXT] = max(b.cell[row * CELLS + NEXT], finish)
        if task < ops:
            b.position[task] = taken
            taken += 1
            if taken % b.stride == 0:
                row += 1
                save(q, w, b, row, key >> q.id_bits, last)
    b.rows[0] = row + 1
    rest = 0
    for k in range(row, -1, -1):
        rest = max(rest, b.cell[k * CELLS + NEXT])
        b.cell[k * CELLS + REST] = rest
    return last >> q.round_bits if last >> (62 - q.id_bits) == 0 else TOO_LONG


@jitable
def first_row(q: Question, b: Base, producer_ptr: Ints, producer: Ints, moved: Ints) -> int:
    """The last snapshot before anything that the moved ops change."""
    first = len(q.waits)
    for k in range(len(moved)):
        op = moved[k]
        first = min(first, b.position[op])
        for e in range(producer_ptr[op], producer_ptr[op + 1]):
            first = min(first, b.position[producer[e]])
    return first // b.stride


@jit
def replay(q: Question, w: Work, b: Base, placement: Ints, producer_ptr: Ints, producer: Ints, moved: Ints) -> int:
    """The step time in ps of a placement that differs from the base in ``moved`` ops.

    ``producer`` lists the predecessors of each op. ``b.rows[1]`` is left at the snapshot from which it was simulated.
    """
    row = first_row(q, b, producer_ptr, producer, moved)
    b.rows[1] = row
    restore(q, w, b, row)
    taken, last, key, mask = row * b.stride, b.cell[row * CELLS + LAST], 0, (1 << q.id_bits) - 1
    while True:
        if taken < len(q.roots):
            last = max(last, compute(q, w, None, placement, q.roots[taken], 0))
            taken += 1
        else:
            key = take(w)
            if key == LATE:
                return last >> q.round_bits if last >> (62 - q.id_bits) == 0 else TOO_LONG
            last = max(last, happen(q, w, None, placement, key))
            if key & mask >= len(placement):
                continue
            taken += 1
        if taken % b.stride:
            continue
        row, now = taken // b.stride, key >> q.id_bits
        if row < b.rows[0] and same_rest(q, w, b, row, now, moved):
            rest = b.cell[row * CELLS + REST]
            last = max(last, rest + now - b.cell[row * CELLS + NOW] if rest > 0 else 0)
            return last >> q.round_bits if last >> (62 - q.id_bits) == 0 else TOO_LONG
