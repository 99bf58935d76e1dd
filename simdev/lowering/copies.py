"""The one way to repeat a task graph: some of its tasks several times, the others once.

Steps that follow one another repeat all tasks, microbatches those of the forward and backward.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
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

    Rows go run after run, in each in the order of the task graph. A task that runs once stands in
    the first run, or, where ``late`` marks it, in the last; of rounds of so many runs (``round``)
    what is late stands in the last run of each. Copies are named ``name`` + ``mark`` + number, from
    the second run on.
    """

    again: Bools
    late: Bools
    count: int
    mark: str
    round: int | None = None

    def ends_round(self, run: int) -> bool:
        """Whether what is late stands in this run."""
        return (run + 1) % (self.round or self.count) == 0

    @property
    def in_rounds(self) -> Bools:
        """The tasks that run once in each of several rounds."""
        return self.late & ((self.round or self.count) < self.count)

    def members(self, run: int) -> Ints:
        """The tasks of a run, ascending."""
        return self._members[run == 0, self.ends_round(run)]

    @cached_property
    def _members(self) -> Mapping[tuple[bool, bool], Ints]:
        """Tasks by whether their run is the first and whether it ends a round."""
        return {
            (first, end): np.flatnonzero(
                self.again | (first & ~self.again & ~self.late) | (end & self.late)
            )
            for first in (False, True)
            for end in (False, True)
        }

    @cached_property
    def _places(self) -> Mapping[tuple[bool, bool], Ints]:
        """The place of each task in its run, as in ``_members``."""
        places = {}
        for key, rows in self._members.items():
            places[key] = np.zeros(len(self.again), np.int64)
            places[key][rows] = np.arange(len(rows))
        return places

    @cached_property
    def _begins(self) -> list[int]:
        """The row at which each run begins, and how many there are in all."""
        sizes = (len(self.members(run)) for run in range(self.count))
        return list(accumulate(sizes, initial=0))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many tasks each run of a round has, where these differ; else nothing."""
        runs = range(self.round or self.count) if self.late.any() else ()
        return tuple(len(self.members(run)) for run in runs)

    @property
    def total(self) -> int:
        """How many tasks there are in all."""
        return self._begins[-1]

    def rows(self, tasks: Ints | slice, run: int) -> Ints:
        """The rows of these tasks in a run; of a task that does not stand there, in the run of that
        round in which it does.
        """
        here, length = self._rows_in(tasks, run), self.round or self.count
        if self._all_again:
            return here
        late = self._rows_in(tasks, run - run % length + length - 1)
        single = np.where(self.late[tasks], late, self._rows_in(tasks, 0))
        return np.where(self.again[tasks], here, single)

    @cached_property
    def _all_again(self) -> bool:
        return bool(self.again.all())

    def _rows_in(self, tasks: Ints | slice, run: int) -> Ints:
        """The rows in a run of these tasks where they stand there, else any."""
        places: Ints = self._places[run == 0, self.ends_round(run)][tasks]
        return self._begins[run] + places

    def all_rows(self, task: int) -> list[int]:
        """The rows of a task in every run, each once."""
        of_run = (int(self.rows(np.array([task]), run)[0]) for run in range(self.count))
        return list(dict.fromkeys(of_run))

    def joins(self, pairs: Sequence[tuple[int, int]]) -> Ints:
        """Edges from each run to the next one, for pairs of tasks that stand in both."""
        table = np.array(pairs, np.int64).reshape(-1, 2)
        table = table[self.again[table[:, 1]]]
        joined = [np.zeros((0, 2), np.int64)]
        for run in range(self.count - 1):
            here = self.again[table[:, 0]] | (self.ends_round(run) & self.late[table[:, 0]])
            before, after = table[here].T
            joined.append(np.stack((self.rows(before, run), self.rows(after, run + 1)), axis=1))
        return np.concatenate(joined)

    @cached_property
    def _task(self) -> Ints:
        """The task of each row."""
        return np.concatenate([self.members(run) for run in range(self.count)])

    def tiled(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the tasks, for those of all runs."""
        return column[self._task]

    def tiled_rows(self, lists: Rows) -> Rows:
        """Lists of the tasks that name no tasks, for those of all runs."""
        return taken(lists, self._task)

    def name(self, names: Sequence[str], row: int) -> str:
        """The name of a row; ``names`` are those of the tasks."""
        run, task = bisect_right(self._begins, row) - 1, self._task[row]
        again = self.again[task] or (self.late[task] and self.count != (self.round or self.count))
        return f"{names[task]}{self.mark}{run}" if run and again else names[task]


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
    steps: bool = False,
) -> TaskGraph:
    """The task graph with its copies.

    ``edges`` are further ones, as pairs of rows of the result, ``sequences`` those of the fixed
    queues. ``turns`` tells the runs in the order in which a task that adds to a gradient runs for
    them (None: ascending), ``later`` by how much the priority of each task rises from run to run;
    ``steps`` says that runs are steps. Raises InputError.
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
        steps=copies.count if steps else 1,
        round=copies.sizes if steps else (),
    )


def _tasks(tasks: Tasks, copies: Copies, edges: Ints, later: Ints | None) -> Tasks:
    columns = {name: copies.tiled(getattr(tasks, name)) for name in (*NUMBERS, "flow")}
    if later is not None:
        for run in range(copies.count):
            tasks_of_run = copies.members(run)
            columns["priority"][copies.rows(tasks_of_run, run)] += run * later[tasks_of_run]
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
    """The successors in all runs: edges within a run, edges from and to tasks that run once, and
    further ``edges``.
    """
    before, after = successors.owners(), successors.ids
    rows = copies.rows(slice(None), 0)
    befores, afters = [edges[:, 0], rows[before]], [edges[:, 1], rows[after]]
    # Edges between single tasks are the same in every run of a round, and copied with the first.
    moved = copies.again[before] | copies.again[after]
    late = ~moved & copies.late[before] & copies.late[after]
    for run in range(1, copies.count):
        rows = copies.rows(slice(None), run)
        copied = moved | late if copies.ends_round(run) else moved
        befores.append(rows[before[copied]])
        afters.append(rows[after[copied]])
    return Rows.of_pairs(np.concatenate(befores), np.concatenate(afters), copies.total)


def _buffers(
    buffers: Buffers, copies: Copies, turns: Turns | None
) -> tuple[Buffers, list[tuple[int, int]]]:
    """The buffers, single ones first, and in what order tasks add to those that all runs share.

    A buffer is filled in each run where its filler runs, unless a task that runs once reads it.
    """
    owner, reader, filler = buffers.readers.owners(), buffers.readers.ids, buffers.filler
    refilled = (filler != PERSISTENT) & copies.again[filler]
    kept = np.zeros(len(buffers), np.bool_)
    kept[owner[~copies.again[reader]]] = True
    in_rounds = (filler != PERSISTENT) & copies.in_rounds[filler]
    # As rows of their own, single ones first.
    passing = (refilled & ~kept) | in_rounds
    order = np.concatenate((np.flatnonzero(~passing), np.flatnonzero(passing)))
    place = np.argsort(order)
    here = replace(copies, again=(refilled & ~kept)[order], late=in_rounds[order])
    owners, readers = list[Ints](), list[Ints]()
    filled = np.full(here.total, PERSISTENT)
    for run in range(copies.count):
        rows, places = copies.rows(slice(None), run), here.rows(place, run)
        owners.append(places[owner])
        readers.append(rows[reader])
        filled[places] = np.where(filler == PERSISTENT, PERSISTENT, rows[filler])
    chains = list[tuple[int, int]]()
    for row in np.flatnonzero(refilled & kept).tolist():
        turn, at = _in_turn(copies, int(filler[row]), turns), int(place[row])
        # Added up in place: the first run makes the buffer, the others read and write it.
        filled[at] = turn[0]
        chains += pairwise(turn)
        owners.append(np.full(len(turn) - 1, at))
        readers.append(np.array(turn[1:], np.int64))
    chosen = here.tiled(order)
    names = [buffers.name[row] for row in order]
    readers_of = Rows.of_pairs(np.concatenate(owners), np.concatenate(readers), here.total)
    lazy = Lazy(here.total, lambda row: here.name(names, row))
    device, size, kind = (c[chosen] for c in (buffers.device, buffers.bytes, buffers.kind))
    requested = None if buffers.requested is None else buffers.requested[chosen]
    return Buffers(lazy, device, size, kind, filled, readers_of, requested), chains


def _in_turn(copies: Copies, task: int, turns: Turns | None) -> list[int]:
    """The rows of a task, in the order in which it runs."""
    runs = range(copies.count) if turns is None else turns(task)
    return [int(copies.rows(np.array([task]), run)[0]) for run in runs]


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
        if copies.ends_round(run):
            here = here | late[tasks]
        rows.append(copies.rows(tasks[here], run))
        places.append(np.flatnonzero(here))
    return np.concatenate(rows), np.concatenate(places)
