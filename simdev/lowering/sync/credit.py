"""Credit: how many bytes a worker may have on their way to servers, and which parcel goes next when
some arrive.

Which message an arrival lets go is decided while the step runs: no edge of a task graph says it
beforehand. The decisions follow from the schedule, and the schedule from the decisions. So both are
repeated until they agree: from a trace the rule is replayed (when is each message ready, how long
is it on its way), what waited gets an edge from the message whose arrival let it go, and the graph
is run again. A decision hangs on earlier ones only, so each round settles the earliest that was
wrong, and what the rounds agree on is the one schedule that obeys the rule. Any engine runs it, and
the checker judges it, as it does every task graph. The first guess comes from an engine that knows
the rule (``engine.credit``) and is right but for ties: one round then confirms it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from ...ground.errors import InputError
from ...nouns.strategy import Sync
from ...nouns.taskgraph import Ints, TaskGraph
from ...nouns.trace import Trace
from ..columns import with_pairs
from ..steps import LoweredStep, Push

MOST_ROUNDS = 200


class _Waiting(NamedTuple):
    """A message of the replay: when it is ready but for its credit, and how long it is on its way
    once it may go (ps).
    """

    push: Push
    ready: int
    way: int


Edges = frozenset[tuple[int, int]]
Guess = Callable[[TaskGraph, list[tuple[int, int, int, int, int]]], Edges]


def credited(
    step: LoweredStep, graph: TaskGraph, sync: Sync, run: Callable[[TaskGraph], Trace], guess: Guess
) -> Trace:
    """The trace of a graph of several ``step``s under the credit of ``sync``.

    ``run`` simulates; ``guess`` tells the edges of the decisions to begin with, of the messages
    under credit (first task, last task, bytes, priority, sender). Raises InputError where no
    schedule obeys the rule after 200 rounds.
    """
    pushes = _pushes(step, graph)
    edges = guess(
        graph,
        [
            (push.first, push.last, push.size, push.rank, worker)
            for worker, sent in pushes.items()
            for push in sent
        ],
    )
    for _ in range(MOST_ROUNDS):
        trace = run(_with(graph, edges))
        decisions = frozenset(_decisions(graph, trace, pushes, sync))
        if decisions == edges:
            return trace
        edges = decisions
    raise InputError(f"sync.credit: no schedule obeys the rule after {MOST_ROUNDS} rounds")


def _with(graph: TaskGraph, edges: Edges) -> TaskGraph:
    if not edges:
        return graph
    before, after = zip(*edges, strict=True)
    successors = with_pairs([graph.tasks.successors], before, after, len(graph.tasks))
    return replace(graph, tasks=replace(graph.tasks, successors=successors))


def _pushes(step: LoweredStep, graph: TaskGraph) -> dict[int, list[Push]]:
    """The messages that credit counts by worker, of all steps."""
    rows, source = len(step.task_graph.tasks), step.task_graph.tasks.source.tolist()
    pushes: dict[int, list[Push]] = {}
    for number in range(graph.steps):
        first = number * rows
        for push in step.pushes:
            rank = push.rank + number * push.later
            sent = replace(push, first=push.first + first, last=push.last + first, rank=rank)
            pushes.setdefault(source[push.first], []).append(sent)
    return pushes


def _decisions(
    graph: TaskGraph, trace: Trace, pushes: Mapping[int, Sequence[Push]], sync: Sync
) -> Iterator[tuple[int, int]]:
    """What the rule says to this schedule: (task that arrives, task that it lets go)."""
    arrival = (trace.finish + graph.tasks.lag).tolist()
    # Until it may go a message waits for its credit alone; from then on its way does not hang on
    # the credit. So the way is the same in any trace, however wrong its decisions are.
    ready, went = _released(graph, trace), _released(trace.task_graph, trace)
    for sent in pushes.values():
        waiting = [
            _Waiting(push, ready[push.first], arrival[push.last] - went[push.first])
            for push in sent
        ]
        yield from _replay(waiting, int(sync.credit or 0), sync.credit_rule == "skip")


def _released(graph: TaskGraph, trace: Trace) -> list[int]:
    """When the last predecessor in this graph releases each task (0: it has none)."""
    successors = graph.tasks.successors
    release: Ints = (trace.finish + graph.tasks.lag)[successors.owners()]
    latest = np.zeros(len(graph.tasks), np.int64)
    np.maximum.at(latest, successors.ids, release)
    return latest.tolist()


def _replay(messages: Sequence[_Waiting], limit: int, skip: bool) -> Iterator[tuple[int, int]]:
    """The rule: what arrives gives its bytes back, then of those ready the first by priority goes
    while it may.

    ``wait``: it may while any credit is left, and may overdraw it. ``skip``: where it fits, the
    next one where not; what never fits goes when nothing else is under way.
    """
    # Arrivals (0) of an instant come before what becomes ready in it (1).
    events = [(message.ready, 1, message.push.first, k) for k, message in enumerate(messages)]
    heapify(events)
    waiting: list[tuple[int, int, int, int]] = []
    credit, under_way, last = limit, 0, -1
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, ready, row, k = heappop(events)
            push = messages[k].push
            if ready:
                heappush(waiting, (push.rank, now, row, k))
            else:
                credit, under_way, last = credit + push.size, under_way - 1, push.last
        passed = []
        while waiting and (skip or credit > 0):
            entry = heappop(waiting)
            push, ready_at, way = messages[entry[3]]
            if skip and push.size > credit and under_way:
                passed.append(entry)
                continue
            credit, under_way = credit - push.size, under_way + 1
            if now > ready_at:
                yield last, push.first
            heappush(events, (now + way, 0, push.first, entry[3]))
        for entry in passed:
            heappush(waiting, entry)
