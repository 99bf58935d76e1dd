"""Exact peaks of memory by device, in linear time, from the buffers of one evaluation.

Every buffer is two events, its bytes when it is filled and when it is freed. Sorting them all would
cost more than the simulation. Instead the step is cut into slots: the sums of each slot bound the
level inside it, and only the slots that could hold the peak are looked into, part by part.
(Frees at an instant come before allocations; a buffer of no lifetime is none.)

Which buffers there are is said by ``placements/evaluator.py`` and ``splits/evaluator.py``, as
``lowering.build`` says it for task graphs (rule 7 of the execution contract).
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
# Cells beside those of the heap: by how many bits a time is shifted to tell its slot; a count of
# buffers, for who does not know their rows beforehand.
SHIFT, BUFFERS = FAULT + 1, FAULT + 2


class Events(NamedTuple):
    """Room for the events of one evaluation, and the slots of one device after another."""

    id_bits: int
    cell: Ints
    heap: Ints  # events of one part of a slot, by time
    time: Ints
    change: Ints
    reads: Ints  # of the tensor in hand: the first read of each copy
    end: Ints  # by device (or output): until when that is read; NONE: not at all
    until: Ints  # by group of views: the last read of those before
    net: Ints
    gain: Ints
    first: Ints  # an event of each slot, and for each event another one of its slot
    other: Ints
    part_net: Ints  # net, gain and first of the parts of one slot
    part_gain: Ints
    part_first: Ints


open_events = opener(Events)


def events_for(buffers: int, devices: int, copies: int, tensors: int) -> Events:
    """Room for so many buffers, copies of one tensor (or outputs of a task), and tensors."""
    most, slots = 2 * buffers, devices * SLOTS
    sizes = (BUFFERS + 1, most + 1, most, most, copies, copies, tensors, *[slots] * 3, most)
    columns = (np.full(size, NONE, np.int64) for size in (*sizes, *[PARTS] * 3))
    return Events(most.bit_length(), *columns)


@jitable
def clear(v: Events, devices: int, step_ps: int) -> bool:
    """No events yet, of a step so long; whether times inside a part fit the heap's keys."""
    cell = v.cell
    cell[SHIFT], cell[BUFFERS] = 0, 0
    while step_ps >> cell[SHIFT] >= SLOTS:
        cell[SHIFT] += 1
    for slot in range(devices * SLOTS):
        v.net[slot], v.gain[slot], v.first[slot] = 0, 0, NONE
    return cell[SHIFT] - PART_BITS + v.id_bits <= KEY_BITS


@jitable
def event(v: Events, at: int, device: int, time: int, change: int) -> int:
    """The level of a device changes; returns the slot."""
    slot = device * SLOTS + (time >> v.cell[SHIFT])
    v.time[at], v.change[at] = time, change
    v.other[at], v.first[slot] = v.first[slot], at
    v.net[slot] += change
    return slot


@jitable
def buffer(v: Events, row: int, device: int, size: int, begin: int, end: int) -> None:
    """A buffer that lives in [begin, end); no other has this ``row``."""
    if size > 0 and end > begin:
        v.gain[event(v, 2 * row, device, begin, size)] += size
        event(v, 2 * row + 1, device, end, -size)


@jitable
def peak_in_order(v: Events, level: int, best: int, chain: int, inside: int) -> int:
    """The highest level after any instant of a chain of events, from a level before them; bits
    ``inside`` of their times differ.
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
    """The highest level after any instant of one slot (a chain of its events), cut into parts as
    the step is into slots.

    A part ends with an instant, so the levels between parts are those after some instant.
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
    """Raise what each device holds throughout (``peak``) to its peak."""
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
