"""A cluster as the columns that both kernels of the oracle read: the routes of transfers, and the
host threads that dispatch ops.

Hosts follow rule 9 of the execution contract. A device with a host runs its tasks in program order,
and its thread dispatches them in that order. Where no dispatch waits for a task, each ends at a sum
over all before it on its thread: a release time, known while the tasks are lined up. Else its end
is a recurrence along the thread, taken further whenever a task is taken up for which the next
dispatch waits. A kernel lines its tasks up by ``stand_behind`` and ``put_dispatch``, a second time
where some dispatch ``may_wait``, and calls ``go_on`` for each task that it takes up.

Rule 9 has four homes: lowering writes dispatches as tasks and edges (``lowering.turns`` and
``lowering.hosts``, of large models ``lowering.hybrid.dispatch``), the checker judges them
(``execution.check.hosts``), and this module tells their ends without a task graph. What a route
holds is the fabric's business (``nouns.fabric``).
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
    """Whether the kernels know its memory model, collectives, queues and routes, nothing slows
    anything else, and no op has a stream.
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
    pair: Ints  # for PAIRS: the two queues of each route, or its one twice


def segments_of(prepared: Prepared) -> list[Segment | None]:
    """The way of a transfer by route.

    None where no route in one piece joins the devices (staging cuts routes), or one runs no op.
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
    """The classes of bandwidth in bytes/s, the fastest first; and the columns of these routes."""
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
    thread: Ints  # the number of the thread that dispatches to it; NONE: it has no host
    captured: Ints  # ps of its step's one dispatch in mode "graph"; NONE: every op has its own
    ahead: Ints  # how many launches its host may be ahead


def threads_of(prepared: Prepared, program: bool = False) -> Threads | None:
    """The host threads of a cluster; None where no device has a host, unless ``program`` asks for
    the order that these would give.
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
    """The most ps that all dispatches of a step take together, and how many may take none."""
    eager = (threads.thread != NONE) & (threads.captured == NONE)
    lengths = prepared.host_ps[:, eager]
    captured = threads.captured[threads.captured != NONE].tolist()
    most = sum(lengths.max(axis=1, initial=0).tolist()) + sum(captured)
    return most, int((lengths == 0).any(axis=1).sum()) + captured.count(0)


# Cells of Hosts: how many dispatches there are, and whether some of them waits for a task.
ENTRIES, WAITS, CELLS = range(3)
# How a device runs its tasks: as they become ready, as they are numbered, in the order of hosts.
AS_READY, AS_NUMBERED, BY_PLACE = range(3)


class Hosts(NamedTuple):
    """The hosts of a cluster; then, from ``cell`` on, what one evaluation writes.

    A dispatch is an entry, numbered in the order in which hosts dispatch.
    """

    devices: int
    threads: int
    most: int  # entries that there is room for
    blocking: int  # whether some op blocks its thread
    thread: Ints  # by device, as are the next two: see Threads
    captured: Ints
    ahead: Ints
    in_order: Ints  # by device: AS_READY, AS_NUMBERED or BY_PLACE
    blocks: Ints  # by op: whether it blocks its thread
    cell: Ints
    clock: Ints  # by thread: the instant at which its last dispatch ends
    coming: Ints  # by thread: its next entry
    latest: Ints  # by thread: the entry before that
    launched: Ints  # by device: launches up to the entry in hand
    whole: Ints  # by device: when its captured step is dispatched; NONE: not yet
    newest: Ints  # by device: its last entry so far
    oldest: Ints  # by device: the entry for whose task the one in hand waits
    passed: Ints  # by device: launches of the entries before the oldest
    behind: Ints  # by task: the next one on its device
    finish: Ints  # by task that was taken up: the instant at which it finishes
    task: Ints  # by entry, as are the others: the task that it releases
    length: Ints  # in ps
    launches: Ints
    stops: Ints  # whether its task blocks the thread
    following: Ints  # the next entry on its thread
    beside: Ints  # the next entry on its device
    gate: Ints  # the task for which it waits


open_hosts = opener(Hosts)


def hosts_for(
    prepared: Prepared, threads: Threads, program: bool, tasks: int, entries: int
) -> Hosts:
    """The hosts of a cluster, and room for one evaluation of so many tasks and dispatches;
    ``program`` tells whether devices without a host run their ops in program order, too.
    """
    devices, blocks = len(threads.thread), prepared.blocks.astype(np.int64)
    in_order = np.full(devices, AS_NUMBERED if program else AS_READY, np.int64)
    in_order[threads.thread != NONE] = BY_PLACE
    sizes = (CELLS, *[threads.number] * 3, *[devices] * 5, *[tasks] * 2, *[entries] * 7)
    fixed = devices, threads.number, entries, int(blocks.any()), *threads[1:], in_order, blocks
    return Hosts(*fixed, *room(*sizes))


@jitable
def clear_hosts(h: Hosts, waits: bool) -> None:
    """No dispatch is known yet; ``waits`` tells whether dispatches wait for tasks."""
    h.cell[ENTRIES], h.cell[WAITS] = 0, waits
    for thread in range(h.threads):
        h.clock[thread], h.coming[thread], h.latest[thread] = 0, NONE, NONE
    for device in range(h.devices):
        h.launched[device], h.passed[device], h.whole[device] = 0, 0, NONE
        h.newest[device], h.oldest[device] = NONE, NONE


@jitable
def stand_behind(w: Heap, h: Hosts, task: int, device: int) -> None:
    """A task waits for the one before it on its device (found in ``line_end``)."""
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
    """A task has a dispatch of ``length`` ps on a device, behind all others of its thread; it
    blocks the thread where ``stops`` tells so. Returns the number of the next entry.

    The end of the dispatch is known at once unless dispatches wait for tasks.
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
    """Whether a dispatch may have to wait for a task, after all launches were counted."""
    waits = h.blocking != 0
    for device in range(h.devices):
        if h.launched[device] > h.ahead[device]:
            waits = True
    return waits


@jitable
def gate_of(h: Hosts, entry: int, device: int) -> int:
    """The task of the latest dispatch before this one on its device such that the launches of that
    through this one exceed ``ahead``; NONE where there is none.
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
    """When a task finishes (0: nobody waits for it); NONE as long as that is not known."""
    if task == NONE:
        return 0
    return h.finish[task] if w.missing[task] <= TAKEN else NONE


@jitable
def dispatch(w: Heap, h: Hosts, begin: int, end: int) -> None:
    """The dispatches of some threads, as far as the tasks for which they wait were taken up."""
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
    """All dispatches that wait are known: the threads begin."""
    for thread in range(h.threads):
        h.latest[thread] = NONE
    dispatch(w, h, 0, h.threads)


@jitable
def go_on(w: Heap, h: Hosts, task: int, device: int, finish: int) -> None:
    """A task was taken up (``device`` NONE: a collective, which any thread may wait for): the one
    behind it waits no longer for it, and dispatches may be known.
    """
    if h.behind[task] != NONE:
        release(w, h.behind[task], finish)
    if h.cell[WAITS]:
        h.finish[task] = finish
        if device == NONE:
            dispatch(w, h, 0, h.threads)
        else:
            dispatch(w, h, max(h.thread[device], 0), h.thread[device] + 1)
