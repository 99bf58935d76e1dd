"""The recurrence of the execution contract over blocks and fans: no task graph is built.

As in kernel.py, one heap holds the rows that are ready and those whose transfers are due. Rows
(tasks that compute, and collectives) are numbered in the order in which ``lowering.partition``
writes them, so that ties fall alike.
"""

from __future__ import annotations

from ...jit import jit, jitable
from ...taskgraph import Ints
from .blocks import COLLECTIVE, DEVICES, LENGTH, QUEUES, ROW, WHAT
from .columns import (
    NONE,
    PART_BITS,
    PART_MASK,
    REF_MASK,
    Columns,
    Record,
    Work,
    open_columns,
    open_record,
    open_work,
)
from .heap import (
    BESIDE,
    EPOCH,
    FAULT,
    FULL,
    HORIZON,
    ID_BITS,
    LAST,
    LATE,
    LONG,
    MOST_TASKS,
    NOW,
    ROOTS,
    ROUND_BITS,
    ROWS,
    SENT,
    SIZE,
    TAKEN,
    TOO_LONG,
    after,
    later,
    push,
    take,
)
from .rules import Rules, open_rules


@jitable
def row_of(t: Columns, w: Work, ref: int) -> int:
    """The row of a part."""
    slot, part = ref >> PART_BITS, ref & PART_MASK
    mapped = w.map[slot]
    return w.base[slot] + part if mapped == NONE else w.rows[mapped + part]


@jitable
def release(w: Work, row: int, instant: int) -> None:
    """One wait less for a row; the last one makes it ready."""
    ready = max(w.when[row], instant)
    w.when[row] = ready
    missing = w.missing[row] - 1
    w.missing[row] = missing
    if missing == 0:
        push(w, ready, row)


@jitable
def add_row(t: Columns, w: Work, row: int, ref: int, waits: int) -> None:
    """One row, before anything has happened."""
    w.of[row], w.missing[row], w.when[row] = ref, waits, 0
    if waits == 0:
        w.roots[w.cell[ROOTS]] = row
        w.cell[ROOTS] += 1


@jitable
def number_sums(t: Columns, w: Work) -> int:
    """Sort the sums under the op that reads them first, in its order.

    Returns how much of the map is used.
    """
    used = 0
    for slot in range(t.ops):
        w.extra[slot] = NONE
    for k in range(1, t.active[0] + 1):
        slot = t.active[k]
        w.map[slot] = used
        begun = t.first[slot]
        for n in range(t.fans[begun]):
            at = begun + 1 + 3 * n
            reader, place, before = t.fans[at + 1], t.fans[at + 2], NONE
            link = w.extra[reader]
            # Two sums at one place are of one tensor, and stand in its order.
            while link != NONE and w.extra_next[3 * link + 1] <= place:
                before, link = link, w.extra_next[3 * link]
            own = used + n
            w.extra_next[3 * own], w.extra_next[3 * own + 1] = link, place
            w.extra_next[3 * own + 2] = slot << PART_BITS | t.fans[at]
            if before == NONE:
                w.extra[reader] = own
            else:
                w.extra_next[3 * before] = own
        used += t.parts[slot]
    return used


@jitable
def number(t: Columns, w: Work) -> None:
    """Rows for all parts and sums, in the order in which they are written."""
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
    """How many rows there may be."""
    rows = 0
    for slot in range(t.ops):
        rows += t.parts[slot]
    for k in range(1, t.active[0] + 1):
        rows += t.parts[t.active[k]]
    return rows


@jitable
def clear(t: Columns, q: Rules, w: Work) -> None:
    """Nothing has happened yet. Roots do not go through the heap."""
    w.cell[SIZE], w.cell[BESIDE], w.cell[EPOCH], w.cell[NOW], w.cell[FAULT], w.cell[SENT] = (
        0,
        LATE,
        0,
        0,
        0,
        0,
    )
    for queue in range(q.queues):
        w.free[queue] = 0
    for device in range(q.devices):
        w.line_end[device] = NONE
    number(t, w)
    w.cell[ID_BITS] = 1
    while 2 * w.cell[ROWS] >> w.cell[ID_BITS]:
        w.cell[ID_BITS] += 1
    w.cell[HORIZON] = 1 << (62 - w.cell[ID_BITS])


@jitable
def sending_ps(q: Rules, route: int, size: int) -> int:
    """How long a transfer of so many bytes takes over a route, its held latency included."""
    rate = q.route_class[route]
    ps = size * q.whole[rate] + q.route_held[route]
    if q.rest[rate]:
        ps += (size * q.rest[rate] + q.parts[rate] - 1) // q.parts[rate]
    return ps


@jitable
def send_all(t: Columns, q: Rules, w: Work, r: Record | None, row: int, now: int) -> None:
    """The transfers of a row that has finished."""
    ref = w.of[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    ptr = t.fan[slot] + t.parts[slot] + 1 + part
    at, end = t.fans[ptr], t.fans[ptr + 1]
    if r is not None:
        r.first_sent[row] = w.cell[SENT]
    while at < end:
        route, size, count = t.fans[at], t.fans[at + 1], t.fans[at + 3]
        start = now
        if size > q.most_bytes or q.route_class[route] < 0:
            w.cell[FAULT] = LONG
            return
        begin, stop = q.queue_ptr[route], q.queue_ptr[route + 1]
        for e in range(begin, stop):
            start = max(start, w.free[q.queue[e]])
        finish = after(w, start, sending_ps(q, route, size) << ROUND_BITS)
        free = later(finish, q.route_gap[route])
        for e in range(begin, stop):
            w.free[q.queue[e]] = free
        arrival = later(finish, q.route_lag[route])
        for k in range(at + 4, at + 4 + count):
            release(w, row_of(t, w, t.fans[k]), arrival)
        sent = w.cell[SENT]
        w.cell[SENT] = sent + 1
        if r is not None:
            if sent >= r.most_sent:
                w.cell[FAULT] = FULL
                return
            r.sent[sent], r.received[sent] = start >> ROUND_BITS, finish >> ROUND_BITS
        at += 4 + count


@jitable
def happen(t: Columns, q: Rules, w: Work, r: Record | None, row: int, now: int) -> int:
    """A ready row runs when its queues are free; returns its finish.

    Its readers where it lies need no transfer.
    """
    ref = w.of[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    device, one, start = NONE, 0, now
    if slot < t.ops:
        at = t.state[slot] + part
        device = t.arena[at]
        length = t.arena[at + t.parts[slot]]
    else:
        one = t.arena[t.block[slot] + ROW + part]
        length = t.arena[one + LENGTH]
        if t.arena[one + WHAT] != COLLECTIVE:
            device = t.arena[one + DEVICES]
    length <<= ROUND_BITS
    if device != NONE:
        start = max(start, w.free[device])
        finish = after(w, start, length)
        w.free[device] = later(finish, q.device_gap[device]) if length > 0 else finish
    else:
        queues = t.arena[one + QUEUES]
        for e in range(queues + 1, queues + 1 + t.arena[queues]):
            start = max(start, w.free[t.arena[e]])
        finish = after(w, start, length)
        for e in range(queues + 1, queues + 1 + t.arena[queues]):
            w.free[t.arena[e]] = finish
    w.missing[row] = TAKEN
    if r is not None:
        r.start[row], r.finish[row] = start >> ROUND_BITS, finish >> ROUND_BITS
    fan = t.fan[slot] + part
    for e in range(t.fans[fan], t.fans[fan + 1]):
        release(w, row_of(t, w, t.fans[e] & REF_MASK), finish)
    fan += t.parts[slot] + 1
    if t.fans[fan] < t.fans[fan + 1]:
        wait_in_line(w, row, device, finish)
    return finish


@jitable
def wait_in_line(w: Work, row: int, device: int, finish: int) -> None:
    """A row's transfers are due when it finishes.

    Those of a device line up, and only the first is on the heap.
    """
    w.when[row], w.missing[row] = finish, LAST
    last = w.line_end[device] if device != NONE else NONE
    if last == NONE:
        push(w, finish, w.cell[ROWS] + row)
    else:
        w.missing[last] = LAST - 1 - row
    if device != NONE:
        w.line_end[device] = row


@jitable
def next_in_line(t: Columns, w: Work, row: int) -> None:
    """The first of a device's line is dealt with: the one behind it comes to the heap."""
    ref, other = w.of[row], LAST - 1 - w.missing[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    w.missing[row] = TAKEN
    if slot < t.ops:
        device = t.arena[t.state[slot] + part]
    else:
        one = t.arena[t.block[slot] + ROW + part]
        if t.arena[one + WHAT] == COLLECTIVE:
            return
        device = t.arena[one + DEVICES]
    if other < 0:
        w.line_end[device] = NONE
    else:
        push(w, w.when[other], w.cell[ROWS] + other)


@jitable
def run(t: Columns, q: Rules, w: Work, r: Record | None) -> int:
    """The step time in ps, or minus a fault."""
    if count_rows(t) + q.devices + 2 > w.most_rows:
        return -FULL
    clear(t, q, w)
    last, rows = 0, w.cell[ROWS]
    mask = (1 << w.cell[ID_BITS]) - 1
    turn, roots = 0, w.cell[ROOTS]
    while True:
        if turn < roots:  # ready in the first round, taken up in the order of their rows
            last = max(last, happen(t, q, w, r, w.roots[turn], 0))
            turn += 1
            continue
        key = take(w)
        if key == LATE or w.cell[FAULT]:
            break
        row = key & mask
        if row < rows:
            now = w.when[row]
            w.cell[NOW] = now >> ROUND_BITS
            last = max(last, happen(t, q, w, r, row, now))
        else:
            now = w.when[row - rows]
            w.cell[NOW] = now >> ROUND_BITS
            next_in_line(t, w, row - rows)
            send_all(t, q, w, r, row - rows, now)
        if last >= TOO_LONG:
            w.cell[FAULT] = LONG
    if rows + w.cell[SENT] >= MOST_TASKS:
        w.cell[FAULT] = LONG
    return -w.cell[FAULT] if w.cell[FAULT] else last >> ROUND_BITS


@jit
def step(columns: Ints, rules: Ints, work: Ints) -> int:
    """The step time in ps, or minus a fault."""
    return run(open_columns(columns), open_rules(rules), open_work(work), None)


@jit
def step_recorded(columns: Ints, rules: Ints, work: Ints, record: Ints) -> int:
    """The same, with a record."""
    return run(open_columns(columns), open_rules(rules), open_work(work), open_record(record))
