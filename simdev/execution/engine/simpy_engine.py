"""The reference engine: the execution contract on SimPy's clock, with callbacks instead of a
process for each op; and the same engine for senders that have a credit.

``engine.simulate`` runs it, ``period`` calls ``decisions`` for senders under credit. It has no rule
for hosts, pipelines or splits. Each rule of timing has three more implementations: in ``compiled``
and in the oracle's kernels, which must give equal integers, and in ``execution/check`` (``queues``
and ``schedule``), which judges in another way.

SimPy orders events by (time, priority, counter). Everything due at an instant (finishes, releases,
ends of gaps, flows entering their links) has priority DUE; one settle event for each round has
priority SETTLE, so it comes after all of them. The settle numbers the tasks that became ready, in
the order of their ids, and decides starts; a zero-length task that it starts is due at once, before
the next settle: rounds follow by themselves, and the counter decides nothing.
"""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np
import simpy
from simpy.events import Event

from ...lowering.sync.credit import Sender
from ...nouns.taskgraph import Ints, Resource, TaskGraph
from .fair import RATE_UNIT, advance, max_min_rates, time_left

DUE, SETTLE = 2, 3  # SimPy itself uses 0 and 1


def execute(task_graph: TaskGraph) -> tuple[Ints, Ints]:
    """Start and finish of every task in ps; -1 where it never started."""
    execution = Execution(task_graph)
    execution.run()
    return np.array(execution.start, np.int64), np.array(execution.finish, np.int64)


class _Fifo:
    """Waiting tasks in the order of their ready numbers, in which they also arrive."""

    def __init__(self, queue: Resource) -> None:
        self.tasks: deque[int] = deque()

    def add(self, task: int, number: int, priority: int) -> None:
        self.tasks.append(task)

    def head(self) -> int | None:
        return self.tasks[0] if self.tasks else None

    def pop(self) -> None:
        self.tasks.popleft()


class _Priority:
    """Waiting tasks by priority, then ready number."""

    def __init__(self, queue: Resource) -> None:
        self.tasks: list[tuple[int, int, int]] = []

    def add(self, task: int, number: int, priority: int) -> None:
        heappush(self.tasks, (priority, number, task))

    def head(self) -> int | None:
        return self.tasks[0][2] if self.tasks else None

    def pop(self) -> None:
        heappop(self.tasks)


class _Fixed:
    """The next task of a given sequence, once it is ready."""

    def __init__(self, queue: Resource) -> None:
        self.sequence, self.position = queue.sequence, 0
        self.ready: set[int] = set()

    def add(self, task: int, number: int, priority: int) -> None:
        self.ready.add(task)

    def head(self) -> int | None:
        if self.position == len(self.sequence) or self.sequence[self.position] not in self.ready:
            return None
        return self.sequence[self.position]

    def pop(self) -> None:
        self.position += 1


_QUEUES: dict[str, type[_Fifo | _Priority | _Fixed]] = {
    "fifo": _Fifo,
    "priority": _Priority,
    "fixed": _Fixed,
}


class Execution:
    """One execution: the clock, the queues, and the predecessors that each task still lacks."""

    def __init__(self, task_graph: TaskGraph) -> None:
        tasks = task_graph.tasks
        self.task_graph, self.env = task_graph, simpy.Environment(initial_time=0)
        self.duration, self.lag, self.gap = (
            tasks.duration.tolist(),
            tasks.lag.tolist(),
            tasks.gap.tolist(),
        )
        self.priority, self.flow = tasks.priority.tolist(), tasks.flow.tolist()
        self.held, self.successors = tasks.resources.lists(), tasks.successors.lists()
        self.missing: list[int] = task_graph.predecessor_count.tolist()
        self.start, self.finish = [-1] * len(tasks), [-1] * len(tasks)
        self.queues = [_QUEUES[queue.policy](queue) for queue in task_graph.resources]
        self.idle = [True] * len(self.queues)
        self.arrived: list[int] = []  # became ready in this round
        self.touched: list[int] = []  # resources freed in this round
        self.numbers, self.settling = itertools.count(), False
        self.flows = _Flows(self, task_graph) if tasks.flow.any() else None

    def run(self) -> None:
        """Execute the whole graph."""
        self.arrived = [task for task, count in enumerate(self.missing) if count == 0]
        self.settle_soon()
        self.env.run()

    def due(
        self, delay: int, callback: Callable[[Event], None], task: int, urgency: int = DUE
    ) -> None:
        """Call ``callback`` after ``delay`` ps, before the settle of that round (or, with an
        ``urgency`` of SETTLE, as the settle).
        """
        # The event is built by hand, already triggered: env.timeout is slower, for every task.
        event = Event(self.env)
        event._ok, event._value = True, task
        event.callbacks.append(callback)
        self.env.schedule(event, urgency, delay)  # type: ignore[arg-type]

    def settle_soon(self) -> None:
        """Schedule the settle of this round, once."""
        if not self.settling:
            self.settling = True
            self.due(0, self.settle, -1, SETTLE)

    def on_finish(self, event: Event) -> None:
        """Rule 3 (a): a task finishes; its release and the end of its gap follow, at once or
        later.
        """
        task: int = event._value
        self.finish[task] = self.env.now  # type: ignore[assignment]
        if self.lag[task]:
            self.due(self.lag[task], self.on_release, task)
        else:
            self.release(task)
        if self.held[task]:
            if self.gap[task]:
                self.due(self.gap[task], self.on_free, task)
            else:
                self.free(task)

    def on_release(self, event: Event) -> None:
        """Successors are released at finish + lag."""
        self.release(event._value)

    def on_free(self, event: Event) -> None:
        """Resources are free at finish + gap."""
        self.free(event._value)

    def release(self, task: int) -> None:
        """One predecessor less for each successor."""
        missing, arrived = self.missing, self.arrived
        for successor in self.successors[task]:
            missing[successor] -= 1
            if not missing[successor]:
                arrived.append(successor)
        self.settle_soon()

    def free(self, task: int) -> None:
        """All resources of a task become idle."""
        for resource in self.held[task]:
            self.idle[resource] = True
            self.touched.append(resource)
        self.settle_soon()

    def settle(self, event: Event) -> None:
        """Rule 3 (b) and (c): give ready numbers in the order of ids, then start tasks."""
        self.settling = False
        arrived, touched = sorted(self.arrived), self.touched
        self.arrived, self.touched = [], []
        for task in arrived:
            held, number = self.held[task], next(self.numbers)
            for resource in held:
                self.queues[resource].add(task, number, self.priority[task])
            touched.extend(held)
            if not held:
                self.begin(task)
        for resource in touched:
            head = self.queues[resource].head() if self.idle[resource] else None
            if head is not None and self.may_start(head):
                for queue in self.held[head]:
                    self.idle[queue] = False
                    self.queues[queue].pop()
                self.begin(head)
        if self.flows is not None:
            self.flows.settle()

    def may_start(self, task: int) -> bool:
        """Rule 4: whether all resources of a task are idle and it is the head of their queues."""
        idle, queues = self.idle, self.queues
        for resource in self.held[task]:
            if not idle[resource] or queues[resource].head() != task:
                return False
        return True

    def begin(self, task: int) -> None:
        """The task starts now."""
        self.start[task] = self.env.now  # type: ignore[assignment]
        if self.flow[task] and self.flows is not None:
            self.flows.begin(task)
        else:
            self.due(self.duration[task], self.on_finish, task)


class _Flows:
    """Rule 5: the flows that are in their links, their rates, and the instant of the next end."""

    def __init__(self, execution: Execution, task_graph: TaskGraph) -> None:
        self.execution, count = execution, len(task_graph.tasks)
        links = task_graph.tasks.links
        self.bytes, self.ptr, self.ids = (
            task_graph.tasks.carried.tolist(),
            links.ptr.tolist(),
            links.ids.tolist(),
        )
        self.capacity: list[float] = (task_graph.bandwidth / RATE_UNIT).tolist()
        self.left, self.waiting = [0.0] * len(self.capacity), [0] * len(self.capacity)
        self.used = [0] * len(self.capacity)
        self.active: list[int] = []  # task rows, ascending
        self.remaining, self.rate = [0.0] * count, [0.0] * count
        self.end = [0] * count
        self.since, self.changed, self.version = 0, False, 0

    def begin(self, task: int) -> None:
        """A flow starts: its held latency first, then its bytes."""
        latency = self.execution.duration[task]
        if not self.bytes[task]:
            self.execution.due(latency, self.execution.on_finish, task)
        elif latency:
            self.execution.due(latency, self.on_enter, task)
        else:
            self.enter(task)

    def on_enter(self, event: Event) -> None:
        """The held latency is over."""
        self.enter(event._value)
        self.execution.settle_soon()

    def enter(self, task: int) -> None:
        """A flow enters its links; rates are set when the round settles."""
        insort(self.active, task)
        self.remaining[task] = float(self.bytes[task])
        self.changed = True

    def settle(self) -> None:
        """Set new rates, where the set of flows has changed."""
        if not self.changed:
            return
        now, active = int(self.execution.env.now), self.active
        elapsed, self.since, self.changed = now - self.since, now, False
        for task in active:
            self.remaining[task] = advance(self.remaining[task], self.rate[task], elapsed)
        scratch = self.left, self.waiting, self.used
        max_min_rates(active, len(active), self.ptr, self.ids, self.capacity, self.rate, *scratch)
        for task in active:
            self.end[task] = now + time_left(self.remaining[task], self.rate[task])
        self.version += 1
        if active:
            self.execution.due(
                min(self.end[task] for task in active) - now, self.on_end, self.version
            )

    def on_end(self, event: Event) -> None:
        """Every flow due now leaves its links, unless the rates have changed since."""
        if event._value != self.version:
            return
        now = self.execution.env.now
        ended = [task for task in self.active if self.end[task] == now]
        self.active = [task for task in self.active if self.end[task] != now]
        self.changed = True
        for task in ended:
            event._value = task
            self.execution.on_finish(event)
        # Lags may delay all releases, but the other flows get new rates now.
        self.execution.settle_soon()


# Senders that have a credit: the next message is decided while the graph runs.
# ``lowering.sync.credit`` has the rule, and writes the decisions as edges that any engine follows.


class Sent(NamedTuple):
    """A message under credit: its first task, the task that arrives last, its bytes, its priority
    (``rank``), and its sender.
    """

    first: int
    last: int
    size: int
    rank: int
    sender: int


def decisions(
    task_graph: TaskGraph,
    messages: Iterable[tuple[int, int, int, int, int]],
    limit: int,
    skip: bool,
) -> frozenset[tuple[int, int]]:
    """For each message that had to wait for credit, the arrival that gave it: pairs (last task of
    the arrived message, first task of the waiting one). ``messages`` have the fields of Sent.
    """
    execution = _Credited(task_graph, [Sent(*message) for message in messages], limit, skip)
    execution.run()
    return frozenset(execution.let_go)


class _Credited(Execution):
    """An execution in which a message that is ready waits until its sender has credit for it."""

    def __init__(self, task_graph: TaskGraph, messages: list[Sent], limit: int, skip: bool) -> None:
        super().__init__(task_graph)
        self.by_first = {message.first: message for message in messages}
        self.by_last = {message.last: message for message in messages}
        self.senders = {message.sender: Sender(limit, skip) for message in messages}
        self.returned: list[Sent] = []
        self.let_go: list[tuple[int, int]] = []

    def release(self, task: int) -> None:
        """A message that arrives gives its credit back."""
        super().release(task)
        if task in self.by_last:
            self.returned.append(self.by_last[task])

    def settle(self, event: Any) -> None:
        """Let the ready messages go that have credit, then settle as usual."""
        now = int(self.env.now)
        last: dict[int, int] = {}
        for message in sorted(self.returned):
            self.senders[message.sender].arrived(message.size)
            last[message.sender] = message.last
        arrived, self.arrived, self.returned = self.arrived, [], []
        changed = dict.fromkeys(last)
        for task in arrived:
            if task in self.by_first:
                message = self.by_first[task]
                self.senders[message.sender].ready(message.rank, now, task, message.size)
                changed[message.sender] = None
            else:
                self.arrived.append(task)
        for sender in changed:
            for first, since in self.senders[sender].admitted():
                self.arrived.append(first)
                if now > since:
                    self.let_go.append((last.get(sender, -1), first))
        super().settle(event)
