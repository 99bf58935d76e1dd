"""Credit: how many bytes a worker may have on their way to servers, and which parcel goes next when
some arrive.

Which message an arrival lets go is decided while the step runs: no edge of a task graph says it
beforehand. Told the schedule, the decisions follow, and told the decisions, the schedule does. So
both are repeated until they agree: from a trace the rule is replayed (when is each message ready,
how long is it on its way), what waited gets an edge from the message whose arrival let it go, and
the graph is run again. A decision hangs on earlier ones only, so each round settles the earliest
that was wrong, and what the rounds agree on is the one schedule that obeys the rule. Any engine
runs it, and the checker judges it, as it does every task graph. The first guess comes from an
engine that knows the rule (``engine.credit``) and is right but for ties: one round then confirms
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

import numpy as np

from ...errors import InputError
from ...strategy import Sync
from ...taskgraph import Ints, TaskGraph
from ...trace import Trace
from ..iterations import Push, Step
from .draft import with_edges

MOST_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class _Ready:
    """A message of the replay: when it is ready, how long it is on its way once it may go (ps), and
    what it costs.
    """

    row: int
    ready: int
    way: int
    push: Push


Edges = frozenset[tuple[int, int]]
Guess = Callable[[TaskGraph, list[tuple[int, int, int, int, int]]], Edges]


def credited(
    step: Step, graph: TaskGraph, sync: Sync, run: Callable[[TaskGraph], Trace], guess: Guess
) -> Trace:
    """The trace of a graph of several ``step``s under the credit of ``sync``.

    ``run`` simulates; ``guess`` tells the edges of the decisions to begin with, of the messages
    under credit (first task, last task, bytes, priority, sender). Raises InputError where no
    schedule obeys the rule after 200 rounds.
    """
    pushes = _pushes(step, graph)
    told = [
        (one.first, one.last, one.size, one.rank, worker)
        for worker, own in pushes.items()
        for one in own
    ]
    edges = guess(graph, told)
    for _ in range(MOST_ROUNDS):
        trace = run(_with(graph, edges))
        found = frozenset(_decisions(graph, trace, pushes, sync))
        if found == edges:
            return trace
        edges = found
    raise InputError(f"sync.credit: no schedule obeys the rule after {MOST_ROUNDS} rounds")


def _with(graph: TaskGraph, edges: Edges) -> TaskGraph:
    if not edges:
        return graph
    successors = with_edges(
        graph.tasks.successors, np.array(sorted(edges), np.int64).reshape(-1, 2), 0
    )
    return replace(graph, tasks=replace(graph.tasks, successors=successors))


def _pushes(step: Step, graph: TaskGraph) -> dict[int, list[Push]]:
    """The messages that credit counts by worker, of all steps."""
    rows = len(step.task_graph.tasks)
    source = step.task_graph.tasks.source
    found: dict[int, list[Push]] = {}
    for k in range(len(graph.tasks) // rows):
        for one in step.pushes:
            rank = one.rank + k * one.later
            told = Push(one.first + k * rows, one.size, one.last + k * rows, rank)
            found.setdefault(int(source[one.first]), []).append(told)
    return found


def _decisions(
    graph: TaskGraph, trace: Trace, pushes: dict[int, list[Push]], sync: Sync
) -> Iterator[tuple[int, int]]:
    """What the rule says to this schedule: (task that arrives, task that it lets go)."""
    ready = _release(graph, trace, [push.first for own in pushes.values() for push in own])
    arrival = trace.finish + graph.tasks.lag
    for own in pushes.values():
        # Until it may go a message waits for its credit alone; from then on its way does not hang
        # on the credit.
        went = _went(trace, own, ready)
        told = [
            _Ready(push.first, ready[push.first], int(arrival[push.last]) - went[push.first], push)
            for push in own
        ]
        yield from _replay(told, int(sync.credit or 0), sync.credit_rule == "skip")


def _release(graph: TaskGraph, trace: Trace, rows: Sequence[int]) -> dict[int, int]:
    """When each of these tasks would be ready but for its credit."""
    wanted = np.zeros(len(graph.tasks), np.bool_)
    wanted[list(rows)] = True
    successors = graph.tasks.successors
    into = wanted[successors.ids]
    found = np.zeros(len(graph.tasks), np.int64)
    release: Ints = trace.finish + graph.tasks.lag
    np.maximum.at(found, successors.ids[into], release[successors.owners()[into]])
    return {row: int(found[row]) for row in rows}


def _went(trace: Trace, own: Sequence[Push], ready: dict[int, int]) -> dict[int, int]:
    """When each message was let go in this trace: when it was ready, or when the last edge of its
    credit was.
    """
    tasks = trace.task_graph.tasks
    release: Ints = trace.finish + tasks.lag
    predecessors = trace.task_graph.predecessors
    return {
        push.first: max(
            (int(release[row]) for row in predecessors[push.first]), default=ready[push.first]
        )
        for push in own
    }


def _replay(messages: Sequence[_Ready], limit: int, skip: bool) -> Iterator[tuple[int, int]]:
    """The rule: what arrives gives its bytes back, then of those ready the first by priority goes
    while it may.

    ``wait``: it may while any credit is left, and may overdraw it. ``skip``: where it fits, the
    next one where not; what never fits goes when nothing else is under way.
    """
    events = [(one.ready, 1, one.row, k) for k, one in enumerate(messages)]
    heapify(events)
    waiting: list[tuple[int, int, int, int]] = []
    credit, under_way, last = limit, 0, -1
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, comes, _, k = heappop(events)
            if comes:
                heappush(waiting, (messages[k].push.rank, messages[k].ready, messages[k].row, k))
            else:
                credit, under_way, last = (
                    credit + messages[k].push.size,
                    under_way - 1,
                    messages[k].push.last,
                )
        passed = []
        while waiting and (skip or credit > 0):
            entry = heappop(waiting)
            one = messages[entry[3]]
            if skip and one.push.size > credit and under_way:
                passed.append(entry)
                continue
            credit, under_way = credit - one.push.size, under_way + 1
            if now > one.ready:
                yield last, one.row
            heappush(events, (now + one.way, 0, one.row, entry[3]))
        for entry in passed:
            heappush(waiting, entry)
