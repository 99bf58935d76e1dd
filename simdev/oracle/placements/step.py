"""The recurrence of the execution contract under fifo, straight from a placement: no task graph is
built.

start = max(ready, when its queues are free), applied in the order of ready numbers. An op comes up
when it is ready, its transfers when it finishes (they are ready together, numbered by producer,
then output, then destination); one heap ordered by (instant and round, op) holds both. Entries
``op`` are ready ops, entries ``ops + op`` finished producers: the two never share a queue, so their
mutual order is free. Under program order an op also waits for the one before it on its device: then
nothing is left for its queue to decide. So it is on a device with a host, whose thread dispatches
in program order (hosts.py).
"""

from __future__ import annotations

from ...ground.jit import bare, jit, jitable, opener
from ...nouns.taskgraph import Ints
from .. import heap
from ..cost import FAULT, TOO_LONG, WORSE
from ..heap import LATE, NOBODY, TAKEN, after, later, next_to_send, release, take, wait_to_send
from .bounds import NEVER, Bounds, begin_bounds, is_exceeded, open_bounds, start_op
from .hosts import WAITS, Hosts, begin, dispatch, open_hosts
from .problem import PlacementProblem, Record, Work
from .sending import send_all
from .totals import PROVEN, Totals, begin_totals, end_totals, open_totals

open_problem, open_work, open_record = opener(PlacementProblem), opener(Work), opener(Record)


@jitable
def compute(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds | None,
    placement: Ints,
    op: int,
    now: int,
) -> tuple[int, bool]:
    """A ready op runs when its device is free: its finish, and whether it sends at that instant.

    Its consumers on the device need no transfer.
    """
    device = placement[op]
    inverse = ~((1 << p.round_bits) - 1)
    start, length = max(now, w.free[device]), p.duration[op * p.devices + device]
    finish = after(start, length, inverse)
    w.free[device] = later(finish, p.device_gap[device], inverse) if length > 0 else finish
    w.missing[op] = TAKEN
    if bounds is not None:
        start_op(bounds, op, device, start, length, finish)
    if r is not None:
        r.start[op], r.finish[op] = start >> p.round_bits, finish >> p.round_bits
    away = False
    for e in range(p.read_ptr[op], p.read_ptr[op + 1]):
        if placement[p.consumer[e]] == device:
            release(w, p.consumer[e], finish)
        else:
            away = True
    if p.program and w.behind[op] != NOBODY:
        release(w, w.behind[op], finish)
    if h is not None and h.cell[WAITS]:
        h.finish[op] = finish
        if h.thread[device] != NOBODY:
            dispatch(p, w, h, placement, h.thread[device])
    # Readers here are released at once, all others when the transfers are booked: in their order,
    # where they wait for each other.
    if away and p.queues > p.devices:
        wait_to_send(w, p.ops, op, device, finish)
        away = False
    return finish, away


@jitable
def clear(p: PlacementProblem, w: Work) -> None:
    """Nothing has happened yet. Roots do not go through the heap: see ``run``."""
    heap.clear(w)
    for queue in range(p.queues):
        w.free[queue] = 0
    for device in range(p.devices):
        w.line_end[device] = NOBODY
    for op in range(p.ops):
        w.when[op], w.missing[op] = 0, p.waits[op]


@jitable
def line_up(p: PlacementProblem, w: Work, placement: Ints) -> None:
    """Under program order every op waits for the one before it on its device."""
    for op in range(p.ops):
        device = placement[op]
        before = w.line_end[device]
        w.behind[op], w.line_end[device] = NOBODY, op
        if before != NOBODY:
            w.behind[before] = op
            w.missing[op] += 1
    for device in range(p.devices):
        w.line_end[device] = NOBODY


@jitable
def happen(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds | None,
    m: Totals | None,
    placement: Ints,
    key: int,
) -> int:
    """A ready op is taken up (returns its finish), or a finished producer sends (returns 0)."""
    op, finish = key & ((1 << w.id_bits) - 1), 0
    if op < p.ops:
        finish, sends = compute(p, w, r, h, bounds, placement, op, w.when[op])
        now = finish
    else:
        op, sends = op - p.ops, True
        now = w.when[op]
        next_to_send(w, p.ops, op, placement[op])
    if sends:
        send_all(p, w, r, m, placement, op, now)
    return finish


@jitable
def run(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds | None,
    m: Totals | None,
    placement: Ints,
) -> int:
    """The step time in ps of a placement (device by op; valid); with a record, also when everything
    happened.

    An op finishes after every release that it waits for, so the last finish of an op is the step
    time. TOO_LONG where what is pending at one time lies too far apart for the keys of the heap;
    WORSE as soon as it must take longer than the limit of ``bounds``.
    """
    last = 0
    clear(p, w)
    if h is not None:
        begin(p, w, h, placement)
    elif p.program:
        line_up(p, w, placement)
    roots = 0
    while True:
        if roots < p.root_count:  # ready in the first round, taken up in the order of their ids
            key, roots = p.roots[roots], roots + 1
            # behind another op or released by it, or by a host
            if w.missing[key] != 0 or w.when[key] != 0:
                continue
        else:
            key = take(w)
        if key == LATE:
            return TOO_LONG if w.cell[heap.FAULT] else last >> p.round_bits
        last = max(last, happen(p, w, r, h, bounds, m, placement, key))
        if bounds is not None and is_exceeded(bounds):
            return TOO_LONG if w.cell[heap.FAULT] else WORSE


@jitable
def is_valid(p: PlacementProblem, placement: Ints) -> bool:
    """Whether every op may stand where it does (device, cost, colocation and route)."""
    if p.anywhere:
        least, most = 0, 0
        for op in range(p.ops):
            least, most = min(least, placement[op]), max(most, placement[op])
        return least >= 0 and most < p.devices
    for op in range(p.ops):
        device = placement[op]
        if device < 0 or device >= p.devices or p.duration[op * p.devices + device] < 0:
            return False
        if placement[p.leader[op]] != device:
            return False
    # On most clusters every pair is joined, and the look at each read can be saved.
    if p.all_routes:
        return True
    for op in range(p.ops):
        for e in range(p.read_ptr[op], p.read_ptr[op + 1]):
            other = placement[p.consumer[e]]
            if other != placement[op] and p.route_class[placement[op] * p.devices + other] < 0:
                return False
    return True


@jitable
def run_valid(p: PlacementProblem, w: Work, h: Hosts | None, placement: Ints) -> int:
    """The step time in ps of a placement, or FAULT or TOO_LONG."""
    return run(p, w, None, h, None, None, placement) if is_valid(p, placement) else FAULT


@jitable
def run_judged(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds | None,
    m: Totals,
    placement: Ints,
    limit: int,
) -> int:
    """``run_valid``, with bounds up to the instant ``limit`` (see ``limit_instant``), or WORSE;
    ``m`` tells whether totals prove that it fits.
    """
    if not is_valid(p, placement):
        return FAULT
    if bounds is not None:
        begin_bounds(p, bounds, placement, limit)
    begin_totals(p, m, placement)
    step_ps = run(p, w, r, h, bounds, m, placement)
    end_totals(p, m)
    return step_ps


# For a record, hosts, bounds or totals that may be None, numba would look at types in every call:
# each has kernels of its own, compiled where they are needed.


@jit
def step(problem: Ints, work: Ints, devices: Ints) -> int:
    """``run_valid`` without hosts."""
    return run_valid(open_problem(problem), open_work(work), None, bare(devices))


@jit
def step_hosted(problem: Ints, work: Ints, hosts: Ints, devices: Ints) -> int:
    """``run_valid`` with hosts."""
    return run_valid(open_problem(problem), open_work(work), open_hosts(hosts), bare(devices))


@jit
def judged(problem: Ints, work: Ints, totals: Ints, devices: Ints) -> int:
    """``run_judged`` without a record, hosts or bounds."""
    p, w, m = open_problem(problem), open_work(work), open_totals(totals)
    return run_judged(p, w, None, None, None, m, bare(devices), NEVER)


@jit
def judged_hosted(problem: Ints, work: Ints, hosts: Ints, totals: Ints, devices: Ints) -> int:
    """``run_judged`` with hosts, without a record or bounds."""
    p, w, m = open_problem(problem), open_work(work), open_totals(totals)
    return run_judged(p, w, None, open_hosts(hosts), None, m, bare(devices), NEVER)


@jit
def judged_each(
    problem: Ints, work: Ints, totals: Ints, devices: Ints, row: Ints, steps: Ints, proven: Ints
) -> int:
    """``judged`` of several placements one after another (``devices``: row by row), each copied to
    ``row``; writes what it returns, and whether totals prove that it fits.
    """
    p, w, m = open_problem(problem), open_work(work), open_totals(totals)
    placements, placement = bare(devices), bare(row)
    for k in range(len(steps)):
        for op in range(p.ops):
            placement[op] = placements[k * p.ops + op]
        steps[k] = run_judged(p, w, None, None, None, m, placement, NEVER)
        proven[k] = m.cell[PROVEN]
    return len(steps)


@jit
def limited(
    problem: Ints, work: Ints, totals: Ints, bounds: Ints, devices: Ints, limit: int
) -> int:
    """``run_judged`` with bounds, without a record or hosts."""
    p, w, m = open_problem(problem), open_work(work), open_totals(totals)
    return run_judged(p, w, None, None, open_bounds(bounds), m, bare(devices), limit)


@jit
def limited_hosted(
    problem: Ints, work: Ints, hosts: Ints, totals: Ints, bounds: Ints, devices: Ints, limit: int
) -> int:
    """``run_judged`` with hosts and bounds, without a record."""
    p, w, m = open_problem(problem), open_work(work), open_totals(totals)
    least, h = open_bounds(bounds), open_hosts(hosts)
    return run_judged(p, w, None, h, least, m, bare(devices), limit)


@jit
def recorded(problem: Ints, work: Ints, totals: Ints, record: Ints, devices: Ints) -> int:
    """``run_judged`` with a record, without hosts or bounds."""
    p, w, m = open_problem(problem), open_work(work), open_totals(totals)
    return run_judged(p, w, open_record(record), None, None, m, bare(devices), NEVER)


@jit
def recorded_hosted(
    problem: Ints, work: Ints, hosts: Ints, totals: Ints, record: Ints, devices: Ints
) -> int:
    """``run_judged`` with a record and hosts, without bounds."""
    p, w, m = open_problem(problem), open_work(work), open_totals(totals)
    r, h = open_record(record), open_hosts(hosts)
    return run_judged(p, w, r, h, None, m, bare(devices), NEVER)
