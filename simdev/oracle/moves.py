"""Exact re-simulation of a placement in which a few ops have moved.

The base run leaves snapshots of its state, evenly spaced in ops taken up. A move first matters when
a predecessor of a moved op is taken up (is its consumer here or away?) or the op itself, so the run
restarts at the last snapshot before that. At every later snapshot it is compared with the base:
where the moved ops are done, the same ops are taken and pending, and every instant that still
matters differs by one and the same shift, the rest of the run is the base's rest, shifted.
(Instants before now cannot matter any more and count as now.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit import bare, jit, jitable, opener
from ..taskgraph import Ints, Rows
from .cost import TOO_LONG
from .kernel import (
    EPOCH,
    KEY,
    LATE,
    LONG,
    SIZE,
    TAKEN,
    clear,
    compute,
    happen,
    open_question,
    open_work,
    take,
)
from .question import Question, Work

SNAPSHOTS = 48
# Cells of a snapshot: those of Work, then now, and the last finish so far, until the next snapshot,
# afterwards.
NOW, LAST, NEXT, REST, CELLS = range(LONG + 1, LONG + 6)


class Base(NamedTuple):
    """The snapshots of a base run, one row each, flat; ``position`` is how many ops were taken
    before each op.
    """

    stride: int
    rows: Ints  # [0]: how many snapshots there are; [1]: from which one the last replay started
    cell: Ints
    missing: Ints
    when: Ints
    free: Ints
    line_end: Ints
    heap: Ints
    position: Ints
    producer_ptr: Ints  # predecessors of each op
    producer: Ints


open_base = opener(Base)


def base_for(question: Question, producers: Rows) -> Base:
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
        np.empty(rows * question.queues, np.int64),
        np.empty(rows * question.devices, np.int64),
        np.empty(rows * (ops + question.devices + 2), np.int64),
        np.empty(ops, np.int64),
        producers.ptr,
        producers.ids,
    )


@jitable
def instant(q: Question, w: Work) -> int:
    """When the key in hand is due."""
    return w.cell[EPOCH] + (w.cell[KEY] >> q.id_bits)


@jitable
def save(q: Question, w: Work, b: Base, row: int, last: int) -> None:
    """Write the state to a snapshot."""
    ops = q.ops
    for i in range(ops):
        at = row * ops + i
        b.missing[at], b.when[at] = w.missing[i], w.when[i]
    for i in range(q.queues):
        b.free[row * q.queues + i] = w.free[i]
    for i in range(q.devices):
        b.line_end[row * q.devices + i] = w.line_end[i]
    for i in range(w.cell[SIZE]):
        b.heap[row * (q.ops + q.devices + 2) + i] = w.heap[i]
    at = row * CELLS
    for i in range(LONG + 1):
        b.cell[at + i] = w.cell[i]
    b.cell[at + NOW], b.cell[at + LAST], b.cell[at + NEXT] = instant(q, w), last, 0


@jitable
def restore(q: Question, w: Work, b: Base, row: int) -> None:
    """Read the state of a snapshot."""
    ops = q.ops
    for i in range(ops):
        at = row * ops + i
        w.missing[i], w.when[i] = b.missing[at], b.when[at]
    for i in range(q.queues):
        w.free[i] = b.free[row * q.queues + i]
    for i in range(q.devices):
        w.line_end[i] = b.line_end[row * q.devices + i]
    for i in range(LONG + 1):
        w.cell[i] = b.cell[row * CELLS + i]
    for i in range(w.cell[SIZE]):
        w.heap[i] = b.heap[row * (q.ops + q.devices + 2) + i]


@jitable
def same_rest(q: Question, w: Work, b: Base, row: int, now: int, moved: Ints) -> bool:
    """Whether the moved ops are done, and the state is that of the snapshot, shifted in time."""
    before = b.cell[row * CELLS + NOW]
    shift = now - before
    if shift & ((1 << q.round_bits) - 1):
        return False
    for k in range(len(moved)):
        if w.missing[moved[k]] != TAKEN:
            return False
    for i in range(q.queues):
        if max(w.free[i], now) - max(b.free[row * q.queues + i], before) != shift:
            return False
    return same_ops(q, w, b, row, now, shift)


@jitable
def same_ops(q: Question, w: Work, b: Base, row: int, now: int, shift: int) -> bool:
    """Whether every op stands as in the snapshot, its instants shifted."""
    for i in range(q.ops):
        at = row * q.ops + i
        missing = w.missing[i]
        if missing != b.missing[at]:
            return False
        if missing < TAKEN and w.when[i] - b.when[at] != shift:
            return False
        if missing > TAKEN and max(w.when[i], now) - max(b.when[at], now - shift) != shift:
            return False
    return True


@jit
def record_base(question: Ints, work: Ints, base: Ints, devices: Ints, row: int) -> int:
    """Run a placement from a snapshot on (row -1: from the start), and leave snapshots.

    Returns the step time in ps, or TOO_LONG (see ``step``): then there is no base.
    """
    q, w, b, placement = open_question(question), open_work(work), open_base(base), bare(devices)
    if row < 0:
        clear(q, w)
        row = 0
        save(q, w, b, 0, 0)
    restore(q, w, b, row)
    b.cell[row * CELLS + NEXT] = 0
    taken, last, key, ops, mask = (
        row * b.stride,
        b.cell[row * CELLS + LAST],
        0,
        q.ops,
        (1 << q.id_bits) - 1,
    )
    while True:
        if taken < q.root_count:
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
                save(q, w, b, row, last)
    b.rows[0] = row + 1
    rest = 0
    for k in range(row, -1, -1):
        rest = max(rest, b.cell[k * CELLS + NEXT])
        b.cell[k * CELLS + REST] = rest
    return TOO_LONG if w.cell[LONG] else last >> q.round_bits


@jitable
def first_row(q: Question, b: Base, moved: Ints) -> int:
    """The last snapshot before anything that the moved ops change."""
    first = q.ops
    for k in range(len(moved)):
        op = moved[k]
        first = min(first, b.position[op])
        for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
            first = min(first, b.position[b.producer[e]])
    return first // b.stride


@jitable
def _last_finish(q: Question, w: Work, b: Base, placement: Ints, moved: Ints) -> int:
    """The last finish, from the last snapshot before anything that the moved ops change."""
    row = first_row(q, b, moved)
    b.rows[1] = row
    restore(q, w, b, row)
    taken, last, key, mask = row * b.stride, b.cell[row * CELLS + LAST], 0, (1 << q.id_bits) - 1
    while True:
        if taken < q.root_count:
            last = max(last, compute(q, w, None, placement, q.roots[taken], 0))
            taken += 1
        else:
            key = take(w)
            if key == LATE:
                return last
            last = max(last, happen(q, w, None, placement, key))
            if key & mask >= q.ops:
                continue
            taken += 1
        if taken % b.stride:
            continue
        row, now = taken // b.stride, instant(q, w)
        if row < b.rows[0] and same_rest(q, w, b, row, now, moved):
            rest = b.cell[row * CELLS + REST]
            return max(last, rest + now - b.cell[row * CELLS + NOW] if rest > 0 else 0)


@jit
def replay(
    question: Ints, work: Ints, base: Ints, devices: Ints, members: Ints, device: int
) -> int:
    """The step time in ps of the base placement with the ops ``members`` on another device
    (``devices`` is restored).

    ``rows[1]`` of the base is left at the snapshot from which it was simulated.
    """
    q, w, b, placement = open_question(question), open_work(work), open_base(base), bare(devices)
    before = placement[members[0]]
    for k in range(len(members)):
        placement[members[k]] = device
    last = _last_finish(q, w, b, placement, members)
    for k in range(len(members)):
        placement[members[k]] = before
    return TOO_LONG if w.cell[LONG] else last >> q.round_bits
