"""The order in which devices run pieces and sums, and the dispatches of hosts (see cluster.py).

Hosts dispatch ops in the order of the file, the pieces of an op by device, after the sums that are
written before them; without hosts, program order is the order of rows. A collective has a dispatch
on every rank and waits for all of them. ``run.py`` calls ``begin``. The order equals that of
``lowering.turns``.
"""

from __future__ import annotations

from ...ground.jit import jitable
from ..cluster import (
    AS_NUMBERED,
    BY_PLACE,
    ENTRIES,
    WAITS,
    Hosts,
    begin_dispatches,
    clear_hosts,
    may_wait,
    put_dispatch,
    stand_behind,
)
from ..heap import FAULT, NONE, push
from .columns import (
    BASES,
    COLLECTIVE,
    DEVICES,
    DONE,
    FULL,
    LONG,
    PART_BITS,
    PART_MASK,
    ROOTS,
    ROW,
    ROWS,
    WHAT,
    Columns,
    Work,
)


@jitable
def device_of(t: Columns, slot: int, part: int) -> int:
    """The device that a part or a sum holds; NONE for a collective, which holds queues."""
    if slot < t.ops:
        return t.arena[t.devices_of[slot] + part]
    where = t.arena[t.block[slot] + ROW + part]
    return NONE if t.arena[where + WHAT] == COLLECTIVE else t.arena[where + DEVICES]


@jitable
def last_row(t: Columns, w: Work, slot: int) -> int:
    """The row after the last piece of an op."""
    return w.base[slot + 1] if slot + 1 < t.ops else w.cell[ROWS]


@jitable
def place_rows(t: Columns, w: Work, slot: int) -> None:
    """Write the rows of an op to ``turn`` in the order of dispatches: the sums before its pieces,
    then the pieces by device.
    """
    begin, end = w.base[slot], last_row(t, w, slot)
    first = begin
    if w.extra[slot] != NONE:
        for row in range(begin, end):
            if w.of[row] >> PART_BITS >= t.ops:
                w.turn[first] = row
                first += 1
    turn = first
    for row in range(begin, end):
        if first == begin or w.of[row] >> PART_BITS == slot:
            insert(t, w, slot, row, first, turn)
            turn += 1


@jitable
def insert(t: Columns, w: Work, slot: int, row: int, first: int, turn: int) -> None:
    """Insert a piece among those of its op, by device (mostly they are in this order already)."""
    devices = t.devices_of[slot]
    device, at = t.arena[devices + (w.of[row] & PART_MASK)], turn
    while at > first and t.arena[devices + (w.of[w.turn[at - 1]] & PART_MASK)] > device:
        w.turn[at] = w.turn[at - 1]
        at -= 1
    w.turn[at] = row


@jitable
def line_up(t: Columns, w: Work, h: Hosts, row: int, how: int) -> None:
    """Let a row wait for the row before it on its device, if the device's order is ``how``."""
    device = device_of(t, w.of[row] >> PART_BITS, w.of[row] & PART_MASK)
    if device != NONE and h.in_order[device] == how:
        stand_behind(w, h, row, device)


@jitable
def dispatch_all(t: Columns, w: Work, h: Hosts, waits: bool) -> None:
    """Put the dispatches of all rows, in the order of hosts. Sums never block a thread: they are
    not ops of the graph.
    """
    arena, entry = t.arena, 0
    clear_hosts(h, waits)
    for turn in range(w.cell[ROWS]):
        row = w.turn[turn]
        slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
        # Offsets of a dispatch's device, ps and launches: parts have them in columns, sums (which
        # may have several dispatches) side by side.
        count, stops = 1, 0
        if slot < t.ops:
            at, stride, stops = t.devices_of[slot] + part, t.parts[slot], h.blocks[slot]
            length, launches = at + 2 * stride, at + 3 * stride
        else:
            where = arena[t.block[slot] + ROW + part]
            at = where + DEVICES + arena[where + BASES] + 1
            count, length, launches = arena[at - 1], at + 1, at + 2
        for k in range(0, 3 * count, 3):
            device, ps = arena[at + k], arena[length + k]
            many = arena[launches + k]
            entry = put_dispatch(w, h, entry, row, device, ps, many, stops, waits)
    h.cell[ENTRIES] = entry


@jitable
def begin(t: Columns, w: Work, h: Hosts) -> None:
    """Before any row is taken up, let every row wait for its dispatches and, on devices that run
    their rows in order, for the row before it.
    """
    clear_hosts(h, False)
    for row in range(w.cell[ROWS]):
        h.behind[row] = NONE
        line_up(t, w, h, row, AS_NUMBERED)
    if h.threads:
        for slot in range(t.ops):
            place_rows(t, w, slot)
        for turn in range(w.cell[ROWS]):
            line_up(t, w, h, w.turn[turn], BY_PLACE)
        dispatch_all(t, w, h, False)
    for device in range(h.devices):
        w.line_end[device] = NONE
    if h.threads and may_wait(h):
        w.cell[FAULT] = fault_of(h)
        if w.cell[FAULT] == 0:
            dispatch_all(t, w, h, True)
    sort_roots(w)
    if h.cell[WAITS]:
        begin_dispatches(w, h)


@jitable
def fault_of(h: Hosts) -> int:
    """The fault where dispatches that wait for tasks are not covered here; 0 where they are."""
    for device in range(h.devices):
        if h.whole[device] != NONE:  # together with a captured step, which is left to lowering
            return LONG
    return FULL if h.cell[ENTRIES] > h.most else 0


@jitable
def sort_roots(w: Work) -> None:
    """Put roots that wait only for their dispatch on the heap; those that wait for nothing stay
    roots.
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
def check_end(w: Work) -> None:
    """Set a fault where rows were left waiting: the order then contradicts their inputs."""
    if w.cell[DONE] < w.cell[ROWS] and w.cell[FAULT] == 0:
        w.cell[FAULT] = LONG
