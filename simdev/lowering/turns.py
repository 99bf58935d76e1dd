"""The pass that fixes the order of the dispatches of hosts, and of the queues of their devices.

Under ``fifo`` and ``program`` this is the order of ops in the file; under ``priority`` the
topological order that takes the smallest (priority, place) first; under ``fixed`` the given
sequences, merged by their heads (execution contract, rule 9). ``lower_step`` and pipelines over
graphs call it, and hosts.py writes the dispatches in this order. The checker
(``execution.check.hosts``) and the oracle's kernels (``in_file_order`` of
``oracle.placements.problem``, ``oracle.splits.hosts``) compute the order of threads independently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ..nouns.graph import Graph
from ..nouns.strategy import Origin
from ..nouns.structure import order_of
from ..nouns.taskgraph import Ints, TaskGraph
from .copies import Copies, in_runs
from .hosts import Dispatches, ends_in_copies
from .prepare import Prepared

Ends = Mapping[int, tuple[int, ...]]
PIECES = ("shard", "copy")
"""Roles of shards that run an op or a part of it; shards of other roles are added to the graph."""


def in_turns(
    prepared: Prepared,
    task_graph: TaskGraph,
    placement: Sequence[int],
    policy: str,
    ends: Ends,
    origins: Mapping[str, Origin] = {},
    gates: Collection[int] = (),
) -> tuple[TaskGraph, Dispatches | None]:
    """The task graph with fixed queues on hosted devices, and the dispatches of a step in order
    (None where no device has a host).

    ``policy`` is that of the strategy's order, whose sequences are in the task graph already.
    ``gates`` are ops that only wait for a synchronised weight; no host dispatches them.
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
    """The dispatches of a step of a pipeline. The first tasks of ``whole`` are the copies of all
    ops, one for each microbatch; its device queues have fixed sequences. ``ends`` are those of one
    microbatch.
    """
    if not prepared.cluster.hosted:
        return None
    ops = np.arange(len(placement))
    rows, places_of = in_runs(copies, ops, np.zeros(len(copies.again), np.bool_))
    entries = _entries(prepared, rows, ops[places_of], placement)
    task, op, device = _merged(prepared, whole, entries, ops).T
    return Dispatches(prepared, task, op, device, ends_in_copies(ends, copies))


def places(graph: Graph, placement: Sequence[int], origins: Mapping[str, Origin]) -> Ints:
    """The place of each op in the order of the file. Pieces of a split op take the place of this
    op, ordered by device; sums and gathers that splitting added come before the next piece in the
    file.
    """
    if not origins:
        return np.arange(len(graph.ops))
    numbers: dict[str, int] = {}
    keys, of = [], len(graph.ops) + 1
    # Backwards: an added op comes before the first piece that reads it.
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
    order = order_of(graph, list(zip(priority.tolist(), place.tolist(), strict=True)))
    rank = np.empty(len(place), np.int64)
    rank[order] = np.arange(len(place))
    return rank


def _in_order(
    keys: Mapping[int, Any],
    pairs: Iterable[tuple[int, int]],
    sequences: Sequence[Sequence[int]] = (),
) -> Iterator[int]:
    """All rows in a topological order of the pairs (before, after) and of the sequences, which
    always takes the ready row of the smallest key.
    """
    before, after = Counter[int](), dict[int, list[int]]()
    for first, then in {*pairs, *chain.from_iterable(map(pairwise, sequences))}:
        before[then] += 1
        after.setdefault(first, []).append(then)
    ready = [(key, row) for row, key in keys.items() if not before[row]]
    heapify(ready)
    left = set(keys)
    while left:
        if not ready:
            # The sequences contradict the graph: go on with the head of the smallest key, and let
            # the engine report the deadlock.
            ahead = ([row for row in sequence if row in left] for sequence in sequences)
            heads = [rows[0] for rows in ahead if rows]
            ready.append(min((keys[row], row) for row in heads or left))
            before[ready[0][1]] = 0
        row = heappop(ready)[1]
        left.remove(row)
        yield row
        for then in after.get(row, ()):
            before[then] -= 1
            if not before[then]:
                heappush(ready, (keys[then], then))


def _with_queues(
    prepared: Prepared,
    task_graph: TaskGraph,
    placement: Sequence[int],
    place: Ints,
    policy: str,
) -> TaskGraph:
    """Fix the queues of hosted devices in the order of places, where no sequence is given.

    Program order is the order of places, not of rows: a piece may have a smaller row than a sum
    that the host dispatches before it.
    """
    order = np.argsort(place)
    queued = np.ones(len(place), np.bool_)
    # Collectives and ops in streams hold no compute queue.
    queued[[*prepared.rings, *prepared.graph.streamed]] = False
    order = order[queued[order]]
    devices = np.array(placement, np.int64)[order]
    resources = list(task_graph.resources)
    for d in prepared.cluster.hosted:
        if policy == "program" or resources[d].policy != "fixed":
            sequence = tuple(order[devices == d].tolist())
            resources[d] = replace(resources[d], policy="fixed", sequence=sequence)
    return replace(task_graph, resources=tuple(resources))


def _entries(prepared: Prepared, rows: Ints, ops: Ints, placement: Sequence[int]) -> Ints:
    """Dispatches as rows (task, op, device): one for each hosted device on which an op runs."""
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


# Given sequences


def _merged(prepared: Prepared, task_graph: TaskGraph, entries: Ints, place: Ints) -> Ints:
    """The dispatches in the order of given sequences, merged: the head of smallest place goes
    first.

    A collective is in no sequence: it goes after all ops that it reads, and before the ops that
    read it.
    """
    place_of = dict(zip(entries[:, 0].tolist(), place[entries[:, 1]].tolist(), strict=True))
    given = (task_graph.resources[d].sequence for d in prepared.cluster.hosted)
    sequences = [[row for row in sequence if row in place_of] for sequence in given]
    pairs: list[tuple[int, int]] = []
    if free := place_of.keys() - set().union(*sequences):
        behind, ahead = task_graph.tasks.successors.lists(), task_graph.predecessors.lists()
        pairs += [(op, row) for row in free for op in _next_ops(ahead, row, place_of)]
        pairs += [(row, op) for row in free for op in _next_ops(behind, row, place_of)]
    order = list(_in_order(place_of, pairs, sequences))
    number = np.zeros(len(task_graph.tasks), np.int64)
    number[order] = np.arange(len(order))
    return entries[np.lexsort((entries[:, 2], number[entries[:, 0]]))]


def _next_ops(links: list[list[int]], row: int, ops: Container[int]) -> Iterator[int]:
    """The ops that ``links`` reach from a row directly or through transfers."""
    waiting, seen = [row], {row}
    while waiting:
        for other in links[waiting.pop()]:
            if other in ops:
                yield other
            elif other not in seen:
                seen.add(other)
                waiting.append(other)
