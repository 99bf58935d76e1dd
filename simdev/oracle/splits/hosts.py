"""When host threads dispatch pieces and sums, and in which order devices run them.

As for placements (hosts.py there): release times where no dispatch waits for an op, else a
recurrence along each thread. Hosts dispatch by place in the file, pieces of one op by device and
behind the sums that are written before them; without hosts, program order is that of the rows. A
collective has a dispatch on every rank and waits for all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...jit import jitable, opener
from ...lowering import Prepared
from ...taskgraph import Ints
from ..heap import FAULT, TAKEN, push, release
from ..threads import Threads
from .blocks import BASES, COLLECTIVE, DEVICES, ROW, WHAT
from .columns import (
    NONE,
    PART_BITS,
    PART_MASK,
    ROOTS,
    ROWS,
    Columns,
    Work,
)
from .instants import FULL, LONG, after

# Cells of Hosts: whether some dispatch waits for an op, how many dispatches there are, and how many
# rows were taken up.
WAITS, ENTRIES, DONE, CELLS = range(4)
# How a device runs its rows: as they become ready, as they are numbered, in the order of hosts.
AS_READY, AS_NUMBERED, BY_PLACE = range(3)


class Hosts(NamedTuple):
    """Columns by device (see ``Threads``) and by op; then what one evaluation writes, by thread, by
    device, by row, and by dispatch in the order in which they go.
    """

    threads: int
    blocking: int  # whether some op blocks its thread
    mixed: int  # whether some device runs its rows otherwise than by place
    most: int  # dispatches
    thread: Ints
    captured: Ints
    ahead: Ints
    in_order: Ints  # AS_READY, AS_NUMBERED or BY_PLACE
    blocks: Ints
    cell: Ints
    clock: Ints  # by thread: the end of its last dispatch
    coming: Ints  # by thread: the next dispatch, and the row of the latest
    latest: Ints
    launched: Ints  # by device: launches up to the one in hand
    whole: Ints  # by device: when its captured step is dispatched; NONE: not yet
    newest: Ints  # by device: the last dispatch so far, and the one for whose row it waits
    oldest: Ints
    passed: Ints  # by device: launches before the oldest
    turn: Ints  # rows in order
    behind: Ints  # by row: the next one on its device
    finish: Ints  # by row that was taken up
    row: Ints  # by dispatch, as are the others
    length: Ints
    launches: Ints
    following: Ints  # the next on its thread, and on its device
    beside: Ints
    gate: Ints  # the row for which it waits


open_hosts = opener(Hosts)


def hosts_for(prepared: Prepared, threads: Threads, program: bool, most_rows: int) -> Hosts:
    """The columns of a cluster, and room for one evaluation of so many rows; ``program`` tells
    whether devices without a host run their ops in program order, too.
    """
    devices, most = len(threads.thread), 4 * most_rows
    in_order = np.full(devices, AS_NUMBERED if program else AS_READY, np.int64)
    in_order[threads.thread != NONE] = BY_PLACE
    sizes = (CELLS, *[threads.number] * 3, *[devices] * 5, *[most_rows] * 3, *[most] * 6)
    columns = (np.zeros(size, np.int64) for size in sizes)
    blocks = prepared.blocks.astype(np.int64)
    fixed = threads.thread, threads.captured, threads.ahead, in_order, blocks
    flags = int(blocks.any()), int((in_order != BY_PLACE).any())
    return Hosts(threads.number, *flags, most, *fixed, *columns)


def dispatches_of(hosts: Hosts) -> int:
    """How many dispatches the last evaluation had."""
    return int(hosts.cell[ENTRIES]) + int((hosts.whole != NONE).sum()) if hosts.threads else 0


# The order of rows


@jitable
def last_row(t: Columns, w: Work, slot: int) -> int:
    """The row after those of an op and of the sums before its pieces."""
    return w.base[slot + 1] if slot + 1 < t.ops else w.cell[ROWS]


@jitable
def place_rows(t: Columns, w: Work, h: Hosts, slot: int) -> None:
    """The rows of an op as hosts dispatch them: the sums before its pieces, then these by
    device.
    """
    begin, end = w.base[slot], last_row(t, w, slot)
    first = begin
    if w.extra[slot] != NONE:
        for row in range(begin, end):
            if w.of[row] >> PART_BITS >= t.ops:
                h.turn[first] = row
                first += 1
    turn = first
    for row in range(begin, end):
        if first == begin or w.of[row] >> PART_BITS == slot:
            insert(t, w, h, slot, row, first, turn)
            turn += 1


@jitable
def insert(t: Columns, w: Work, h: Hosts, slot: int, row: int, first: int, turn: int) -> None:
    """Insert a piece among those of its op: mostly they are in the order of their devices."""
    devices = t.devices_of[slot]
    device, at = t.arena[devices + (w.of[row] & PART_MASK)], turn
    while at > first and t.arena[devices + (w.of[h.turn[at - 1]] & PART_MASK)] > device:
        h.turn[at] = h.turn[at - 1]
        at -= 1
    h.turn[at] = row


@jitable
def stand_behind(w: Work, h: Hosts, row: int, device: int) -> None:
    """A row waits for the one before it on its device."""
    before, w.line_end[device] = w.line_end[device], row
    if before != NONE:
        h.behind[before] = row
        w.missing[row] += 1


# Dispatches


@jitable
def dispatch_at_once(w: Work, h: Hosts, row: int, device: int, length: int, launches: int) -> int:
    """A dispatch that waits for no op ends after the one before it on its thread.

    Returns how many dispatches the row has for itself there.
    """
    thread = h.thread[device]
    if thread == NONE:
        return 0
    if h.captured[device] == NONE:
        h.launched[device] += launches
        clock = after(w, h.clock[thread], length)
        h.clock[thread] = clock
        w.when[row] = max(w.when[row], clock)
        return 1
    if h.whole[device] == NONE:
        h.clock[thread] = after(w, h.clock[thread], h.captured[device])
        h.whole[device] = h.clock[thread]
    w.when[row] = max(w.when[row], h.whole[device])
    return 0


@jitable
def line_up_piece(t: Columns, w: Work, h: Hosts, slot: int, part: int, row: int) -> int:
    """A piece waits for its dispatch, and for the row before it on its device; see
    ``dispatch_at_once``.
    """
    at, count = t.devices_of[slot] + part, t.parts[slot]
    device = t.arena[at]
    if not h.mixed:
        h.behind[row] = NONE
    if h.in_order[device] == BY_PLACE:
        stand_behind(w, h, row, device)
    length, launches = t.arena[at + 2 * count], t.arena[at + 3 * count]
    return dispatch_at_once(w, h, row, device, length, launches)


@jitable
def line_up_sum(t: Columns, w: Work, h: Hosts, row: int) -> int:
    """The same of a sum; a collective has a dispatch on every rank."""
    arena, entries = t.arena, 0
    where = arena[t.block[w.of[row] >> PART_BITS] + ROW + (w.of[row] & PART_MASK)]
    device, at = arena[where + DEVICES], where + DEVICES + arena[where + BASES]
    if not h.mixed:
        h.behind[row] = NONE
    if arena[where + WHAT] != COLLECTIVE and h.in_order[device] == BY_PLACE:
        stand_behind(w, h, row, device)
    for k in range(at + 1, at + 1 + 3 * arena[at], 3):
        entries += dispatch_at_once(w, h, row, arena[k], arena[k + 1], arena[k + 2])
    return entries


@jitable
def line_up(t: Columns, w: Work, h: Hosts) -> None:
    """Every row waits for its dispatches, and in program order for the one before it on its
    device.
    """
    entries = 0
    for slot in range(t.ops):
        begin, count = w.base[slot], t.parts[slot]
        # Mostly an op has no sums before it, and its pieces stand in the order of their devices.
        if w.extra[slot] == NONE and t.arena[t.devices_of[slot] + 4 * count]:
            for part in range(count):
                entries += line_up_piece(t, w, h, slot, part, begin + part)
            continue
        place_rows(t, w, h, slot)
        for turn in range(begin, last_row(t, w, slot)):
            row = h.turn[turn]
            if w.of[row] >> PART_BITS < t.ops:
                entries += line_up_piece(t, w, h, slot, w.of[row] & PART_MASK, row)
            else:
                entries += line_up_sum(t, w, h, row)
    h.cell[ENTRIES] = entries


@jitable
def line_up_as_numbered(t: Columns, w: Work, h: Hosts) -> None:
    """In program order a row on a device without a host waits for the one before it there."""
    for row in range(w.cell[ROWS]):
        slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
        h.behind[row], device = NONE, NONE
        if slot < t.ops:
            device = t.arena[t.devices_of[slot] + part]
        else:
            where = t.arena[t.block[slot] + ROW + part]
            if t.arena[where + WHAT] != COLLECTIVE:
                device = t.arena[where + DEVICES]
        if device != NONE and h.in_order[device] == AS_NUMBERED:
            stand_behind(w, h, row, device)


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
