"""From rows to tasks: every row becomes a task for each group of its class, every edge joins the
groups that meet.

Task ``offset[row] + group``. An edge between two rows joins a group of the one with each group of
the other that has a device in common with it (the same place g, on another rank of the pipeline).
All of it is done on columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...cluster import Cluster
from ...models.large.roles import COMPUTES, HOST, PIPELINE, ROLES
from ...taskgraph import (
    COLLECTIVE,
    PERSISTENT,
    TRANSFER,
    Buffers,
    Coded,
    Ints,
    Resource,
    Rows,
    TaskGraph,
    Tasks,
)
from ...units import parse_bytes
from . import names
from .costs import Costs
from .layout import CLASSES, Layout
from .program import Program
from .template import QUEUE_CLASS, QUEUES

KINDS = (*ROLES[:COMPUTES], COLLECTIVE, TRANSFER)
_KIND_OF_ROLE = np.array(
    [
        *range(COMPUTES),
        *(COMPUTES + (role in (PIPELINE, HOST)) for role in range(COMPUTES, len(ROLES))),
    ],
    np.uint8,
)
QUEUE_NAMES = (
    "",
    "tensor",
    "experts",
    "data",
    "experts' data",
    "to next",
    "to previous",
    "to host",
    "from host",
)


@dataclass(frozen=True, slots=True, eq=False)
class Expanded:
    """The task graph, and for each task its row."""

    task_graph: TaskGraph
    row: Ints


def expand(program: Program, layout: Layout, costs: Costs, cluster: Cluster) -> Expanded:
    """The tasks of a program on a layout: all copies, or with ``layout.collapsed`` one of each
    rank.
    """
    columns = program.columns()
    kind = np.array(QUEUE_CLASS, np.int64)[columns["queue"]]
    sizes = np.array([layout.count(one) for one in range(CLASSES)], np.int64)[kind]
    offset = np.cumsum(sizes) - sizes
    row = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    group = np.arange(len(row), dtype=np.int64) - offset[row]
    devices = tuple(cluster.devices[d] for ranks in layout.devices for d in ranks)
    named = tuple(device.name for device in devices)
    resource, resources = _resources(columns, kind, sizes, layout, named)
    first, last = _ends(layout)
    source = _spread(columns["rank"] * layout.copies, row) + first[kind[row], group]
    to = np.where(columns["role"] == PIPELINE, columns["layer"], columns["rank"]) * layout.copies
    destination = _spread(to, row) + last[kind[row], group]
    zero = np.zeros(len(row), np.int64)
    nothing = np.full(len(row), -1, np.int64)
    roles = columns["role"].astype(np.uint8)
    own = np.arange(len(row) + 1, dtype=np.int64)
    tasks = Tasks(
        name=names.task_names(program, columns, row, named, source),
        kind=Coded(_KIND_OF_ROLE[roles][row], KINDS),
        op=nothing, output=nothing, source=source, destination=destination,
        duration=_duration(costs.columns, columns["cost"], sizes, row, group),
        lag=_duration(costs.lags, columns["cost"], sizes, row, group),
        gap=zero, priority=zero, bytes=_spread(columns["bytes"], row), flow=np.zeros(len(row),
        np.bool_),
        resources=Rows(own, _spread(resource, row) + group),
        links=Rows(np.zeros(len(row) + 1, np.int64), np.zeros(0, np.int64)),
        successors=_successors(program, layout, kind, sizes, offset),
    )  # fmt: skip
    capacity = np.array(
        [-1 if one.memory is None else parse_bytes(one.memory) for one in devices], np.int64
    )
    buffers = _buffers(program, layout, kind, offset, named)
    return Expanded(TaskGraph(tasks, resources, buffers, named, capacity), row)


def _spread(column: Ints, row: Ints) -> Ints:
    spread: Ints = column[row]
    return spread


def _duration(costs: list[Ints], cost: Ints, sizes: Ints, row: Ints, group: Ints) -> Ints:
    """Ps of each task: its row's where all groups cost the same, else its group's."""
    if all(bool((column == column[0]).all()) for column in costs):
        return _spread(np.array([column[0] for column in costs], np.int64)[cost], row)
    starts = np.cumsum([0, *(len(column) for column in costs)])[:-1]
    single = np.array([len(column) == 1 for column in costs])[cost]
    found: Ints = np.concatenate(costs)[starts[cost][row] + np.where(single[row], 0, group)]
    return found


def _ends(layout: Layout) -> tuple[Ints, Ints]:
    """By class and group, the first and the last of its g."""
    first = np.zeros((CLASSES, layout.copies), np.int64)
    last = np.zeros((CLASSES, layout.copies), np.int64)
    for kind, groups in enumerate(layout.groups):
        numbers, where = np.unique(groups, return_index=True)
        first[kind, numbers] = where
        numbers, where = np.unique(groups[::-1], return_index=True)
        last[kind, numbers] = layout.copies - 1 - where
    return first, last


def _resources(
    columns: dict[str, Ints], kind: Ints, sizes: Ints, layout: Layout, named: tuple[str, ...]
) -> tuple[Ints, tuple[Resource, ...]]:
    """The first queue of each row (its groups' follow), and all queues, those of one rank
    together.
    """
    key = columns["rank"] * QUEUES + columns["queue"]
    used, where, number = np.unique(key, return_index=True, return_inverse=True)
    starts = np.cumsum(sizes[where]) - sizes[where]
    firsts, found = _ends(layout)[0], []
    for one, at in zip(used.tolist(), where.tolist(), strict=True):
        rank, queue = divmod(one, QUEUES)
        for group in range(int(sizes[at])):
            device = rank * layout.copies + int(firsts[kind[at], group])
            name = f"{QUEUE_NAMES[queue]} {named[device]}" if queue else named[device]
            found.append(Resource(name, device=device))
    return starts[number], tuple(found)


def _successors(program: Program, layout: Layout, kind: Ints, sizes: Ints, offset: Ints) -> Rows:
    """All edges, each row's groups with equally many."""
    source, target = np.concatenate(program.sources), np.concatenate(program.targets)
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    meeting = [[_meeting(layout, one, other) for other in range(CLASSES)] for one in range(CLASSES)]
    width = np.array([[table.shape[1] for table in line] for line in meeting], np.int64)
    each = width[kind[source], kind[target]]
    degree = np.bincount(source, each, len(kind)).astype(np.int64)
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.repeat(degree, sizes))))
    # of all edges; within its row an edge stands after those before it
    before = np.cumsum(each) - each
    first = np.searchsorted(source, np.arange(len(kind)))
    place = before - np.append(before, 0)[first[source]]
    ids = np.empty(int(ptr[-1]), np.int64)
    start = ptr[offset]
    for one in range(CLASSES):
        for other in range(CLASSES):
            edges = np.flatnonzero((kind[source] == one) & (kind[target] == other))
            if not len(edges):
                continue
            table = meeting[one][other]
            u, v = source[edges], target[edges]
            lines = start[u, None] + np.arange(len(table)) * degree[u, None] + place[edges, None]
            for column in range(table.shape[1]):
                ids[lines + column] = offset[v, None] + table[:, column]
    return Rows(ptr, ids)


def _meeting(layout: Layout, one: int, other: int) -> Ints:
    """For each group of a class, the groups of another that have a device in common with it."""
    pairs = np.unique(np.stack((layout.groups[one], layout.groups[other]), axis=1), axis=0)
    return np.ascontiguousarray(pairs[:, 1].reshape(layout.count(one), -1))


def _buffers(
    program: Program, layout: Layout, kind: Ints, offset: Ints, named: tuple[str, ...]
) -> Buffers:
    """Every buffer on each copy of its rank."""
    columns, copies = program.buffers, layout.copies
    filler, count = np.concatenate(columns.filler), np.concatenate(columns.count)
    groups = np.stack(layout.groups)
    at = np.where(filler == PERSISTENT, 0, filler)
    fillers = np.where(
        (filler == PERSISTENT)[:, None], PERSISTENT, offset[at][:, None] + groups[kind[at]]
    )
    rank, what = np.concatenate(columns.rank), np.concatenate(columns.kind)
    device = (rank * copies)[:, None] + np.arange(copies)
    readers = np.concatenate([*columns.readers, np.zeros(0, np.int64)])
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.repeat(count, copies))))
    ids = np.empty(int(ptr[-1]), np.int64)
    own = np.cumsum(count) - count  # of the readers of each buffer, in ``readers``
    first = ptr[:-1:copies]
    for n in range(int(count.max(initial=0))):
        has = np.flatnonzero(count > n)
        row = readers[own[has] + n]
        ids[first[has, None] + np.arange(copies) * count[has, None] + n] = (
            offset[row][:, None] + groups[kind[row]]
        )
    return Buffers(
        names.buffer_names(program, what, filler, rank, named, copies), device.ravel(),
        np.repeat(np.concatenate(columns.size), copies), np.repeat(what, copies), fillers.ravel(),
        Rows(ptr, ids),
    )  # fmt: skip
