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

    Rows go run after run, in each in the order of the task graph. A task that runs once does so in
    the first run, or, where ``late`` marks it, in the last. Copies are named ``name`` + ``mark`` +
    number, from the second run on.
    """

    again: Bools
    late: Bools
    count: int
    mark: str

    @cached_property
    def by_run(self) -> Ints:
        """By run and task its row; a task that runs once has one row for all runs."""
        there = _there(self.again, self.late, self.count)
        rows = (np.cumsum(there) - 1).reshape(there.shape)
        once = np.flatnonzero(~self.again)
        rows[:, once] = rows[there[:, once].argmax(axis=0), once]
        return rows

    @cached_property
    def _origin(self) -> tuple[Ints, Ints]:
        """By row its run and its task."""
        run, task = np.nonzero(_there(self.again, self.late, self.count))
        return run, task

    @property
    def total(self) -> int:
        """How many tasks there are in all."""
        once = int(np.count_nonzero(~self.again))
        return once + (len(self.again) - once) * self.count

    def rows(self, tasks: Ints | slice, run: int) -> Ints:
        """The rows of these tasks in a run; a task that runs once has one row for all runs."""
        rows: Ints = self.by_run[run, tasks]
        return rows

    def all_rows(self, task: int) -> list[int]:
        """The rows of a task in every run, each once."""
        return list(dict.fromkeys(self.by_run[:, task].tolist()))

    def joins(self, pairs: Sequence[tuple[int, int]]) -> Ints:
        """Edges from each run to the next one, for pairs of tasks of which both run again."""
        table = np.array(pairs, np.int64).reshape(-1, 2)
        before, after = table[self.again[table].all(axis=1)].T
        joined = np.stack((self.by_run[:-1, before], self.by_run[1:, after]), axis=-1)
        return joined.reshape(-1, 2)

    def tiled(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the tasks, for those of all runs."""
        tiled: NDArray[Any] = column[self._origin[1]]
        return tiled

    def tiled_rows(self, lists: Rows) -> Rows:
        """Lists of the tasks that name no tasks, for those of all runs."""
        return taken(lists, self._origin[1])

    def name(self, names: Sequence[str], row: int) -> str:
        """The name of a row; ``names`` are those of the tasks."""
        run, task = (int(column[row]) for column in self._origin)
        return f"{names[task]}{self.mark}{run}" if run and self.again[task] else names[task]


def _there(again: Bools, late: Bools, count: int) -> Bools:
    """By run and task whether it is there: one that runs once in the first run, or in the last
    where it is late.
    """
    there = np.tile(again, (count, 1))
    there[0] |= ~late
    there[-1] |= late
    return there


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
    queues. ``turns`` gives the order of the runs in which a task adds to a gradient (None:
    ascending), ``later`` by how much the priority of each task rises from run to run. Raises
    InputError.
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
    """The successors within a run, and from and to tasks that run once; ``edges`` are more."""
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
    """The buffers, single ones first, and the order in which tasks add to shared ones.

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

    A task that runs once is in the last run where ``late`` marks it, else in the first.
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
    run, places = np.nonzero(_there(copies.again[tasks], late[tasks], copies.count))
    rows: Ints = copies.by_run[run, tasks[places]]
    return rows, places
