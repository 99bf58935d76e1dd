"""The recurrence of the execution contract over blocks and fans: no task graph is built.

As for placements (step.py there), one heap holds the rows that are ready and those whose transfers
are due. Rows (tasks that compute, and collectives) are numbered in the order in which
``lowering.partition`` writes them, so that ties are decided alike.

Devices serve rows as they become ready, or (hosts.py) in a fixed order.
"""

from __future__ import annotations

from ...ground.jit import jit, jitable
from ...nouns.taskgraph import Ints
from .. import heap
from ..heap import FAULT, LAST, LATE, TAKEN, next_to_send, push, release, take, wait_to_send
from .arena import BASES, DEVICES, QUEUES, ROW
from .bounds import NEVER, begin_bounds, check, take_off
from .columns import (
    LIMIT,
    NONE,
    PART_BITS,
    PART_MASK,
    REF_MASK,
    ROOTS,
    ROWS,
    SENT,
    Columns,
    Record,
    Rules,
    Work,
    open_columns,
    open_rules,
    open_work,
)
from .hosts import DONE, ENTRIES, WAITS, Hosts, line_up, line_up_as_numbered, open_hosts, place_rows
from .instants import FULL, LATEST, LONG, after, later, ps_of
from .rows import device_of, length_of, row_of, sending_ps

# Dispatches of pieces and sums that wait for ops: a recurrence along each host thread.


@jitable
def may_wait(devices: int, h: Hosts) -> bool:
    """Whether a dispatch may have to wait for an op, after all launches were counted."""
    if h.blocking:
        return True
    for device in range(devices):
        if h.launched[device] > h.ahead[device]:
            return True
    return False


@jitable
def gate_of(h: Hosts, entry: int, device: int) -> int:
    """The row of the latest dispatch before this one on its device such that the launches of that
    through this one exceed ``ahead``; NONE where there is none.
    """
    newest, oldest, passed = h.newest[device], h.oldest[device], h.passed[device]
    h.launched[device] += h.launches[entry]
    h.newest[device], h.beside[entry] = entry, NONE
    if newest == NONE:
        h.oldest[device] = entry
        return NONE
    h.beside[newest] = entry
    most = h.launched[device] - h.ahead[device]
    while h.beside[oldest] != entry:
        beyond = passed + h.launches[oldest]
        if beyond >= most:
            break
        oldest, passed = h.beside[oldest], beyond
    h.oldest[device], h.passed[device] = oldest, passed
    return h.row[oldest] if passed < most else NONE


@jitable
def line_up_dispatches(t: Columns, w: Work, h: Hosts, devices: int) -> None:
    """The dispatches of each thread, and the rows for which they wait."""
    arena = t.arena
    for thread in range(h.threads):
        h.clock[thread], h.coming[thread], h.latest[thread] = 0, NONE, NONE
    for device in range(devices):
        h.launched[device], h.passed[device] = 0, 0
        h.newest[device], h.oldest[device] = NONE, NONE
    h.cell[ENTRIES] = 0
    for slot in range(t.ops):
        place_rows(t, w, h, slot)
    for turn in range(w.cell[ROWS]):
        row = h.turn[turn]
        slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
        if slot < t.ops:
            at, count = t.devices_of[slot] + part, t.parts[slot]
            add(w, h, row, arena[at], arena[at + 2 * count], arena[at + 3 * count])
            continue
        where = arena[t.block[slot] + ROW + part]
        at = where + DEVICES + arena[where + BASES]
        for k in range(at + 1, at + 1 + 3 * arena[at], 3):
            add(w, h, row, arena[k], arena[k + 1], arena[k + 2])
    for thread in range(h.threads):
        h.latest[thread] = NONE


@jitable
def add(w: Work, h: Hosts, row: int, device: int, length: int, launches: int) -> None:
    """One dispatch more: behind the latest one of its thread."""
    thread = h.thread[device]
    if thread == NONE:
        return
    entry = h.cell[ENTRIES]
    h.cell[ENTRIES] = entry + 1
    h.row[entry], h.length[entry], h.launches[entry] = row, length, launches
    h.gate[entry], h.following[entry] = gate_of(h, entry, device), NONE
    w.when[row] = 0
    w.missing[row] += 1
    if h.latest[thread] == NONE:
        h.coming[thread] = entry
    else:
        h.following[h.latest[thread]] = entry
    h.latest[thread] = entry


@jitable
def end_of(w: Work, h: Hosts, row: int) -> int:
    """When a row finishes (0: nobody waits for it); NONE as long as that is not known."""
    if row == NONE:
        return 0
    return h.finish[row] if w.missing[row] <= TAKEN else NONE


@jitable
def dispatch(t: Columns, w: Work, h: Hosts, thread: int) -> None:
    """The dispatches of a thread, as far as the rows for which they wait were taken up."""
    entry = h.coming[thread]
    while entry != NONE:
        blocker = h.latest[thread]
        # Sums never block: they are none of the graph's ops.
        if blocker != NONE:
            slot = w.of[blocker] >> PART_BITS
            if slot >= t.ops or not h.blocks[slot]:
                blocker = NONE
        gated, blocked = end_of(w, h, h.gate[entry]), end_of(w, h, blocker)
        if gated == NONE or blocked == NONE:
            break
        clock = after(w, max(h.clock[thread], gated, blocked), h.length[entry])
        h.clock[thread], h.latest[thread] = clock, h.row[entry]
        release(w, h.row[entry], clock)
        entry = h.following[entry]
    h.coming[thread] = entry


@jitable
def dispatch_on(t: Columns, w: Work, h: Hosts, row: int, device: int, finish: int) -> None:
    """A row was taken up: those who wait for its end may be dispatched (``device`` NONE: a
    collective, on any thread).
    """
    h.finish[row] = finish
    for thread in range(h.threads):
        if device == NONE or thread == h.thread[device]:
            dispatch(t, w, h, thread)


@jitable
def sort_roots(w: Work, h: Hosts) -> None:
    """Of the rows that read nothing those that wait for a dispatch alone go on the heap; those that
    wait for nothing stay roots.
    """
    roots, w.cell[ROOTS] = w.cell[ROOTS], 0
    for k in range(roots):
        row = w.roots[k]
        if w.missing[row] == 0 and w.when[row] > 0:
            push(w, w.when[row], row)
        elif w.missing[row] == 0:
            w.roots[w.cell[ROOTS]] = row
            w.cell[ROOTS] += 1


@jitable
def fault_of(h: Hosts, devices: int) -> int:
    """Why dispatches that wait cannot be told here; 0 where they can."""
    for device in range(devices):
        if h.whole[device] != NONE:  # beside a captured step: rare enough for lowering
            return LONG
    return FULL if h.cell[ENTRIES] > h.most else 0


@jitable
def begin(t: Columns, w: Work, h: Hosts, devices: int) -> None:
    """What is known before any row was taken up."""
    cell = h.cell
    cell[WAITS], cell[ENTRIES], cell[DONE] = 0, 0, 0
    for thread in range(h.threads):
        h.clock[thread] = 0
    for device in range(devices):
        h.launched[device], h.whole[device] = 0, NONE
    if h.mixed:
        line_up_as_numbered(t, w, h)
    if h.threads:
        line_up(t, w, h)
    for device in range(devices):
        w.line_end[device] = NONE
    if h.threads and may_wait(devices, h):
        w.cell[FAULT] = fault_of(h, devices)
        if w.cell[FAULT] == 0:
            cell[WAITS] = 1
            line_up_dispatches(t, w, h, devices)
    sort_roots(w, h)
    if cell[WAITS]:
        for thread in range(h.threads):
            dispatch(t, w, h, thread)


@jitable
def go_on(t: Columns, w: Work, h: Hosts, row: int, device: int, finish: int) -> None:
    """A row was taken up: the one behind it waits no longer for it, and dispatches may be known."""
    h.cell[DONE] += 1
    if device != NONE and h.behind[row] != NONE:
        release(w, h.behind[row], finish)
    if h.cell[WAITS]:
        dispatch_on(t, w, h, row, device, finish)


@jitable
def check_end(w: Work, h: Hosts) -> None:
    """An order that contradicts what rows read leaves some of them waiting."""
    if h.cell[DONE] < w.cell[ROWS] and w.cell[FAULT] == 0:
        w.cell[FAULT] = LONG


MOST_TASKS = 1 << 20


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
            # Two sums at one place are of one tensor, and stand in its order.
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
    for slot in range(t.slots):
        rows += t.parts[slot]
    return rows


@jitable
def clear(t: Columns, q: Rules, w: Work) -> None:
    """Nothing has happened yet. Roots do not go through the heap."""
    heap.clear(w)
    w.cell[SENT] = 0
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
        start, begin, stop = now, q.queue_ptr[route], q.queue_ptr[route + 1]
        for e in range(begin, stop):
            start = max(start, w.free[q.queue[e]])
        if size > q.most_bytes or q.route_class[route] < 0 or start >= LATEST:
            cell[FAULT] = LONG
            return
        length, left = sending_ps(q, route, size), 0
        finish = after(w, start, length)
        free = later(w, finish, q.route_gap[route])
        for e in range(begin, stop):
            w.free[q.queue[e]] = free
            left = max(left, take_off(w, q.queue[e], length))
        check(w, start, left)
        arrival = later(w, finish, q.route_lag[route])
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
    """A ready row runs when its queues are free; returns its finish.

    Its readers where it lies need no transfer.
    """
    arena, fans = t.arena, t.fans
    slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
    device, start = device_of(t, slot, part), now
    length = length_of(t, slot, part)
    if device != NONE:
        start = max(start, w.free[device])
        check(w, start, take_off(w, device, length))
        finish = after(w, start, length)
        w.free[device] = later(w, finish, q.device_gap[device]) if length > 0 else finish
    else:
        queues = arena[arena[t.block[slot] + ROW + part] + QUEUES]
        for e in range(queues + 1, queues + 1 + arena[queues]):
            start = max(start, w.free[arena[e]])
        finish, left = after(w, start, length), 0
        for e in range(queues + 1, queues + 1 + arena[queues]):
            w.free[arena[e]] = finish
            left = max(left, take_off(w, arena[e], length))
        check(w, start, left)
    w.missing[row] = TAKEN
    if r is not None:
        r.start[row], r.finish[row] = ps_of(w, start), ps_of(w, finish)
    if h is not None:
        go_on(t, w, h, row, device, finish)
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
    """A row's transfers are due."""
    now, device = w.when[row], device_of(t, w.of[row] >> PART_BITS, w.of[row] & PART_MASK)
    if device != NONE:
        next_to_send(w, w.cell[ROWS], row, device)
    else:
        w.missing[row] = TAKEN
    send_all(t, q, w, r, row, now)


@jitable
def begin_all(t: Columns, q: Rules, w: Work, h: Hosts | None) -> None:
    """What is known before anything has happened."""
    clear(t, q, w)
    entries = 0
    if h is not None:
        begin(t, w, h, q.devices)
        entries = h.cell[ENTRIES]
    if w.cell[LIMIT] < NEVER and w.cell[FAULT] == 0:
        begin_bounds(q, w, MOST_TASKS - entries - w.cell[ROWS])


@jitable
def play(t: Columns, q: Rules, w: Work, r: Record | None, h: Hosts | None) -> int:
    """Everything that happens; the last instant at which something finishes."""
    cell = w.cell
    last, rows, mask = 0, cell[ROWS], (1 << w.id_bits) - 1
    turn, roots = 0, cell[ROOTS]
    while cell[FAULT] == 0:
        if turn < roots:  # ready in the first round, taken up in the order of their rows
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
        if last >= LATEST:
            cell[FAULT] = LONG
    return last


@jitable
def run(t: Columns, q: Rules, w: Work, r: Record | None, h: Hosts | None) -> int:
    """The step time in ps, or minus a fault."""
    cell = w.cell
    if count_rows(t) + q.devices + 2 > w.most_rows:
        return -FULL
    begin_all(t, q, w, h)
    last = play(t, q, w, r, h)
    tasks = cell[ROWS] + cell[SENT]
    if h is not None:
        tasks += h.cell[ENTRIES]
        check_end(w, h)
    # More tasks, each of up to MOST_PS, could exceed 53 days: lowering says whether they do.
    if tasks >= MOST_TASKS:
        cell[FAULT] = LONG
    return -cell[FAULT] if cell[FAULT] else ps_of(w, last)


@jit
def step(columns: Ints, rules: Ints, work: Ints) -> int:
    """The step time in ps, or minus a fault."""
    return run(open_columns(columns), open_rules(rules), open_work(work), None, None)


@jit
def step_in_order(columns: Ints, rules: Ints, work: Ints, hosts: Ints) -> int:
    """``step`` with hosts, or in program order."""
    t, q, w = open_columns(columns), open_rules(rules), open_work(work)
    return run(t, q, w, None, open_hosts(hosts))
