"""Exact re-simulation of a placement in which a few ops have moved.

The base run leaves snapshots of its state (snapshots.py), evenly spaced in ops taken up. A run of a
move restarts at the last one before anything that it can change. At every later one it is compared
with the base: where the moved ops are done, the same ops are taken and pending, and every instant
that still matters differs by one and the same shift, the rest of the run is the base's rest,
shifted. (Instants before now cannot matter any more and count as now.) A run with a limit ends
where the step must take longer (bounds.py): once the moved ops are done, the tails of the base
hold.
"""

from __future__ import annotations

import numpy as np

from ...ground.jit import Table, bare, jit, jitable
from ...nouns.taskgraph import Ints
from ..cost import TOO_LONG, WORSE
from ..heap import FAULT, LATE, NOBODY, now, take
from .bounds import (
    ALL,
    LEAST,
    LIMIT,
    NEVER,
    TAILS,
    Bounds,
    begin_bounds,
    bounds_for,
    is_exceeded,
    limit_instant,
    open_bounds,
    tail_of,
)
from .problem import PlacementProblem, Work, work_for
from .snapshots import (
    CELLS,
    FIRST,
    NEXT,
    NOW,
    REST,
    SAVED,
    TAKEN_UP,
    Base,
    are_done,
    base_for,
    first_row,
    open_base,
    restore,
    same_rest,
    save,
    wait,
)
from .step import clear, happen, is_valid, open_problem, open_work

LOOK = 8  # ops between two looks at whether the moved ones are done


@jitable
def advance(
    p: PlacementProblem, w: Work, least: Bounds, placement: Ints, taken: int
) -> tuple[int, int]:
    """Take up the next root, or what is first on the heap: its entry (NOBODY: nothing is left), and
    when an op finishes (0: a producer sends).
    """
    key = p.roots[taken] if taken < p.root_count else take(w)
    if key == LATE:
        return NOBODY, 0
    return key & ((1 << w.id_bits) - 1), happen(p, w, None, None, least, None, placement, key)


@jitable
def record(
    p: PlacementProblem, w: Work, least: Bounds, b: Base, placement: Ints, row: int, moved: Ints
) -> None:
    """Run a placement from a snapshot on and leave snapshots, to the end or to one where the state
    is the base's: then all later ones stay as they are.
    """
    restore(p, w, least, b, row)
    for k in range(len(moved)):
        wait(p, w, b, placement, row, moved[k], w.missing, w.when, 0)
    b.cell[row * CELLS + NEXT] = 0
    taken, entry = row * b.stride, 0
    while entry != NOBODY:
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
    """Let the work of ops that have not started wait for another device."""
    for k in range(len(moved)):
        rest[at + before] -= p.duration[moved[k] * p.devices + before]
        rest[at + device] += p.duration[moved[k] * p.devices + device]


@jitable
def stale(b: Base, op: int) -> None:
    """The tails of an op's producers may change."""
    for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
        b.stale[b.producer[e]] = 1


@jitable
def retail(p: PlacementProblem, least: Bounds, b: Base, placement: Ints, moved: Ints) -> None:
    """Compute the tails that change where ops moved: theirs, and some of what comes before them."""
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
    """Run a placement from a snapshot on (row -1: from the start), and leave snapshots; ``members``
    are the ops that moved, off the device ``before``, since the base was recorded.

    Returns the step time in ps; negative where there is none (see ``run_valid``), and no base.
    """
    p, w, b, placement = open_problem(problem), open_work(work), open_base(base), bare(devices)
    least, fresh = open_bounds(bounds), row < 0
    if fresh:
        if not is_valid(p, placement):
            return TOO_LONG
        clear(p, w)
        begin_bounds(p, least, placement, NEVER - 1)
        row, b.rows[SAVED] = 0, 0
        save(p, w, least, b, 0)
    else:
        for k in range(row + 1):
            move_rest(p, b.rest, k * p.devices, members, before, placement[members[0]])
            for i in range(len(members)):
                wait(p, w, b, placement, k, members[i], b.missing, b.when, k * p.ops)
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
    return TOO_LONG if w.cell[FAULT] else rest >> p.round_bits


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
    """The last finish, from the last snapshot before anything that the moved ops change; WORSE as
    soon as the limit is exceeded.
    """
    row, least.cell[TAILS] = b.rows[FIRST], 0
    last, taken = restore(p, w, least, b, row), row * b.stride
    for k in range(len(moved)):
        wait(p, w, b, placement, row, moved[k], w.missing, w.when, 0)
    move_rest(p, least.rest, 0, moved, before, placement[moved[0]])
    for device in range(p.devices):
        if least.rest[device]:  # else nothing waits for the gap after the last op
            least.cell[LEAST] = max(least.cell[LEAST], w.free[device] + least.rest[device])
    while not is_exceeded(least):
        entry, finish = advance(p, w, least, placement, taken)
        if entry == NOBODY:
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
    (``devices`` is restored); TOO_LONG where lowering has to answer, WORSE where it reaches the
    instant ``limit`` (see ``limit_instant``), unless it is the base's but for a shift.

    ``rows[FIRST]`` of the base is left at the snapshot from which it was simulated.
    """
    p, w, b, placement = open_problem(problem), open_work(work), open_base(base), bare(devices)
    least = open_bounds(bounds)
    # A move that cannot be: an op of no known time there, or perhaps a transfer without a route.
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
    return last if last == WORSE else last >> p.round_bits


class Moves:
    """Re-simulates moves from a base placement; where an answer is None, lowering has to answer."""

    def __init__(self, problem: Table[PlacementProblem]) -> None:
        self.problem, self.work = problem, Table.of(work_for(problem.columns))
        self.bounds = Table.of(bounds_for(problem.columns))
        self.base = Table.of(base_for(problem.columns))
        self._words = problem.words, self.work.words, self.bounds.words, self.base.words
        self._none = np.empty(0, np.int64)

    def step_ps(
        self, placement: Ints, members: Ints, device: int, limit_ps: int | None = None
    ) -> int | None:
        """The step time in ps of the base placement with these ops on another device; WORSE, or the
        time, where it is longer than ``limit_ps``.
        """
        limit = limit_instant(self.problem.columns, limit_ps)
        step_ps = replay(*self._words, placement, members, device, limit)
        return None if step_ps == TOO_LONG else step_ps

    def rebase(self, placement: Ints, members: Ints | None = None, before: int = 0) -> int | None:
        """Make a placement the base; its step time in ps.

        One of which ``members`` were moved off the device ``before`` by the last replay shares the
        snapshots before that with the old base.
        """
        moved = self._none if members is None else members
        row = -1 if members is None else int(self.base.columns.rows[FIRST])
        step_ps = record_base(*self._words, placement, moved, before, row)
        return step_ps if step_ps >= 0 else None
