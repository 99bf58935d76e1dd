"""Exact peaks of memory by device, from a record of one evaluation, in linear time.

Every buffer is two events, its bytes when it is filled and when it is freed. Sorting them all would
cost more than the simulation. Instead the step is cut into slots: the sums of each slot bound the
level inside it, and only the slots that could hold the peak are sorted. (Frees at an instant come
before allocations; a buffer of no lifetime is none.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit import bare, jit, jitable, opener
from ..lowering import Prepared
from ..structure import owns_outputs
from ..taskgraph import Ints
from .cost import FAULT, TOO_LONG
from .kernel import first_fault, open_question, open_record, open_work, run
from .question import PER_CONSUMER, Question, Record

SLOTS = 512
NONE = -1
PART_BITS = 6
PARTS = 1 << PART_BITS


class Sizes(NamedTuple):
    """Bytes: of each op throughout, of each op while it runs, of each tensor at its producer, and
    of its copies.

    A tensor and its views are one group (NONE: a tensor without views); its last one that is read
    stands for the buffer of all. ``reserved`` is by device, held whatever runs there.
    """

    persistent: Ints
    running: Ints
    held: Ints
    group: Ints
    sent: Ints
    reserved: Ints


class Events(NamedTuple):
    """Room for the events of one evaluation, and the slots of one device after another."""

    cell: Ints  # by how many bits a time is shifted to tell its slot
    time: Ints
    change: Ints
    found: Ints  # the first read of each copy of a tensor; by device: its last read (NONE: no copy)
    end: Ints
    until: Ints  # by group of views: the last read of those before
    net: Ints
    gain: Ints
    first: Ints  # an event of each slot, and for each event another one of its slot
    other: Ints
    part_net: Ints  # the same of the parts of one slot
    part_gain: Ints
    part_first: Ints
    near: Ints  # events of the part that is sorted


open_sizes, open_events = opener(Sizes), opener(Events)


def sizes_of(prepared: Prepared) -> Sizes:
    """What the ops and tensors of a graph weigh."""
    ops, reads, rounded = prepared.graph.ops, prepared.reads, prepared.memory.rounded
    pairs = list(zip(reads.producer.tolist(), reads.output.tolist(), strict=True))
    bases = [
        (p, k) if k < 0 or (view := ops[p].outputs[k].view_of) is None else (p, view)
        for p, k in pairs
    ]
    last = {base: row for row, base in enumerate(bases)}
    viewed = dict.fromkeys(base for base, pair in zip(bases, pairs, strict=True) if base != pair)
    shared = [owns_outputs(op) for op in ops]
    running = [
        rounded(op.workspace_bytes)
        + sum(
            rounded(t.bytes)
            for k, t in enumerate(op.outputs)
            if not shared[i] and t.view_of is None and (i, k) not in last
        )
        for i, op in enumerate(ops)
    ]
    sent = np.array([rounded(size) for size in reads.bytes.tolist()], np.int64)
    held = np.zeros(len(bases), np.int64)
    for (p, k), row in last.items():
        held[row] = rounded(ops[p].outputs[k].bytes) if k >= 0 and not shared[p] else 0
    rows = {base: row for row, base in enumerate(viewed)}
    group = [rows.get(base, NONE) for base in bases]
    throughout = [
        rounded(op.param_bytes) + rounded(op.grad_bytes) + rounded(op.state_bytes) for op in ops
    ]
    reserved = [sum(sizes) for sizes in prepared.reserves]
    columns = (
        np.array(column, np.int64) for column in (throughout, running, held, group, sent, reserved)
    )
    return Sizes(*columns)


def events_for(question: Question) -> Events:
    """Room for the events of any placement."""
    most = 2 * (question.ops + question.tensors + len(question.consumer))
    slots, devices = question.devices * SLOTS, question.devices
    sizes = [
        1,
        most,
        most,
        devices,
        devices,
        question.tensors,
        slots,
        slots,
        slots,
        most,
        PARTS,
        PARTS,
        PARTS,
        most,
    ]
    return Events(*(np.full(size, NONE, np.int64) for size in sizes))


@jitable
def event(v: Events, at: int, device: int, time: int, change: int) -> int:
    """The level of a device changes; returns the slot."""
    slot = device * SLOTS + (time >> v.cell[0])
    v.time[at], v.change[at] = time, change
    v.other[at], v.first[slot] = v.first[slot], at
    v.net[slot] += change
    return slot


@jitable
def buffer(v: Events, row: int, device: int, size: int, begin: int, end: int) -> None:
    """One buffer that lives in [begin, end); ``row`` is its own."""
    if size > 0 and end > begin:
        v.gain[event(v, 2 * row, device, begin, size)] += size
        event(v, 2 * row + 1, device, end, -size)


@jitable
def buffers_of(
    q: Question, r: Record, z: Sizes, v: Events, placement: Ints, op: int, tensor: int
) -> None:
    """The buffer of a tensor at its producer, and its copies (whose rows are those of the first
    read).
    """
    source, freed, count = placement[op], r.finish[op], 0
    row, copies = q.ops + tensor, q.ops + q.tensors
    for e in range(q.consumer_ptr[tensor], q.consumer_ptr[tensor + 1]):
        consumer = q.consumer[e]
        device, finish = placement[consumer], r.finish[consumer]
        if device == source:
            freed = max(freed, finish)
            continue
        freed = max(freed, r.received[e])
        if q.mode == PER_CONSUMER:
            buffer(v, copies + e, device, z.sent[tensor], r.sent[e], finish)
        elif v.end[device] == NONE:
            v.found[count], count = e, count + 1
            v.end[device] = finish
        else:
            v.end[device] = max(v.end[device], finish)
    group = z.group[tensor]
    if group != NONE:
        freed = max(freed, v.until[group])
        v.until[group] = freed if z.held[tensor] == 0 else NONE
    buffer(v, row, source, z.held[tensor], r.start[op], freed)
    for k in range(count):
        e = v.found[k]
        device = placement[q.consumer[e]]
        buffer(v, copies + e, device, z.sent[tensor], r.sent[e], v.end[device])
        v.end[device] = NONE


@jitable
def sink(v: Events, at: int, size: int) -> None:
    """Let ``near[at]`` sink to its place in a heap of events with the latest on top."""
    moved, child = v.near[at], 2 * at + 1
    while child < size:
        if child + 1 < size and v.time[v.near[child + 1]] > v.time[v.near[child]]:
            child += 1
        if v.time[v.near[child]] <= v.time[moved]:
            break
        v.near[at] = v.near[child]
        at, child = child, 2 * child + 1
    v.near[at] = moved


@jitable
def sort(v: Events, size: int) -> None:
    """Sort the first events in ``near`` by time."""
    for at in range(size // 2 - 1, -1, -1):
        sink(v, at, size)
    for last in range(size - 1, 0, -1):
        v.near[0], v.near[last] = v.near[last], v.near[0]
        sink(v, 0, last)


@jitable
def peak_sorted(v: Events, level: int, best: int, size: int) -> int:
    """The highest level after any instant of the sorted events in ``near``, from a level before
    them.
    """
    for k in range(size):
        level += v.change[v.near[k]]
        if k + 1 == size or v.time[v.near[k + 1]] > v.time[v.near[k]]:
            best = max(best, level)
    return best


@jitable
def peak_inside(v: Events, level: int, best: int, chain: int) -> int:
    """The same for the events of one slot (a ``chain``, by its first), cut into parts as the step
    is.

    A part ends with an instant, so the levels between parts are those after some instant.
    """
    shift = max(v.cell[0] - PART_BITS, 0)
    for part in range(PARTS):
        v.part_net[part], v.part_gain[part], v.part_first[part] = 0, 0, NONE
    while chain != NONE:
        part, following = (v.time[chain] >> shift) & (PARTS - 1), v.other[chain]
        v.part_net[part] += v.change[chain]
        v.part_gain[part] += max(v.change[chain], 0)
        v.other[chain], v.part_first[part] = v.part_first[part], chain
        chain = following
    for part in range(PARTS):
        if level + v.part_gain[part] > best:
            size, k = 0, v.part_first[part]
            while k != NONE:
                v.near[size] = k
                size, k = size + 1, v.other[k]
            sort(v, size)
            best = peak_sorted(v, level, best, size)
        level += v.part_net[part]
    return best


@jitable
def peak_of(v: Events, device: int, base: int) -> int:
    """The peak of one device above its persistent bytes ``base``."""
    level, best = base, base
    for slot in range(device * SLOTS, (device + 1) * SLOTS):
        level += v.net[slot]
        best = max(best, level)
    level = base
    for slot in range(device * SLOTS, (device + 1) * SLOTS):
        if level + v.gain[slot] > best:
            best = peak_inside(v, level, best, v.first[slot])
        level += v.net[slot]
    return best


@jitable
def peaks(
    q: Question, r: Record, z: Sizes, v: Events, placement: Ints, step_ps: int, peak: Ints
) -> None:
    """Write the peak bytes of every device to ``peak``."""
    v.cell[0] = 0
    while step_ps >> v.cell[0] >= SLOTS:
        v.cell[0] += 1
    for slot in range(q.devices * SLOTS):
        v.net[slot], v.gain[slot], v.first[slot] = 0, 0, NONE
    for device in range(q.devices):
        peak[device] = z.reserved[device]
    for op in range(q.ops):
        peak[placement[op]] += z.persistent[op]
        buffer(v, op, placement[op], z.running[op], r.start[op], r.finish[op])
        for tensor in range(q.tensor_ptr[op], q.tensor_ptr[op + 1]):
            buffers_of(q, r, z, v, placement, op, tensor)
    for device in range(q.devices):
        peak[device] = peak_of(v, device, peak[device])


@jit
def cost(
    question: Ints, sizes: Ints, work: Ints, record: Ints, events: Ints, devices: Ints, found: Ints
) -> int:
    """The step time in ps of a placement, or FAULT or TOO_LONG; writes the peak bytes of every
    device to ``found``.
    """
    q, r, placement = open_question(question), open_record(record), bare(devices)
    if first_fault(q, placement) >= 0:
        return FAULT
    step_ps = run(q, open_work(work), r, placement)
    if step_ps != TOO_LONG:
        peaks(q, r, open_sizes(sizes), open_events(events), placement, step_ps, bare(found))
    return step_ps
