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

from ...jit import Table, bare, jit, jitable, opener
from ...taskgraph import Ints, Rows
from ..cost import TOO_LONG
from ..heap import FAULT, LATE, NOBODY, SIZE, TAKEN, now, take
from .problem import PlacementProblem, Work, work_for
from .step import clear, compute, happen, is_valid, open_problem, open_work

SNAPSHOTS = 48
# Cells of a snapshot: those of Work, then the instant of the key in hand, and the last finish so
# far, until the next snapshot, afterwards.
NOW, LAST, NEXT, REST, CELLS = range(FAULT + 1, FAULT + 6)


class Base(NamedTuple):
    """The snapshots of a base run, one row each, flat."""

    stride: int  # ops from one snapshot to the next
    rows: Ints  # [0]: how many snapshots there are; [1]: from which one the last replay started
    cell: Ints
    missing: Ints
    when: Ints
    free: Ints
    line_end: Ints
    heap: Ints
    position: Ints  # how many ops were taken up before each op
    producer_ptr: Ints  # predecessors of each op
    producer: Ints


open_base = opener(Base)


def base_for(problem: PlacementProblem, producers: Rows) -> Base:
    """Room for the snapshots."""
    ops, devices = problem.ops, problem.devices
    stride = max(ops // SNAPSHOTS + 1, 1)
    sizes = (CELLS, ops, ops, problem.queues, devices, ops + devices + 2)
    columns = (np.empty((ops // stride + 2) * size, np.int64) for size in sizes)
    position = np.empty(ops, np.int64)
    rows = np.zeros(2, np.int64)
    return Base._make((stride, rows, *columns, position, producers.ptr, producers.ids))


@jitable
def copy(count: int, source: Ints, begin: int, target: Ints, at: int) -> None:
    """Copy some of a column (kernels take no slices, see jit.py)."""
    for i in range(count):
        target[at + i] = source[begin + i]


@jitable
def save(p: PlacementProblem, w: Work, b: Base, row: int, last: int) -> None:
    """Write the state to a snapshot."""
    copy(p.ops, w.missing, 0, b.missing, row * p.ops)
    copy(p.ops, w.when, 0, b.when, row * p.ops)
    copy(p.queues, w.free, 0, b.free, row * p.queues)
    copy(p.devices, w.line_end, 0, b.line_end, row * p.devices)
    copy(w.cell[SIZE], w.heap, 0, b.heap, row * (p.ops + p.devices + 2))
    at = row * CELLS
    copy(FAULT + 1, w.cell, 0, b.cell, at)
    b.cell[at + NOW], b.cell[at + LAST], b.cell[at + NEXT] = now(w), last, 0


@jitable
def restore(p: PlacementProblem, w: Work, b: Base, row: int) -> None:
    """Read the state of a snapshot."""
    copy(p.ops, b.missing, row * p.ops, w.missing, 0)
    copy(p.ops, b.when, row * p.ops, w.when, 0)
    copy(p.queues, b.free, row * p.queues, w.free, 0)
    copy(p.devices, b.line_end, row * p.devices, w.line_end, 0)
    copy(FAULT + 1, b.cell, row * CELLS, w.cell, 0)
    copy(w.cell[SIZE], b.heap, row * (p.ops + p.devices + 2), w.heap, 0)


@jitable
def same_rest(p: PlacementProblem, w: Work, b: Base, row: int, moved: Ints) -> bool:
    """Whether the moved ops are done, and the state is that of the snapshot, shifted in time."""
    instant, before = now(w), b.cell[row * CELLS + NOW]
    shift = instant - before
    if shift & ((1 << p.round_bits) - 1):
        return False
    for k in range(len(moved)):
        if w.missing[moved[k]] != TAKEN:
            return False
    for i in range(p.queues):
        if max(w.free[i], instant) - max(b.free[row * p.queues + i], before) != shift:
            return False
    for i in range(p.ops):
        at = row * p.ops + i
        missing = w.missing[i]
        if missing != b.missing[at]:
            return False
        if missing < TAKEN and w.when[i] - b.when[at] != shift:
            return False
        if missing > TAKEN and max(w.when[i], instant) - max(b.when[at], before) != shift:
            return False
    return True


@jitable
def advance(p: PlacementProblem, w: Work, placement: Ints, taken: int) -> tuple[int, int]:
    """Take up the next root, or what is first on the heap: its entry (NOBODY: nothing is left), and
    when an op finishes (0: a producer sends).
    """
    if taken < p.root_count:
        root = p.roots[taken]
        return root, compute(p, w, None, None, placement, root, 0)
    key = take(w)
    if key == LATE:
        return NOBODY, 0
    return key & ((1 << w.id_bits) - 1), happen(p, w, None, None, placement, key)


@jit
def record_base(problem: Ints, work: Ints, base: Ints, devices: Ints, row: int) -> int:
    """Run a placement from a snapshot on (row -1: from the start), and leave snapshots.

    Returns the step time in ps; negative where there is none (see ``run_valid``), and no base.
    """
    p, w, b, placement = open_problem(problem), open_work(work), open_base(base), bare(devices)
    if row < 0:
        if not is_valid(p, placement):
            return TOO_LONG
        clear(p, w)
        row = 0
        save(p, w, b, 0, 0)
    restore(p, w, b, row)
    b.cell[row * CELLS + NEXT] = 0
    taken, last, entry = row * b.stride, b.cell[row * CELLS + LAST], 0
    while entry != NOBODY:
        entry, finish = advance(p, w, placement, taken)
        last = max(last, finish)
        b.cell[row * CELLS + NEXT] = max(b.cell[row * CELLS + NEXT], finish)
        if 0 <= entry < p.ops:
            b.position[entry] = taken
            taken += 1
            if taken % b.stride == 0:
                row += 1
                save(p, w, b, row, last)
    b.rows[0] = row + 1
    rest = 0
    for k in range(row, -1, -1):
        rest = max(rest, b.cell[k * CELLS + NEXT])
        b.cell[k * CELLS + REST] = rest
    return TOO_LONG if w.cell[FAULT] else last >> p.round_bits


@jitable
def first_row(p: PlacementProblem, b: Base, moved: Ints) -> int:
    """The last snapshot before anything that the moved ops change."""
    first = p.ops
    for k in range(len(moved)):
        op = moved[k]
        first = min(first, b.position[op])
        for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
            first = min(first, b.position[b.producer[e]])
    return first // b.stride


@jitable
def last_finish(p: PlacementProblem, w: Work, b: Base, placement: Ints, moved: Ints) -> int:
    """The last finish, from the last snapshot before anything that the moved ops change."""
    row = first_row(p, b, moved)
    b.rows[1] = row
    restore(p, w, b, row)
    taken, last = row * b.stride, b.cell[row * CELLS + LAST]
    while True:
        entry, finish = advance(p, w, placement, taken)
        if entry == NOBODY:
            return last
        last = max(last, finish)
        if entry >= p.ops:
            continue
        taken += 1
        row = taken // b.stride
        if taken % b.stride == 0 and row < b.rows[0] and same_rest(p, w, b, row, moved):
            rest = b.cell[row * CELLS + REST]
            return max(last, rest + now(w) - b.cell[row * CELLS + NOW] if rest > 0 else 0)


@jit
def replay(problem: Ints, work: Ints, base: Ints, devices: Ints, members: Ints, device: int) -> int:
    """The step time in ps of the base placement with the ops ``members`` on another device
    (``devices`` is restored); TOO_LONG where lowering has to answer.

    ``rows[1]`` of the base is left at the snapshot from which it was simulated.
    """
    p, w, b, placement = open_problem(problem), open_work(work), open_base(base), bare(devices)
    # A move that cannot be: an op of no known time there, or perhaps a transfer without a route.
    for k in range(len(members)):
        if p.duration[members[k] * p.devices + device] < 0 or not p.all_routes:
            return TOO_LONG
    before = placement[members[0]]
    for k in range(len(members)):
        placement[members[k]] = device
    last = last_finish(p, w, b, placement, members)
    for k in range(len(members)):
        placement[members[k]] = before
    return TOO_LONG if w.cell[FAULT] else last >> p.round_bits


class Moves:
    """Re-simulates moves from a base placement; where an answer is None, lowering has to answer."""

    def __init__(self, problem: Table[PlacementProblem], producers: Rows) -> None:
        self.problem, self.work = problem, Table.of(work_for(problem.columns))
        self.base = Table.of(base_for(problem.columns, producers))
        self._words = problem.words, self.work.words, self.base.words

    def step_ps(self, placement: Ints, members: Ints, device: int) -> int | None:
        """The step time in ps of the base placement with these ops on another device."""
        step_ps = replay(*self._words, placement, members, device)
        return step_ps if step_ps >= 0 else None

    def rebase(self, placement: Ints, accepted: bool) -> int | None:
        """Make a placement the base; its step time in ps.

        One that was just ``accepted`` shares the snapshots before its replay with the old base.
        """
        row = int(self.base.columns.rows[1]) if accepted else -1
        step_ps = record_base(*self._words, placement, row)
        return step_ps if step_ps >= 0 else None
