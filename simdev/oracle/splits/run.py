"""The recurrence of the execution contract over blocks and fans: no task graph is built.

As for placements (``placements/step.py``), a heap holds rows that are ready and rows whose
transfers are due. Rows (tasks that compute, and collectives) are numbered as ``lowering.partition``
writes them, so that ties have the same order. Devices serve rows as they become ready, or
(hosts.py) in a fixed order. Few bits of an instant are left for rounds: where they do not suffice,
the run ends with a fault, and is tried again with more.

A run with a limit ends where it is sure to exceed the limit: the step lasts at least until a queue
has served all its remaining tasks, one after the other. The load of each queue changes with the
fans of a few ops, so it is kept from one evaluation to the next. Bounds by paths would take a third
of a run and stop no run earlier (measured).

In all functions ``t`` is the strategy, ``q`` the rules of the cluster and ``w`` the work space; a
record ``r`` and hosts ``h`` are None where an evaluation does not need them. ``evaluator.py`` calls
``run`` and ``add_loads``. A new rule that holds a queue longer also belongs in ``add_load``, else a
limit ends runs too late or too early.
"""

from __future__ import annotations

from ...ground.jit import bare, jit, jitable
from ...nouns.taskgraph import Ints
from .. import heap
from ..cluster import ENTRIES, Hosts, go_on
from ..cost import NEVER
from ..heap import (
    FAULT,
    LAST,
    LATE,
    NONE,
    TAKEN,
    after,
    next_to_send,
    ps_of,
    push,
    release,
    serve,
    take,
    take_off,
    wait_to_send,
)
from ..heap import send as book
from .columns import (
    DONE,
    FULL,
    LATEST,
    LENGTH,
    LIMIT,
    LONG,
    PART_BITS,
    PART_MASK,
    QUEUES,
    REF_MASK,
    ROOTS,
    ROW,
    ROWS,
    SENT,
    WORSE,
    Columns,
    Record,
    Rules,
    Work,
    open_columns,
    open_rules,
)
from .hosts import begin, check_end, device_of

MOST_TASKS = 1 << 20


@jitable
def row_of(t: Columns, w: Work, ref: int) -> int:
    """The row of a part."""
    slot, part = ref >> PART_BITS, ref & PART_MASK
    mapped = w.map[slot]
    return w.base[slot] + part if mapped == NONE else w.rows[mapped + part]


@jitable
def length_of(t: Columns, slot: int, part: int) -> int:
    """The ps that a part or a sum takes."""
    if slot < t.ops:
        return t.arena[t.devices_of[slot] + t.parts[slot] + part]
    return t.arena[t.arena[t.block[slot] + ROW + part] + LENGTH]


@jitable
def sending_ps(q: Rules, route: int, size: int) -> int:
    """The ps that a transfer of ``size`` bytes takes over a route, with its held latency."""
    rate = q.route_class[route]
    ps = size * q.whole[rate] + q.route_held[route]
    if q.rest[rate]:
        ps += (size * q.rest[rate] + q.parts[rate] - 1) // q.parts[rate]
    return ps


# Limits


@jitable
def add_load(t: Columns, q: Rules, loads: Ints, slot: int, part: int, sign: int) -> None:
    """Add to ``loads`` the ps for which a row and its transfers hold their queues."""
    fans, device, length = t.fans, device_of(t, slot, part), sign * length_of(t, slot, part)
    if device != NONE:
        loads[device] += length
    else:
        queues = t.arena[t.arena[t.block[slot] + ROW + part] + QUEUES]
        for e in range(queues + 1, queues + 1 + t.arena[queues]):
            loads[t.arena[e]] += length
    fan = t.fan[slot] + t.parts[slot] + 1 + part
    at, end = fans[fan], fans[fan + 1]
    while at < end:
        route, size, count = fans[at], fans[at + 1], fans[at + 3]
        if size > q.most_bytes or q.route_class[route] < 0:
            loads[q.queues] += sign * MOST_TASKS  # an impossible transfer, which turns limits off
        else:
            loads[q.queues] += sign
            length = sign * sending_ps(q, route, size)
            for e in range(q.queue_ptr[route], q.queue_ptr[route + 1]):
                loads[q.queue[e]] += length
        at += 4 + count


@jit
def add_loads(columns: Ints, rules: Ints, loads: Ints, ops: Ints, sign: int) -> None:
    """Add (or, with a negative sign, take off) the ps for which the parts and sums of some ops, and
    their transfers, hold each queue.
    """
    t, q, loads = open_columns(columns), open_rules(rules), bare(loads)
    for n in range(len(ops)):
        op = ops[n]
        for part in range(t.parts[op]):
            add_load(t, q, loads, op, part, sign)
        for slot in range(t.ops + t.tensor_ptr[op], t.ops + t.tensor_ptr[op + 1]):
            if t.parts[slot] > 0:
                begun = t.first[slot]
                for at in range(begun + 1, begun + 1 + 3 * t.fans[begun], 3):
                    add_load(t, q, loads, slot, t.fans[at], sign)


@jitable
def begin_bounds(q: Rules, w: Work, most: int) -> None:
    """Set the loads before the first row. The limit is turned off where a run may have ``most``
    tasks or is impossible: then it must end with its own fault.
    """
    longest = 0
    for queue in range(q.queues):
        w.left[queue] = w.loads[queue]
        longest = max(longest, w.loads[queue])
    if w.loads[q.queues] >= most:
        w.cell[LIMIT] = NEVER
    elif longest > w.cell[LIMIT]:
        w.cell[FAULT] = WORSE


@jitable
def check(w: Work, start: int, left: int) -> None:
    """Set a fault where a queue with ``left`` ps to serve, which goes on at the instant ``start``,
    exceeds the limit.
    """
    if start >= LATEST:
        w.cell[FAULT] = LONG
    elif ps_of(w, start) + left > w.cell[LIMIT] and w.cell[FAULT] == 0:
        w.cell[FAULT] = WORSE


# Rows


@jitable
def add_row(t: Columns, w: Work, row: int, ref: int, waits: int) -> None:
    """Set the state of a row before the first event."""
    w.of[row], w.missing[row], w.when[row] = ref, waits, 0
    if waits == 0:
        w.roots[w.cell[ROOTS]] = row
        w.cell[ROOTS] += 1


@jitable
def number_sums(t: Columns, w: Work) -> int:
    """List the sums of each op that reads them first, in the order of reading.

    Returns the number of entries of ``rows`` in use.
    """
    extra_next = w.extra_next
    used = 0
    for slot in range(t.ops):
        w.extra[slot] = NONE
    for slot in range(t.ops, t.slots):
        if t.parts[slot] == 0:
            continue
        w.map[slot] = used
        begun = t.first[slot]
        for n in range(t.fans[begun]):
            at = begun + 1 + 3 * n
            reader, place, before = t.fans[at + 1], t.fans[at + 2], NONE
            link = w.extra[reader]
            # Sums at the same place belong to one tensor, and keep its order.
            while link != NONE and extra_next[3 * link + 1] <= place:
                before, link = link, extra_next[3 * link]
            entry = used + n
            extra_next[3 * entry], extra_next[3 * entry + 1] = link, place
            extra_next[3 * entry + 2] = slot << PART_BITS | t.fans[at]
            if before == NONE:
                w.extra[reader] = entry
            else:
                extra_next[3 * before] = entry
        used += t.parts[slot]
    return used


@jitable
def number(t: Columns, w: Work) -> None:
    """Number the rows of all parts and sums, in the order in which lowering writes them."""
    row, used = 0, number_sums(t, w)
    w.cell[ROOTS] = 0
    for slot in range(t.ops):
        count, waits = t.parts[slot], t.wait[slot]
        w.base[slot], w.map[slot] = row, NONE
        link = w.extra[slot]
        if link == NONE:
            for part in range(count):
                add_row(t, w, row, slot << PART_BITS | part, t.fans[waits + part])
                row += 1
            continue
        w.map[slot] = used
        for part in range(count):
            while link != NONE and w.extra_next[3 * link + 1] >> PART_BITS <= part:
                ref = w.extra_next[3 * link + 2]
                of = ref >> PART_BITS
                w.rows[w.map[of] + (ref & PART_MASK)] = row
                add_row(t, w, row, ref, t.fans[t.wait[of] + (ref & PART_MASK)])
                row, link = row + 1, w.extra_next[3 * link]
            w.rows[used + part] = row
            add_row(t, w, row, slot << PART_BITS | part, t.fans[waits + part])
            row += 1
        used += count
    w.cell[ROWS] = row


@jitable
def count_rows(t: Columns) -> int:
    """An upper bound on the number of rows."""
    rows = 0
    for slot in range(t.slots):
        rows += t.parts[slot]
    return rows


@jitable
def clear(t: Columns, q: Rules, w: Work) -> None:
    """Set the state before the first event. Roots do not go through the heap."""
    heap.clear(w)
    w.cell[SENT], w.cell[DONE] = 0, 0
    for queue in range(q.queues):
        w.free[queue] = 0
    for device in range(q.devices):
        w.line_end[device] = NONE
    number(t, w)


@jitable
def send_all(t: Columns, q: Rules, w: Work, r: Record | None, row: int, now: int) -> None:
    """The transfers of a row that has finished."""
    fans, cell = t.fans, w.cell
    ref = w.of[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    ptr = t.fan[slot] + t.parts[slot] + 1 + part
    at, end = fans[ptr], fans[ptr + 1]
    if r is not None:
        r.first_sent[row] = cell[SENT]
    while at < end:
        route, size, count = fans[at], fans[at + 1], fans[at + 3]
        if size > q.most_bytes or q.route_class[route] < 0:
            cell[FAULT] = LONG
            return
        length = sending_ps(q, route, size)
        start, finish, arrival, left = book(w, q, w.left, route, length, now)
        check(w, start, left)
        for k in range(at + 4, at + 4 + count):
            release(w, row_of(t, w, fans[k]), arrival)
        sent = cell[SENT]
        cell[SENT] = sent + 1
        if r is not None:
            if sent >= r.most_sent:
                cell[FAULT] = FULL
                return
            r.sent[sent], r.received[sent] = ps_of(w, start), ps_of(w, finish)
        at += 4 + count


@jitable
def happen(
    t: Columns, q: Rules, w: Work, r: Record | None, h: Hosts | None, row: int, now: int
) -> int:
    """Run a ready row as soon as its queues are free; returns its finish.

    Readers on its device need no transfer.
    """
    arena, fans = t.arena, t.fans
    slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
    device, start = device_of(t, slot, part), now
    length = length_of(t, slot, part)
    if device != NONE:
        start, finish = serve(w, device, now, length, q.device_gap[device])
        check(w, start, take_off(w.left, device, length))
    else:
        queues = arena[arena[t.block[slot] + ROW + part] + QUEUES]
        for e in range(queues + 1, queues + 1 + arena[queues]):
            start = max(start, w.free[arena[e]])
        finish, left = after(w, start, length), 0
        for e in range(queues + 1, queues + 1 + arena[queues]):
            w.free[arena[e]] = finish
            left = max(left, take_off(w.left, arena[e], length))
        check(w, start, left)
    w.missing[row] = TAKEN
    if r is not None:
        r.start[row], r.finish[row] = ps_of(w, start), ps_of(w, finish)
    if h is not None:
        w.cell[DONE] += 1
        go_on(w, h, row, device, finish)
    fan = t.fan[slot] + part
    for e in range(fans[fan], fans[fan + 1]):
        release(w, row_of(t, w, fans[e] & REF_MASK), finish)
    fan += t.parts[slot] + 1
    if fans[fan] < fans[fan + 1]:
        if device != NONE:
            wait_to_send(w, w.cell[ROWS], row, device, finish)
        else:  # collectives do not finish in the order in which they are taken up
            w.when[row], w.missing[row] = finish, LAST
            push(w, finish, w.cell[ROWS] + row)
    return finish


@jitable
def send(t: Columns, q: Rules, w: Work, r: Record | None, row: int) -> None:
    """Send the transfers of a row that has finished, and go on with its device's line."""
    now, device = w.when[row], device_of(t, w.of[row] >> PART_BITS, w.of[row] & PART_MASK)
    if device != NONE:
        next_to_send(w, w.cell[ROWS], row, device)
    else:
        w.missing[row] = TAKEN
    send_all(t, q, w, r, row, now)


@jitable
def begin_all(t: Columns, q: Rules, w: Work, h: Hosts | None) -> None:
    """Set rows, hosts and bounds before the first event."""
    clear(t, q, w)
    entries = 0
    if h is not None:
        begin(t, w, h)
        entries = h.cell[ENTRIES]
    if w.cell[LIMIT] < NEVER and w.cell[FAULT] == 0:
        begin_bounds(q, w, MOST_TASKS - entries - w.cell[ROWS])


@jitable
def play(t: Columns, q: Rules, w: Work, r: Record | None, h: Hosts | None) -> int:
    """Process all events; returns the last instant at which a row finishes."""
    cell = w.cell
    last, rows, mask = 0, cell[ROWS], (1 << w.id_bits) - 1
    turn, roots = 0, cell[ROOTS]
    while cell[FAULT] == 0:
        if turn < roots:  # roots are ready in the first round, in the order of their rows
            last = max(last, happen(t, q, w, r, h, w.roots[turn], 0))
            turn += 1
            continue
        key = take(w)
        if key == LATE:
            break
        row = key & mask
        if row < rows:
            last = max(last, happen(t, q, w, r, h, row, w.when[row]))
        else:
            send(t, q, w, r, row - rows)
    return last


@jitable
def run(t: Columns, q: Rules, w: Work, r: Record | None, h: Hosts | None) -> int:
    """The step time in ps, or minus a fault."""
    cell = w.cell
    if count_rows(t) > w.most_rows:
        return -FULL
    begin_all(t, q, w, h)
    last = play(t, q, w, r, h)
    tasks = cell[ROWS] + cell[SENT]
    if h is not None:
        tasks += h.cell[ENTRIES]
        check_end(w)
    # More tasks, each of up to MOST_PS, could exceed 53 days: lowering decides whether they do.
    if tasks >= MOST_TASKS:
        cell[FAULT] = LONG
    return -cell[FAULT] if cell[FAULT] else ps_of(w, last)
