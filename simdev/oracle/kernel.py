"""The recurrence of the execution contract under fifo, straight from a placement: no task graph is built.

start = max(ready, when its queues are free), applied in the order of ready numbers. An op comes up when it is ready,
its transfers when it finishes (they are ready together, numbered by producer, then output, then destination); one heap
ordered by (instant and round, op) holds both. Entries ``op`` are ready ops, entries ``ops + op`` finished producers:
the two never share a queue, so their mutual order is free.
"""

from __future__ import annotations

from ..jit import jit, jitable
from ..lowering.place import destinations
from ..taskgraph import Ints
from .cost import TOO_LONG
from .question import MULTICAST, PER_CONSUMER, Question, Record, Work

jitable(destinations)
LATE, NOBODY = 2**63 - 1, -1
TAKEN = -1  # in ``missing``: the op has its start


@jitable
def rise(w: Work, at: int, key: int) -> None:
    """Let a key rise from a hole to its place."""
    while at > 0:
        parent = (at - 1) >> 1
        above = w.heap[parent]
        if above < key:
            break
        w.heap[at] = above
        at = parent
    w.heap[at] = key


@jitable
def push(w: Work, key: int) -> None:
    """Put a key on the heap, or at its side where the smallest of the newest waits."""
    beside = w.cell[1]
    if key < beside:
        w.cell[1] = key
        key = beside
        if key == LATE:
            return
    at = w.cell[0]
    w.cell[0] = at + 1
    rise(w, at, key)


@jitable
def drop_top(w: Work) -> None:
    """Take the first key off the heap: walk the hole down, then the last key up (it belongs near the leaves)."""
    size = w.cell[0] - 1
    w.cell[0] = size
    key = w.heap[size]
    w.heap[size] = LATE  # so that the hole may look at one child too many
    at, child = 0, 1
    while child < size:
        child += w.heap[child + 1] < w.heap[child]
        w.heap[at] = w.heap[child]
        at, child = child, 2 * child + 1
    rise(w, at, key)


@jitable
def after(instant: int, length: int, inverse: int) -> int:
    """The instant ``length`` later: the first round of another instant, or the next round where no time passes."""
    return (instant & inverse) + length if length > 0 else instant + 1


@jitable
def later(instant: int, length: int, inverse: int) -> int:
    """The instant a lag or gap later: the same where there is none."""
    return (instant & inverse) + length if length > 0 else instant


@jitable
def release(q: Question, w: Work, op: int, instant: int) -> None:
    """One wait less for an op; the last one makes it ready."""
    ready = max(w.ready[op], instant)
    w.ready[op] = ready
    missing = w.missing[op] - 1
    w.missing[op] = missing
    if missing == 0:
        push(w, ready << q.id_bits | op)


@jitable
def send(q: Question, w: Work, tensor: int, route: int, now: int) -> tuple[int, int, int]:
    """One transfer over one route: its start, finish and release."""
    inverse, start = ~((1 << q.round_bits) - 1), now
    begin, end = q.queue_ptr[route], q.queue_ptr[route + 1]
    for e in range(begin, end):
        start = max(start, w.free[q.queue[e]])
    finish = after(start, q.sending[tensor * q.classes + q.route_class[route]] + q.route_held[route], inverse)
    free = later(finish, q.route_gap[route], inverse)
    for e in range(begin, end):
        w.free[q.queue[e]] = free
    return start, finish, later(finish, q.route_lag[route], inverse)


@jitable
def multicast(q: Question, w: Work, tensor: int, source: int, now: int, count: int) -> tuple[int, int, int]:
    """One transfer to all devices found: every queue, the smallest bandwidth, the largest latency and gap."""
    inverse = ~((1 << q.round_bits) - 1)
    start, sending, held, lag, gap = now, 0, 0, 0, 0
    for k in range(count):
        route = source * q.devices + w.found[k]
        for e in range(q.queue_ptr[route], q.queue_ptr[route + 1]):
            start = max(start, w.free[q.queue[e]])
        sending = max(sending, q.sending[tensor * q.classes + q.route_class[route]])
        held, lag, gap = max(held, q.route_held[route]), max(lag, q.route_lag[route]), max(gap, q.route_gap[route])
    finish = after(start, sending + held, inverse)
    free = later(finish, gap, inverse)
    for k in range(count):
        route = source * q.devices + w.found[k]
        for e in range(q.queue_ptr[route], q.queue_ptr[route + 1]):
            w.free[q.queue[e]] = free
    return start, finish, later(finish, lag, inverse)


@jitable
def send_for(q: Question, w: Work, r: Record | None, e: int, tensor: int, source: int, device: int, now: int) -> None:
    """A transfer for the one read ``e``."""
    start, finish, arrival = send(q, w, tensor, source * q.devices + device, now)
    if r is not None:
        r.sent[e], r.received[e] = start >> q.round_bits, finish >> q.round_bits
    release(q, w, q.consumer[e], arrival)


@jitable
def send_each(
    q: Question, w: Work, r: Record | None, placement: Ints, tensor: int, source: int, now: int, count: int
) -> None:
    """A transfer for each remote read, by device and then by consumer."""
    for k in range(count):
        for e in range(q.consumer_ptr[tensor], q.consumer_ptr[tensor + 1]):
            if placement[q.consumer[e]] == w.found[k]:
                send_for(q, w, r, e, tensor, source, w.found[k], now)


@jitable
def send_shared(
    q: Question, w: Work, r: Record | None, placement: Ints, tensor: int, source: int, now: int, count: int
) -> None:
    """A transfer for each device, or one for all, that serves all reads there."""
    start, finish, arrival = multicast(q, w, tensor, source, now, count) if q.mode == MULTICAST else (0, 0, 0)
    for k in range(count):
        device = w.found[k]
        if q.mode != MULTICAST:
            start, finish, arrival = send(q, w, tensor, source * q.devices + device, now)
        w.arrival[device] = arrival
        if r is not None:
            r.sent_to[device], r.received_by[device] = start >> q.round_bits, finish >> q.round_bits
    for e in range(q.consumer_ptr[tensor], q.consumer_ptr[tensor + 1]):
        device = placement[q.consumer[e]]
        if device != source:
            if r is not None:
                r.sent[e], r.received[e] = r.sent_to[device], r.received_by[device]
            release(q, w, q.consumer[e], w.arrival[device])


@jitable
def send_all(q: Question, w: Work, r: Record | None, placement: Ints, op: int, now: int) -> None:
    """The transfers of a finished producer."""
    source = placement[op]
    for tensor in range(q.tensor_ptr[op], q.tensor_ptr[op + 1]):
        begin, end = q.consumer_ptr[tensor], q.consumer_ptr[tensor + 1]
        if end == begin + 1:  # most tensors have one reader, and every mode is the same for it
            device = placement[q.consumer[begin]]
            if device != source:
                send_for(q, w, r, begin, tensor, source, device, now)
            continue
        count = destinations(q.consumer, begin, end, placement, source, w.found)
        if count == 0:
            continue
        if q.mode == PER_CONSUMER:
            send_each(q, w, r, placement, tensor, source, now, count)
        else:
            send_shared(q, w, r, placement, tensor, source, now, count)


@jitable
def finished(q: Question, w: Work, op: int, device: int, finish: int) -> None:
    """A producer whose transfers are due when it finishes.

    The ops of a device finish in the order in which they are taken up: they line up, and only the first of the line
    stands on the heap, which stays small (a graph may have a thousand roots).
    """
    w.finish[op], w.behind[op] = finish, NOBODY
    if w.line_end[device] == NOBODY:
        push(w, finish << q.id_bits | (len(w.finish) + op))
    else:
        w.behind[w.line_end[device]] = op
    w.line_end[device] = op


@jitable
def next_in_line(q: Question, w: Work, op: int, device: int) -> None:
    """The first of a device's line is dealt with: the one behind it comes to the heap."""
    other = w.behind[op]
    w.finish[op] = NOBODY
    if other == NOBODY:
        w.line_end[device] = NOBODY
    else:
        push(w, w.finish[other] << q.id_bits | (len(w.finish) + other))


@jitable
def compute(q: Question, w: Work, r: Record | None, placement: Ints, op: int, now: int) -> int:
    """A ready op runs when its device is free; returns its finish. Its consumers on the device need no transfer."""
    device = placement[op]
    inverse = ~((1 << q.round_bits) - 1)
    start, length = max(now, w.free[device]), q.duration[op * q.devices + device]
    finish = after(start, length, inverse)
    w.free[device] = later(finish, q.device_gap[device], inverse) if length > 0 else finish
    w.missing[op] = TAKEN
    if r is not None:
        r.start[op], r.finish[op] = start >> q.round_bits, finish >> q.round_bits
    away = False
    for e in range(q.consumer_ptr[q.tensor_ptr[op]], q.consumer_ptr[q.tensor_ptr[op + 1]]):
        if placement[q.consumer[e]] == device:
            release(q, w, q.consumer[e], finish)
        else:
            away = True
    if away:
        finished(q, w, op, device, finish)
    return finish


@jitable
def clear(q: Question, w: Work) -> None:
    """Nothing has happened yet. Roots do not go through the heap: see ``step``."""
    w.cell[0], w.cell[1] = 0, LATE
    for queue in range(q.queues):
        w.free[queue] = 0
    for device in range(q.devices):
        w.line_end[device] = NOBODY
    for op in range(len(q.waits)):
        w.ready[op], w.missing[op], w.finish[op] = 0, q.waits[op], NOBODY


@jitable
def take(w: Work) -> int:
    """The next key, off the heap or from beside it; LATE where nothing is left."""
    key = w.cell[1]
    if w.cell[0] > 0 and w.heap[0] < key:
        key = w.heap[0]
        drop_top(w)
    else:
        w.cell[1] = LATE
    return key


@jitable
def happen(q: Question, w: Work, r: Record | None, placement: Ints, key: int) -> int:
    """A ready op is taken up (returns its finish), or a finished producer sends (returns 0)."""
    task = key & ((1 << q.id_bits) - 1)
    op = task - len(placement)
    if op < 0:
        return compute(q, w, r, placement, task, w.ready[task])
    now = w.finish[op]
    next_in_line(q, w, op, placement[op])
    send_all(q, w, r, placement, op, now)
    return 0


@jit
def step(q: Question, w: Work, r: Record | None, placement: Ints) -> int:
    """The step time in ps of a placement (device by op; valid); with a record, also when everything happened.

    An op finishes after every release that it waits for, so the last finish of an op is the step time. TOO_LONG where
    an instant did not fit into the key of the heap beside an op: then some were taken up in a wrong order, but none
    was lost or started before its own ready time, so that the last finish still shows it.
    """
    last = 0
    clear(q, w)
    for k in range(len(q.roots)):  # ready in the first round, taken up in the order of their ids
        last = max(last, compute(q, w, r, placement, q.roots[k], 0))
    while True:
        key = take(w)
        if key == LATE:
            return last >> q.round_bits if last >> (62 - q.id_bits) == 0 else TOO_LONG
        last = max(last, happen(q, w, r, placement, key))


@jit
def first_fault(q: Question, placement: Ints) -> int:
    """The first op that may not stand where it does (device, cost, colocation or route), or -1."""
    for op in range(len(placement)):
        device = placement[op]
        if device < 0 or device >= q.devices or q.duration[op * q.devices + device] < 0:
            return op
        if placement[q.leader[op]] != device:
            return op
    if q.all_routes:
        return -1
    for op in range(len(placement)):
        for e in range(q.consumer_ptr[q.tensor_ptr[op]], q.consumer_ptr[q.tensor_ptr[op + 1]]):
            other = placement[q.consumer[e]]
            if other != placement[op] and q.route_class[placement[op] * q.devices + other] < 0:
                return op
    return -1
