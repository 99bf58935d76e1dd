"""Credit: a limit on the bytes that a worker has on their way to servers, and the rule for the next
parcel when some arrive.

An arrival decides while the step runs which message goes next, so the edge cannot be in the task
graph from the beginning. The decisions follow from the schedule, and the schedule from the
decisions. So both are repeated until they agree: the rule is replayed with the times of a trace
(when is each message ready, how long is it on its way), each message that waited gets an edge from
the message whose arrival let it go, and the graph is run again. A decision depends on earlier ones
only, so each round corrects the earliest wrong one. Where two rounds agree, the schedule obeys the
rule. Any engine can run it, and the checker can judge it, as any task graph. The first guess comes
from an engine that knows the rule (``engine.simpy_engine``) and is right except for ties; a round
then confirms it. ``execution.period`` calls ``credited``. ``Sender`` is the rule itself, for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from ...ground.errors import InputError
from ...nouns.strategy import Sync
from ...nouns.taskgraph import Ints, TaskGraph
from ...nouns.trace import Trace
from ..columns import with_pairs
from ..steps import LoweredStep, Push

MOST_ROUNDS = 200


class Sender:
    """The rule of credit for a sender: while credit allows, the ready message of first priority
    goes; a message that arrives gives its bytes back.

    Rule "wait": a message may go while any credit is left, and may overdraw it. Rule "skip": a
    message goes only where it fits, else the next one; a message too large for the whole credit
    goes when no other is under way.
    """

    def __init__(self, limit: int, skip: bool) -> None:
        self.credit, self.skip, self.under_way = limit, skip, 0
        # (priority, ready since, first task, bytes)
        self._waiting: list[tuple[int, int, int, int]] = []

    def ready(self, rank: int, now: int, task: int, size: int) -> None:
        """A message is ready, and waits only for credit."""
        heappush(self._waiting, (rank, now, task, size))

    def arrived(self, size: int) -> None:
        """A message has arrived."""
        self.credit, self.under_way = self.credit + size, self.under_way - 1

    def admitted(self) -> Iterator[tuple[int, int]]:
        """The messages that go now: the first task of each, and since when it was ready."""
        passed = []
        while self._waiting and (self.skip or self.credit > 0):
            entry = heappop(self._waiting)
            _, since, task, size = entry
            if self.skip and size > self.credit and self.under_way:
                passed.append(entry)
                continue
            self.credit, self.under_way = self.credit - size, self.under_way + 1
            yield task, since
        for entry in passed:
            heappush(self._waiting, entry)


Edges = frozenset[tuple[int, int]]
Guess = Callable[[TaskGraph, list[tuple[int, int, int, int, int]]], Edges]


def credited(
    step: LoweredStep, graph: TaskGraph, sync: Sync, run: Callable[[TaskGraph], Trace], guess: Guess
) -> Trace:
    """The trace of a graph of several ``step``s under the credit of ``sync``.

    ``run`` simulates; ``guess`` returns the edges of the first decisions, from the messages under
    credit (first task, last task, bytes, priority, sender). Raises InputError where no schedule
    obeys the rule after 200 rounds.
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
    """The messages that count against each worker's credit, in all steps."""
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
    """The decisions of the rule for this schedule: (task that arrives, task that it lets go)."""
    arrival = (trace.finish + graph.tasks.lag).tolist()
    limit, skip = int(sync.credit or 0), sync.credit_rule == "skip"
    # Once a message may go, its time under way does not depend on the credit. So this time is the
    # same in any trace, however wrong the decisions are.
    ready, went = _released(graph, trace), _released(trace.task_graph, trace)
    for sent in pushes.values():
        ways = [arrival[push.last] - went[push.first] for push in sent]
        yield from _replay(sent, ready, ways, Sender(limit, skip))


def _released(graph: TaskGraph, trace: Trace) -> list[int]:
    """The ps at which the last predecessor in this graph releases each task (0: it has none)."""
    successors = graph.tasks.successors
    release: Ints = (trace.finish + graph.tasks.lag)[successors.owners()]
    latest = np.zeros(len(graph.tasks), np.int64)
    np.maximum.at(latest, successors.ids, release)
    return latest.tolist()


def _replay(
    pushes: Sequence[Push], ready: Sequence[int], ways: Sequence[int], sender: Sender
) -> Iterator[tuple[int, int]]:
    """The decisions of one sender: (task that arrives, task that it lets go).

    ``ready`` is by task the ps at which it waits only for credit, ``ways`` by message the ps that
    it travels once it may go.
    """
    # Arrivals (0) at an instant come before messages that become ready then (1).
    events = [(ready[push.first], 1, push.first, k) for k, push in enumerate(pushes)]
    heapify(events)
    number, last = {push.first: k for k, push in enumerate(pushes)}, -1
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, is_ready, row, k = heappop(events)
            if is_ready:
                sender.ready(pushes[k].rank, now, row, pushes[k].size)
            else:
                sender.arrived(pushes[k].size)
                last = pushes[k].last
        for first, since in sender.admitted():
            if now > since:
                yield last, first
            k = number[first]
            heappush(events, (now + ways[k], 0, first, k))
