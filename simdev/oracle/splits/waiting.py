"""Dispatches of pieces and sums that wait for ops: a recurrence along each host thread."""

from __future__ import annotations

from ...ground.jit import jitable
from ..heap import FAULT, TAKEN, push, release
from .arena import BASES, DEVICES, ROW
from .columns import NONE, PART_BITS, PART_MASK, ROOTS, ROWS, Columns, Work
from .hosts import DONE, ENTRIES, WAITS, Hosts, line_up, line_up_as_numbered, place_rows
from .instants import FULL, LONG, after


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
