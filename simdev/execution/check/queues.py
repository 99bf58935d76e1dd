"""Whether queues serve in their order and no task waits needlessly (execution contract, rules 3
and 4).

A trace has instants, not rounds, so the rounds are replayed, instant by instant: finishes and
releases of the trace are applied, ready numbers are given, and each task that the contract starts
in a round is compared with its start in the trace. The replay starts tasks when the trace does,
even against the contract: so a fault is reported once, and the replay goes on from there. Both
engines (``execution/engine``) implement these rules in other ways.

- ``waiting``: a task was first in all its queues, all of them idle, but starts later in the trace;
- ``order``: a task starts in the trace at an instant at which it was never its turn.

The schedule must already keep the rules ``precedence`` and ``overlap``.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from ...nouns.taskgraph import Ints, Resource, TaskGraph, distinct
from .violation import Faults, Violation


def queue_faults(task_graph: TaskGraph, start: Ints, finish: Ints) -> Faults:
    """Rules ``order`` and ``waiting``."""
    return _Replay(task_graph, start, finish).run()


class _Queue:
    """The waiting tasks of one resource, and the task that holds it (-1: none)."""

    def __init__(self, resource: Resource) -> None:
        self.fixed, self.by_priority = resource.policy == "fixed", resource.policy == "priority"
        # (priority, ready number, task); a fixed queue has its whole sequence from the beginning
        self.waiting = (
            [(place, 0, task) for place, task in enumerate(resource.sequence)] if self.fixed else []
        )
        self.holder = -1

    def join(self, task: int, priority: int, number: int) -> None:
        if not self.fixed:
            heappush(self.waiting, (priority if self.by_priority else 0, number, task))

    def first(self, started: list[bool]) -> int:
        """The head of the queue, ready or not; -1 where no task waits."""
        while self.waiting and started[self.waiting[0][2]]:
            heappop(self.waiting)
        return self.waiting[0][2] if self.waiting else -1


def _by_instant(when: Ints, start: Ints) -> dict[int, list[int]]:
    """For each instant, the tasks whose time ``when`` falls in its first round: all tasks but those
    with ``when`` equal to ``start``, whose time falls in a later round.
    """
    rows = np.flatnonzero(when > start)
    tasks: dict[int, list[int]] = {}
    for instant, task in zip(when[rows].tolist(), rows.tolist(), strict=True):
        tasks.setdefault(instant, []).append(task)
    return tasks


class _Replay:
    """The state of all queues at one round of one instant."""

    def __init__(self, task_graph: TaskGraph, start: Ints, finish: Ints) -> None:
        tasks = task_graph.tasks
        self.task_graph, self.names = task_graph, tasks.name
        release, free = finish + tasks.lag, finish + tasks.gap
        self.instants: list[int] = distinct(np.concatenate(([0], start, release, free))).tolist()
        self.releases = _by_instant(release, start)
        self.frees = _by_instant(free, start)
        self.starts = _by_instant(start, start - 1)
        self.release_now = (release == start).tolist()  # a round after its start, at the instant
        self.free_now = (free == start).tolist()
        self.start: list[int] = start.tolist()
        self.priority: list[int] = tasks.priority.tolist()
        self.held, self.successors = tasks.resources.lists(), tasks.successors.lists()
        self.missing: list[int] = np.bincount(tasks.successors.ids, minlength=len(tasks)).tolist()
        self.queues = [_Queue(resource) for resource in task_graph.resources]
        self.number = [-1] * len(tasks)  # ready number; -1: not ready yet
        self.numbers = 0
        self.started = [False] * len(tasks)
        self.due: list[int] = []  # tasks that the trace starts at this instant
        self.late: dict[int, int] = {}  # by task the instant at which it should have started
        self.released: list[int] = []  # tasks whose release or end of gap is in the next round
        self.freed: list[int] = []

    def run(self) -> Faults:
        """Replay all instants."""
        fresh = [task for task, count in enumerate(self.missing) if not count]
        for now in self.instants:
            self.released += self.releases.get(now, ())
            self.freed += self.frees.get(now, ())
            self.due = self.starts.get(now, [])
            candidates = [task for task in self.due if task in self.late]
            late: list[int] = []
            blocked: set[int] = set()
            while True:
                late += self._round(now, fresh, candidates)
                fresh, candidates = [], []
                if not (self.released or self.freed):
                    stuck = self._stuck()
                    if not stuck:
                        break
                    for task in stuck:
                        yield self._out_of_turn(task, now, blocked)
            yield from (self._needless(task, now) for task in late if task not in blocked)

    def _round(self, now: int, fresh: list[int], candidates: list[int]) -> list[int]:
        """Replay one round: apply releases and frees, give ready numbers, start tasks.

        Returns the tasks that should start now but do not in the trace.
        """
        released, freed = self.released, self.freed
        self.released, self.freed = [], []
        for task in released:
            for successor in self.successors[task]:
                self.missing[successor] -= 1
                if not self.missing[successor]:
                    fresh.append(successor)
        touched = [
            queue for task in freed for queue in self._queues_of(task) if queue.holder == task
        ]
        for queue in touched:
            queue.holder = -1
        for task in sorted(fresh):
            self.number[task] = self.numbers
            self.numbers += 1
            for queue in self._queues_of(task):
                queue.join(task, self.priority[task], self.number[task])
        heads = (queue.first(self.started) for queue in touched)
        turn = {
            task for task in (*fresh, *candidates, *heads) if task >= 0 and self._may_start(task)
        }
        late = []
        for task in sorted(turn):
            if self.start[task] == now:
                self._begin(task)
            elif self.late.setdefault(task, now) == now:
                late.append(task)
        return late

    def _may_start(self, task: int) -> bool:
        """Whether a task is ready, its resources idle, and it is the head of all their queues."""
        if self.started[task] or self.number[task] < 0:
            return False
        return all(
            queue.holder < 0 and queue.first(self.started) == task
            for queue in self._queues_of(task)
        )

    def _queues_of(self, task: int) -> list[_Queue]:
        return [self.queues[resource] for resource in self.held[task]]

    def _begin(self, task: int) -> None:
        self.started[task] = True
        for queue in self._queues_of(task):
            if queue.holder < 0 or not self.free_now[task]:
                queue.holder = task
        if self.release_now[task]:
            self.released.append(task)
        if self.free_now[task]:
            self.freed.append(task)

    def _stuck(self) -> list[int]:
        """Tasks that the trace starts at this instant although it was not their turn: the ready
        ones, or all where none is ready.
        """
        self.due = [task for task in self.due if not self.started[task]]
        return [task for task in self.due if self.number[task] >= 0] or list(self.due)

    def _out_of_turn(self, task: int, now: int, blocked: set[int]) -> Violation:
        """Report why it was not the task's turn, and start the task all the same."""
        name, why, others = self.names[task], "what it waits for has no end before it", []
        for resource in self.held[task]:
            queue, label = self.queues[resource], self.task_graph.resources[resource].name
            if queue.holder >= 0:
                others = [self.names[queue.holder], label]
                why = f'"{others[0]}" has taken "{label}" in an earlier round'
                break
            first = queue.first(self.started)
            if first != task:
                others = [*([self.names[first]] if first >= 0 else []), label]
                why = (
                    f'"{others[0]}" stands before it in "{label}"'
                    if first >= 0
                    else f'it has no place in "{label}"'
                )
                blocked.add(first)
                break
        self._begin(task)
        return Violation("order", (name, *others), f'"{name}" starts at {now}, out of turn: {why}')

    def _needless(self, task: int, now: int) -> Violation:
        name = self.names[task]
        queues = ", ".join(f'"{self.task_graph.resources[r].name}"' for r in self.held[task])
        where = f"first and alone in {queues}" if queues else "with nothing to wait for"
        text = f'"{name}" could start at {now}, {where}, but starts at {self.start[task]}'
        return Violation("waiting", (name,), text)
