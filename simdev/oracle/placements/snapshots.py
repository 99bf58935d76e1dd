"""Snapshots of a base run, from which moves are simulated.

A move first matters when a moved op would be taken up, here or there, or when one of its producers
sends. Until then the state differs only in how much the moved op still waits for, and since when:
that is put right in a snapshot.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import jitable, opener
from ...nouns.taskgraph import Ints
from ..heap import FAULT, LAST, SIZE, TAKEN, now
from .bounds import Bounds
from .problem import MULTICAST, PlacementProblem, Work
from .sending import send

SNAPSHOTS = 24
# Cells of ``rows``: how many snapshots there are; from which one the last replay started; how many
# ops were taken up when it ended.
SAVED, FIRST, TAKEN_UP = range(3)
# Cells of a snapshot: those of Work, then the instant of the key in hand, and the last finish until
# the next snapshot and from here on.
NOW, NEXT, REST, CELLS = range(FAULT + 1, FAULT + 5)


class Base(NamedTuple):
    """The snapshots of a base run, one row each, flat."""

    stride: int  # ops from one snapshot to the next
    rows: Ints  # cells: see SAVED
    cell: Ints
    missing: Ints
    when: Ints
    free: Ints
    line_end: Ints
    heap: Ints
    rest: Ints  # by device: see Bounds
    position: Ints  # how many ops were taken up before each op
    finish: Ints  # by op: when it finishes
    order: Ints  # the ops as they were taken up
    stale: Ints  # by op: whether its tail may have changed
    producer_ptr: Ints  # reads of each op: whose output, and which tensor
    producer: Ints
    tensor: Ints


open_base = opener(Base)


def base_for(problem: PlacementProblem) -> Base:
    """Room for the snapshots."""
    ops, devices = problem.ops, problem.devices
    stride = max(ops // SNAPSHOTS + 1, 1)
    sizes = (CELLS, ops, ops, problem.queues, devices, ops + devices + 2, devices)
    columns = (np.empty((ops // stride + 2) * size, np.int64) for size in sizes)
    by_op = (np.empty(ops, np.int64) for _ in range(4))
    rows = np.zeros(3, np.int64)
    return Base._make((stride, rows, *columns, *by_op, *reads_of(problem)))


def reads_of(problem: PlacementProblem) -> tuple[Ints, Ints, Ints]:
    """What each op reads, as CSR: producers and tensors."""
    readers = np.diff(problem.consumer_ptr)
    tensor = np.repeat(np.arange(problem.tensors, dtype=np.int64), readers)
    producer = np.repeat(np.arange(problem.ops, dtype=np.int64), np.diff(problem.tensor_ptr))
    order = np.argsort(problem.consumer, kind="stable")
    ends = np.cumsum(problem.waits, dtype=np.int64)
    tensors = tensor[order]
    return np.concatenate(([0], ends)).astype(np.int64), producer[tensors], tensors


@jitable
def copy(count: int, source: Ints, begin: int, target: Ints, at: int) -> None:
    """Copy some of a column (kernels take no slices, see jit.py)."""
    for i in range(count):
        target[at + i] = source[begin + i]


@jitable
def save(p: PlacementProblem, w: Work, least: Bounds, b: Base, row: int) -> None:
    """Write the state to a snapshot."""
    copy(p.ops, w.missing, 0, b.missing, row * p.ops)
    copy(p.ops, w.when, 0, b.when, row * p.ops)
    copy(p.queues, w.free, 0, b.free, row * p.queues)
    copy(p.devices, w.line_end, 0, b.line_end, row * p.devices)
    copy(p.devices, least.rest, 0, b.rest, row * p.devices)
    copy(w.cell[SIZE], w.heap, 0, b.heap, row * (p.ops + p.devices + 2))
    at = row * CELLS
    copy(FAULT + 1, w.cell, 0, b.cell, at)
    b.cell[at + NOW], b.cell[at + NEXT] = now(w), 0


@jitable
def restore(p: PlacementProblem, w: Work, least: Bounds, b: Base, row: int) -> int:
    """Read the state of a snapshot; returns the last finish before it."""
    copy(p.ops, b.missing, row * p.ops, w.missing, 0)
    copy(p.ops, b.when, row * p.ops, w.when, 0)
    copy(p.queues, b.free, row * p.queues, w.free, 0)
    copy(p.devices, b.line_end, row * p.devices, w.line_end, 0)
    copy(p.devices, b.rest, row * p.devices, least.rest, 0)
    copy(FAULT + 1, b.cell, row * CELLS, w.cell, 0)
    copy(w.cell[SIZE], b.heap, row * (p.ops + p.devices + 2), w.heap, 0)
    last = 0
    for k in range(row):
        last = max(last, b.cell[k * CELLS + NEXT])
    return last


@jitable
def are_done(w: Work, moved: Ints) -> bool:
    """Whether ops have been taken up, and sent what they send."""
    for k in range(len(moved)):
        if w.missing[moved[k]] != TAKEN:
            return False
    return True


@jitable
def same_rest(p: PlacementProblem, w: Work, b: Base, row: int, moved: Ints) -> bool:
    """Whether the moved ops are done, and the state is that of the snapshot, shifted in time."""
    instant, before = now(w), b.cell[row * CELLS + NOW]
    shift = instant - before
    if shift & ((1 << p.round_bits) - 1):
        return False
    if not are_done(w, moved):
        return False
    for i in range(p.queues):
        if max(w.free[i], instant) - max(b.free[row * p.queues + i], before) != shift:
            return False
    for i in range(p.ops):
        at = row * p.ops + i
        missing = w.missing[i]
        if missing != b.missing[at]:
            return False
        if missing < TAKEN and w.when[i] - b.when[at] != shift:
            return False
        if missing > TAKEN and max(w.when[i], instant) - max(b.when[at], before) != shift:
            return False
    return True


@jitable
def wait(
    p: PlacementProblem,
    w: Work,
    b: Base,
    placement: Ints,
    row: int,
    op: int,
    missing: Ints,
    when: Ints,
    at: int,
) -> None:
    """Write for how much an op that moved still waits in a snapshot (``missing``, ``when`` from
    ``at`` on), and since when.
    """
    device, waits, ready = placement[op], 0, 0
    for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
        producer = b.producer[e]
        source = placement[producer]
        if b.position[producer] >= row * b.stride:
            waits += 1
        elif source == device:
            ready = max(ready, b.finish[producer])
        elif p.queues > p.devices:  # it is sent when the producer's turn in the line comes
            waits += 1
        else:
            route = source * p.devices + device
            ready = max(ready, send(p, w, b.tensor[e], route, b.finish[producer])[2])
    missing[at + op], when[at + op] = waits, ready


@jitable
def first_row(p: PlacementProblem, b: Base, moved: Ints) -> int:
    """The last snapshot before anything that the moved ops change, but for what they wait for."""
    first, at_once = p.ops, p.queues <= p.devices
    for k in range(len(moved)):
        op = moved[k]
        # While it waits for some producer, it is not on the heap.
        begin, end = b.producer_ptr[op], b.producer_ptr[op + 1]
        latest = 0 if begin < end else p.ops
        for e in range(begin, end):
            position = b.position[b.producer[e]]
            latest = max(latest, position)
            if at_once and p.mode == MULTICAST:  # one device less, and others may have it earlier
                first = min(first, position)
        first = min(first, b.position[op], latest)
    row = first // b.stride
    if not at_once:
        for k in range(len(moved)):
            row = before_sending(p, b, row, moved[k])
    return row


@jitable
def before_sending(p: PlacementProblem, b: Base, row: int, op: int) -> int:
    """The last snapshot up to ``row`` at which no producer of an op has sent: each is still to be
    taken up, or waits in the line of its device.
    """
    for e in range(b.producer_ptr[op], b.producer_ptr[op + 1]):
        producer = b.producer[e]
        position = b.position[producer]
        while position < row * b.stride and b.missing[row * p.ops + producer] > LAST:
            row -= 1
    return row
