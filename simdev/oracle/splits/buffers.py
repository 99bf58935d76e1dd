"""Step time and memory of a strategy that splits ops: buffers as ``lowering.build`` makes them."""

from __future__ import annotations

from ...ground.jit import bare, jit, jitable
from ...nouns.taskgraph import Ints
from ..heap import FAULT
from ..peaks import BUFFERS, Events, add_peaks, buffer, clear, open_events
from .arena import BASES, DEVICES, ROW, SIZES, STRIDE, SUM_SIZES
from .columns import (
    PART_BITS,
    PART_MASK,
    REF_BITS,
    REF_MASK,
    ROWS,
    Columns,
    Record,
    Rules,
    Work,
    open_columns,
    open_record,
    open_rules,
    open_work,
)
from .hosts import open_hosts
from .instants import FULL, LONG
from .rows import device_of, row_of
from .run import run


@jitable
def add(v: Events, most: int, device: int, size: int, begin: int, end: int) -> None:
    """One buffer."""
    # Counted even where there is no room: the caller sees that, makes room and tries again.
    n = v.cell[BUFFERS]
    v.cell[BUFFERS] = n + 1
    if n < most:
        buffer(v, n, device, size, begin, end)


@jitable
def read_until(
    t: Columns, w: Work, r: Record, v: Events, q: Rules, most: int, row: int, bases: int
) -> None:
    """Until when each output of a row is read, to ``v.end``; and the copies of what is sent."""
    fans = t.fans
    ref = w.of[row]
    slot, part = ref >> PART_BITS, ref & PART_MASK
    for base in range(bases):
        v.end[base] = r.finish[row]
    fan = t.fan[slot] + part
    for e in range(fans[fan], fans[fan + 1]):
        base, reader = fans[e] >> REF_BITS, row_of(t, w, fans[e] & REF_MASK)
        v.end[base] = max(v.end[base], r.finish[reader])
    fan += t.parts[slot] + 1
    at, end, sent = fans[fan], fans[fan + 1], r.first_sent[row]
    while at < end:
        base, count, until = fans[at + 2], fans[at + 3], 0
        v.end[base] = max(v.end[base], r.received[sent])
        for k in range(at + 4, at + 4 + count):
            until = max(until, r.finish[row_of(t, w, fans[k])])
        # A received copy is an allocation of its own, rounded as the allocator rounds.
        size = -(-fans[at + 1] // q.unit) * q.unit
        add(v, most, fans[at] % t.devices, size, r.sent[sent], until)
        at, sent = at + 4 + count, sent + 1


@jitable
def row_buffers(
    t: Columns, w: Work, r: Record, v: Events, q: Rules, most: int, row: int, peak: Ints
) -> None:
    """The buffers of one row."""
    arena = t.arena
    slot, part = w.of[row] >> PART_BITS, w.of[row] & PART_MASK
    start, finish = r.start[row], r.finish[row]
    if slot < t.ops:
        block, device = t.block[slot], device_of(t, slot, part)
        bases = arena[block + STRIDE] - 2
        sizes = arena[block + SIZES] + part * (bases + 2)
        peak[device] += arena[sizes]
        add(v, most, device, arena[sizes + 1], start, finish)
        read_until(t, w, r, v, q, most, row, bases)
        for base in range(bases):
            add(v, most, device, arena[sizes + 2 + base], start, v.end[base])
        return
    where = arena[t.block[slot] + ROW + part]
    bases, sizes = arena[where + BASES], arena[where + SUM_SIZES]
    read_until(t, w, r, v, q, most, row, bases)
    for base in range(bases):
        device = arena[where + DEVICES + base]
        add(v, most, device, arena[sizes + base], start, v.end[base])


@jitable
def peaks_of(
    t: Columns,
    q: Rules,
    w: Work,
    r: Record,
    v: Events,
    most: int,
    step_ps: int,
    peak: Ints,
) -> int:
    """Raise ``peak``, the bytes reserved on every device, to its peak; returns the step time in ps,
    or minus a fault. There is room for ``most`` buffers.
    """
    if step_ps < 0:
        return step_ps
    if not clear(v, q.devices, step_ps):
        return -LONG
    for row in range(w.cell[ROWS]):
        row_buffers(t, w, r, v, q, most, row, peak)
    if v.cell[BUFFERS] > most:
        w.cell[FAULT] = FULL
        return -FULL
    add_peaks(v, q.devices, peak)
    return step_ps


@jit
def cost(
    columns: Ints, rules: Ints, work: Ints, record: Ints, events: Ints, most: int, peaks: Ints
) -> int:
    """The step time in ps, or minus a fault; see ``peaks_of``."""
    t, q, w, r = open_columns(columns), open_rules(rules), open_work(work), open_record(record)
    step_ps = run(t, q, w, r, None)
    return peaks_of(t, q, w, r, open_events(events), most, step_ps, bare(peaks))


@jit
def cost_in_order(
    columns: Ints,
    rules: Ints,
    work: Ints,
    hosts: Ints,
    record: Ints,
    events: Ints,
    most: int,
    peaks: Ints,
) -> int:
    """``cost`` with hosts, or in program order."""
    t, q, w, r = open_columns(columns), open_rules(rules), open_work(work), open_record(record)
    step_ps = run(t, q, w, r, open_hosts(hosts))
    return peaks_of(t, q, w, r, open_events(events), most, step_ps, bare(peaks))
