"""Exact peaks of memory by device, from a record of one evaluation; buffers as ``lowering.build``
makes them.
"""

from __future__ import annotations

import numpy as np

from ...jit import bare, jit, jitable
from ...taskgraph import Ints
from ..memory import NONE, PARTS, SLOTS, Events, buffer, open_events, peak_of
from .blocks import BASES, DEVICES, MOST_BASES, ROW, SIZES, STRIDE, SUM_SIZES
from .columns import (
    PART_BITS,
    PART_MASK,
    REF_BITS,
    REF_MASK,
    Columns,
    Record,
    Work,
    open_columns,
    open_record,
    open_work,
)
from .heap import FAULT, FULL, ROWS
from .rules import Rules, open_rules
from .run import row_of, run

BUFFERS = 1
"""The cell of Events that counts buffers."""


def events_for(most: int, devices: int) -> Events:
    """Room for the events of so many buffers."""
    slots = devices * SLOTS
    sizes = [
        2,
        2 * most,
        2 * most,
        1,
        MOST_BASES,
        1,
        slots,
        slots,
        slots,
        2 * most,
        PARTS,
        PARTS,
        PARTS,
        2 * most,
    ]
    return Events(*(np.full(size, NONE, np.int64) for size in sizes))


@jitable
def add(v: Events, most: int, device: int, size: int, begin: int, end: int) -> None:
    """One buffer."""
    n = v.cell[BUFFERS]
    v.cell[BUFFERS] = n + 1
    if n < most:
        buffer(v, n, device, size, begin, end)


@jitable
def read_until(
    t: Columns, w: Work, r: Record, v: Events, q: Rules, most: int, row: int, bases: int
) -> None:
    """Until when each output of a row is read, to ``v.end``; and the copies of what is sent."""
    ref = w.of[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    for base in range(bases):
        v.end[base] = r.finish[row]
    fan = t.fan[slot] + part
    for e in range(t.fans[fan], t.fans[fan + 1]):
        base, reader = t.fans[e] >> REF_BITS, row_of(t, w, t.fans[e] & REF_MASK)
        v.end[base] = max(v.end[base], r.finish[reader])
    fan += t.parts[slot] + 1
    at, end, sent = t.fans[fan], t.fans[fan + 1], r.first_sent[row]
    while at < end:
        base, count, until = t.fans[at + 2], t.fans[at + 3], 0
        v.end[base] = max(v.end[base], r.received[sent])
        for k in range(at + 4, at + 4 + count):
            until = max(until, r.finish[row_of(t, w, t.fans[k])])
        size = -(-t.fans[at + 1] // q.unit) * q.unit
        add(v, most, t.fans[at] % t.devices, size, r.sent[sent], until)
        at, sent = at + 4 + count, sent + 1


@jitable
def buffers_of(
    t: Columns, w: Work, r: Record, v: Events, q: Rules, most: int, row: int, peak: Ints
) -> None:
    """The buffers of one row."""
    ref = w.of[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    if slot < t.ops:
        block = t.block[slot]
        bases = t.arena[block + STRIDE] - 2
        sizes, device = t.arena[block + SIZES] + part * (bases + 2), t.arena[t.state[slot] + part]
        peak[device] += t.arena[sizes]
        add(v, most, device, t.arena[sizes + 1], r.start[row], r.finish[row])
        read_until(t, w, r, v, q, most, row, bases)
        for base in range(bases):
            add(v, most, device, t.arena[sizes + 2 + base], r.start[row], v.end[base])
        return
    one = t.arena[t.block[slot] + ROW + part]
    bases, sizes = t.arena[one + BASES], t.arena[one + SUM_SIZES]
    read_until(t, w, r, v, q, most, row, bases)
    for base in range(bases):
        add(
            v, most, t.arena[one + DEVICES + base], t.arena[sizes + base], r.start[row], v.end[base]
        )


@jitable
def peaks(
    t: Columns, w: Work, r: Record, v: Events, q: Rules, most: int, step_ps: int, peak: Ints
) -> bool:
    """Add what is held on every device to ``peak``, which holds what is reserved; whether there was
    room.
    """
    v.cell[0], v.cell[BUFFERS] = 0, 0
    while step_ps >> v.cell[0] >= SLOTS:
        v.cell[0] += 1
    for slot in range(q.devices * SLOTS):
        v.net[slot], v.gain[slot], v.first[slot] = 0, 0, NONE
    for row in range(w.cell[ROWS]):
        buffers_of(t, w, r, v, q, most, row, peak)
    if v.cell[BUFFERS] > most:
        return False
    for device in range(q.devices):
        peak[device] = peak_of(v, device, peak[device])
    return True


@jit
def cost(
    columns: Ints, rules: Ints, work: Ints, record: Ints, events: Ints, most: int, found: Ints
) -> int:
    """The step time in ps, or minus a fault; adds the peak bytes of every device to ``found``, what
    is reserved.
    """
    t, q, w, r = open_columns(columns), open_rules(rules), open_work(work), open_record(record)
    step_ps = run(t, q, w, r)
    if step_ps >= 0 and not peaks(t, w, r, open_events(events), q, most, step_ps, bare(found)):
        w.cell[FAULT] = FULL
        return -FULL
    return step_ps
