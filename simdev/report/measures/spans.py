"""Arithmetic on the spans [start, finish) of a trace, in ps, and the rows of its timeline.

Sections, pictures, the page and the export build on it. ``timeline_rows`` alone decides the rows of
a timeline; ``figures/charts.py`` puts the critical path above them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...execution.period import Steady
from ...nouns.taskgraph import (
    COLLECTIVE,
    DISPATCH,
    STREAM_PREFIX,
    SYNC,
    THREAD_PREFIX,
    TRANSFER,
    Bools,
    Floats,
    Ints,
    Resource,
    TaskGraph,
)
from ...nouns.trace import DeviceMemory, Trace


@dataclass(frozen=True, slots=True)
class Window:
    """The part [begin_ps, end_ps) of a trace, as long as ``steps`` steps; the whole trace has
    ``traced`` steps.

    A report measures what happens in the window and divides it by the number of steps.
    """

    begin_ps: int
    end_ps: int
    steps: int = 1
    traced: int = 1

    @classmethod
    def of(cls, trace: Trace, steady: Steady | None) -> Window:
        """The window of the steady periods where steps repeat, else of the whole trace."""
        steps = trace.task_graph.steps
        if steady is None:
            return cls(0, trace.end_ps, steps, steps)
        end = steady.first_ps + sum(steady.periods_ps)
        return cls(end - sum(steady.later_ps), end, len(steady.later_ps), steps)

    @property
    def length_ps(self) -> int:
        """The length of the window in ps."""
        return self.end_ps - self.begin_ps

    def a_step(self, ps: int) -> int:
        """The part of a time in the window that belongs to one step, in ps, rounded up."""
        return -(-ps // self.steps)

    def mean(self, count: int) -> int:
        """The part of a count of the whole trace that belongs to one step, rounded up where steps
        differ.
        """
        return -(-count // self.traced)

    def share(self, ps: int) -> float:
        """A time as a share of the window; 0 in a window of no length."""
        return ps / self.length_ps if self.length_ps else 0.0

    def covered_ps(self, start: Ints, finish: Ints) -> int:
        """The time in ps that the spans cover together within the window."""
        return covered_ps(np.maximum(start, self.begin_ps), np.minimum(finish, self.end_ps))


def covered_ps(start: Ints, finish: Ints) -> int:
    """The time in ps that the spans cover together: the length of their union."""
    return int(apart(start, finish)[2].sum())


def apart(start: Ints, finish: Ints) -> tuple[Ints, Ints, Ints]:
    """(order, begin, length): the order of spans by their starts, and in this order the begin and
    the length in ps of the part of each span that earlier spans do not cover.
    """
    order = np.argsort(start, kind="stable")
    start, finish = start[order], np.maximum.accumulate(finish[order])
    begin = np.maximum(start, np.concatenate((start[:1], finish[:-1])))
    return order, begin, np.maximum(finish - begin, 0)


def runs(split: Bools) -> tuple[Ints, Ints]:
    """(first, last): the indices at which runs of neighbouring elements begin and end;
    ``split[i]`` says whether a run begins with element i + 1.
    """
    first = np.flatnonzero(np.concatenate(([True], split)))
    return first, np.append(first[1:], len(split) + 1) - 1


def shares_between(edges: NDArray[Any], begin: Ints, length: Ints, covered: NDArray[Any]) -> Floats:
    """The share of each part between neighbouring edges (ps) that spans cover.

    The spans lie apart, in the order of time; each covers ``covered`` ps, spread over its length.
    """
    if not len(begin):
        return np.zeros(len(edges) - 1)
    so_far = np.concatenate(([0], np.cumsum(covered)))
    knots = np.stack((begin, begin + length), axis=1).reshape(-1)
    values = np.stack((so_far[:-1], so_far[1:]), axis=1).reshape(-1)
    # The time covered so far is linear between the knots, so its differences are exact.
    parts = np.diff(np.interp(edges, knots, values, left=0)) / np.diff(edges)
    shares: Floats = np.clip(parts, 0.0, 1.0)
    return shares


def transfer_mask(task_graph: TaskGraph) -> Bools:
    """True for each task that moves bytes between devices or adds them up on the way, false for
    each that computes or dispatches.
    """
    tasks = task_graph.tasks
    moves = task_graph.of_kind(TRANSFER, COLLECTIVE, SYNC) | tasks.flow
    moves |= tasks.source != tasks.destination
    return moves


def computing_mask(task_graph: TaskGraph) -> Bools:
    """True for each task that computes on a device: it moves nothing, and no host's thread runs
    it.
    """
    return ~transfer_mask(task_graph) & ~task_graph.of_kind(DISPATCH)


def sent_mask(task_graph: TaskGraph) -> Bools:
    """True for each task that sends: a transfer (``transfer_mask``), except tasks that only add up,
    wait, or pass a message on to its next queue.
    """
    sends = transfer_mask(task_graph) & ~task_graph.of_kind(SYNC)
    sends[_handed_on(task_graph)] = False
    return sends


def _handed_on(task_graph: TaskGraph) -> Ints:
    """The transfers that pass a message on to the next queue of its route: each is released by a
    transfer of the same name, op and ends. A message that holds its queues in turn has a task for
    each queue, each with all of the message's bytes.
    """
    tasks, transfers = task_graph.tasks, task_graph.of_kind(TRANSFER)
    before, after = tasks.successors.owners(), tasks.successors.ids
    alike = transfers[before] & transfers[after]
    for column in (tasks.op, tasks.source, tasks.destination):
        alike &= column[before] == column[after]
    pairs = zip(before[alike].tolist(), after[alike].tolist(), strict=True)
    later = [second for first, second in pairs if tasks.name[first] == tasks.name[second]]
    return np.array(later, np.int64)


def is_compute_stream(task_graph: TaskGraph, resource: Resource) -> bool:
    """Whether the resource is the compute stream of its device, whose name it has."""
    return resource.device >= 0 and resource.name == task_graph.devices[resource.device]


def is_stream(resource: Resource) -> bool:
    """Whether the resource is a named stream, in which ops of its device run."""
    return resource.name.startswith(STREAM_PREFIX)


def is_thread(resource: Resource) -> bool:
    """Whether the resource is the thread of a host, which dispatches ops."""
    return resource.name.startswith(THREAD_PREFIX)


def shown_devices(task_graph: TaskGraph) -> Bools:
    """A mask of the devices that get a row. Left out are devices that do nothing and have no memory
    limit while others have one. Where ranks of a group represent others, all devices that do
    nothing are left out.

    A cluster of several nodes has more switches and NICs than devices that run ops.
    """
    limited = task_graph.capacity >= 0
    used = np.zeros(len(limited), np.bool_)
    used[task_graph.tasks.source[computing_mask(task_graph)]] = True
    used[task_graph.buffers.device] = True
    if task_graph.groups:
        return used
    return used | limited if limited.any() else np.ones(len(limited), np.bool_)


def group(keys: Ints, values: Ints, count: int) -> list[Ints]:
    """For each key in 0 ... count - 1 the values of that key, in their order."""
    # A stable sort: values keep their order, by id or by time.
    order = np.argsort(keys, kind="stable")
    borders = np.searchsorted(keys[order], np.arange(1, count))
    return np.split(values[order], borders) if count else []


def holders(task_graph: TaskGraph) -> list[Ints]:
    """By resource the tasks that hold it, in the order of their ids."""
    held = task_graph.tasks.resources
    return group(held.ids, held.owners(), len(task_graph.resources))


def computing(task_graph: TaskGraph) -> list[Ints]:
    """By device the tasks that compute there."""
    tasks = np.flatnonzero(computing_mask(task_graph))
    return group(task_graph.tasks.source[tasks], tasks, len(task_graph.devices))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a timeline: its tasks in the order of time, none of which overlap.

    ``device`` is the index of the device to which it belongs (-1: a link); ``computes`` is true for
    a compute stream, and false for a queue or lane of transfers.
    """

    name: str
    device: int
    computes: bool
    tasks: Ints


def timeline_rows(trace: Trace) -> tuple[Row, ...]:
    """The rows of a timeline: for each device in the order of the cluster its compute stream, the
    thread that dispatches its ops, its further streams and its queues; then the links.

    A task is in the row of every queue that it holds. Tasks without a queue are packed into as few
    lanes as do not overlap, one set of lanes a source device: ``out gpu:0``, ``out gpu:0 #2``.
    Queues that nothing held are left out, and so are the compute streams of switches
    (``shown_devices``) and tasks that compute for no time in no queue.
    """
    task_graph = trace.task_graph
    queued = holders(task_graph)
    shown = shown_devices(task_graph)
    rows: list[list[Row]] = [[] for _ in range(len(task_graph.devices) + 1)]  # links are last
    pairs = zip(task_graph.resources, queued, strict=True)
    for resource, unsorted in sorted(pairs, key=lambda pair: _rank(task_graph, pair[0])):
        computes = is_compute_stream(task_graph, resource) and bool(shown[resource.device])
        if computes or len(unsorted):
            place = resource.device, computes or is_stream(resource)
            rows[resource.device].append(Row(resource.name, *place, _in_time(trace, unsorted)))
    computing, moving = _unqueued(trace)
    for device, name in enumerate(task_graph.devices):
        rows[device] += _lanes(trace, name, device, True, computing[device])
        rows[device] += _lanes(trace, f"out {name}", device, False, moving[device])
    return tuple(row for of_device in rows for row in of_device)


def _rank(task_graph: TaskGraph, resource: Resource) -> int:
    """The place of a resource's row among the rows of its device; ties keep their order."""
    first = is_compute_stream(task_graph, resource), is_thread(resource), is_stream(resource)
    return (*first, True).index(True)


def _in_time(trace: Trace, tasks: Ints) -> Ints:
    return tasks[np.lexsort((tasks, trace.finish[tasks], trace.start[tasks]))]


def _unqueued(trace: Trace) -> Iterator[list[Ints]]:
    """Two lists by source device: the computing tasks, then the transfers, that hold no queue."""
    tasks = trace.task_graph.tasks
    alone = np.diff(tasks.resources.ptr) == 0
    moves, computes = transfer_mask(trace.task_graph), computing_mask(trace.task_graph)
    # The task that marks the start of an expanded collective takes no time and is not drawn.
    for mask in (alone & computes & (trace.start != trace.finish), alone & moves):
        rows = np.flatnonzero(mask)
        yield group(tasks.source[rows], rows, len(trace.task_graph.devices))


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
    for number, members in enumerate(lanes):
        title = f"{name} #{number + 1}" if number else name
        yield Row(title, device, computes, np.array(members, np.int64))


def step_parts(step_ps: int, parts: int) -> Ints:
    """The ``parts`` + 1 borders (ps) of equal parts of a step."""
    # Python's integers, since products of arrays would overflow for steps of hours.
    return np.array([part * step_ps // parts for part in range(parts + 1)], np.int64)


def envelope(memories: Sequence[DeviceMemory], edges: Ints) -> tuple[Ints, Ints]:
    """The lowest and the highest level of all devices between each two edges, in bytes."""
    lows, highs = zip(*(levels_between(memory, edges) for memory in memories), strict=True)
    return np.min(lows, axis=0), np.max(highs, axis=0)


def levels_between(memory: DeviceMemory, edges: Ints) -> tuple[Ints, Ints]:
    """The lowest and the highest level between each two edges."""
    # Before its first time a device holds nothing. The last level is doubled, since reduceat needs
    # an end for every part.
    time = np.concatenate(([-1], memory.time))
    level = np.concatenate(([0], memory.level))
    level = np.append(level, level[-1])
    place = np.searchsorted(time, edges, side="right") - 1
    # A level that ends at an edge is no level of the part that begins there.
    ends = np.maximum(np.searchsorted(time, edges[1:], side="left"), place[:-1] + 1)
    bounds = np.stack((place[:-1], ends), axis=1).reshape(-1)
    return np.minimum.reduceat(level, bounds)[::2], np.maximum.reduceat(level, bounds)[::2]
