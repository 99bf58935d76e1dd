"""The one way to repeat a task graph: some of its tasks several times, the others once.

Steps that follow one another repeat all tasks, microbatches those of the forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..nouns.taskgraph import (
    NUMBERS,
    PERSISTENT,
    Buffers,
    Coded,
    Ints,
    Lazy,
    Rows,
    TaskGraph,
    Tasks,
)

Bools = NDArray[np.bool_]
Turns = Callable[[int], Sequence[int]]


@dataclass(frozen=True, eq=False)
class Copies:
    """The tasks that ``again`` marks, run ``count`` times.

    Rows go run after run, in each in the order of the task graph. What runs once stands in the
    first run, or, where ``late`` marks it, in the last. Copies are named ``name`` + ``mark`` +
    number, from the second run on.
    """

    again: Bools
    late: Bools
    count: int
    mark: str

    @cached_property
    def _runs(self) -> tuple[Ints, Ints, Ints]:
        """The tasks of the first run, of one in between, and of the last."""
        # Alone a run is the first and the last: it holds what is late, too.
        if self.count == 1:
            return np.arange(len(self.again)), np.zeros(0, np.int64), np.zeros(0, np.int64)
        marks = ~self.late, self.again, self.again | self.late
        first, between, last = map(np.flatnonzero, marks)
        return first, between, last

    @cached_property
    def _places(self) -> tuple[Ints, ...]:
        """By run as in ``_runs`` the place of each task in it."""
        places = []
        for rows in self._runs:
            place = np.zeros(len(self.again), np.int64)
            place[rows] = np.arange(len(rows))
            places.append(place)
        return tuple(places)

    @property
    def total(self) -> int:
        """How many tasks there are in all."""
        first, between, last = self._runs
        return len(first) + len(between) * max(self.count - 2, 0) + len(last)

    def rows(self, tasks: Ints | slice, run: int) -> Ints:
        """The rows of these tasks in a run; what runs once has the same in all."""
        first, between, last = self._places
        begin_last = self.total - len(self._runs[2])
        if run == 0:
            copies = first[tasks]
        elif run < self.count - 1:
            copies = len(self._runs[0]) + (run - 1) * len(self._runs[1]) + between[tasks]
        else:
            copies = begin_last + last[tasks]
        if self.count == 1:
            return copies
        single = np.where(self.late[tasks], begin_last + last[tasks], first[tasks])
        return np.where(self.again[tasks], copies, single)

    def all_rows(self, task: int) -> list[int]:
        """The rows of a task in every run, each once."""
        of_run = (int(self.rows(np.array([task]), run)[0]) for run in range(self.count))
        return list(dict.fromkeys(of_run))

    def joins(self, pairs: Sequence[tuple[int, int]]) -> Ints:
        """Edges from each run to the next one, for pairs of tasks of which both run again."""
        table = np.array(pairs, np.int64).reshape(-1, 2)
        table = table[self.again[table].all(axis=1)]
        return np.concatenate(
            [np.zeros((0, 2), np.int64)]
            + [
                np.stack((self.rows(table[:, 0], run), self.rows(table[:, 1], run + 1)), axis=1)
                for run in range(self.count - 1)
            ]
        )

    def tiled(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the tasks, for those of all runs."""
        first, between, last = (column[rows] for rows in self._runs)
        return np.concatenate((first, np.tile(between, max(self.count - 2, 0)), last))

    def tiled_rows(self, lists: Rows) -> Rows:
        """Lists of the tasks that name no tasks, for those of all runs."""
        return taken(lists, self.tiled(np.arange(len(lists))))

    def name(self, names: Sequence[str], row: int) -> str:
        """The name of a row; ``names`` are those of the tasks."""
        first, between, last = self._runs
        place, begin_last = row - len(first), self.total - len(last)
        if place < 0:
            return names[int(first[row])]
        if row >= begin_last:
            run, task = self.count - 1, int(last[row - begin_last])
        else:
            run, task = place // len(between) + 1, int(between[place % len(between)])
        return f"{names[task]}{self.mark}{run}" if self.again[task] else names[task]


def taken(lists: Rows, chosen: Ints) -> Rows:
    """These of the lists, in this order."""
    sizes = np.diff(lists.ptr)[chosen]
    ptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    # Where in ``ids`` each entry stands: the begin of its list, and how far on.
    at = np.repeat(lists.ptr[chosen] - ptr[:-1], sizes) + np.arange(int(ptr[-1]))
    return Rows(ptr, lists.ids[at])


def copied(
    task_graph: TaskGraph,
    copies: Copies,
    edges: Ints,
    sequences: Mapping[int, tuple[int, ...]],
    turns: Turns | None = None,
    later: Ints | None = None,
    steps: int = 1,
) -> TaskGraph:
    """The task graph with its copies.

    ``edges`` are further ones, as pairs of rows of the result, ``sequences`` those of the fixed
    queues. ``turns`` tells the runs in the order in which a task that adds to a gradient runs for
    them (None: ascending), ``later`` by how much the priority of each task rises from run to run.
    Raises InputError.
    """
    buffers, chains = _buffers(task_graph.buffers, copies, turns)
    edges = np.concatenate((edges, np.array(chains, np.int64).reshape(-1, 2)))
    sharing = tuple(
        replace(pair, first=copies.tiled_rows(pair.first), second=copies.tiled_rows(pair.second))
        for pair in task_graph.sharing
    )
    resources = tuple(
        replace(queue, sequence=sequences.get(row, ()))
        for row, queue in enumerate(task_graph.resources)
    )
    tasks = _tasks(task_graph.tasks, copies, edges, later)
    return replace(
        task_graph,
        tasks=tasks,
        resources=resources,
        buffers=buffers,
        sharing=sharing,
        steps=steps,
    )


def _tasks(tasks: Tasks, copies: Copies, edges: Ints, later: Ints | None) -> Tasks:
    columns = {name: copies.tiled(getattr(tasks, name)) for name in (*NUMBERS, "flow")}
    if later is not None:
        for run in range(copies.count):
            columns["priority"][copies.rows(slice(None), run)] += run * later
    kind = Coded.of(tasks.kind)
    return Tasks(
        # Made when they are read: nobody reads the names of most of millions of tasks.
        name=Lazy(copies.total, lambda row: copies.name(tasks.name, row)),
        kind=Coded(copies.tiled(kind.codes), kind.labels),
        resources=copies.tiled_rows(tasks.resources),
        links=copies.tiled_rows(tasks.links),
        successors=_successors(tasks.successors, copies, edges),
        **columns,
    )


def _successors(successors: Rows, copies: Copies, edges: Ints) -> Rows:
    """Those within a run, and from and to what runs once; ``edges`` are more."""
    before, after = successors.owners(), successors.ids
    rows = copies.rows(slice(None), 0)
    befores, afters = [edges[:, 0], rows[before]], [edges[:, 1], rows[after]]
    moved = copies.again[before] | copies.again[after]
    # Edges between single tasks are the same in every run, and were copied with the first.
    before, after = before[moved], after[moved]
    for run in range(1, copies.count):
        rows = copies.rows(slice(None), run)
        befores.append(rows[before])
        afters.append(rows[after])
    return Rows.of_pairs(np.concatenate(befores), np.concatenate(afters), copies.total)


def _buffers(
    buffers: Buffers, copies: Copies, turns: Turns | None
) -> tuple[Buffers, list[tuple[int, int]]]:
    """The buffers, single ones first, and in what order tasks add to those that all runs share.

    A buffer is filled in each run where its filler runs again, and nothing that reads it runs once.
    """
    owner, reader, filler = buffers.readers.owners(), buffers.readers.ids, buffers.filler
    refilled = (filler != PERSISTENT) & copies.again[filler]
    kept = np.zeros(len(buffers), np.bool_)
    kept[owner[~copies.again[reader]]] = True
    passing = np.flatnonzero(refilled & ~kept)
    lasting = np.flatnonzero(~refilled | kept)
    place = np.zeros(len(buffers), np.int64)
    place[lasting], place[passing] = np.arange(len(lasting)), len(lasting) + np.arange(len(passing))
    step = np.where(refilled & ~kept, len(passing), 0)
    fillers, owners, readers = [filler[lasting]], list[Ints](), list[Ints]()
    for run in range(copies.count):
        rows = copies.rows(slice(None), run)
        fillers.append(rows[filler[passing]])
        owners.append((place + run * step)[owner])
        readers.append(rows[reader])
        if run == 0:
            fillers[0] = np.where(fillers[0] == PERSISTENT, PERSISTENT, rows[fillers[0]])
    filled, chains = np.concatenate(fillers), list[tuple[int, int]]()
    for row in np.flatnonzero(refilled & kept).tolist():
        order = _in_turn(copies, int(filler[row]), turns)
        # Added up in place: the first run makes the buffer, the others read and write it.
        filled[place[row]] = order[0]
        chains += pairwise(order)
        owners.append(np.full(len(order) - 1, place[row]))
        readers.append(np.array(order[1:], np.int64))
    # In the order of ``filled``: single ones, then run after run.
    chosen = np.concatenate((lasting, np.tile(passing, copies.count)))
    names = [buffers.name[row] for row in (*lasting, *passing)]
    readers_of = Rows.of_pairs(np.concatenate(owners), np.concatenate(readers), len(chosen))
    lazy = _names(names, len(lasting), len(chosen), copies.mark)
    device, size, kind = (c[chosen] for c in (buffers.device, buffers.bytes, buffers.kind))
    requested = None if buffers.requested is None else buffers.requested[chosen]
    return Buffers(lazy, device, size, kind, filled, readers_of, requested), chains


def _in_turn(copies: Copies, task: int, turns: Turns | None) -> list[int]:
    """The rows of a task, in the order in which it runs."""
    runs = range(copies.count) if turns is None else turns(task)
    return [int(copies.rows(np.array([task]), run)[0]) for run in runs]


def _names(names: Sequence[str], first: int, count: int, mark: str) -> Lazy:
    """The first names once, then the others in every run, each made when it is read."""

    def name(row: int) -> str:
        run, at = divmod(row - first, len(names) - first) if row >= first else (0, row - first)
        return f"{names[first + at]}{mark}{run}" if run else names[first + at]

    return Lazy(count, name)


def in_order(task_graph: TaskGraph, copies: Copies, late: Bools) -> dict[int, tuple[int, ...]]:
    """The fixed sequences of the queues, one run after the other.

    What runs once stands in the last run where ``late`` marks it, else in the first.
    """
    return {
        queue: tuple(in_runs(copies, np.array(resource.sequence, np.int64), late)[0].tolist())
        for queue, resource in enumerate(task_graph.resources)
        if resource.policy == "fixed"
    }


def in_runs(copies: Copies, tasks: Ints, late: Bools) -> tuple[Ints, Ints]:
    """The rows of a sequence of tasks, one run after the other (see ``in_order``), and the place in
    ``tasks`` of each.
    """
    rows, places = [], []
    for run in range(copies.count):
        here = copies.again[tasks]
        if run == 0:
            here = here | ~late[tasks]
        if run == copies.count - 1:
            here = here | late[tasks]
        rows.append(copies.rows(tasks[here], run))
        places.append(np.flatnonzero(here))
    return np.concatenate(rows), np.concatenate(places)
