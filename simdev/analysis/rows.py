"""The rows of a timeline: which tasks are drawn beside which name, never two at once in one row."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..taskgraph import Ints
from ..trace import Trace
from .spans import group, is_compute_stream, told_devices, transfer_mask

LINKS = -1


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a timeline: its tasks in the order of time, none of which overlap.

    ``device`` is the index of the device to which it belongs (LINKS: a link); ``computes`` tells a
    compute stream from a queue or lane of transfers.
    """

    name: str
    device: int
    computes: bool
    tasks: Ints


def timeline_rows(trace: Trace) -> tuple[Row, ...]:
    """Each device's compute stream and queues, in the order of the cluster, then the links.

    A task stands in the row of every queue that it holds. What holds none is packed into as few
    lanes as do not overlap, one set of lanes a source device: ``out gpu:0``, ``out gpu:0 #2``.
    Queues that nothing held are left out, and so are the compute streams of switches
    (``told_devices``) and what computes for no time in no queue.
    """
    task_graph = trace.task_graph
    rows = task_graph.tasks.resources
    held = [
        _in_time(trace, one) for one in group(rows.ids, rows.owners(), len(task_graph.resources))
    ]
    free, told = _unqueued(trace), told_devices(task_graph)
    found: list[list[Row]] = [[] for _ in range(len(task_graph.devices) + 1)]
    for resource, tasks in zip(task_graph.resources, held, strict=True):
        computes = is_compute_stream(task_graph, resource)
        if computes and told[resource.device]:
            found[resource.device].insert(0, Row(resource.name, resource.device, True, tasks))
        elif len(tasks):
            found[resource.device].append(Row(resource.name, resource.device, False, tasks))
    for device, name in enumerate(task_graph.devices):
        found[device] += _lanes(trace, name, device, True, free[device][0])
        found[device] += _lanes(trace, f"out {name}", device, False, free[device][1])
    return tuple(row for rows in found for row in rows)


def _in_time(trace: Trace, tasks: Ints) -> Ints:
    return tasks[np.lexsort((tasks, trace.finish[tasks], trace.start[tasks]))]


def _unqueued(trace: Trace) -> list[tuple[Ints, Ints]]:
    """For each source device its (compute tasks, transfers) that hold no queue."""
    tasks, count = trace.task_graph.tasks, len(trace.task_graph.devices)
    alone = np.diff(tasks.resources.ptr) == 0
    moves = transfer_mask(trace.task_graph)
    pair = []
    # that which starts an expanded collective takes no time
    marks = alone & ~moves & (trace.start == trace.finish)
    for mask in (alone & ~moves & ~marks, alone & moves):
        rows = np.flatnonzero(mask)
        pair.append(group(tasks.source[rows], rows, count))
    return list(zip(*pair, strict=True))


def _lanes(trace: Trace, name: str, device: int, computes: bool, tasks: Ints) -> Iterator[Row]:
    """The tasks packed into lanes: each into the first lane that is free at its start."""
    tasks = _in_time(trace, tasks)
    lanes: list[list[int]] = []
    busy: list[tuple[int, int]] = []
    idle: list[int] = []
    spans = zip(
        tasks.tolist(), trace.start[tasks].tolist(), trace.finish[tasks].tolist(), strict=True
    )
    for task, start, finish in spans:
        while busy and busy[0][0] <= start:
            heapq.heappush(idle, heapq.heappop(busy)[1])
        if not idle:
            heapq.heappush(idle, len(lanes))
            lanes.append([])
        lane = heapq.heappop(idle)
        lanes[lane].append(task)
        heapq.heappush(busy, (finish, lane))
    for number, lane_tasks in enumerate(lanes):
        yield Row(
            f"{name} #{number + 1}" if number else name,
            device,
            computes,
            np.array(lane_tasks, np.int64),
        )
