"""The step time of a placement by the rules of execution (ARCHITECTURE.md), for queues that are
first in, first out. No task graph is built: compiled loops walk the op graph.

start = max(ready, when its queues are free), applied in the order of ready numbers. An op is taken
up when it is ready, its transfers when it finishes (all are ready then, numbered by producer, then
output, then destination). A heap ordered by (instant, entry) holds both: entry ``op`` is an op that
is ready, entry ``ops + op`` a producer that has finished and now sends. An op holds the compute
stream of its device, a transfer holds queues of links; so the order of an op and a transfer at one
instant makes no difference.

Under program order an op also waits for the op before it on its device, so only one op at a time
can be ready there and its queue has nothing to choose. The same holds on a device with a host,
whose thread dispatches in program order (``oracle/cluster.py``).

Arguments of all functions: ``p`` is the problem (columns that no placement changes), ``w`` the work
(columns that an evaluation writes). ``r`` is the record of all starts and finishes, from which
peaks of memory follow; ``h`` are the hosts; ``bounds`` show early that a step must exceed a limit;
``m`` are totals of bytes by device, which may prove that the placement fits. Each of these four is
None where an evaluation does not need it.

``oracle/placements/evaluator.py`` calls ``evaluate``, ``evaluate_watched`` and ``evaluate_each``;
``moves.py`` beside it calls ``clear``, ``happen`` and ``is_valid`` to go on from a snapshot. An
engine executes the lowered task graph of a question that these loops do not cover, and of a
placement whose answer is TOO_LONG. ``is_covered`` (``oracle/cluster.py``) refuses collectives,
shared links, staging, slowed devices and memory that keeps outputs alone. ``placement_problem``
(``problem.py``) refuses routes in several pieces and numbers that do not fit. ``evaluator_of``
(``evaluator.py``) refuses other orders, and hosts that dispatch in another order than the file's.
``Oracle`` (``oracle/__init__.py``, ``_runs_once``) refuses repeated steps, microbatches, pipelines
and loaders. Without Numba an engine executes everything.

The rules have other implementations, which change together: tasks and their order in
``lowering/transfer.py`` and ``lowering/build.py``; both engines (``execution/engine/``); the
checker (``execution/check/``), in another way; parts of split ops in ``oracle/splits/run.py`` and
``fan.py`` there. ``oracle/heap.py`` serves queues for both kernels. ``benchmarks/event_loop.cpp``
does the same in C++. Guarded by ``tests/oracle/test_oracle.py`` (equal to an engine, all modes of
transfers), ``test_oracle_hosts.py``, ``test_moves.py``, ``test_bounded.py`` and ``test_totals.py``
there, and by ``tests/benchmarking/test_event_loop.py``.
"""

from __future__ import annotations

from ...ground.jit import bare, jit, jitable, lowest
from ...lowering.transfer import destinations
from ...nouns.taskgraph import Ints
from .. import heap
from ..cluster import (
    Hosts,
    begin_dispatches,
    clear_hosts,
    go_on,
    may_wait,
    open_hosts,
    put_dispatch,
    stand_behind,
)
from ..cost import FAULT, NEVER, TOO_LONG, WORSE
from ..heap import (
    LATE,
    NONE,
    TAKEN,
    after,
    later,
    next_to_send,
    ps_of,
    push,
    release,
    send,
    serve,
    take,
    wait_to_send,
)
from .judging import (
    PROVEN,
    Bounds,
    Totals,
    arrive,
    begin_bounds,
    begin_totals,
    bound,
    end_totals,
    is_exceeded,
    lasting,
    open_bounds,
    open_totals,
)
from .problem import (
    MULTICAST,
    PER_CONSUMER,
    PlacementProblem,
    Record,
    Work,
    open_problem,
    open_record,
    open_work,
)

jitable(destinations)
BITS = 62  # the most devices for which a positive integer has a bit each


# The transfers of a finished producer, in the order of the rules of execution: by tensor, then by
# destination. ``p.mode`` is how a tensor with several readers is sent (``Cluster.transfer``); the
# queue mode of a cluster is in the columns ``queue_ptr`` and ``queue``, by route.


@jitable
def few_destinations(
    consumers: Ints, begin: int, end: int, placement: Ints, source: int, targets: Ints
) -> int:
    """``destinations`` for clusters in which every device has a bit of an integer. Bits come out in
    the order of devices, so no sort is needed, whose branches a processor would mispredict.
    """
    devices, count = 0, 0
    for e in range(begin, end):
        devices |= 1 << placement[consumers[e]]
    devices &= ~(1 << source)
    while devices:
        targets[count] = lowest(devices)
        devices &= devices - 1
        count += 1
    return count


@jitable
def multicast(
    p: PlacementProblem, w: Work, tensor: int, source: int, now: int, count: int
) -> tuple[int, int, int]:
    """A transfer to the first ``count`` targets, which holds the queues of all their routes, with
    the smallest bandwidth and the largest latency and gap. Returns start, finish and release.
    """
    start, sending, held, lag, gap = now, 0, 0, 0, 0
    for k in range(count):
        route = source * p.devices + w.targets[k]
        for e in range(p.queue_ptr[route], p.queue_ptr[route + 1]):
            start = max(start, w.free[p.queue[e]])
        sending = max(sending, p.sending[tensor * p.classes + p.route_class[route]])
        held = max(held, p.route_held[route])
        lag, gap = max(lag, p.route_lag[route]), max(gap, p.route_gap[route])
    finish = after(w, start, sending + held)
    free = later(w, finish, gap)
    for k in range(count):
        route = source * p.devices + w.targets[k]
        for e in range(p.queue_ptr[route], p.queue_ptr[route + 1]):
            w.free[p.queue[e]] = free
    return start, finish, later(w, finish, lag)


@jitable
def send_for(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    m: Totals | None,
    e: int,
    tensor: int,
    source: int,
    device: int,
    now: int,
) -> None:
    """A transfer to a device for the read ``e`` alone."""
    arrive(m, tensor, device)
    route = source * p.devices + device
    start, finish, arrival, _ = send(w, p, None, route, lasting(p, tensor, route), now)
    if r is not None:
        r.sent[e], r.received[e] = ps_of(w, start), ps_of(w, finish)
    release(w, p.consumer[e], arrival)


@jitable
def send_shared(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    m: Totals | None,
    placement: Ints,
    tensor: int,
    source: int,
    now: int,
    count: int,
) -> None:
    """A transfer to each of ``count`` targets, or a multicast to all, for all reads there."""
    start, finish, arrival = 0, 0, 0
    if p.mode == MULTICAST:
        start, finish, arrival = multicast(p, w, tensor, source, now, count)
    for k in range(count):
        device = w.targets[k]
        if p.mode != MULTICAST:
            route = source * p.devices + device
            length = lasting(p, tensor, route)
            start, finish, arrival, _ = send(w, p, None, route, length, now)
        w.arrival[device] = arrival
        arrive(m, tensor, device)
        if r is not None:
            r.sent_to[device], r.received_by[device] = ps_of(w, start), ps_of(w, finish)
    for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        device = placement[p.consumer[e]]
        if device != source:
            if r is not None:
                r.sent[e], r.received[e] = r.sent_to[device], r.received_by[device]
            release(w, p.consumer[e], w.arrival[device])


@jitable
def send_all(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    m: Totals | None,
    placement: Ints,
    op: int,
    now: int,
) -> None:
    """The transfers of an op that has finished."""
    source = placement[op]
    for tensor in range(p.tensor_ptr[op], p.tensor_ptr[op + 1]):
        begin, end = p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]
        if end == begin + 1:  # most tensors have one reader, and every mode is the same for it
            device = placement[p.consumer[begin]]
            if device != source:
                send_for(p, w, r, m, begin, tensor, source, device, now)
            continue
        if p.devices <= BITS:
            count = few_destinations(p.consumer, begin, end, placement, source, w.targets)
        else:
            count = destinations(p.consumer, begin, end, placement, source, w.targets)
        if count and p.mode != PER_CONSUMER:
            send_shared(p, w, r, m, placement, tensor, source, now, count)
            continue
        for k in range(count):
            for e in range(begin, end):
                if placement[p.consumer[e]] == w.targets[k]:
                    send_for(p, w, r, m, e, tensor, source, w.targets[k], now)


# Events


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
    """Run a ready op as soon as its device is free; returns its finish, and whether its transfers
    are to be sent at once. Consumers on the device need no transfer.
    """
    device = placement[op]
    length = p.duration[op * p.devices + device]
    start, finish = serve(w, device, now, length, p.device_gap[device])
    w.missing[op] = TAKEN
    if bounds is not None:
        bound(w, bounds, op, device, start, finish, length)
    if r is not None:
        r.start[op], r.finish[op] = ps_of(w, start), ps_of(w, finish)
    away = False
    for e in range(p.read_ptr[op], p.read_ptr[op + 1]):
        if placement[p.consumer[e]] == device:
            release(w, p.consumer[e], finish)
        else:
            away = True
    if h is not None:
        go_on(w, h, op, device, finish)
    # Consumers on this device were released above, the others are released when their transfers
    # are sent. Queues after the first ``devices`` are those of links: where there are any,
    # transfers wait for each other, so they are sent later, in the order in which their producers
    # finish. Where there are none, transfers are sent at once, and the heap has an entry less.
    if away and p.queues > p.devices:
        wait_to_send(w, p.ops, op, device, finish)
        away = False
    return finish, away


@jitable
def clear(p: PlacementProblem, w: Work) -> None:
    """Set the state before the first event. Roots do not go through the heap: see ``run``."""
    heap.clear(w)
    for queue in range(p.queues):
        w.free[queue] = 0
    for device in range(p.devices):
        w.line_end[device] = NONE
    for op in range(p.ops):
        w.when[op], w.missing[op] = 0, p.waits[op]


@jitable
def line_up(p: PlacementProblem, w: Work, h: Hosts, placement: Ints, waits: bool) -> None:
    """Give every op its dispatch, in program order, and where its device runs ops in order let it
    wait for the op before it.

    ``begin`` calls this a second time, with ``waits``, where dispatches may wait for ops. Then only
    dispatches are written again, for ops already wait for the ops before them.
    """
    clear_hosts(h, waits)
    entry = 0
    for op in range(p.ops):
        device = placement[op]
        if not waits:
            h.behind[op] = NONE
            if h.in_order[device]:
                stand_behind(w, h, op, device)
        if h.threads:
            at, blocks = op * p.devices + device, h.blocks[op]
            length, launches = p.dispatch[at], p.launches[at]
            entry = put_dispatch(w, h, entry, op, device, length, launches, blocks, waits)
    for device in range(p.devices):
        w.line_end[device] = NONE


@jitable
def begin(p: PlacementProblem, w: Work, h: Hosts, placement: Ints) -> None:
    """Ops wait for their dispatches, and threads begin."""
    line_up(p, w, h, placement, False)
    if may_wait(h):
        line_up(p, w, h, placement, True)
        begin_dispatches(w, h)
        return
    for k in range(p.root_count):  # roots that wait only for their dispatch
        root = p.roots[k]
        if w.missing[root] == 0 and w.when[root] > 0:
            push(w, w.when[root], root)


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
    """Process a key: run a ready op (returns its finish), or let a finished producer send (0)."""
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
    """The step time in ps of a valid placement (device by op); a record ``r`` is filled.

    An op finishes after every release that it waits for, so the last finish of an op is the step
    time. WORSE as soon as the step must take longer than the limit of ``bounds``. TOO_LONG where
    two events on the heap are so far apart in time that a key has not enough bits for both: the
    cell ``heap.FAULT`` notes it during the run.
    """
    last = 0
    clear(p, w)
    if h is not None:
        begin(p, w, h, placement)
    roots = 0
    while True:
        if roots < p.root_count:  # roots are ready in the first round, in the order of their ids
            key, roots = p.roots[roots], roots + 1
            # A root that waits for an op before it or for its dispatch comes to the heap, or has
            # come to it already.
            if w.missing[key] != 0 or w.when[key] != 0:
                continue
        else:
            key = take(w)
        if key == LATE:
            return TOO_LONG if w.cell[heap.FAULT] else ps_of(w, last)
        last = max(last, happen(p, w, r, h, bounds, m, placement, key))
        if bounds is not None and is_exceeded(bounds):
            return TOO_LONG if w.cell[heap.FAULT] else WORSE


@jitable
def is_valid(p: PlacementProblem, placement: Ints) -> bool:
    """Whether a placement is valid: devices, costs, colocation and routes."""
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
    # On most clusters every pair of devices has a route, so reads need no check.
    if p.all_routes:
        return True
    for op in range(p.ops):
        for e in range(p.read_ptr[op], p.read_ptr[op + 1]):
            other = placement[p.consumer[e]]
            if other != placement[op] and p.route_class[placement[op] * p.devices + other] < 0:
                return False
    return True


@jitable
def run_valid(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds | None,
    m: Totals | None,
    placement: Ints,
    limit: int,
) -> int:
    """``run``, or ``cost.FAULT`` for an invalid placement. With ``bounds``, WORSE where the step
    exceeds ``limit`` ps. ``m`` then shows whether totals prove that the placement fits.
    """
    if not is_valid(p, placement):
        return FAULT
    if bounds is not None:
        begin_bounds(p, bounds, placement, limit)
    if m is not None:
        begin_totals(p, m, placement)
    step_ps = run(p, w, r, h, bounds, m, placement)
    if m is not None:
        end_totals(p, m)
    return step_ps


@jit
def evaluate(problem: Ints, work: Ints, hosts: Ints, totals: Ints, devices: Ints) -> int:
    """``run_valid`` without a limit or a record. A separate function, because each argument costs a
    small question a few percent of its time.

    The caller passes the integer 0 in place of hosts or totals that an evaluation does not need.
    Numba sees this from the type and removes their code.
    """
    p, w, m, h = open_problem(problem), open_work(work), open_totals(totals), open_hosts(hosts)
    return run_valid(p, w, None, h, None, m, bare(devices), NEVER)


@jit
def evaluate_watched(
    problem: Ints,
    work: Ints,
    hosts: Ints,
    totals: Ints,
    bounds: Ints,
    record: Ints,
    devices: Ints,
    limit: int,
) -> int:
    """``run_valid`` with a limit, or with a record; 0 in place of a table that an evaluation does
    not need.
    """
    return run_valid(
        open_problem(problem),
        open_work(work),
        open_record(record),
        open_hosts(hosts),
        open_bounds(bounds),
        open_totals(totals),
        bare(devices),
        limit,
    )


@jit
def evaluate_each(
    problem: Ints,
    work: Ints,
    hosts: Ints,
    totals: Ints,
    devices: Ints,
    row: Ints,
    steps: Ints,
    proven: Ints,
) -> int:
    """Evaluate several placements one after another (``devices``: row by row; ``row`` is scratch).
    Writes their step times in ps to ``steps``, and to ``proven`` whether totals prove that they
    fit; returns their number.
    """
    p, w, m, h = open_problem(problem), open_work(work), open_totals(totals), open_hosts(hosts)
    placements, placement = bare(devices), bare(row)
    for k in range(len(steps)):
        for op in range(p.ops):
            placement[op] = placements[k * p.ops + op]
        steps[k] = run_valid(p, w, None, h, None, m, placement, NEVER)
        proven[k] = m.cell[PROVEN]
    return len(steps)
