"""Steps that follow one another: the task graph of several, in which each releases what the next
one waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..errors import InputError
from ..taskgraph import (
    MAX_TASKS,
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


@dataclass(frozen=True, slots=True)
class Push:
    """A message of a worker that its credit counts: its first task, what is sent, and the task that
    arrives last.

    ``rank`` is its priority, which rises by ``later`` from step to step.
    """

    first: int
    size: int
    last: int
    rank: int
    later: int = 0


@dataclass(frozen=True, eq=False)
class Step:
    """The task graph of one step, and how others follow it.

    ``across`` are pairs (task, task of the next step that waits for it). ``later`` is by how much
    the priority of each task rises from step to step (None: none does), so that what belongs to an
    earlier step can go first. ``pushes`` are the messages that a credit counts, where there is one.
    ``synchronised`` counts the gradients that a policy synchronises (None: there is no policy).
    ``microbatch`` is the task graph of one microbatch with all that is done once a step, where a
    step holds several.
    """

    task_graph: TaskGraph
    across: tuple[tuple[int, int], ...] = ()
    later: Ints | None = None
    pushes: tuple[Push, ...] = ()
    synchronised: int | None = None
    microbatch: TaskGraph | None = None


def most_steps(step: Step) -> int:
    """How many steps may follow one another at most (MAX_TASKS)."""
    return MAX_TASKS // max(len(step.task_graph.tasks), 1)


def iterated(step: Step, count: int) -> TaskGraph:
    """``count`` steps, one after another.

    Task r of step k is row k * len(step) + r and is named ``name~k`` from the second step on;
    ``op`` stays the row of the first. Raises InputError for more than 10 million tasks.
    """
    one = step.task_graph
    rows = len(one.tasks)
    if count > most_steps(step):
        raise InputError(f"{count} steps lower to more than {MAX_TASKS} tasks")
    resources = tuple(
        replace(
            queue, sequence=tuple(k * rows + task for k in range(count) for task in queue.sequence)
        )
        for queue in one.resources
    )
    sharing = one.sharing
    if sharing is not None:
        sharing = replace(sharing, devices=_tiled(sharing.devices, count, 0))
    tasks, buffers = _tasks(step, count), _buffers(one, count)
    return replace(
        one, tasks=tasks, resources=resources, buffers=buffers, sharing=sharing, steps=count
    )


def _tasks(step: Step, count: int) -> Tasks:
    tasks, rows = step.task_graph.tasks, len(step.task_graph.tasks)
    tiled = {name: np.tile(getattr(tasks, name), count) for name in (*NUMBERS, "flow")}
    if step.later is not None:
        tiled["priority"] += np.repeat(np.arange(count), rows) * np.tile(step.later, count)
    return Tasks(
        name=_named(tasks.name, rows, count),
        kind=_kinds(tasks.kind, count),
        resources=_tiled(tasks.resources, count, 0),
        links=_tiled(tasks.links, count, 0),
        successors=_linked(
            tasks.successors, np.array(step.across, np.int64).reshape(-1, 2), count, rows
        ),
        **tiled,
    )


def _named(names: Sequence[str], passing: int, count: int, first: int = 0) -> Lazy:
    """``first`` names once, then the ``passing`` others in every step, each made when it is asked
    for.
    """

    def make(row: int) -> str:
        if row < first:
            return names[row]
        k, place = divmod(row - first, passing)
        return f"{names[first + place]}~{k}" if k else names[first + place]

    return Lazy(first + passing * count, make)


def _kinds(kinds: Sequence[str], count: int) -> Coded:
    labels = tuple(dict.fromkeys(kinds))
    code = {label: k for k, label in enumerate(labels)}
    codes = np.fromiter((code[kind] for kind in kinds), np.uint8, len(kinds))
    return Coded(np.tile(codes, count), labels)


def _tiled(rows: Rows, count: int, shift: int) -> Rows:
    """The lists again and again, their entries ``shift`` higher each time."""
    sizes = np.tile(np.diff(rows.ptr), count)
    ptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return Rows(ptr, (rows.ids[None, :] + shift * np.arange(count)[:, None]).reshape(-1))


def _linked(successors: Rows, across: Ints, count: int, rows: int) -> Rows:
    """Successors within each step and, ascending behind them, in the next one."""
    steps = np.arange(count)[:, None]
    within = np.stack((successors.owners(), successors.ids))
    owner = np.concatenate(
        ((within[0] + rows * steps).reshape(-1), (across[:, 0] + rows * steps[:-1]).reshape(-1))
    )
    entry = np.concatenate(
        ((within[1] + rows * steps).reshape(-1), (across[:, 1] + rows * steps[1:]).reshape(-1))
    )
    order = np.lexsort((entry, owner))
    ptr = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=rows * count)))).astype(
        np.int64
    )
    return Rows(ptr, entry[order])


def _buffers(step: TaskGraph, count: int) -> Buffers:
    """What lives throughout once, all else in every step."""
    old, rows = step.buffers, len(step.tasks)
    held = old.filler == PERSISTENT
    lasting, passing = np.flatnonzero(held), np.flatnonzero(~held)
    chosen = np.concatenate((lasting, np.tile(passing, count)))
    shift = np.concatenate(
        (np.zeros(len(lasting), np.int64), np.repeat(np.arange(count) * rows, len(passing)))
    )
    names = [old.name[row] for row in (*lasting.tolist(), *passing.tolist())]
    sizes = np.diff(old.readers.ptr)[chosen]
    ptr = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    # The readers of each buffer, one list after the other: where each begins in the old ones, and
    # how far on.
    at = np.repeat(old.readers.ptr[chosen] - ptr[:-1], sizes) + np.arange(int(ptr[-1]))
    readers = Rows(ptr, old.readers.ids[at] + np.repeat(shift, sizes))
    filler = np.where(old.filler[chosen] == PERSISTENT, PERSISTENT, old.filler[chosen] + shift)
    requested = None if old.requested is None else old.requested[chosen]
    told = _named(names, len(passing), count, len(lasting))
    return Buffers(
        told, old.device[chosen], old.bytes[chosen], old.kind[chosen], filler, readers, requested
    )
