"""From rows to tasks: each row becomes a task for each group of its class, with edges between
groups that have devices in common.

The task of a row and group is ``offset[row] + group``. An edge between two rows joins each group of
the first with each group of the second that contains one of its devices (the same g, on any rank of
the pipeline). All of this is done on columns. ``lower_hybrid`` calls ``expand`` once for a step.
Roles of rows are in ``nouns.models.large.roles``; a new role needs its kind of task here
(``_KIND_OF_ROLE``).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from ...nouns.cluster import Cluster
from ...nouns.models.large.roles import COMPUTES, HOST, NO_LAYER, PIPELINE, ROLES
from ...nouns.models.large.roles import DISPATCH as DISPATCHING
from ...nouns.taskgraph import (
    BUFFER_KINDS,
    COLLECTIVE,
    DISPATCH,
    PERSISTENT,
    TRANSFER,
    Buffers,
    Coded,
    Ints,
    Lazy,
    Resource,
    Rows,
    Sharing,
    TaskGraph,
    Tasks,
)
from ..transfer import capacities
from .durations import CLASSES, RankGrid
from .program import NONE, QUEUES, Program

KINDS = (*ROLES[:COMPUTES], COLLECTIVE, TRANSFER, DISPATCH)
_PLACES = {PIPELINE: COMPUTES + 1, HOST: COMPUTES + 1, DISPATCHING: COMPUTES + 2}
_KIND_OF_ROLE = np.array(
    [_PLACES.get(role, min(role, COMPUTES)) for role in range(len(ROLES))], np.uint8
)


@dataclass(frozen=True, eq=False)
class _Expansion:
    """A program on a grid; ``kind`` is the class of each row, ``offset`` its first task."""

    program: Program
    grid: RankGrid
    columns: dict[str, Ints]
    devices: tuple[str, ...]
    kind: Ints
    sizes: Ints
    offset: Ints
    places: dict[int, list[int]] = field(default_factory=dict)

    @cached_property
    def borders(self) -> list[int]:
        """The first rows of actions, and of the rows after a rank's last action; last the end."""
        action, rank = self.columns["action"], self.columns["rank"]
        changes = (np.diff(action) != 0) | (np.diff(rank) != 0)
        return [0, *(np.flatnonzero(changes) + 1).tolist(), len(action)]

    def place(self, row: int) -> int:
        """The number of earlier rows of a row's action with the same role and layer."""
        after = bisect_right(self.borders, row)
        first, end = self.borders[after - 1 : after + 1]
        if first not in self.places:
            self.places[first] = _places(*(self.columns[c][first:end] for c in ("role", "layer")))
        return self.places[first][row - first]


def _places(role: Ints, layer: Ints) -> list[int]:
    """For each row, the number of earlier rows with the same role and layer."""
    order = np.lexsort((layer, role))
    differs = (np.diff(role[order]) != 0) | (np.diff(layer[order]) != 0)
    begins = np.concatenate((np.zeros(1, np.int64), np.flatnonzero(differs) + 1))
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order)) - np.repeat(begins, np.diff(begins, append=len(order)))
    numbers: list[int] = places.tolist()
    return numbers


def expand(program: Program, grid: RankGrid, cluster: Cluster) -> tuple[TaskGraph, Ints]:
    """The tasks of a program on a grid, and the row of each task. With ``grid.collapsed`` a rank
    has one device, else all of its copies.
    """
    columns = program.columns()
    kind = np.array([queue.groups for queue in QUEUES], np.int64)[columns["queue"]]
    sizes = np.array([grid.count(each) for each in range(CLASSES)], np.int64)[kind]
    devices = [cluster.devices[d] for ranks in grid.devices for d in ranks]
    named = tuple(device.name for device in devices)
    x = _Expansion(program, grid, columns, named, kind, sizes, np.cumsum(sizes) - sizes)
    row = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    tasks, resources = _tasks(x, row)
    parts = tasks, resources, _buffers(x), named, capacities(devices)
    return TaskGraph(*parts, sharing=_sharing(x, tasks, row)), row


def _tasks(x: _Expansion, row: Ints) -> tuple[Tasks, tuple[Resource, ...]]:
    columns, count = x.columns, len(row)
    group = np.arange(count, dtype=np.int64) - x.offset[row]
    first, last = _ends(x.grid)
    source = (columns["rank"] * x.grid.copies)[row] + first[x.kind[row], group]
    to = np.where(columns["role"] == PIPELINE, columns["layer"], columns["rank"]) * x.grid.copies
    resource, resources = _resources(x, first)
    durations = x.program.durations
    # Columns may share an array, because columns of a task graph are never written.
    zero, nothing = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    tasks = Tasks(
        name=Lazy(count, lambda task: f"{_row_name(x, int(row[task]))} {x.devices[source[task]]}"),
        kind=Coded(_KIND_OF_ROLE[columns["role"]][row], KINDS),
        op=nothing,
        output=nothing,
        source=source,
        destination=to[row] + last[x.kind[row], group],
        duration=_duration(durations.columns, columns["duration"], row, group),
        lag=_duration(durations.lags, columns["duration"], row, group),
        gap=zero,
        priority=zero,
        bytes=columns["bytes"][row],
        flow=np.zeros(count, np.bool_),
        resources=Rows(np.arange(count + 1, dtype=np.int64), resource[row] + group),
        links=Rows(np.zeros(count + 1, np.int64), np.zeros(0, np.int64)),
        successors=_successors(x),
    )
    return tasks, resources


def _sharing(x: _Expansion, tasks: Tasks, row: Ints) -> tuple[Sharing, ...]:
    """The devices on which each task computes, and those of each collective, where both slow each
    other; else empty.
    """
    slowdown = Fraction(x.program.parallelism.slowdown)
    if slowdown == 1:
        return ()
    kind = _KIND_OF_ROLE[x.columns["role"]][row]
    computing = np.flatnonzero(kind < COMPUTES)
    sent, devices = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for number, groups in enumerate(x.grid.groups):
        some = np.flatnonzero((kind == COMPUTES) & (x.kind[row] == number))
        members = np.argsort(groups, kind="stable").reshape(x.grid.count(number), -1)
        here = members[some - x.offset[row[some]]]
        here = here + (x.columns["rank"][row[some]] * x.grid.copies)[:, None]
        sent.append(np.repeat(some, here.shape[1]))
        devices.append(here.ravel())
    computes = Rows.of_pairs(computing, tasks.source[computing], len(tasks))
    joins = Rows.of_pairs(np.concatenate(sent), np.concatenate(devices), len(tasks))
    return (Sharing(slowdown, computes, joins),)


def _duration(columns: list[Ints], number: Ints, row: Ints, group: Ints) -> Ints:
    """The ps of each task: those of its row where all groups take equally long, else of its
    group.
    """
    durations: Ints
    if all(bool((column == column[0]).all()) for column in columns):
        durations = np.array([column[0] for column in columns], np.int64)[number][row]
        return durations
    lengths = np.array([len(column) for column in columns])
    starts = np.cumsum(lengths) - lengths
    single = (lengths == 1)[number]
    durations = np.concatenate(columns)[starts[number][row] + np.where(single[row], 0, group)]
    return durations


def _ends(grid: RankGrid) -> tuple[Ints, Ints]:
    """By class and group, the first and the last of its g."""
    first = np.full((CLASSES, grid.copies), grid.copies, np.int64)
    last = np.zeros((CLASSES, grid.copies), np.int64)
    g = np.arange(grid.copies)
    for kind, groups in enumerate(grid.groups):
        np.minimum.at(first[kind], groups, g)
        np.maximum.at(last[kind], groups, g)
    return first, last


def _resources(x: _Expansion, firsts: Ints) -> tuple[Ints, tuple[Resource, ...]]:
    """The first queue of each row (its groups' follow), and all queues, by rank."""
    key = x.columns["rank"] * len(QUEUES) + x.columns["queue"]
    used, where, number = np.unique(key, return_index=True, return_inverse=True)
    starts = np.cumsum(x.sizes[where]) - x.sizes[where]
    resources = []
    for entry, row in zip(used.tolist(), where.tolist(), strict=True):
        rank, queue = divmod(entry, len(QUEUES))
        for first in firsts[x.kind[row], : x.sizes[row]].tolist():
            device = rank * x.grid.copies + first
            name = f"{QUEUES[queue].prefix} {x.devices[device]}".strip()
            resources.append(Resource(name, device=device))
    return starts[number], tuple(resources)


def _successors(x: _Expansion) -> Rows:
    """All edges: from each task to the tasks of the target row whose groups meet its group."""
    kind, offset = x.kind, x.offset
    source, target = np.concatenate(x.program.sources), np.concatenate(x.program.targets)
    order = np.argsort(source, kind="stable")
    source, target = source[order], target[order]
    # There is a slot for each task and edge of its row; the slots of a task are consecutive.
    degree = np.bincount(source, minlength=len(kind))
    first = np.cumsum(degree) - degree
    slots = np.cumsum(degree * x.sizes)
    slot = (slots - degree * x.sizes - first)[source] + np.arange(len(source))
    pair = kind[source] * CLASSES + kind[target]
    lines, tables = list[tuple[Ints, Ints]](), list[Ints]()
    each = np.empty(int(slots[-1]), np.int64)
    for a, b in (divmod(number, CLASSES) for number in np.flatnonzero(np.bincount(pair)).tolist()):
        edges, table = np.flatnonzero(pair == a * CLASSES + b), _meeting(x.grid, a, b)
        line = slot[edges, None] + np.arange(len(table)) * degree[source[edges], None]
        each[line] = (table >= 0).sum(axis=1)
        lines.append((line, target[edges]))
        tables.append(table)
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(each)))
    ids = np.empty(int(starts[-1]), np.int64)
    for (line, v), table in zip(lines, tables, strict=True):
        for column in range(table.shape[1]):
            has = table[:, column] >= 0
            ids[starts[line[:, has]] + column] = offset[v, None] + table[has, column]
    tasks = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.repeat(degree, x.sizes))))
    return Rows(starts[tasks], ids)


def _meeting(grid: RankGrid, a: int, b: int) -> Ints:
    """For each group of class a, the groups of class b that have a device in common with it, padded
    with NONE.
    """
    pairs = np.unique(np.stack((grid.groups[a], grid.groups[b]), axis=1), axis=0)
    counts = np.bincount(pairs[:, 0])
    place = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((grid.count(a), int(counts.max())), NONE, np.int64)
    table[pairs[:, 0], place] = pairs[:, 1]
    return table


def _buffers(x: _Expansion) -> Buffers:
    """Every buffer on each copy of its rank."""
    buffers, copies, groups = x.program.buffers, x.grid.copies, np.stack(x.grid.groups)
    table = np.array([(b.rank, b.size, b.kind, b.readers.shape[1]) for b in buffers], np.int64)
    each = np.repeat(table, [len(b.fillers) for b in buffers], axis=0)
    rank, size, kind, count = np.ascontiguousarray(each.T)
    filler = np.concatenate([b.fillers for b in buffers])
    readers = np.concatenate([b.readers.ravel() for b in buffers])
    lasting = filler == PERSISTENT
    row = np.where(lasting, 0, filler)
    fillers = x.offset[row][:, None] + groups[x.kind[row]]
    fillers[lasting] = PERSISTENT
    device = ((rank * copies)[:, None] + np.arange(copies)).ravel()
    ptr = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.repeat(count, copies))))
    ids = np.empty(int(ptr[-1]), np.int64)
    start, first = np.cumsum(count) - count, ptr[:-1:copies]
    for n in range(int(count.max(initial=0))):
        has = np.flatnonzero(count > n)
        row = readers[start[has] + n]
        lines = first[has, None] + np.arange(copies) * count[has, None] + n
        ids[lines] = x.offset[row][:, None] + groups[x.kind[row]]

    def name(buffer: int) -> str:
        """``activations 3 of 2F7/layer_13/forward on gpu:4``."""
        number = buffer // copies
        text, row = BUFFER_KINDS[int(kind[number])], int(filler[number])
        of = "" if row == PERSISTENT else f" {number} of {_row_name(x, row)}"
        return f"{text}{of} on {x.devices[device[buffer]]}"

    return Buffers(
        Lazy(len(device), name),
        device,
        np.repeat(size, copies),
        np.repeat(kind, copies),
        fillers.ravel(),
        Rows(ptr, ids),
    )


def _row_name(x: _Expansion, row: int) -> str:
    """The name of a row, like ``2F7/layer_13/forward``: action, layer, and role (numbered, where an
    action has several). Names are made when they are read: a large step has millions.
    """
    columns = x.columns
    action, layer, role = (int(columns[name][row]) for name in ("action", "layer", "role"))
    parts = [str(x.program.schedule.actions[action])] if action >= 0 else []
    if role == DISPATCHING:
        what = [f"layer_{layer}"] if layer != NO_LAYER else ["step"]
        return f"{DISPATCH} {'/'.join(parts + what)}"
    if role != PIPELINE:
        parts.append(f"layer_{layer}" if layer != NO_LAYER else "ends")
    number = x.place(row)
    parts.append(ROLES[role].replace(" ", "_") + (f"_{number}" if number else ""))
    return "/".join(parts)
