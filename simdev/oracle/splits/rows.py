"""Where the row of a part is, what it takes, and what a transfer takes."""

from __future__ import annotations

from ...ground.jit import jitable
from .arena import COLLECTIVE, DEVICES, LENGTH, ROW, WHAT
from .columns import NONE, PART_BITS, PART_MASK, Columns, Rules, Work


@jitable
def row_of(t: Columns, w: Work, ref: int) -> int:
    """The row of a part."""
    slot, part = ref >> PART_BITS, ref & PART_MASK
    mapped = w.map[slot]
    return w.base[slot] + part if mapped == NONE else w.rows[mapped + part]


@jitable
def device_of(t: Columns, slot: int, part: int) -> int:
    """The device that a part or a sum holds; NONE: a collective, which holds queues."""
    if slot < t.ops:
        return t.arena[t.devices_of[slot] + part]
    where = t.arena[t.block[slot] + ROW + part]
    return NONE if t.arena[where + WHAT] == COLLECTIVE else t.arena[where + DEVICES]


@jitable
def length_of(t: Columns, slot: int, part: int) -> int:
    """The ps that a part or a sum takes."""
    if slot < t.ops:
        return t.arena[t.devices_of[slot] + t.parts[slot] + part]
    return t.arena[t.arena[t.block[slot] + ROW + part] + LENGTH]


@jitable
def sending_ps(q: Rules, route: int, size: int) -> int:
    """How long a transfer of so many bytes takes over a route, its held latency included."""
    rate = q.route_class[route]
    ps = size * q.whole[rate] + q.route_held[route]
    if q.rest[rate]:
        ps += (size * q.rest[rate] + q.parts[rate] - 1) // q.parts[rate]
    return ps
