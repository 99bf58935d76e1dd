"""Exact peaks of memory by device, from a record of one evaluation, in linear time.

Every buffer is two events, its bytes when it is filled and when it is freed. Sorting them all would cost more than the
simulation. Instead the step is cut into slots: the sums of each slot bound the level inside it, and only the slots
that could hold the peak are sorted. (Frees at an instant come before allocations; a buffer of no lifetime is none.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..jit import jit, jitable
from ..lowering import Prepared
from ..lowering.place import destinations
from ..taskgraph import Ints
from .question import PER_CONSUMER, Question, Record, Work

SLOTS = 512


class Sizes(NamedTuple):
    """Bytes: of each op throughout, of each op while it runs, of each tensor at its producer, and of its copies."""

    persistent: Ints
    running: Ints
    held: Ints
    sent: Ints


class Events(NamedTuple):
    """Room for the events of one evaluation, and the slots of one device after another."""

    cell: Ints  # how many events; by how many bits a time is shifted to tell its slot
    time: Ints
    change: Ints
    begin: Ints  # by device: when a copy came, and when it was last read
    end: Ints
    net: Ints
    gain: Ints
    first: Ints  # an event of each slot, and for each event another one of its slot
    other: Ints
    near: Ints  # events of the slot that is sorted


def sizes_of(prepared: Prepared) -> Sizes:
    """What the ops and tensors of a graph weigh."""
    ops, reads = prepared.graph.ops, prepared.reads
    keys = set(zip(reads.producer.tolist(), reads.output.tolist(), strict=True))
    shared = [op.kind == "parameter" and op.param_bytes > 0 for op in ops]  # its outputs are its parameters
    unread = [
        0 if shared[i] else sum(t.bytes for k, t in enumerate(op.outputs) if (i, k) not in keys) + op.workspace_bytes
        for i, op in enumerate(ops)
    ]
    unread = [op.workspace_bytes if shared[i] else unread[i] for i, op in enumerate(ops)]
    held = np.where([shared[producer] for producer in reads.producer.tolist()], 0, reads.bytes).astype(np.int64)
    throughout = [op.param_bytes + op.grad_bytes + op.state_bytes for op in ops]
    return Sizes(np.array(throughout, np.int64), np.array(unread, np.int64), held, reads.bytes)


def events_for(question: Question) -> Events:
    """Room for the events of any placement."""
    most = 2 * (len(question.waits) + len(question.consumer_ptr) + len(question.consumer))
    return Events(
        np.zeros(2, np.int64),
        *(np.empty(most, np.int64) for _ in range(2)),
        *(np.empty(question.devices, np.int64) for _ in range(2)),
        *(np.empty(question.devices * SLOTS, np.int64) for _ in range(3)),
        *(np.empty(most, np.int64) for _ in range(2)),
    )


@jitable
def event(v: Events, device: int, time: int, change: int) -> None:
    """The level of a device changes."""
    at, slot = v.cell[0], device * SLOTS + (time >> v.cell[1])
    v.time[at], v.change[at] = time, change
    v.other[at], v.first[slot] = v.first[slot], at
    v.net[slot] += change
    v.gain[slot] += max(change, 0)
    v.cell[0] = at + 1


@jitable
def buffer(v: Events, device: int, size: int, begin: int, end: int) -> None:
    """One buffer that lives in [begin, end)."""
    if size > 0 and end > begin:
        event(v, device, begin, size)
        event(v, device, end, -size)


@jitable
def buffers_of(q: Question, w: Work, r: Record, z: Sizes, v: Events, placement: Ints, op: int, tensor: int) -> None:
    """The buffer of a tensor at its producer, and its copies."""
    source, begin, end = placement[op], q.consumer_ptr[tensor], q.consumer_ptr[tensor + 1]
    freed = r.finish[op]
    for e in range(begin, end):
        consumer = q.consumer[e]
        device = placement[consumer]
        if device == source:
            freed = max(freed, r.finish[consumer])
            continue
        freed = max(freed, r.received[e])
        if q.mode == PER_CONSUMER:
            buffer(v, device, z.sent[tensor], r.sent[e], r.finish[consumer])
    buffer(v, source, z.held[tensor], r.start[op], freed)
    if q.mode == PER_CONSUMER:
        return
    count = destinations(q.consumer, begin, end, placement, source, w.found)
    for k in range(count):
        v.end[w.found[k]] = 0
    for e in range(begin, end):
        device = placement[q.consumer[e]]
        if device != source:
            v.begin[device] = r.sent[e]
            v.end[device] = max(v.end[device], r.finish[q.consumer[e]])
    for k in range(count):
        buffer(v, w.found[k], z.sent[tensor], v.begin[w.found[k]], v.end[w.found[k]])


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
def peak_inside(v: Events, level: int, size: int) -> int:
    """The highest level after any instant of the ``size`` events in ``near``, from a level before them."""
    for at in range(size // 2 - 1, -1, -1):
        sink(v, at, size)
    for last in range(size - 1, 0, -1):
        v.near[0], v.near[last] = v.near[last], v.near[0]
        sink(v, 0, last)
    best = level
    for k in range(size):
        level += v.change[v.near[k]]
        if k + 1 == size or v.time[v.near[k + 1]] > v.time[v.near[k]]:
            best = max(best, level)
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
            size, k = 0, v.first[slot]
            while k >= 0:
                v.near[size] = k
                size, k = size + 1, v.other[k]
            best = max(best, peak_inside(v, level, size))
        level += v.net[slot]
    return best


@jit
def peaks(q: Question, w: Work, r: Record, z: Sizes, v: Events, placement: Ints, step_ps: int, peak: Ints) -> None:
    """Write the peak bytes of every device to ``peak``."""
    v.cell[0], v.cell[1] = 0, 0
    while step_ps >> v.cell[1] >= SLOTS:
        v.cell[1] += 1
    for slot in range(q.devices * SLOTS):
        v.net[slot], v.gain[slot], v.first[slot] = 0, 0, -1
    for device in range(q.devices):
        peak[device] = 0
    for op in range(len(placement)):
        peak[placement[op]] += z.persistent[op]
        buffer(v, placement[op], z.running[op], r.start[op], r.finish[op])
        for tensor in range(q.tensor_ptr[op], q.tensor_ptr[op + 1]):
            buffers_of(q, w, r, z, v, placement, op, tensor)
    for device in range(q.devices):
        peak[device] = peak_of(v, device, peak[device])
