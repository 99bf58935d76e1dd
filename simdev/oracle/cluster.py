"""A cluster as the columns that both kernels of the oracle read: the routes of transfers, and the
host threads that dispatch ops.

Hosts follow rule 9 of the execution contract. A device with a host runs its tasks in program order,
and its thread dispatches them in this order. Where no dispatch waits for a task, the end of a
dispatch is the sum of all lengths up to it on its thread: a release time, known before the run.
Else the end is a recurrence along the thread, which advances whenever the run takes up (starts) a
task for which the next dispatch waits. A kernel first calls ``stand_behind`` and ``put_dispatch``
for its tasks, a second time where some dispatch ``may_wait``, and then ``go_on`` for each task that
it takes up.

Rule 9 is implemented four times: lowering writes dispatches as tasks and edges (``lowering.turns``
and ``lowering.hosts``, for large models ``lowering.hybrid.dispatch``), the checker judges them
(``execution.check.hosts``), and this module computes their ends without a task graph. The queues
that a route holds come from the fabric (``nouns.fabric``).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from ..ground.jit import jitable, opener
from ..ground.units import picoseconds
from ..lowering import Prepared, slows
from ..nouns.fabric import Segment
from ..nouns.taskgraph import Ints, Rows
from .heap import NONE, NOTHING, PAIRS, SEVERAL, TAKEN, Heap, after, release, room

Segments = Sequence[Segment | None]


def is_covered(prepared: Prepared) -> bool:
    """Whether the kernels know the memory model, the collectives, queues and routes of a question,
    no task slows another, and no op has a stream.
    """
    cluster = prepared.cluster
    return not (
        prepared.memory.model != "full"
        or prepared.rings
        or prepared.graph.streamed
        or prepared.fabric.shares_rates
        or slows(cluster)
        or any(device.staging for device in cluster.devices)
    )


class Routes(NamedTuple):
    """Columns by route, ``source * devices + destination``; times in ps."""

    route_class: Ints  # number of its bandwidth among the rates; -1: no route in one piece
    route_held: Ints  # latency for which a transfer holds its queues
    route_lag: Ints  # latency after that
    route_gap: Ints
    queue_ptr: Ints  # CSR of the queues that a transfer holds
    queue: Ints
    holding: int  # NOTHING, PAIRS or SEVERAL
    pair: Ints  # for PAIRS: the two queues of each route, or its single queue twice


def segments_of(prepared: Prepared) -> list[Segment | None]:
    """The segment of each route; None where no route in a single piece joins the two devices
    (staging cuts routes), or where one of them runs no op.
    """
    places = [d for d, device in enumerate(prepared.cluster.devices) if device.runs_ops]
    count = len(prepared.cluster.devices)
    segments: list[Segment | None] = [None] * (count * count)
    for source in places:
        for destination in places:
            pieces = prepared.fabric.segments(source, destination)
            if source != destination and pieces is not None and len(pieces) == 1:
                segments[source * count + destination] = pieces[0]
    return segments


def routes_of(segments: Segments) -> tuple[list[Fraction], Routes]:
    """The different bandwidths in bytes/s, the largest first; and the columns of these routes."""
    there = [segment for segment in segments if segment]
    rates = sorted({segment.route.bandwidth for segment in there}, reverse=True)
    rows = [
        (rates.index(s.route.bandwidth), s.held_ps, s.lag_ps, s.gap_ps) if s else (-1, 0, 0, 0)
        for s in segments
    ]
    held = [tuple(segment.resources) if segment else () for segment in segments]
    sizes = {len(segment.resources) for segment in there}
    holding = NOTHING if sizes <= {0} else PAIRS if sizes <= {1, 2} else SEVERAL
    pairs = [(queues[0], queues[-1]) if queues else (0, 0) for queues in held]
    csr = Rows.of(held)
    columns = *np.array(rows, np.int64).T.copy(), csr.ptr, csr.ids
    return rates, Routes._make((*columns, holding, np.array(pairs, np.int64).reshape(-1)))


class Threads(NamedTuple):
    """Host threads; columns by device."""

    number: int
    thread: Ints  # the number of the thread that dispatches to the device; NONE: no host
    captured: Ints  # ps of the dispatch of a whole step in mode "graph"; NONE: op by op
    ahead: Ints  # the number of launches by which the host may be ahead


def threads_of(prepared: Prepared, program: bool = False) -> Threads | None:
    """The host threads of a cluster; None where no device has a host, unless ``program`` (ops run
    in program order, as under hosts) is set.
    """
    cluster = prepared.cluster
    if not cluster.hosted and not program:
        return None
    numbers: dict[tuple[str, int], int] = {}
    rows = []
    for index, device in enumerate(cluster.devices):
        host = cluster.host_of(index)
        if host is None:
            rows.append((NONE, NONE, 0))
            continue
        key = ("node", device.node) if host.threads == "node" else ("device", index)
        captured = picoseconds(Fraction(host.launch)) if host.mode == "graph" else NONE
        rows.append((numbers.setdefault(key, len(numbers)), captured, host.ahead))
    return Threads(len(numbers), *np.array(rows, np.int64).T.copy())


def most_of_dispatches(prepared: Prepared, threads: Threads) -> tuple[int, int]:
    """An upper bound in ps of all dispatches of a step together, and on how many take 0 ps."""
    eager = (threads.thread != NONE) & (threads.captured == NONE)
    lengths = prepared.host_ps[:, eager]
    captured = threads.captured[threads.captured != NONE].tolist()
    most = sum(lengths.max(axis=1, initial=0).tolist()) + sum(captured)
    return most, int((lengths == 0).any(axis=1).sum()) + captured.count(0)


# Cells of Hosts: the number of dispatches, and whether any of them waits for a task.
ENTRIES, WAITS, CELLS = range(3)
# The order in which a device runs its tasks: as they become ready, by number, or as hosts dispatch.
AS_READY, AS_NUMBERED, BY_PLACE = range(3)


class Hosts(NamedTuple):
    """The hosts of a cluster; an evaluation writes the columns from ``cell`` on.

    Dispatches are numbered as entries, in the order in which hosts dispatch.
    """

    devices: int
    threads: int
    most: int  # the number of entries that there is room for
    blocking: int  # whether some op blocks its thread
    thread: Ints  # by device, as are the next two: see Threads
    captured: Ints
    ahead: Ints
    in_order: Ints  # by device: AS_READY, AS_NUMBERED or BY_PLACE
    blocks: Ints  # by op: whether it blocks its thread
    cell: Ints
    clock: Ints  # by thread: the instant at which its last dispatch ends
    coming: Ints  # by thread: its next entry
    latest: Ints  # by thread: the entry before the next one
    launched: Ints  # by device: launches up to the current entry
    whole: Ints  # by device: when its captured step is dispatched; NONE: not yet
    newest: Ints  # by device: its last entry so far
    oldest: Ints  # by device: the entry for whose task the current entry waits
    passed: Ints  # by device: launches of the entries before the oldest
    behind: Ints  # by task: the next task on its device
    finish: Ints  # by task that was taken up: the instant at which it finishes
    task: Ints  # by entry, as are the others: the task that it releases
    length: Ints  # in ps
    launches: Ints
    stops: Ints  # whether its task blocks the thread
    following: Ints  # the next entry on its thread
    beside: Ints  # the next entry on its device
    gate: Ints  # the task for which the entry waits


open_hosts = opener(Hosts)


def hosts_for(
    prepared: Prepared, threads: Threads, program: bool, tasks: int, entries: int
) -> Hosts:
    """The hosts of a cluster, with room for an evaluation of ``tasks`` tasks and ``entries``
    dispatches; ``program``: whether devices without a host run their ops in program order too.
    """
    devices, blocks = len(threads.thread), prepared.blocks.astype(np.int64)
    in_order = np.full(devices, AS_NUMBERED if program else AS_READY, np.int64)
    in_order[threads.thread != NONE] = BY_PLACE
    sizes = (CELLS, *[threads.number] * 3, *[devices] * 5, *[tasks] * 2, *[entries] * 7)
    fixed = devices, threads.number, entries, int(blocks.any()), *threads[1:], in_order, blocks
    return Hosts(*fixed, *room(*sizes))


@jitable
def clear_hosts(h: Hosts, waits: bool) -> None:
    """Begin without dispatches; ``waits`` is whether dispatches wait for tasks."""
    h.cell[ENTRIES], h.cell[WAITS] = 0, waits
    for thread in range(h.threads):
        h.clock[thread], h.coming[thread], h.latest[thread] = 0, NONE, NONE
    for device in range(h.devices):
        h.launched[device], h.passed[device], h.whole[device] = 0, 0, NONE
        h.newest[device], h.oldest[device] = NONE, NONE


@jitable
def stand_behind(w: Heap, h: Hosts, task: int, device: int) -> None:
    """Let a task wait for the task before it on its device, which ``line_end`` holds."""
    before, w.line_end[device] = w.line_end[device], task
    if before != NONE:
        h.behind[before] = task
        w.missing[task] += 1


@jitable
def put_dispatch(
    w: Heap,
    h: Hosts,
    entry: int,
    task: int,
    device: int,
    length: int,
    launches: int,
    stops: int,
    waits: bool,
) -> int:
    """Give a task a dispatch of ``length`` ps on a device, after all others of its thread; where
    ``stops``, the task blocks the thread. Returns the number of the next entry.

    The end of the dispatch is known at once unless dispatches wait for tasks (``waits``).
    """
    thread = h.thread[device]
    if thread == NONE:
        return entry
    if waits:
        w.when[task] = 0
    captured = h.captured[device]
    if captured != NONE:
        if h.whole[device] != NONE:  # the whole step is dispatched with its first task
            w.when[task] = max(w.when[task], h.whole[device])
            return entry
        length, launches, h.whole[device] = captured, 0, 0
    if not waits:
        clock = after(w, h.clock[thread], length)
        h.clock[thread] = clock
        h.launched[device] += launches
        w.when[task] = max(w.when[task], clock)
        if captured != NONE:
            h.whole[device] = clock
        return entry + 1
    h.task[entry], h.length[entry], h.launches[entry] = task, length, launches
    if h.blocking:
        h.stops[entry] = stops
    h.gate[entry], h.following[entry] = gate_of(h, entry, device), NONE
    w.missing[task] += 1
    if h.latest[thread] == NONE:
        h.coming[thread] = entry
    else:
        h.following[h.latest[thread]] = entry
    h.latest[thread] = entry
    return entry + 1


@jitable
def may_wait(h: Hosts) -> bool:
    """Whether any dispatch may wait for a task; all launches must have been counted before."""
    waits = h.blocking != 0
    for device in range(h.devices):
        if h.launched[device] > h.ahead[device]:
            waits = True
    return waits


@jitable
def gate_of(h: Hosts, entry: int, device: int) -> int:
    """The task for which a dispatch waits: that of the latest earlier dispatch on the device such
    that the launches from it through this one exceed ``ahead``; NONE where there is none.
    """
    newest, oldest, passed = h.newest[device], h.oldest[device], h.passed[device]
    h.launched[device] += h.launches[entry]
    h.newest[device], h.beside[entry] = entry, NONE
    if newest == NONE:
        h.oldest[device] = entry
        return NONE
    h.beside[newest] = entry
    most = h.launched[device] - h.ahead[device]
    while h.beside[oldest] != entry:
        beyond = passed + h.launches[oldest]
        if beyond >= most:
            break
        oldest, passed = h.beside[oldest], beyond
    h.oldest[device], h.passed[device] = oldest, passed
    return h.task[oldest] if passed < most else NONE


@jitable
def end_of(w: Heap, h: Hosts, task: int) -> int:
    """The instant at which a task finishes (0 for no task); NONE as long as it is unknown."""
    if task == NONE:
        return 0
    return h.finish[task] if w.missing[task] <= TAKEN else NONE


@jitable
def dispatch(w: Heap, h: Hosts, begin: int, end: int) -> None:
    """Advance the dispatches of threads ``begin`` to ``end``, until one waits for a task that was
    not taken up.
    """
    for thread in range(begin, end):
        entry, latest = h.coming[thread], h.latest[thread]
        while entry != NONE:
            blocks = h.blocking and latest != NONE and h.stops[latest]
            gated = end_of(w, h, h.gate[entry])
            blocked = end_of(w, h, h.task[latest] if blocks else NONE)
            if gated == NONE or blocked == NONE:
                break
            clock = after(w, max(h.clock[thread], gated, blocked), h.length[entry])
            h.clock[thread] = clock
            release(w, h.task[entry], clock)
            entry, latest = h.following[entry], entry
        h.coming[thread], h.latest[thread] = entry, latest


@jitable
def begin_dispatches(w: Heap, h: Hosts) -> None:
    """Start the threads, once all dispatches are known."""
    for thread in range(h.threads):
        h.latest[thread] = NONE
    dispatch(w, h, 0, h.threads)


@jitable
def go_on(w: Heap, h: Hosts, task: int, device: int, finish: int) -> None:
    """After a task was taken up, release the task behind it on its device, and advance the
    dispatches that may wait for it (``device`` NONE: a collective, for which any thread may wait).
    """
    if h.behind[task] != NONE:
        release(w, h.behind[task], finish)
    if h.cell[WAITS]:
        h.finish[task] = finish
        if device == NONE:
            dispatch(w, h, 0, h.threads)
        else:
            dispatch(w, h, max(h.thread[device], 0), h.thread[device] + 1)
