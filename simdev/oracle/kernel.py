"""The recurrence of the execution contract under fifo, straight from a placement: no task graph is
built.

start = max(ready, when its queues are free), applied in the order of ready numbers. An op comes up
when it is ready, its transfers when it finishes (they are ready together, numbered by producer,
then output, then destination); one heap ordered by (instant and round, op) holds both. Entries
``op`` are ready ops, entries ``ops + op`` finished producers: the two never share a queue, so their
mutual order is free. Under program order an op also waits for the one before it on its device: then
nothing is left for its queue to decide.
"""

from __future__ import annotations

from ..jit import bare, jit, jitable, opener
from ..lowering.place import destinations
from ..taskgraph import Ints
from .cost import FAULT, TOO_LONG
from .question import MULTICAST, PER_CONSUMER, Question, Record, Work

jitable(destinations)
open_question, open_work, open_record = opener(Question), opener(Work), opener(Record)
LATE, NOBODY = 2**63 - 1, -1
# Cells of Work.cell: size of the heap, the key beside it; the instant from which keys count, the
# key in hand, whether the step is too long for the keys.
SIZE, BESIDE, EPOCH, KEY, LONG = range(5)
# In ``missing``: the op has its start; it is the last of a line; LAST - 1 - op: that op is behind
# it in the line.
TAKEN, LAST = -1, -2


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
def rebase(q: Question, w: Work, instant: int) -> int:
    """Count the keys' instants from now on, since ``instant`` is too far from where they were
    counted; it, so counted.

    Where even that is too far, the step is too long for keys: it goes on in a wrong order, to an
    end that is not used.
    """
    shift = w.cell[KEY] >> q.id_bits
    w.cell[EPOCH], w.cell[KEY] = w.cell[EPOCH] + shift, w.cell[KEY] - (shift << q.id_bits)
    for at in range(w.cell[SIZE]):
        w.heap[at] -= shift << q.id_bits
    if w.cell[BESIDE] != LATE:
        w.cell[BESIDE] -= shift << q.id_bits
    since = instant - w.cell[EPOCH]
    if since >= q.horizon:
        w.cell[LONG], since = 1, q.horizon - 1
    return since


@jitable
def push(q: Question, w: Work, instant: int, task: int) -> None:
    """Put a task on the heap, or at its side where the smallest of the newest waits."""
    since = instant - w.cell[EPOCH]
    if since >= q.horizon:
        since = rebase(q, w, instant)
    key, beside = since << q.id_bits | task, w.cell[BESIDE]
    if key < beside:
        w.cell[BESIDE] = key
        key = beside
        if key == LATE:
            return
    at = w.cell[SIZE]
    w.cell[SIZE] = at + 1
    rise(w, at, key)


@jitable
def drop_top(w: Work) -> None:
    """Take the first key off the heap: walk the hole down, then the last key up (it belongs near
    the leaves).
    """
    size = w.cell[SIZE] - 1
    w.cell[SIZE] = size
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
    """The instant ``length`` later: the first round of another instant, or the next round where no
    time passes.
    """
    return (instant & inverse) + length if length > 0 else instant + 1


@jitable
def later(instant: int, length: int, inverse: int) -> int:
    """The instant a lag or gap later: the same where there is none."""
    return (instant & inverse) + length if length > 0 else instant


@jitable
def release(q: Question, w: Work, op: int, instant: int) -> None:
    """One wait less for an op; the last one makes it ready."""
    ready = max(w.when[op], instant)
    w.when[op] = ready
    missing = w.missing[op] - 1
    w.missing[op] = missing
    if missing == 0:
        push(q, w, ready, op)


@jitable
def send(q: Question, w: Work, tensor: int, route: int, now: int) -> tuple[int, int, int]:
    """One transfer over one route: its start, finish and release."""
    inverse, start = ~((1 << q.round_bits) - 1), now
    begin, end = q.queue_ptr[route], q.queue_ptr[route + 1]
    for e in range(begin, end):
        start = max(start, w.free[q.queue[e]])
    finish = after(
        start, q.sending[tensor * q.classes + q.route_class[route]] + q.route_held[route], inverse
    )
    free = later(finish, q.route_gap[route], inverse)
    for e in range(begin, end):
        w.free[q.queue[e]] = free
    return start, finish, later(finish, q.route_lag[route], inverse)


@jitable
def multicast(
    q: Question, w: Work, tensor: int, source: int, now: int, count: int
) -> tuple[int, int, int]:
    """One transfer to all devices found: every queue, the smallest bandwidth, the largest latency
    and gap.
    """
    inverse = ~((1 << q.round_bits) - 1)
    start, sending, held, lag, gap = now, 0, 0, 0, 0
    for k in range(count):
        route = source * q.devices + w.found[k]
        for e in range(q.queue_ptr[route], q.queue_ptr[route + 1]):
            start = max(start, w.free[q.queue[e]])
        sending = max(sending, q.sending[tensor * q.classes + q.route_class[route]])
        held, lag, gap = (
            max(held, q.route_held[route]),
            max(lag, q.route_lag[route]),
            max(gap, q.route_gap[route]),
        )
    finish = after(start, sending + held, inverse)
    free = later(finish, gap, inverse)
    for k in range(count):
        route = source * q.devices + w.found[k]
        for e in range(q.queue_ptr[route], q.queue_ptr[route + 1]):
            w.free[q.queue[e]] = free
    return start, finish, later(finish, lag, inverse)


@jitable
def send_for(
    q: Question, w: Work, r: Record | None, e: int, tensor: int, source: int, device: int, now: int
) -> None:
    """A transfer for the one read ``e``."""
    start, finish, arrival = send(q, w, tensor, source * q.devices + device, now)
    if r is not None:
        r.sent[e], r.received[e] = start >> q.round_bits, finish >> q.round_bits
    release(q, w, q.consumer[e], arrival)


@jitable
def send_each(
    q: Question,
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
        for e in range(q.consumer_ptr[tensor], q.consumer_ptr[tensor + 1]):
            if placement[q.consumer[e]] == w.found[k]:
                send_for(q, w, r, e, tensor, source, w.found[k], now)


@jitable
def send_shared(
    q: Question,
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
        multicast(q, w, tensor, source, now, count) if q.mode == MULTICAST else (0, 0, 0)
    )
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

    The ops of a device finish in the order in which they are taken up: they line up, and only the
    first of the line stands on the heap, which stays small (a graph may have a thousand roots).
    """
    w.when[op], w.missing[op] = finish, LAST
    last = w.line_end[device]
    if last == NOBODY:
        push(q, w, finish, q.ops + op)
    else:
        w.missing[last] = LAST - 1 - op
    w.line_end[device] = op


@jitable
def next_in_line(q: Question, w: Work, op: int, device: int) -> None:
    """The first of a device's line is dealt with: the one behind it comes to the heap."""
    other = LAST - 1 - w.missing[op]
    w.missing[op] = TAKEN
    if other < 0:
        w.line_end[device] = NOBODY
    else:
        push(q, w, w.when[other], q.ops + other)


@jitable
def compute(q: Question, w: Work, r: Record | None, placement: Ints, op: int, now: int) -> int:
    """A ready op runs when its device is free; returns its finish.

    Its consumers on the device need no transfer.
    """
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
    if q.program and w.behind[op] != NOBODY:
        release(q, w, w.behind[op], finish)
    if away:
        finished(q, w, op, device, finish)
    return finish


@jitable
def clear(q: Question, w: Work) -> None:
    """Nothing has happened yet. Roots do not go through the heap: see ``step``."""
    w.cell[SIZE], w.cell[BESIDE], w.cell[EPOCH], w.cell[KEY], w.cell[LONG] = 0, LATE, 0, 0, 0
    for queue in range(q.queues):
        w.free[queue] = 0
    for device in range(q.devices):
        w.line_end[device] = NOBODY
    for op in range(q.ops):
        w.when[op], w.missing[op] = 0, q.waits[op]


@jitable
def line_up(q: Question, w: Work, placement: Ints) -> None:
    """Under program order every op waits for the one before it on its device."""
    for op in range(q.ops):
        device = placement[op]
        before = w.line_end[device]
        w.behind[op], w.line_end[device] = NOBODY, op
        if before != NOBODY:
            w.behind[before] = op
            w.missing[op] += 1
    for device in range(q.devices):
        w.line_end[device] = NOBODY


@jitable
def take(w: Work) -> int:
    """The next key, off the heap or from beside it; LATE where nothing is left."""
    key = w.cell[BESIDE]
    if w.cell[SIZE] > 0 and w.heap[0] < key:
        key = w.heap[0]
        drop_top(w)
    else:
        w.cell[BESIDE] = LATE
    w.cell[KEY] = key
    return key


@jitable
def happen(q: Question, w: Work, r: Record | None, placement: Ints, key: int) -> int:
    """A ready op is taken up (returns its finish), or a finished producer sends (returns 0)."""
    task = key & ((1 << q.id_bits) - 1)
    op = task - q.ops
    if op < 0:
        return compute(q, w, r, placement, task, w.when[task])
    now = w.when[op]
    next_in_line(q, w, op, placement[op])
    send_all(q, w, r, placement, op, now)
    return 0


@jitable
def run(q: Question, w: Work, r: Record | None, placement: Ints) -> int:
    """The step time in ps of a placement (device by op; valid); with a record, also when everything
    happened.

    An op finishes after every release that it waits for, so the last finish of an op is the step
    time. TOO_LONG where what is pending at one time lies too far apart for the keys of the heap.
    """
    last = 0
    clear(q, w)
    if q.program:
        line_up(q, w, placement)
    for k in range(q.root_count):  # ready in the first round, taken up in the order of their ids
        root = q.roots[k]
        # neither behind another op nor released by it
        if w.missing[root] == 0 and w.when[root] == 0:
            last = max(last, compute(q, w, r, placement, root, 0))
    while True:
        key = take(w)
        if key == LATE:
            return TOO_LONG if w.cell[LONG] else last >> q.round_bits
        last = max(last, happen(q, w, r, placement, key))


@jitable
def first_fault(q: Question, placement: Ints) -> int:
    """The first op that may not stand where it does (device, cost, colocation or route), or -1."""
    for op in range(q.ops):
        device = placement[op]
        if device < 0 or device >= q.devices or q.duration[op * q.devices + device] < 0:
            return op
        if placement[q.leader[op]] != device:
            return op
    if q.all_routes:
        return -1
    for op in range(q.ops):
        for e in range(q.consumer_ptr[q.tensor_ptr[op]], q.consumer_ptr[q.tensor_ptr[op + 1]]):
            other = placement[q.consumer[e]]
            if other != placement[op] and q.route_class[placement[op] * q.devices + other] < 0:
                return op
    return -1


@jit
def step(question: Ints, work: Ints, devices: Ints) -> int:
    """The step time in ps of a placement, or FAULT or TOO_LONG."""
    q, placement = open_question(question), bare(devices)
    return FAULT if first_fault(q, placement) >= 0 else run(q, open_work(work), None, placement)


@jit
def step_recorded(question: Ints, work: Ints, record: Ints, devices: Ints) -> int:
    """The same, with a record."""
    q, placement = open_question(question), bare(devices)
    return (
        FAULT
        if first_fault(q, placement) >= 0
        else run(q, open_work(work), open_record(record), placement)
    )


@jit
def is_faulty(question: Ints, devices: Ints) -> bool:
    """Whether some op may not stand where it does."""
    return first_fault(open_question(question), bare(devices)) >= 0
