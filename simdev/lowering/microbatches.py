"""The pass that runs the forward and backward of a step several times, before its updates.

The step as it stands is that of one microbatch. Its forward and backward ops, and what they send
one another, are run again for each further one; parameters and their transfers, the synchronisation
of gradients and the updates stay single. Gradients are added up in place: each is one buffer, from
the first microbatch that makes it to its last reader, and adding takes no time of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..graph import Graph
from ..semantics import is_linear, traits_of
from ..strategy import Origin
from ..structure import readers_of
from ..taskgraph import (
    MAX_TASKS,
    NUMBERS,
    PERSISTENT,
    Buffers,
    Ints,
    Lazy,
    Rows,
    TaskGraph,
    Tasks,
)
from .collective import is_collective
from .iterations import Step

Bools = NDArray[np.bool_]
Sequences = Mapping[int, tuple[int, ...]]


def once_a_step(graph: Graph, origins: Mapping[str, Origin]) -> frozenset[int]:
    """The ops (positions) that run once, however many microbatches there are.

    Parameters, updates, and what does nothing but get them gradients: collectives, what a partition
    made to add up, copy or move them (PyTorch's ``no_sync``), and sums of gradients, which for a
    weight with several readers are made in place as over microbatches. ``origins`` are those of ops
    that a partition made.
    """
    readers = readers_of(graph)
    once = {
        i
        for i, op in enumerate(graph.ops)
        if op.phase == "update" or traits_of(op.kind).leaf == "parameter"
    }
    waiting = [producer for i in once for producer, _ in graph.reads[i]]
    while waiting:
        i = waiting.pop()
        origin = origins.get(graph.ops[i].name)
        made = is_collective(graph.ops[i]) or (origin is not None and origin.role != "shard")
        if i not in once and (made or _adds_up(graph, i)) and once.issuperset(readers[i]):
            once.add(i)
            waiting += [producer for producer, _ in graph.reads[i]]
    return frozenset(once)


def _adds_up(graph: Graph, i: int) -> bool:
    """Whether an op is a sum of what several backward ops make."""
    producers = {producer for producer, _ in graph.reads[i]}
    backward = all(graph.ops[producer].phase == "backward" for producer in producers)
    return len(producers) > 1 and backward and is_linear(graph.ops[i])


@dataclass(frozen=True, eq=False)
class Copies:
    """The tasks that ``again`` marks, run for each of ``count`` microbatches.

    For the first they have the rows of the step; those for further ones follow, one microbatch
    after the other.
    """

    again: Bools
    count: int

    @classmethod
    def of(cls, task_graph: TaskGraph, ops: int, once: Collection[int], count: int) -> Copies:
        """The first ``ops`` tasks are those of the ops; but for ``once`` they are run again.

        So is what they send, where it does not go to tasks that run once alone. Raises InputError
        for more than ten million tasks.
        """
        rows = len(task_graph.tasks)
        again = np.ones(rows, np.bool_)
        again[list(once)] = False
        sent = np.arange(ops, rows)
        again[sent] = (task_graph.tasks.op[sent] >= 0) & again[task_graph.tasks.op[sent]]
        feeding = _feeding(task_graph, ops, again[:ops]), _feeding(task_graph, ops, ~again[:ops])
        again[ops:] &= feeding[0][ops:] | ~feeding[1][ops:]
        if rows + int(again.sum()) * (count - 1) > MAX_TASKS:
            raise InputError(f"{count} microbatches lower to more than {MAX_TASKS} tasks")
        return cls(again, count)

    @cached_property
    def chosen(self) -> Ints:
        """The rows that are run again."""
        return np.flatnonzero(self.again)

    @cached_property
    def _place(self) -> Ints:
        return np.cumsum(self.again) - 1

    def rows(self, rows: Ints, microbatch: int) -> Ints:
        """The rows of these tasks for a microbatch; single tasks have one for all."""
        if not microbatch:
            return rows
        moved = len(self.again) + (microbatch - 1) * len(self.chosen) + self._place[rows]
        return np.where(self.again[rows], moved, rows)

    def all_rows(self, rows: Ints) -> Ints:
        """The rows of these tasks for every microbatch, each once."""
        return np.unique([self.rows(rows, k) for k in range(self.count)])

    def tiled(self, column: Ints) -> Ints:
        """A column of the step, with that of the further microbatches behind it."""
        return np.concatenate((column, np.tile(column[self.chosen], self.count - 1)))

    def tiled_rows(self, rows: Rows) -> Rows:
        """Lists of the step that name no tasks, with those of the further microbatches."""
        lists = rows.lists()
        return Rows.of(lists + [lists[row] for row in self.chosen.tolist()] * (self.count - 1))


def _feeding(task_graph: TaskGraph, ops: int, wanted: Bools) -> Bools:
    """Which tasks lead to a wanted op through nothing but what is sent."""
    leads = np.zeros(len(task_graph.tasks), np.bool_)
    leads[:ops] = wanted
    before, waiting = task_graph.predecessors.lists(), np.flatnonzero(leads).tolist()
    while waiting:
        for row in before[waiting.pop()]:
            if row >= ops and not leads[row]:
                leads[row] = True
                waiting.append(row)
    return leads


def accumulated(step: Step, ops: int, once: Collection[int], count: int) -> Step:
    """The step with its forward and backward run ``count`` times (``Strategy.accumulate``).

    ``ops`` is how many there are, the first of all tasks; ``once`` are those that stay single. What
    waits for nothing in its microbatch (the batch) waits for the last ops of the microbatch before
    on its device, as it does for those of the step before (``following``). Raises InputError.
    """
    copies = Copies.of(step.task_graph, ops, once, count)
    across = np.array(step.across, np.int64).reshape(-1, 2)
    inner = across[copies.again[across].all(axis=1)]
    joins = [
        np.stack((copies.rows(inner[:, 0], k), copies.rows(inner[:, 1], k + 1)), axis=1)
        for k in range(count - 1)
    ]
    task_graph = microbatched(
        step.task_graph, copies, np.concatenate(joins), in_order(step, copies)
    )
    return followed(step, copies, task_graph)


def followed(step: Step, copies: Copies, task_graph: TaskGraph) -> Step:
    """A step that follows others as ``step`` does: after all microbatches of what it waits for."""
    across = [
        (before, after)
        for first, after in step.across
        for before in copies.all_rows(np.array([first])).tolist()
    ]
    later = None if step.later is None else copies.tiled(step.later)
    return replace(
        step, task_graph=task_graph, across=tuple(across), later=later, microbatch=step.task_graph
    )


def in_order(step: Step, copies: Copies) -> dict[int, tuple[int, ...]]:
    """The fixed sequences of the queues, one microbatch after the other.

    A single task stands in the last microbatch if it waits for any, else in the first.
    """
    late = _after(step.task_graph, copies.again)
    sequences = {}
    for queue, resource in enumerate(step.task_graph.resources):
        sequence = np.array(resource.sequence, np.int64)
        turns = []
        for k in range(copies.count):
            single = late[sequence] if k == copies.count - 1 else np.zeros(len(sequence), np.bool_)
            single |= ~late[sequence] if not k else False
            turns.append(copies.rows(sequence[copies.again[sequence] | single], k))
        if resource.policy == "fixed":
            sequences[queue] = tuple(np.concatenate(turns).tolist())
    return sequences


def _after(task_graph: TaskGraph, marked: Bools) -> Bools:
    """Which tasks come after a marked one."""
    later = np.zeros(len(marked), np.bool_)
    after, waiting = task_graph.tasks.successors.lists(), np.flatnonzero(marked).tolist()
    while waiting:
        for row in after[waiting.pop()]:
            if not later[row]:
                later[row] = True
                if not marked[row]:
                    waiting.append(row)
    return later


def _in_turn(row: int, count: int) -> Sequence[int]:
    return range(count)


def microbatched(
    task_graph: TaskGraph,
    copies: Copies,
    joins: Ints,
    sequences: Sequences,
    turns: Callable[[int, int], Sequence[int]] = _in_turn,
) -> TaskGraph:
    """The task graph with its copies.

    ``joins`` are further edges, as pairs of rows of the result, ``sequences`` those of the queues
    that have one. ``turns(row, count)`` are the microbatches in the order in which a task that adds
    to a gradient runs for them. Raises InputError.
    """
    buffers, chains = _buffers(task_graph.buffers, copies, turns)
    edges = np.concatenate((joins, np.array(chains, np.int64).reshape(-1, 2)))
    resources = tuple(
        replace(resource, sequence=sequences.get(queue, ()))
        for queue, resource in enumerate(task_graph.resources)
    )
    sharing = task_graph.sharing
    if sharing is not None:
        sharing = replace(sharing, devices=copies.tiled_rows(sharing.devices))
    tasks = _tasks(task_graph.tasks, copies, edges)
    return replace(task_graph, tasks=tasks, resources=resources, buffers=buffers, sharing=sharing)


def _tasks(tasks: Tasks, copies: Copies, edges: Ints) -> Tasks:
    chosen, rows = copies.chosen.tolist(), len(tasks)

    def name(row: int) -> str:
        if row < rows:
            return tasks.name[row]
        k, place = divmod(row - rows, len(chosen))
        return f"{tasks.name[chosen[place]]}@{k + 1}"

    kinds = tuple(tasks.kind)
    return Tasks(
        name=Lazy(rows + len(chosen) * (copies.count - 1), name),
        kind=kinds + tuple(kinds[row] for row in chosen) * (copies.count - 1),
        resources=copies.tiled_rows(tasks.resources),
        links=copies.tiled_rows(tasks.links),
        successors=_successors(tasks.successors, copies, edges),
        flow=np.concatenate((tasks.flow, np.tile(tasks.flow[chosen], copies.count - 1))),
        **{column: copies.tiled(getattr(tasks, column)) for column in NUMBERS},
    )


def _successors(successors: Rows, copies: Copies, edges: Ints) -> Rows:
    """Those within a microbatch, and from and to what is single; ``edges`` are more."""
    owner, entry = successors.owners(), successors.ids
    moved = copies.again[owner] | copies.again[entry]
    pairs = [np.stack((owner, entry), axis=1)]
    for k in range(1, copies.count):
        pairs.append(np.stack((copies.rows(owner[moved], k), copies.rows(entry[moved], k)), axis=1))
    count = len(successors) + len(copies.chosen) * (copies.count - 1)
    owner, entry = np.unique(np.concatenate((*pairs, edges)), axis=0).T
    ptr = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=count)))).astype(np.int64)
    return Rows(ptr, entry.copy())


def _buffers(
    old: Buffers, copies: Copies, turns: Callable[[int, int], Sequence[int]]
) -> tuple[Buffers, list[tuple[int, int]]]:
    """The buffers, and in what order tasks add to those that all microbatches share."""
    rows, names, fillers = list[int](), list[str](), list[int]()
    readers, chains = list[list[int]](), list[tuple[int, int]]()

    def add(row: int, name: str, filler: int, reading: Ints) -> None:
        rows.append(row)
        names.append(name)
        fillers.append(filler)
        readers.append(reading.tolist())

    for row, (filler, read_by) in enumerate(
        zip(old.filler.tolist(), old.readers.lists(), strict=True)
    ):
        reading = np.array(read_by, np.int64)
        if filler == PERSISTENT or not copies.again[filler]:
            add(row, old.name[row], filler, copies.all_rows(reading))
        elif copies.again[reading].all():
            for k in range(copies.count):
                name = f"{old.name[row]}@{k}" if k else old.name[row]
                add(row, name, int(copies.rows(np.array([filler]), k)[0]), copies.rows(reading, k))
        else:
            order = [
                int(copies.rows(np.array([filler]), k)[0]) for k in turns(filler, copies.count)
            ]
            chains += pairwise(order)
            more = np.concatenate((copies.all_rows(reading), order[1:])).astype(np.int64)
            add(row, old.name[row], order[0], np.unique(more))
    sizes = (old.device, old.bytes, old.kind)
    device, size, kind = (column[rows] for column in sizes)
    requested = None if old.requested is None else old.requested[rows]
    filled = np.array(fillers, np.int64)
    return Buffers(tuple(names), device, size, kind, filled, Rows.of(readers), requested), chains
