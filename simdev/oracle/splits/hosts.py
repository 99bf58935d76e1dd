"""In which order devices run pieces and sums, and what hosts dispatch when (see cluster.py).

Hosts dispatch by place in the file, pieces of one op by device and behind the sums that are written
before them; without hosts, program order is that of the rows. A collective has a dispatch on every
rank and waits for all of them. ``run.py`` calls ``begin``. The order is that of ``lowering.turns``.
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
    """The device that a part or a sum holds; NONE: a collective, which holds queues."""
    if slot < t.ops:
        return t.arena[t.devices_of[slot] + part]
    where = t.arena[t.block[slot] + ROW + part]
    return NONE if t.arena[where + WHAT] == COLLECTIVE else t.arena[where + DEVICES]


@jitable
def last_row(t: Columns, w: Work, slot: int) -> int:
    """The row after the pieces of an op."""
    return w.base[slot + 1] if slot + 1 < t.ops else w.cell[ROWS]


@jitable
def place_rows(t: Columns, w: Work, slot: int) -> None:
    """The rows of an op as hosts dispatch them: the sums before its pieces, then these by
    device.
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
    """Insert a piece among those of its op: mostly they are in the order of their devices."""
    devices = t.devices_of[slot]
    device, at = t.arena[devices + (w.of[row] & PART_MASK)], turn
    while at > first and t.arena[devices + (w.of[w.turn[at - 1]] & PART_MASK)] > device:
        w.turn[at] = w.turn[at - 1]
        at -= 1
    w.turn[at] = row


@jitable
def line_up(t: Columns, w: Work, h: Hosts, row: int, how: int) -> None:
    """A row waits for the one before it on its device, where that runs its rows in this way."""
    device = device_of(t, w.of[row] >> PART_BITS, w.of[row] & PART_MASK)
    if device != NONE and h.in_order[device] == how:
        stand_behind(w, h, row, device)


@jitable
def dispatch_all(t: Columns, w: Work, h: Hosts, waits: bool) -> None:
    """The dispatches of all rows, in the order of hosts. Sums never block: they are none of the
    graph's ops.
    """
    arena, entry = t.arena, 0
    clear_hosts(h, waits)
    for turn in range(w.cell[ROWS]):
        row = w.turn[turn]
        slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
        # Where device, ps and launches of a dispatch are: column by column of a part, side by side
        # of a sum, which may have several.
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
    """Before any row is taken up, every row waits for its dispatches, and in order for the one
    before it on its device.
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
    """Why dispatches that wait cannot be told here; 0 where they can."""
    for device in range(h.devices):
        if h.whole[device] != NONE:  # beside a captured step: rare enough for lowering
            return LONG
    return FULL if h.cell[ENTRIES] > h.most else 0


@jitable
def sort_roots(w: Work) -> None:
    """A row that reads nothing goes on the heap if it waits for its dispatch alone, and stays a
    root if it waits for nothing.
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
    """An order that contradicts what rows read leaves some of them waiting."""
    if w.cell[DONE] < w.cell[ROWS] and w.cell[FAULT] == 0:
        w.cell[FAULT] = LONG
