"""Exact re-simulation of a placement in which a few ops have moved, for ``PlacementSession``.

The run of the base placement leaves snapshots of its state, evenly spaced by the number of ops
taken up. The run of a move restarts at the last snapshot before anything that the move can change.
At every later snapshot it is compared with the base: where the moved ops are done, the same ops are
taken and pending, and all instants that still matter differ by a single shift, the rest of the run
is the rest of the base, shifted. (Instants before now no longer matter and count as now.) A run
with a limit ends where the step must take longer (judging.py); once the moved ops are done, the
tails of the base hold.

It applies the rules of ``step.py`` and adds only one: when a moved op is ready in a snapshot
(``wait``). A new column of ``Work`` that a run writes also belongs in a snapshot (``Base``,
``copy_all``, ``same_rest``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import Table, bare, jit, jitable, opener
from ...nouns.taskgraph import Ints, Rows
from ..cost import NEVER, TOO_LONG, WORSE
from ..heap import CELLS as KEPT
from ..heap import FAULT, LAST, LATE, NONE, SIZE, TAKEN, now, ps_of, room, send, take
from .judging import (
    ALL,
    LEAST,
    LIMIT,
    TAILS,
    Bounds,
    begin_bounds,
    bounds_for,
    is_exceeded,
    lasting,
    open_bounds,
    tail_of,
)
from .problem import MULTICAST, PlacementProblem, Work, open_problem, open_work, work_for
from .step import clear, happen, is_valid

# Snapshots of a base run, from which moves are simulated.
# A move first matters when a moved op would be taken up, on its old or its new device, or when one
# of its producers sends. Until then the state differs only in the moved op's ``missing`` and
# ``when``, which are corrected in a snapshot (``wait``).

SNAPSHOTS = 24
# Cells of ``rows``: the number of snapshots; the snapshot from which the last replay started; the
# number of ops taken up when it ended.
SAVED, FIRST, TAKEN_UP = range(3)
# Cells of a snapshot: those of Work, then the instant of the current key (NOW), the last finish
# before the next snapshot (NEXT), and the last finish after this snapshot (REST).
NOW, NEXT, REST, CELLS = range(KEPT, KEPT + 4)


class Base(NamedTuple):
    """The snapshots of a base run; columns hold a row for each snapshot, end to end."""

    stride: int  # ops from one snapshot to the next
    rows: Ints  # cells: see SAVED
    cell: Ints
    missing: Ints
    when: Ints
    free: Ints
    line_end: Ints
    heap: Ints
    rest: Ints  # by device: see Bounds
    position: Ints  # by op: the number of ops taken up before it
    finish: Ints  # by op: the instant at which it finishes
    order: Ints  # the ops in the order in which they were taken up
    stale: Ints  # by op: whether its tail may have changed
    producer_ptr: Ints  # reads of each op: whose output, and which tensor
    producer: Ints
    tensor: Ints


open_base = opener(Base)


def base_for(problem: PlacementProblem) -> Base:
    """A base with room for the snapshots."""
    ops, devices = problem.ops, problem.devices
    stride = max(ops // SNAPSHOTS + 1, 1)
    sizes = (CELLS, ops, ops, problem.queues, devices, ops + devices + 2, devices)
    columns = room(3, *((ops // stride + 2) * size for size in sizes), *[ops] * 4)
    return Base._make((stride, *columns, *reads_of(problem)))


def reads_of(problem: PlacementProblem) -> tuple[Ints, Ints, Ints]:
    """The reads of each op: the CSR pointer by op, then the producer and tensor of each read."""
    tensor = Rows(problem.consumer_ptr, problem.consumer).owners()
    producer = np.repeat(np.arange(problem.ops, dtype=np.int64), np.diff(problem.tensor_ptr))
    reads = Rows.of_pairs(problem.consumer, tensor, problem.ops)
    return reads.ptr, producer[reads.ids], reads.ids


@jitable
def copy(count: int, column: Ints, kept: Ints, at: int, saving: bool) -> None:
    """Copy the first ``count`` values of a column to a snapshot that begins at ``at``, or back
    (kernels take no slices, see jit.py).
    """
    for i in range(count):
        if saving:
            kept[at + i] = column[i]
        else:
            column[i] = kept[at + i]


@jitable
def copy_all(p: PlacementProblem, w: Work, least: Bounds, b: Base, row: int, saving: bool) -> None:
    """Write the state to a snapshot, or read it."""
    copy(KEPT, w.cell, b.cell, row * CELLS, saving)
    copy(p.ops, w.missing, b.missing, row * p.ops, saving)
    copy(p.ops, w.when, b.when, row * p.ops, saving)
    copy(p.queues, w.free, b.free, row * p.queues, saving)
    copy(p.devices, w.line_end, b.line_end, row * p.devices, saving)
    copy(p.devices, least.rest, b.rest, row * p.devices, saving)
    copy(w.cell[SIZE], w.heap, b.heap, row * (p.ops + p.devices + 2), saving)


@jitable
def save(p: PlacementProblem, w: Work, least: Bounds, b: Base, row: int) -> None:
    """Write the state to a snapshot."""
    copy_all(p, w, least, b, row, True)
    b.cell[row * CELLS + NOW], b.cell[row * CELLS + NEXT] = now(w), 0


@jitable
def restore(p: PlacementProblem, w: Work, least: Bounds, b: Base, row: int) -> int:
    """Read the state of a snapshot; returns the last finish before it."""
    copy_all(p, w, least, b, row, False)
    last = 0
    for k in range(row):
        last = max(last, b.cell[k * CELLS + NEXT])
    return last


@jitable
def are_done(w: Work, moved: Ints) -> bool:
    """Whether the moved ops have been taken up and have sent their transfers."""
    for k in range(len(moved)):
        if w.missing[moved[k]] != TAKEN:
            return False
    return True


@jitable
def same_rest(p: PlacementProblem, w: Work, b: Base, row: int, moved: Ints) -> bool:
    """Whether the moved ops are done, and the state is that of the snapshot, shifted in time."""
    instant, before = now(w), b.cell[row * CELLS + NOW]
    shift = instant - before
    if shift & ((1 << w.bits) - 1):
        return False
    if not are_done(w, moved):
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
def wait(
    p: PlacementProblem,
    w: Work,
    b: Base,
    placement: Ints,
    row: int,
    op: int,
    missing: Ints,
    when: Ints,
    at: int,
) -> None:
    """Correct the state of a moved op in a snapshot: the number of releases that it still waits for
    (``missing``), and the instant at which it is ready as far as known (``when``), both at ``at`` +
    ``op``.
    """
    device, waits, ready = placement[op], 0, 0
    for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
        producer = b.producer[e]
        source = placement[producer]
        if b.position[producer] >= row * b.stride:
            waits += 1
        elif source == device:
            ready = max(ready, b.finish[producer])
        elif p.queues > p.devices:  # sent when the producer's turn in its line comes
            waits += 1
        else:
            route = source * p.devices + device
            length = lasting(p, b.tensor[e], route)
            ready = max(ready, send(w, p, None, route, length, b.finish[producer])[2])
    missing[at + op], when[at + op] = waits, ready


@jitable
def first_row(p: PlacementProblem, b: Base, moved: Ints) -> int:
    """The last snapshot before anything that the move changes, apart from the moved ops' own
    ``missing`` and ``when``.
    """
    first, at_once = p.ops, p.queues <= p.devices
    for k in range(len(moved)):
        op = moved[k]
        # The op is not on the heap while it waits for any producer.
        begin, end = b.producer_ptr[op], b.producer_ptr[op + 1]
        latest = 0 if begin < end else p.ops
        for e in range(begin, end):
            position = b.position[b.producer[e]]
            latest = max(latest, position)
            if at_once and p.mode == MULTICAST:  # with a device less, others may receive earlier
                first = min(first, position)
        first = min(first, b.position[op], latest)
    row = first // b.stride
    if not at_once:
        for k in range(len(moved)):
            row = before_sending(p, b, row, moved[k])
    return row


@jitable
def before_sending(p: PlacementProblem, b: Base, row: int, op: int) -> int:
    """The last snapshot up to ``row`` at which no producer of an op has sent: each was not taken up
    yet, or waits in the line of its device.
    """
    for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
        producer = b.producer[e]
        position = b.position[producer]
        while position < row * b.stride and b.missing[row * p.ops + producer] > LAST:
            row -= 1
    return row


LOOK = 8  # ops between two checks of whether the moved ops are done


@jitable
def advance(
    p: PlacementProblem, w: Work, least: Bounds, placement: Ints, taken: int
) -> tuple[int, int]:
    """Process the next root, or else the smallest key on the heap; returns its entry (NONE: none is
    left), and the finish of an op (0: a producer sends).
    """
    key = p.roots[taken] if taken < p.root_count else take(w)
    if key == LATE:
        return NONE, 0
    return key & ((1 << w.id_bits) - 1), happen(p, w, None, None, least, None, placement, key)


@jitable
def record(
    p: PlacementProblem, w: Work, least: Bounds, b: Base, placement: Ints, row: int, moved: Ints
) -> None:
    """Run a placement from a snapshot on and write snapshots, to the end or to a snapshot at which
    the state equals the base's: all later snapshots then remain valid.
    """
    restore(p, w, least, b, row)
    for k in range(len(moved)):
        wait(p, w, b, placement, row, moved[k], w.missing, w.when, 0)
    b.cell[row * CELLS + NEXT] = 0
    taken, entry = row * b.stride, 0
    while entry != NONE:
        entry, finish = advance(p, w, least, placement, taken)
        b.cell[row * CELLS + NEXT] = max(b.cell[row * CELLS + NEXT], finish)
        if entry < 0 or entry >= p.ops:
            continue
        b.position[entry], b.order[taken], b.finish[entry] = taken, entry, finish
        taken += 1
        if taken % b.stride == 0:
            row += 1
            unmoved = row < b.rows[SAVED] and now(w) == b.cell[row * CELLS + NOW]
            if unmoved and same_rest(p, w, b, row, moved):
                return
            save(p, w, least, b, row)
    b.rows[SAVED] = row + 1


@jitable
def move_rest(
    p: PlacementProblem, rest: Ints, at: int, moved: Ints, before: int, device: int
) -> None:
    """Move the work of ops that have not started from a device to another, in ``rest``."""
    for k in range(len(moved)):
        rest[at + before] -= p.duration[moved[k] * p.devices + before]
        rest[at + device] += p.duration[moved[k] * p.devices + device]


@jitable
def stale(b: Base, op: int) -> None:
    """Mark the tails of an op's producers, which may change."""
    for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
        b.stale[b.producer[e]] = 1


@jitable
def retail(p: PlacementProblem, least: Bounds, b: Base, placement: Ints, moved: Ints) -> None:
    """Compute the tails that a move changes: those of the moved ops and of ops before them."""
    end = 0
    for k in range(len(moved)):
        end = max(end, b.position[moved[k]] + 1)
        b.stale[moved[k]] = 1
        stale(b, moved[k])
    for number in range(end - 1, -1, -1):
        op = b.order[number]
        if b.stale[op]:
            b.stale[op] = 0
            tail = tail_of(p, placement, least.tail, op)
            if tail != least.tail[op]:
                least.tail[op] = tail
                stale(b, op)


@jit
def record_base(
    problem: Ints,
    work: Ints,
    bounds: Ints,
    base: Ints,
    devices: Ints,
    members: Ints,
    before: int,
    row: int,
) -> int:
    """Run a placement from a snapshot on (row -1: from the start), and write snapshots; ``members``
    are the ops that moved off the device ``before`` since the base was recorded.

    Returns the step time in ps; TOO_LONG, and no base, where the kernels cannot run it.
    """
    p, w, b, placement = open_problem(problem), open_work(work), open_base(base), bare(devices)
    least, fresh = open_bounds(bounds), row < 0
    if fresh:
        if not is_valid(p, placement):
            return TOO_LONG
        clear(p, w)
        begin_bounds(p, least, placement, NEVER)
        row, b.rows[SAVED] = 0, 0
        save(p, w, least, b, 0)
    else:
        kept = row
        while kept >= 0:
            move_rest(p, b.rest, kept * p.devices, members, before, placement[members[0]])
            for i in range(len(members)):
                wait(p, w, b, placement, kept, members[i], b.missing, b.when, kept * p.ops)
            kept -= 1
    record(p, w, least, b, placement, row, members)
    if fresh:
        for number in range(p.ops - 1, -1, -1):
            op = b.order[number]
            least.tail[op], b.stale[op] = tail_of(p, placement, least.tail, op), 0
    else:
        retail(p, least, b, placement, members)
    rest = 0
    for k in range(b.rows[SAVED] - 1, -1, -1):
        rest = max(rest, b.cell[k * CELLS + NEXT])
        b.cell[k * CELLS + REST] = rest
    return TOO_LONG if w.cell[FAULT] else ps_of(w, rest)


@jitable
def last_finish(
    p: PlacementProblem,
    w: Work,
    least: Bounds,
    b: Base,
    placement: Ints,
    moved: Ints,
    before: int,
) -> int:
    """The last finish of a run of the move from snapshot ``rows[FIRST]``; WORSE as soon as the
    limit is exceeded.
    """
    row, least.cell[TAILS] = b.rows[FIRST], 0
    last, taken = restore(p, w, least, b, row), row * b.stride
    for k in range(len(moved)):
        wait(p, w, b, placement, row, moved[k], w.missing, w.when, 0)
    move_rest(p, least.rest, 0, moved, before, placement[moved[0]])
    for device in range(p.devices):
        if least.rest[device]:  # else no op waits for the device, and its last gap does not count
            least_ps = ps_of(w, w.free[device]) + least.rest[device]
            least.cell[LEAST] = max(least.cell[LEAST], least_ps)
    while not is_exceeded(least):
        entry, finish = advance(p, w, least, placement, taken)
        if entry == NONE:
            return last
        last = max(last, finish)
        if entry >= p.ops:
            continue
        taken += 1
        b.rows[TAKEN_UP] = taken
        if taken % LOOK == 0 and are_done(w, moved):
            least.cell[TAILS] = ALL
        row = taken // b.stride
        if taken % b.stride == 0 and row < b.rows[SAVED] and same_rest(p, w, b, row, moved):
            rest = b.cell[row * CELLS + REST]
            return max(last, rest + now(w) - b.cell[row * CELLS + NOW] if rest > 0 else 0)
    return WORSE


@jit
def replay(
    problem: Ints,
    work: Ints,
    bounds: Ints,
    base: Ints,
    devices: Ints,
    members: Ints,
    device: int,
    limit: int,
) -> int:
    """The step time in ps of the base placement with the ops ``members`` on another device
    (``devices`` is restored). TOO_LONG where lowering has to answer; WORSE where the time exceeds
    ``limit`` ps, unless the run has joined the base before, whose time is then returned, shifted.

    ``rows[FIRST]`` of the base is left at the snapshot from which the move was simulated.
    """
    p, w, b, placement = open_problem(problem), open_work(work), open_base(base), bare(devices)
    least = open_bounds(bounds)
    # An invalid move: an op without a known time there, or possibly a transfer without a route.
    for k in range(len(members)):
        if p.duration[members[k] * p.devices + device] < 0 or not p.all_routes:
            return TOO_LONG
    before, row = placement[members[0]], first_row(p, b, members)
    for k in range(len(members)):
        placement[members[k]] = device
    b.rows[FIRST], least.cell[LIMIT], least.cell[LEAST] = row, limit, 0
    last = last_finish(p, w, least, b, placement, members, before)
    for k in range(len(members)):
        placement[members[k]] = before
    if w.cell[FAULT]:
        return TOO_LONG
    return last if last == WORSE else ps_of(w, last)


class Moves:
    """Re-simulates moves from a base placement; a result of None: lowering must answer."""

    def __init__(self, problem: Table[PlacementProblem]) -> None:
        self.problem, self.work = problem, Table.of(work_for(problem.columns))
        self.bounds = Table.of(bounds_for(problem.columns))
        self.base = Table.of(base_for(problem.columns))
        self._words = problem.words, self.work.words, self.bounds.words, self.base.words
        self._none = np.empty(0, np.int64)

    def step_ps(
        self, placement: Ints, members: Ints, device: int, limit_ps: int = NEVER
    ) -> int | None:
        """The step time in ps of the base placement with these ops on another device; where it is
        longer than ``limit_ps``, either WORSE or the time.
        """
        step_ps = replay(*self._words, placement, members, device, limit_ps)
        return None if step_ps == TOO_LONG else step_ps

    def rebase(self, placement: Ints, members: Ints | None = None, before: int = 0) -> int | None:
        """Make a placement the base and return its step time in ps.

        ``members``: the ops that the last replay moved off the device ``before``, where this is the
        only change; the earlier snapshots of the old base are then kept.
        """
        moved = self._none if members is None else members
        row = -1 if members is None else int(self.base.columns.rows[FIRST])
        step_ps = record_base(*self._words, placement, moved, before, row)
        return step_ps if step_ps >= 0 else None
