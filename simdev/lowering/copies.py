"""Repetition of a task graph: some of its tasks run several times, the others once.

Steps that follow one another (steps.py) repeat all tasks, microbatches (stages.py) those of the
forward and backward. A new column of a task graph that names tasks must be copied here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..nouns.taskgraph import (
    NUMBERS,
    PERSISTENT,
    Bools,
    Buffers,
    Coded,
    Ints,
    Lazy,
    Rows,
    TaskGraph,
    Tasks,
)

Turns = Callable[[int], Sequence[int]]


@dataclass(frozen=True, eq=False)
class Copies:
    """The tasks that ``again`` marks, run ``count`` times.

    Rows are ordered by run, and within a run as in the task graph. A task that runs once is in the
    first run, or, where ``late`` marks it, in the last. With rounds of ``round`` runs a late task
    is in the last run of each round. Copies are named ``name`` + ``mark`` + number, from the second
    run on.
    """

    again: Bools
    late: Bools
    count: int
    mark: str
    round: int | None = None

    @property
    def length(self) -> int:
        """The number of runs in a round."""
        return self.round or self.count

    @cached_property
    def ends(self) -> Bools:
        """For each run, whether it ends a round."""
        ends: Bools = np.arange(1, self.count + 1) % self.length == 0
        return ends

    @cached_property
    def there(self) -> Bools:
        """For each run and task, whether the task is in the run."""
        return _there(self.again, self.late, self.ends)

    @property
    def in_rounds(self) -> Bools:
        """The tasks that run once in each of several rounds."""
        return self.late & (self.length < self.count)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of tasks in each run of a round, where runs differ; else empty."""
        if not self.late.any():
            return ()
        return tuple(np.count_nonzero(self.there[: self.length], axis=1).tolist())

    @cached_property
    def by_run(self) -> Ints:
        """The row of each run and task; where a task is not in a run, its row in another run of the
        same round (or in the first run).
        """
        rows = (np.cumsum(self.there) - 1).reshape(self.there.shape)
        late, runs = np.flatnonzero(~self.again & self.late), np.arange(self.count)
        first = np.flatnonzero(~self.again & ~self.late)
        rows[:, late] = rows[runs - runs % self.length + self.length - 1][:, late]
        rows[:, first] = rows[0, first]
        return rows

    @cached_property
    def _origin(self) -> tuple[Ints, Ints]:
        """The run and the task of each row."""
        run, task = np.nonzero(self.there)
        return run, task

    @property
    def total(self) -> int:
        """The number of rows."""
        again, late = (int(np.count_nonzero(mark)) for mark in (self.again, self._once_late))
        return again * (self.count - 1) + late * (self.count // self.length - 1) + len(self.again)

    @property
    def _once_late(self) -> Bools:
        return self.late & ~self.again

    def all_rows(self, task: int) -> list[int]:
        """The rows of a task in every run, each once."""
        return list(dict.fromkeys(self.by_run[:, task].tolist()))

    def joins(self, pairs: Sequence[tuple[int, int]]) -> Ints:
        """Edges from each run to the next one, for pairs of tasks that run in both."""
        table = np.array(pairs, np.int64).reshape(-1, 2)
        before, after = table[self.again[table[:, 1]]].T
        joined = np.stack((self.by_run[:-1, before], self.by_run[1:, after]), axis=-1)
        both = self.there[:-1, before] & (self.again | self.late)[before]
        edges: Ints = joined[both]
        return edges

    def tiled(self, column: NDArray[Any]) -> NDArray[Any]:
        """A column of the tasks, repeated for all rows."""
        tiled: NDArray[Any] = column[self._origin[1]]
        return tiled

    def tiled_rows(self, lists: Rows) -> Rows:
        """Lists of the tasks, repeated for all rows; their entries must not be tasks."""
        return taken(lists, self._origin[1])

    def name(self, names: Sequence[str], row: int) -> str:
        """The name of a row; ``names`` are those of the tasks."""
        run, task = (int(column[row]) for column in self._origin)
        again = self.again[task] or self.in_rounds[task]
        return f"{names[task]}{self.mark}{run}" if run and again else names[task]


def _there(again: Bools, late: Bools, ends: Bools) -> Bools:
    """For each run and task, whether the task is in the run: a task that runs once is in the first
    run, or, where it is late, in the runs that end a round.
    """
    there = np.tile(again, (len(ends), 1))
    there[0] |= ~late
    there[ends] |= late
    return there


def taken(lists: Rows, chosen: Ints) -> Rows:
    """The ``chosen`` lists, in this order."""
    sizes = np.diff(lists.ptr)[chosen]
    ptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    # The place in ``ids`` of each entry: the begin of its list, plus its place in the list.
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

    ``edges`` are further edges, as pairs of rows of the result; ``sequences`` are those of the
    fixed queues. ``turns`` gives the order of runs in which a task adds to its gradient (None:
    ascending); ``later`` is the rise of each task's priority from run to run; ``steps``: whether
    runs are steps. Raises InputError.
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
            here = np.flatnonzero(copies.there[run])
            columns["priority"][copies.by_run[run, here]] += run * later[here]
    kind = Coded.of(tasks.kind)
    return Tasks(
        # Names are made when they are read: most of millions of names never are.
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
    rows = copies.by_run[0]
    befores, afters = [edges[:, 0], rows[before]], [edges[:, 1], rows[after]]
    # Edges between tasks that run once are copied in the first run, or once a round if late.
    moved = copies.again[before] | copies.again[after]
    late = ~moved & copies.late[before] & copies.late[after]
    for run in range(1, copies.count):
        rows = copies.by_run[run]
        copied = moved | late if copies.ends[run] else moved
        befores.append(rows[before[copied]])
        afters.append(rows[after[copied]])
    return Rows.of_pairs(np.concatenate(befores), np.concatenate(afters), copies.total)


def _buffers(
    buffers: Buffers, copies: Copies, turns: Turns | None
) -> tuple[Buffers, list[tuple[int, int]]]:
    """The buffers, single ones first, and edges between tasks that add to the same buffer in turn.

    There is a buffer for each run of its filler, unless a task that runs once reads it: then all
    runs share a single buffer.
    """
    owner, reader, filler = buffers.readers.owners(), buffers.readers.ids, buffers.filler
    refilled = (filler != PERSISTENT) & copies.again[filler]
    kept = np.zeros(len(buffers), np.bool_)
    kept[owner[~copies.again[reader]]] = True
    in_rounds = (filler != PERSISTENT) & copies.in_rounds[filler]
    # Buffers with a row for each run come last.
    passing = (refilled & ~kept) | in_rounds
    order = np.concatenate((np.flatnonzero(~passing), np.flatnonzero(passing)))
    place = np.argsort(order)
    here = replace(copies, again=(refilled & ~kept)[order], late=in_rounds[order])
    owners, readers = list[Ints](), list[Ints]()
    filled = np.full(here.total, PERSISTENT)
    for run in range(copies.count):
        rows, places = copies.by_run[run], here.by_run[run, place]
        owners.append(places[owner])
        readers.append(rows[reader])
        filled[places] = np.where(filler == PERSISTENT, PERSISTENT, rows[filler])
    chains = list[tuple[int, int]]()
    for row in np.flatnonzero(refilled & kept).tolist():
        task, at = int(filler[row]), int(place[row])
        runs = range(copies.count) if turns is None else turns(task)
        turn = cast("list[int]", copies.by_run[list(runs), task].tolist())
        # Accumulated in place: the first run makes the buffer, the others read and write it.
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


def in_order(task_graph: TaskGraph, copies: Copies, late: Bools) -> dict[int, tuple[int, ...]]:
    """The sequences of the fixed queues, one run after the other.

    A task that runs once is in the last run of a round where ``late`` marks it, else in the first
    run.
    """
    return {
        queue: tuple(in_runs(copies, np.array(resource.sequence, np.int64), late)[0].tolist())
        for queue, resource in enumerate(task_graph.resources)
        if resource.policy == "fixed"
    }


def in_runs(copies: Copies, tasks: Ints, late: Bools) -> tuple[Ints, Ints]:
    """The rows of a sequence of tasks, one run after the other (see ``in_order``), and the place of
    each in ``tasks``.
    """
    run, places = np.nonzero(_there(copies.again[tasks], late[tasks], copies.ends))
    return copies.by_run[run, tasks[places]], places
