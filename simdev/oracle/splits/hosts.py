"""In which order devices run pieces and sums, and when hosts dispatch them where nothing waits.

As for placements (hosts.py there): release times where no dispatch waits for an op, else a
recurrence along each thread. Hosts dispatch by place in the file, pieces of one op by device and
behind the sums that are written before them; without hosts, program order is that of the rows. A
collective has a dispatch on every rank and waits for all of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import jitable, opener
from ...lowering import Prepared
from ...nouns.taskgraph import Ints
from ..threads import Threads
from .arena import BASES, COLLECTIVE, DEVICES, ROW, WHAT
from .columns import NONE, PART_BITS, PART_MASK, ROWS, Columns, Work
from .instants import after

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
    """A sum waits likewise; a collective for a dispatch on every rank."""
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
