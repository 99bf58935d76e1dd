"""When host threads dispatch the ops of a placement.

A thread dispatches in program order, and a device with a host runs its ops in that order. Where no
dispatch waits for an op, each ends at a sum over those before it on its thread: a release time,
known while the ops are lined up. Else its end is a recurrence along the thread, taken further
whenever an op is taken up for which the next dispatch waits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...ground.jit import jitable, opener
from ...lowering import Prepared
from ...nouns.taskgraph import Ints
from ..heap import NOBODY, TAKEN, after, push, release
from ..threads import Threads
from .problem import PlacementProblem, Work

# Cells of Hosts: whether in the placement in hand a dispatch waits for an op.
WAITS, CELLS = range(2)


class Hosts(NamedTuple):
    """Columns by device, by op and device (row-major) and by op, lengths shifted as in
    PlacementProblem; then what one evaluation writes.
    """

    threads: int
    blocking: int  # whether some op blocks its thread
    thread: Ints  # by device, as are the next two: see ``Threads``
    captured: Ints
    ahead: Ints
    in_order: Ints  # by device: whether it runs its ops in program order
    dispatch: Ints  # by op and device: the length of its dispatch
    launches: Ints
    blocks: Ints  # by op
    cell: Ints
    clock: Ints  # by thread: the end of its last dispatch
    launched: Ints  # by device: launches of the ops up to the one in hand
    coming: Ints  # by thread: the op whose dispatch comes next, and the one before it
    latest: Ints
    oldest: Ints  # by device: the op for which the dispatch in hand waits, if it waits for any
    passed: Ints  # by device: launches of the ops before that
    following: Ints  # by op: the next one on its thread
    gate: Ints  # by op: the one for which its dispatch waits
    finish: Ints  # by op that was taken up


open_hosts = opener(Hosts)


def hosts_for(
    prepared: Prepared, threads: Threads, problem: PlacementProblem, program: bool
) -> Hosts:
    """The columns of a cluster with hosts, and room for one evaluation; ``program`` tells whether
    devices without one run their ops in program order, too.
    """
    ops, devices, bits = problem.ops, problem.devices, problem.round_bits
    shifted = np.where(threads.captured < 0, NOBODY, threads.captured << bits)
    sizes = (CELLS, threads.number, devices, *[threads.number] * 2, *[devices] * 2, *[ops] * 3)
    return Hosts(
        threads.number,
        int(prepared.blocks.any()),
        threads.thread,
        shifted,
        threads.ahead,
        ((threads.thread != NOBODY) | program).astype(np.int64),
        (prepared.host_ps << bits).reshape(-1),
        prepared.launches.reshape(-1),
        prepared.blocks.astype(np.int64),
        *(np.empty(size, np.int64) for size in sizes),
    )


@jitable
def line_up(p: PlacementProblem, w: Work, h: Hosts, placement: Ints) -> None:
    """Every op of a device in program order waits for the one before it there, and for its
    dispatch.
    """
    inverse = ~((1 << p.round_bits) - 1)
    for thread in range(h.threads):
        h.clock[thread] = 0
    for device in range(p.devices):
        h.launched[device] = 0
    for op in range(p.ops):
        device = placement[op]
        w.behind[op], before = NOBODY, NOBODY
        if h.in_order[device]:
            before, w.line_end[device] = w.line_end[device], op
            if before != NOBODY:
                w.behind[before] = op
                w.missing[op] += 1
        thread = h.thread[device]
        if thread == NOBODY:
            continue
        clock = h.clock[thread]
        if h.captured[device] == NOBODY:
            at = op * p.devices + device
            clock = after(clock, h.dispatch[at], inverse)
            h.launched[device] += h.launches[at]
        elif before == NOBODY:
            clock = after(clock, h.captured[device], inverse)
        else:
            continue
        h.clock[thread] = w.when[op] = clock
    for device in range(p.devices):
        w.line_end[device] = NOBODY


@jitable
def may_wait(p: PlacementProblem, h: Hosts) -> int:
    """Whether a dispatch may have to wait for an op, after all launches were counted."""
    waits = h.blocking
    for device in range(p.devices):
        if h.thread[device] != NOBODY and h.launched[device] > h.ahead[device]:
            waits = 1
    return waits


@jitable
def gate_of(p: PlacementProblem, w: Work, h: Hosts, op: int, device: int) -> int:
    """The latest op before this one on its device such that the launches of that through this one
    exceed ``ahead``; NOBODY where there is none.
    """
    h.launched[device] += h.launches[op * p.devices + device]
    oldest, passed = h.oldest[device], h.passed[device]
    if oldest == NOBODY:
        h.oldest[device] = op
        return NOBODY
    most = h.launched[device] - h.ahead[device]
    while w.behind[oldest] != op:
        beyond = passed + h.launches[oldest * p.devices + device]
        if beyond >= most:
            break
        oldest, passed = w.behind[oldest], beyond
    h.oldest[device], h.passed[device] = oldest, passed
    return oldest if passed < most else NOBODY


@jitable
def line_up_dispatches(p: PlacementProblem, w: Work, h: Hosts, placement: Ints) -> None:
    """The dispatches of each thread, and the ops for which they wait."""
    for thread in range(h.threads):
        h.clock[thread] = 0
        h.coming[thread], h.latest[thread] = NOBODY, NOBODY
    for device in range(p.devices):
        h.launched[device], h.passed[device], h.oldest[device] = 0, 0, NOBODY
    for op in range(p.ops):
        device = placement[op]
        thread = h.thread[device]
        if thread == NOBODY:
            continue
        w.when[op], h.following[op] = 0, NOBODY
        if h.captured[device] == NOBODY:
            h.gate[op] = gate_of(p, w, h, op, device)
        elif h.oldest[device] == NOBODY:
            h.oldest[device], h.gate[op] = op, NOBODY
        else:
            continue
        w.missing[op] += 1
        if h.latest[thread] == NOBODY:
            h.coming[thread] = op
        else:
            h.following[h.latest[thread]] = op
        h.latest[thread] = op
    for thread in range(h.threads):
        h.latest[thread] = NOBODY


@jitable
def end_of(w: Work, h: Hosts, op: int) -> int:
    """When an op finishes (0: nobody waits for it); NOBODY as long as that is not known."""
    if op == NOBODY:
        return 0
    return h.finish[op] if w.missing[op] <= TAKEN else NOBODY


@jitable
def dispatch(p: PlacementProblem, w: Work, h: Hosts, placement: Ints, thread: int) -> None:
    """The dispatches of a thread, as far as the ops for which they wait were taken up."""
    inverse = ~((1 << p.round_bits) - 1)
    op = h.coming[thread]
    while op != NOBODY:
        device, latest = placement[op], h.latest[thread]
        blocker = latest if latest != NOBODY and h.blocks[latest] else NOBODY
        gated, blocked = end_of(w, h, h.gate[op]), end_of(w, h, blocker)
        if gated == NOBODY or blocked == NOBODY:
            break
        length = h.captured[device]
        if length == NOBODY:
            length = h.dispatch[op * p.devices + device]
        clock = after(max(h.clock[thread], gated, blocked), length, inverse)
        h.clock[thread], h.latest[thread] = clock, op
        release(w, op, clock)
        op = h.following[op]
    h.coming[thread] = op


@jitable
def begin(p: PlacementProblem, w: Work, h: Hosts, placement: Ints) -> None:
    """What threads do before any op was taken up."""
    line_up(p, w, h, placement)
    h.cell[WAITS] = may_wait(p, h)
    if h.cell[WAITS]:
        line_up_dispatches(p, w, h, placement)
        for thread in range(h.threads):
            dispatch(p, w, h, placement, thread)
    else:  # an op that waits for its dispatch alone
        for k in range(p.root_count):
            root = p.roots[k]
            if w.missing[root] == 0 and w.when[root] > 0:
                push(w, w.when[root], root)
