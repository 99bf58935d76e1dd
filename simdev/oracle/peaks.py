"""Exact peaks of memory by device, in linear time, from the buffers of one evaluation.

Every buffer is two events, which add its bytes when it is filled and take them away when it is
freed. Sorting all events would cost more than the simulation. Instead the step is cut into slots:
the sums of each slot bound the level inside it, and only slots that could hold the peak are
examined, part by part. (Frees at an instant come before allocations; a buffer without lifetime does
not count.)

``placements/evaluator.py`` and ``splits/evaluator.py`` define the buffers, as ``lowering.build``
does for task graphs (rule 7 of the execution contract).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..ground.jit import jitable, opener
from ..nouns.taskgraph import Ints
from .heap import BESIDE, FAULT, KEY_BITS, LATE, NONE, SIZE, add, take

SLOTS = 512
PART_BITS = 6
PARTS = 1 << PART_BITS
# Cells beside those of the heap: the bits by which a time is shifted to get its slot; the number of
# buffers, for a caller that does not know their rows beforehand.
SHIFT, BUFFERS = FAULT + 1, FAULT + 2


class Events(NamedTuple):
    """Room for the events of one evaluation, and the slots of one device after another."""

    id_bits: int
    cell: Ints
    heap: Ints  # events of one part of a slot, by time
    time: Ints  # by event, as is the next
    change: Ints  # in bytes
    reads: Ints  # for the current tensor: the first read of each copy
    end: Ints  # by device (or output): the end of the last read; NONE: not read
    until: Ints  # by group of views: the last read of the earlier views
    net: Ints  # by slot: the sum of all changes
    gain: Ints  # by slot: the sum of all allocations
    first: Ints  # by slot: the first event of a linked list
    other: Ints  # by event: the next event of its list
    part_net: Ints  # net, gain and first of the parts of one slot
    part_gain: Ints
    part_first: Ints


open_events = opener(Events)


def events_for(buffers: int, devices: int, copies: int, tensors: int) -> Events:
    """Events with room for numbers of buffers, copies of a tensor (or outputs of a task), and
    tensors.
    """
    most, slots = 2 * buffers, devices * SLOTS
    sizes = (BUFFERS + 1, most + 1, most, most, copies, copies, tensors, *[slots] * 3, most)
    columns = (np.full(size, NONE, np.int64) for size in (*sizes, *[PARTS] * 3))
    return Events(most.bit_length(), *columns)


@jitable
def clear(v: Events, devices: int, step_ps: int) -> bool:
    """Remove all events, for a step of ``step_ps``; returns whether times inside a part fit the
    heap's keys.
    """
    cell = v.cell
    cell[SHIFT], cell[BUFFERS] = 0, 0
    while step_ps >> cell[SHIFT] >= SLOTS:
        cell[SHIFT] += 1
    for slot in range(devices * SLOTS):
        v.net[slot], v.gain[slot], v.first[slot] = 0, 0, NONE
    return cell[SHIFT] - PART_BITS + v.id_bits <= KEY_BITS


@jitable
def event(v: Events, at: int, device: int, time: int, change: int) -> int:
    """Add an event, a change of a device's level; returns its slot."""
    slot = device * SLOTS + (time >> v.cell[SHIFT])
    v.time[at], v.change[at] = time, change
    v.other[at], v.first[slot] = v.first[slot], at
    v.net[slot] += change
    return slot


@jitable
def buffer(v: Events, row: int, device: int, size: int, begin: int, end: int) -> None:
    """Add a buffer that lives in [begin, end); no other may have this ``row``."""
    if size > 0 and end > begin:
        v.gain[event(v, 2 * row, device, begin, size)] += size
        event(v, 2 * row + 1, device, end, -size)


@jitable
def peak_in_order(v: Events, level: int, best: int, chain: int, inside: int) -> int:
    """The highest level after any instant of a chain of events, at least ``best``. ``level`` is the
    level before them; their times differ in the low ``inside`` bits alone.
    """
    v.cell[SIZE], v.cell[BESIDE] = 0, LATE
    while chain != NONE:
        add(v, (v.time[chain] & ((1 << inside) - 1)) << v.id_bits | chain)
        chain = v.other[chain]
    key = take(v)
    while key != LATE:
        level += v.change[key & ((1 << v.id_bits) - 1)]
        following = take(v)
        if following >> v.id_bits != key >> v.id_bits:
            best = max(best, level)
        key = following
    return best


@jitable
def peak_inside(v: Events, level: int, best: int, chain: int) -> int:
    """The highest level after any instant of a slot (a chain of its events), at least ``best``. The
    slot is cut into parts, as the step is cut into slots.

    A part ends with an instant, so the level between two parts is the level after an instant.
    """
    inside = max(v.cell[SHIFT] - PART_BITS, 0)
    for part in range(PARTS):
        v.part_net[part], v.part_gain[part], v.part_first[part] = 0, 0, NONE
    while chain != NONE:
        part, following = (v.time[chain] >> inside) & (PARTS - 1), v.other[chain]
        v.part_net[part] += v.change[chain]
        v.part_gain[part] += max(v.change[chain], 0)
        v.other[chain], v.part_first[part] = v.part_first[part], chain
        chain = following
    for part in range(PARTS):
        if level + v.part_gain[part] > best:
            best = peak_in_order(v, level, best, v.part_first[part], inside)
        level += v.part_net[part]
    return best


@jitable
def add_peaks(v: Events, devices: int, peak: Ints) -> None:
    """Raise ``peak``, which holds the persistent bytes of each device, to the device's peak."""
    for device in range(devices):
        level, best = peak[device], peak[device]
        first, end = device * SLOTS, (device + 1) * SLOTS
        for slot in range(first, end):
            level += v.net[slot]
            best = max(best, level)
        level = peak[device]
        for slot in range(first, end):
            if level + v.gain[slot] > best:
                best = peak_inside(v, level, best, v.first[slot])
            level += v.net[slot]
        peak[device] = best
