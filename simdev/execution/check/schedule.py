"""Whether the columns form a schedule: every task ran once, after what it waits for, alone on its
resources.

All of it is one sweep over sorted columns; nothing here knows what an instant's rounds are (see
queues.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...ground.units import PS_PER_SECOND
from ...nouns.taskgraph import PERSISTENT, TRANSFER, Ints, TaskGraph
from .collectives import collective_faults
from .violation import Violation

LATEST = 2**62  # ps; twice as much still fits in int64
SLACK = 1e-9  # relative, for what float64 rounds


def column_faults(
    task_graph: TaskGraph, start: ArrayLike, finish: ArrayLike
) -> Iterator[Violation]:
    """Rules ``columns`` and ``ran``: one whole number from 0 to 2^62 a task, in both columns."""
    names = task_graph.tasks.name
    for label, given in (("start", start), ("finish", finish)):
        column = np.asarray(given)
        if column.shape != (len(names),):
            text = f"{label} must hold {len(names)} numbers, got shape {column.shape}"
            yield Violation("columns", (), text)
        elif len(names) and column.dtype.kind not in "iu":
            text = f"{label} must hold whole picoseconds, got {column.dtype}"
            yield Violation("columns", (), text)
        else:
            for task in np.flatnonzero(column > LATEST).tolist():
                text = f'{label} of "{names[task]}" is out of range: {column[task]}'
                yield Violation("columns", (names[task],), text)
            for task in np.flatnonzero(column < 0).tolist():
                text = f'"{names[task]}" never ran: its {label} is {column[task]}'
                yield Violation("ran", (names[task],), text)


def schedule_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Iterator[Violation]:
    """Rules ``duration``, ``precedence`` and ``overlap``."""
    yield from _duration_faults(task_graph, start, finish)
    yield from _precedence_faults(task_graph, start, finish)
    yield from _overlap_faults(task_graph, start, finish)


def _duration_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Iterator[Violation]:
    """A task takes its duration; a flow its held latency at least, and no more where it has nothing
    to send.
    """
    tasks = task_graph.tasks
    took, sending = finish - start, tasks.flow & (tasks.bytes > 0)
    wrong = np.where(sending, took <= tasks.duration, took != tasks.duration)
    for task in np.flatnonzero(wrong).tolist():
        name, least = tasks.name[task], "more than " if sending[task] else ""
        text = (
            f'"{name}" takes {took[task]} ps, from {start[task]}; it should take '
            f"{least}{tasks.duration[task]}"
        )
        yield Violation("duration", (name,), text)


def _precedence_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Iterator[Violation]:
    tasks = task_graph.tasks
    before, after = tasks.successors.owners(), tasks.successors.ids
    release = (finish + tasks.lag)[before]
    for edge in np.flatnonzero(start[after] < release).tolist():
        first, second = tasks.name[before[edge]], tasks.name[after[edge]]
        text = (
            f'"{second}" starts at {start[after[edge]]}, but "{first}" releases it at '
            f"{release[edge]}"
        )
        yield Violation("precedence", (second, first), text)


def _overlap_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Iterator[Violation]:
    """Sorted by start, then end: if any two overlap on a resource, two neighbours do."""
    tasks = task_graph.tasks
    held, task = tasks.resources.ids, tasks.resources.owners()
    begin, end = start[task], (finish + tasks.gap)[task]
    order = np.lexsort((end, begin, held))
    held, task, begin, end = held[order], task[order], begin[order], end[order]
    clash = (held[1:] == held[:-1]) & (begin[1:] < end[:-1])
    for i in np.flatnonzero(clash).tolist():
        first, second = tasks.name[task[i]], tasks.name[task[i + 1]]
        resource = task_graph.resources[held[i]].name
        text = (
            f'"{resource}" serves "{first}" until {end[i]} (gap included), but "{second}" '
            f"starts at {begin[i + 1]}"
        )
        yield Violation("overlap", (first, second, resource), text)


def data_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Iterator[Violation]:
    """Rules ``data`` and ``bytes``: what a task reads has arrived; what a transfer sends is what is
    received.
    """
    tasks, buffers = task_graph.tasks, task_graph.buffers
    buffer, reader = buffers.readers.owners(), buffers.readers.ids
    filler = buffers.filler[buffer]
    inside = filler != PERSISTENT
    buffer, reader, filler = buffer[inside], reader[inside], filler[inside]
    arrival = (finish + tasks.lag)[filler]
    for i in np.flatnonzero(start[reader] < arrival).tolist():
        name, read = tasks.name[reader[i]], buffers.name[buffer[i]]
        text = (
            f'"{name}" starts at {start[reader[i]]}, but the buffer "{read}" that it reads '
            f"is there at {arrival[i]}"
        )
        yield Violation("data", (name, read), text)
    yield from _bytes_faults(task_graph)
    yield from collective_faults(task_graph)


def _bytes_faults(task_graph: TaskGraph) -> Iterator[Violation]:
    """By tensor and hop: bytes that transfers send to a device = bytes of the buffers that they
    fill there.
    """
    tasks, buffers = task_graph.tasks, task_graph.buffers
    columns = (tasks.op, tasks.output, tasks.source, tasks.destination)
    hops = zip(*(column.tolist() for column in columns), strict=True)
    hop_of = {
        task: hop
        for task, hop in enumerate(hops)
        if tasks.kind[task] == TRANSFER and min(hop[:2]) >= 0
    }
    sent, received = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    for task, hop in hop_of.items():
        sent[hop] += int(tasks.bytes[task])
    filled = (buffers.filler, buffers.device, buffers.requested_bytes)
    for filler, device, size in zip(*(column.tolist() for column in filled), strict=True):
        if filler in hop_of and device == hop_of[filler][3]:
            received[hop_of[filler]] += size
    first = {hop: tasks.name[task] for task, hop in reversed(hop_of.items())}
    for hop, size in sent.items():
        if len(buffers) and size != received[hop]:
            text = f'"{first[hop]}" sends {size} bytes, of which {received[hop]} are received'
            yield Violation("bytes", (first[hop],), text)


def bound_faults(task_graph: TaskGraph, step: int) -> Iterator[Violation]:
    """Rule ``bounds``: no path and no resource allows less than the step time; one task at a time
    needs no more.
    """
    tasks = task_graph.tasks
    sending = _sending_ps(task_graph)
    least = tasks.duration + np.floor(sending * (1 - SLACK)).astype(np.int64)
    path, last = longest_path(task_graph, least)
    if step < path:
        name = tasks.name[last]
        text = f'the step takes {step} ps, but the longest path, to "{name}", takes {path}'
        yield Violation("bounds", (name,), text)
    held, task = tasks.resources.ids, tasks.resources.owners()
    busy, gap = np.zeros((2, len(task_graph.resources)), np.int64)
    np.add.at(busy, held, (tasks.duration + tasks.gap)[task])
    # The step may end before the last gap of a queue does, whichever task is last.
    np.maximum.at(gap, held, tasks.gap[task])
    for resource in np.flatnonzero(step < busy - gap).tolist():
        name, needed = task_graph.resources[resource].name, busy[resource] - gap[resource]
        text = f'the step takes {step} ps, but "{name}" alone is busy for {needed}'
        yield Violation("bounds", (name,), text)
    # One more for each flow: the picosecond in which its last byte is sent is rounded up, and its
    # share unused after.
    alone = np.ceil(sending * (1 + SLACK)).astype(np.int64) + tasks.flow
    most = sum((tasks.duration + alone + tasks.lag + tasks.gap).tolist())
    if step > most:
        text = f"the step takes {step} ps, but one task after another would take {most}"
        yield Violation("bounds", (), text)


def _sending_ps(task_graph: TaskGraph) -> NDArray[np.float64]:
    """Time in ps that the bytes of each flow need alone on its links; 0 for other tasks."""
    tasks = task_graph.tasks
    slowest = np.full(len(tasks), np.inf)
    np.minimum.at(slowest, tasks.links.owners(), task_graph.bandwidth[tasks.links.ids])
    alone: NDArray[np.float64] = np.where(tasks.flow, tasks.bytes / slowest * PS_PER_SECOND, 0.0)
    return alone


def longest_path(task_graph: TaskGraph, length: Ints) -> tuple[int, int]:
    """The longest path through successors, of lengths and lags in ps, and the task at its end (-1:
    no tasks).
    """
    tasks = task_graph.tasks
    successors, lengths, lags = tasks.successors.lists(), length.tolist(), tasks.lag.tolist()
    missing = np.bincount(tasks.successors.ids, minlength=len(tasks)).tolist()
    ready = [task for task, count in enumerate(missing) if not count]
    begin, best, last = [0] * len(tasks), 0, -1
    while ready:
        task = ready.pop()
        release = begin[task] + lengths[task] + lags[task]
        if release >= best:
            best, last = release, task
        for successor in successors[task]:
            begin[successor] = max(begin[successor], release)
            missing[successor] -= 1
            if not missing[successor]:
                ready.append(successor)
    return best, last
