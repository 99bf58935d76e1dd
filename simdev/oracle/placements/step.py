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

from ...jit import bare, jit, jitable, opener
from ...lowering.transfer import destinations
from ...taskgraph import Ints
from .. import heap
from ..cost import FAULT, TOO_LONG, WORSE
from ..heap import LATE, NOBODY, TAKEN, after, later, next_to_send, release, take, wait_to_send
from .bounds import Bounds, begin_bounds, is_exceeded, start_op
from .hosts import WAITS, Hosts, begin, dispatch, open_hosts
from .problem import MULTICAST, PER_CONSUMER, PlacementProblem, Record, Work

jitable(destinations)
open_problem, open_work, open_record = opener(PlacementProblem), opener(Work), opener(Record)


@jitable
def send(p: PlacementProblem, w: Work, tensor: int, route: int, now: int) -> tuple[int, int, int]:
    """One transfer over one route: its start, finish and release."""
    inverse, start = ~((1 << p.round_bits) - 1), now
    begin, end = p.queue_ptr[route], p.queue_ptr[route + 1]
    for e in range(begin, end):
        start = max(start, w.free[p.queue[e]])
    finish = after(
        start, p.sending[tensor * p.classes + p.route_class[route]] + p.route_held[route], inverse
    )
    free = later(finish, p.route_gap[route], inverse)
    for e in range(begin, end):
        w.free[p.queue[e]] = free
    return start, finish, later(finish, p.route_lag[route], inverse)


@jitable
def multicast(
    p: PlacementProblem, w: Work, tensor: int, source: int, now: int, count: int
) -> tuple[int, int, int]:
    """One transfer to all devices found: every queue, the smallest bandwidth, the largest latency
    and gap.
    """
    inverse = ~((1 << p.round_bits) - 1)
    start, sending, held, lag, gap = now, 0, 0, 0, 0
    for k in range(count):
        route = source * p.devices + w.targets[k]
        for e in range(p.queue_ptr[route], p.queue_ptr[route + 1]):
            start = max(start, w.free[p.queue[e]])
        sending = max(sending, p.sending[tensor * p.classes + p.route_class[route]])
        held, lag, gap = (
            max(held, p.route_held[route]),
            max(lag, p.route_lag[route]),
            max(gap, p.route_gap[route]),
        )
    finish = after(start, sending + held, inverse)
    free = later(finish, gap, inverse)
    for k in range(count):
        route = source * p.devices + w.targets[k]
        for e in range(p.queue_ptr[route], p.queue_ptr[route + 1]):
            w.free[p.queue[e]] = free
    return start, finish, later(finish, lag, inverse)


@jitable
def send_for(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    e: int,
    tensor: int,
    source: int,
    device: int,
    now: int,
) -> None:
    """A transfer for the one read ``e``."""
    start, finish, arrival = send(p, w, tensor, source * p.devices + device, now)
    if r is not None:
        r.sent[e], r.received[e] = start >> p.round_bits, finish >> p.round_bits
    release(w, p.consumer[e], arrival)


@jitable
def send_each(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    placement: Ints,
    tensor: int,
    source: int,
    now: int,
    count: int,
) -> None:
    """A transfer for each remote read, by device and then by consumer."""
    for k in range(count):
        for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            if placement[p.consumer[e]] == w.targets[k]:
                send_for(p, w, r, e, tensor, source, w.targets[k], now)


@jitable
def send_shared(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    placement: Ints,
    tensor: int,
    source: int,
    now: int,
    count: int,
) -> None:
    """A transfer for each device, or one for all, that serves all reads there."""
    start, finish, arrival = (
        multicast(p, w, tensor, source, now, count) if p.mode == MULTICAST else (0, 0, 0)
    )
    for k in range(count):
        device = w.targets[k]
        if p.mode != MULTICAST:
            start, finish, arrival = send(p, w, tensor, source * p.devices + device, now)
        w.arrival[device] = arrival
        if r is not None:
            r.sent_to[device], r.received_by[device] = start >> p.round_bits, finish >> p.round_bits
    for e in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        device = placement[p.consumer[e]]
        if device != source:
            if r is not None:
                r.sent[e], r.received[e] = r.sent_to[device], r.received_by[device]
            release(w, p.consumer[e], w.arrival[device])


@jitable
def send_all(
    p: PlacementProblem, w: Work, r: Record | None, placement: Ints, op: int, now: int
) -> None:
    """The transfers of a finished producer."""
    source = placement[op]
    for tensor in range(p.tensor_ptr[op], p.tensor_ptr[op + 1]):
        begin, end = p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]
        if end == begin + 1:  # most tensors have one reader, and every mode is the same for it
            device = placement[p.consumer[begin]]
            if device != source:
                send_for(p, w, r, begin, tensor, source, device, now)
            continue
        count = destinations(p.consumer, begin, end, placement, source, w.targets)
        if count == 0:
            continue
        if p.mode == PER_CONSUMER:
            send_each(p, w, r, placement, tensor, source, now, count)
        else:
            send_shared(p, w, r, placement, tensor, source, now, count)


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
        send_all(p, w, r, placement, op, now)
    return finish


@jitable
def run(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds | None,
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
        last = max(last, happen(p, w, r, h, bounds, placement, key))
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
def run_valid(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds | None,
    placement: Ints,
) -> int:
    """The step time in ps of a placement, or FAULT, TOO_LONG or WORSE."""
    return run(p, w, r, h, bounds, placement) if is_valid(p, placement) else FAULT


@jitable
def run_limited(
    p: PlacementProblem,
    w: Work,
    r: Record | None,
    h: Hosts | None,
    bounds: Bounds,
    placement: Ints,
    limit: int,
) -> int:
    """``run_valid`` up to the instant ``limit``."""
    if not is_valid(p, placement):
        return FAULT
    begin_bounds(p, bounds, placement, limit)
    return run(p, w, r, h, bounds, placement)


# For a record, hosts or bounds that may be None, numba would look at types in every call: each has
# kernels of its own, compiled where they are needed.


@jit
def step(problem: Ints, work: Ints, devices: Ints) -> int:
    """``run_valid`` without a record or hosts."""
    return run_valid(open_problem(problem), open_work(work), None, None, None, bare(devices))


@jit
def step_recorded(problem: Ints, work: Ints, record: Ints, devices: Ints) -> int:
    """``run_valid`` with a record, without hosts."""
    p, w, r = open_problem(problem), open_work(work), open_record(record)
    return run_valid(p, w, r, None, None, bare(devices))


@jit
def step_hosted(problem: Ints, work: Ints, hosts: Ints, devices: Ints) -> int:
    """``run_valid`` with hosts, without a record."""
    p, w, h = open_problem(problem), open_work(work), open_hosts(hosts)
    return run_valid(p, w, None, h, None, bare(devices))


@jit
def step_hosted_recorded(
    problem: Ints, work: Ints, record: Ints, hosts: Ints, devices: Ints
) -> int:
    """``run_valid`` with a record and hosts."""
    p, w, r = open_problem(problem), open_work(work), open_record(record)
    return run_valid(p, w, r, open_hosts(hosts), None, bare(devices))
