"""In which order hosts dispatch, and their devices run: the pass that makes these queues fixed.

By place in the file under ``fifo`` and ``program``; under ``priority`` the topological order that
takes the smallest (priority, place) first; under ``fixed`` the sequences as they are given, merged
by heads (execution contract, rule 9).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from ..nouns.graph import Graph
from ..nouns.strategy import Origin
from ..nouns.taskgraph import Ints, TaskGraph
from .copies import Copies, in_runs
from .hosts import Dispatches, ends_in_copies
from .prepare import Prepared

Ends = Mapping[int, tuple[int, ...]]
PIECES = ("shard", "copy")
"""Roles of what runs an op, or a part of it; other roles add something to the graph."""


def in_turns(
    prepared: Prepared,
    task_graph: TaskGraph,
    placement: Sequence[int],
    policy: str,
    ends: Ends,
    origins: Mapping[str, Origin] = {},
    gates: Collection[int] = (),
) -> tuple[TaskGraph, Dispatches | None]:
    """A placed graph, its hosted devices in the order in which they are dispatched, and these
    dispatches.

    ``policy`` is that of the strategy's order, whose sequences the task graph has already.
    ``gates`` are ops that stand for no work. None where no device has a host.
    """
    hosted = prepared.cluster.hosted
    if not hosted:
        return task_graph, None
    place = places(prepared.graph, placement, origins)
    if policy == "priority":
        place = _by_priority(prepared.graph, task_graph.tasks.priority[: len(place)], place)
    task_graph = _with_queues(prepared, task_graph, placement, place, policy)
    ops = np.setdiff1d(np.arange(len(place)), np.array(list(gates), np.int64))
    entries = _entries(prepared, ops, ops, placement)
    if policy == "fixed":
        entries = _merged(prepared, task_graph, entries, place)
    else:
        entries = entries[np.lexsort((entries[:, 2], place[entries[:, 1]]))]
    task, op, device = entries.T
    return task_graph, Dispatches(prepared, task, op, device, ends)


def in_given_turns(
    prepared: Prepared, whole: TaskGraph, copies: Copies, placement: Sequence[int], ends: Ends
) -> Dispatches | None:
    """What hosts dispatch of a task graph whose copies of ops (its first tasks) stand in given
    sequences; ``ends`` are those of one copy.
    """
    if not prepared.cluster.hosted:
        return None
    ops = np.arange(len(placement))
    rows, places_of = in_runs(copies, ops, np.zeros(len(copies.again), np.bool_))
    entries = _entries(prepared, rows, ops[places_of], placement)
    task, op, device = _merged(prepared, whole, entries, ops).T
    return Dispatches(prepared, task, op, device, ends_in_copies(ends, copies))


def places(graph: Graph, placement: Sequence[int], origins: Mapping[str, Origin]) -> Ints:
    """The place of each op in the file; pieces of one op by device, behind what splitting adds
    before them.
    """
    if not origins:
        return np.arange(len(graph.ops))
    numbers: dict[str, int] = {}
    keys, of = [], len(graph.ops) + 1
    # Backwards: what is added stands before the first piece that reads it.
    for i in reversed(range(len(graph.ops))):
        origin = origins.get(graph.ops[i].name)
        piece = origin is None or origin.role in PIECES
        if piece:
            name = graph.ops[i].name if origin is None else origin.op
            of = numbers.setdefault(name, len(graph.ops) - len(numbers))
        keys.append((of, piece, placement[i] if piece else 0, i))
    order = [i for *_, i in sorted(keys)]
    place = np.zeros(len(order), np.int64)
    place[order] = np.arange(len(order))
    return place


def _by_priority(graph: Graph, priority: Ints, place: Ints) -> Ints:
    """The place of each op in the topological order that takes the smallest (priority, place)
    first.
    """
    rank = np.empty(len(place), np.int64)
    rank[np.lexsort((place, priority))] = np.arange(len(place))
    ranks, op_of = rank.tolist(), np.argsort(rank).tolist()
    readers: list[list[int]] = [[] for _ in ranks]
    missing = [0] * len(ranks)
    for i, reads in enumerate(graph.reads):
        for producer in {producer for producer, _ in reads}:
            readers[producer].append(i)
            missing[i] += 1
    ready = [ranks[i] for i, count in enumerate(missing) if not count]
    heapify(ready)
    for number in range(len(ranks)):
        op = op_of[heappop(ready)]
        rank[op] = number
        for reader in readers[op]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, ranks[reader])
    return rank


def _with_queues(
    prepared: Prepared,
    task_graph: TaskGraph,
    placement: Sequence[int],
    place: Ints,
    policy: str,
) -> TaskGraph:
    """The queues of hosted devices fixed in the order of the places, where no sequence is given.

    Program order is that of places here: by rows a piece would stand before a sum that its host
    dispatches first.
    """
    order = np.argsort(place)
    queued = np.ones(len(place), np.bool_)
    queued[list(prepared.rings)] = False  # a collective holds no device
    order = order[queued[order]]
    devices = np.array(placement, np.int64)[order]
    resources = list(task_graph.resources)
    for d in prepared.cluster.hosted:
        if policy == "program" or resources[d].policy != "fixed":
            sequence = tuple(order[devices == d].tolist())
            resources[d] = replace(resources[d], policy="fixed", sequence=sequence)
    return replace(task_graph, resources=tuple(resources))


def _entries(prepared: Prepared, rows: Ints, ops: Ints, placement: Sequence[int]) -> Ints:
    """Dispatches as (task, op, device): one for each hosted device on which an op runs."""
    hosted = np.zeros(len(prepared.cluster.devices), np.bool_)
    hosted[list(prepared.cluster.hosted)] = True
    device = np.array(placement, np.int64)[ops]
    several = np.isin(ops, list(prepared.rings))
    alone = np.flatnonzero(~several & hosted[device])
    entries = [np.stack((rows[alone], ops[alone], device[alone]), axis=1)]
    for i in np.flatnonzero(several).tolist():
        ranks = sorted(rank for rank in set(prepared.rings[int(ops[i])].ranks) if hosted[rank])
        entries += [np.array([(rows[i], ops[i], rank) for rank in ranks], np.int64).reshape(-1, 3)]
    return np.concatenate(entries)


# Sequences as they are given


def _merged(prepared: Prepared, task_graph: TaskGraph, entries: Ints, place: Ints) -> Ints:
    """The dispatches of given sequences: of their heads the one of smallest place goes first.

    A collective stands in no sequence: it may go once all ops that it reads have gone, and a head
    that reads it goes after it.
    """
    place_of = dict(zip(entries[:, 0].tolist(), place[entries[:, 1]].tolist(), strict=True))
    given = (task_graph.resources[d].sequence for d in prepared.cluster.hosted)
    queues = [[row for row in sequence if row in place_of] for sequence in given]
    free = sorted(place_of.keys() - set().union(*queues))
    order = list(_Merge(task_graph, queues, free, place_of).rows())
    number = np.zeros(len(task_graph.tasks), np.int64)
    number[order] = np.arange(len(order))
    return entries[np.lexsort((entries[:, 2], number[entries[:, 0]]))]


class _Merge:
    """A merge of sequences of ops with what is ``free``: ops that stand in no sequence.

    ``before`` counts for each op what has to go first: for free ones the ops that they wait for,
    for the others the free ones. ``after`` are the reverse.
    """

    def __init__(
        self,
        task_graph: TaskGraph,
        queues: Sequence[Sequence[int]],
        free: Sequence[int],
        place: Mapping[int, int],
    ) -> None:
        self.queues, self.place = queues, place
        self.next = [0] * len(queues)
        self.before: Counter[int] = Counter()
        self.after: dict[int, list[int]] = {}
        self.heads: list[tuple[int, int, int]] = []  # place, row, its queue (-1: it is free)
        self.left = dict.fromkeys(free)
        if free:
            tasks = task_graph.tasks
            self._connect(free, task_graph.predecessors.lists(), tasks.successors.lists())
        self._enter(free, -1)
        for queue in range(len(queues)):
            self._enter(self._head(queue), queue)

    def _connect(
        self, free: Sequence[int], predecessors: list[list[int]], successors: list[list[int]]
    ) -> None:
        pairs = {(op, row) for row in free for op in self._next_ops(predecessors, row)}
        pairs |= {(row, op) for row in free for op in self._next_ops(successors, row)}
        for first, then in sorted(pairs):
            self.before[then] += 1
            self.after.setdefault(first, []).append(then)

    def _next_ops(self, links: list[list[int]], row: int) -> Iterator[int]:
        """The ops that links lead to from a row over what is no op: what is sent."""
        waiting, seen = [row], {row}
        while waiting:
            for other in links[waiting.pop()]:
                if other in self.place:
                    yield other
                elif other not in seen:
                    seen.add(other)
                    waiting.append(other)

    def _head(self, queue: int) -> Sequence[int]:
        return self.queues[queue][self.next[queue] : self.next[queue] + 1]

    def _enter(self, rows: Sequence[int], queue: int) -> None:
        for row in rows:
            if not self.before[row]:
                heappush(self.heads, (self.place[row], row, queue))

    def rows(self) -> Iterator[int]:
        """All ops in their order."""
        waiting = {head: q for q in range(len(self.queues)) for head in self._head(q)}
        while self.heads or waiting or self.left:
            if not self.heads:
                # The sequences contradict the graph: engines tell how.
                row = min(waiting or self.left, key=lambda row: (self.place[row], row))
                self.before[row] = 0
                self._enter([row], waiting.get(row, -1))
            _, row, queue = heappop(self.heads)
            yield row
            if queue < 0:
                self.left.pop(row)
            else:
                waiting.pop(row)
                self.next[queue] += 1
                waiting |= dict.fromkeys(self._head(queue), queue)
                self._enter(self._head(queue), queue)
            for then in self.after.get(row, ()):
                self.before[then] -= 1
                if not self.before[then] and (then in waiting or then in self.left):
                    self._enter([then], waiting.get(then, -1))
