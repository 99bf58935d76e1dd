"""List schedulers that plan by times alone, without queues or memory: HEFT and critical path.

They read the ``Instance`` of a problem; fitting.py scores their plans and makes them fit.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ..nouns.taskgraph import Ints
from .fitting import place_and_fit
from .instance import Instance
from .space import NEVER
from .trial import Trial


@dataclass(slots=True)
class Timeline:
    """The plan of a device in ps, ascending: busy intervals, and the idle intervals between and
    after them.
    """

    busy: list[tuple[int, int]] = field(default_factory=list)
    idle: list[tuple[int, float]] = field(default_factory=lambda: [(0, inf)])

    def gap(self, ready: int, length: int) -> int:
        """The first instant from ``ready`` on when the device is idle for ``length``.

        A node of length 0 fits between two busy intervals that touch; other nodes need an idle
        interval.
        """
        if not length:
            at = bisect_left(self.busy, (ready, ready))
            return max(ready, self.busy[at - 1][1]) if at else ready
        at = max(bisect_right(self.idle, (ready, inf)) - 1, 0)
        while max(ready, self.idle[at][0]) + length > self.idle[at][1]:
            at += 1
        return max(ready, self.idle[at][0])

    def free(self, ready: int, length: int) -> int:
        """The first instant from ``ready`` on after all planned nodes."""
        return max(ready, self.busy[-1][1]) if self.busy else ready

    def take(self, start: int, end: int) -> None:
        """Make an interval busy; it must lie in an idle one."""
        insort(self.busy, (start, end))
        at = bisect_right(self.idle, (start, inf)) - 1
        first, last = self.idle[at]
        self.idle[at : at + 1] = [(a, b) for a, b in ((first, start), (end, last)) if a < b]


class Timetable:
    """Nodes scheduled so far: device, end in ps, and the timeline of each device."""

    def __init__(self, instance: Instance) -> None:
        nodes = len(instance.mean)
        self.instance, self.device, self.end = instance, [-1] * nodes, [0] * nodes
        self.lines = [Timeline() for _ in instance.prepared.cluster.devices]
        # For each node its producers, each with the ps of its tensors by class of route, and its
        # readers, each with the mean ps of the transfer.
        self._producers: list[list[tuple[int, list[int]]]] = [[] for _ in range(nodes)]
        self._readers: list[list[tuple[int, float]]] = [[] for _ in range(nodes)]
        for edge, mean in zip(instance.edges, instance.edge_ps.tolist(), strict=True):
            sending = instance.sending[instance.tensors[1][edge]].sum(axis=0) + instance.routes.lag
            self._producers[edge[1]].append((edge[0], sending.tolist()))
            self._readers[edge[0]].append((edge[1], mean))

    def by_rank(self) -> Ints:
        """The nodes by descending longest path to a sink, of mean times of ops and transfers
        (HEFT's upward rank, the b-level); ties in topological order.
        """
        numbers, rank = self.instance.numbers, self.instance.mean.tolist()
        for node in np.argsort(-numbers, kind="stable").tolist():
            paths = (mean + rank[reader] for reader, mean in self._readers[node])
            rank[node] += max(paths, default=0.0)
        return np.lexsort((numbers, -np.array(rank)))

    def data_ready(self, node: int, device: int) -> int:
        """The instant when the inputs of a node would be on a device; NEVER where no route leads
        there.
        """
        ready, devices = 0, len(self.lines)
        for producer, sending in self._producers[node]:
            arrival, source = self.end[producer], self.device[producer]
            if source != device:
                route = int(self.instance.routes.class_of[source * devices + device])
                if route < 0:
                    return NEVER
                arrival += sending[route]
            ready = max(ready, arrival)
        return ready

    def put(self, node: int, begin: Callable[[Timeline, int, int], int], by_end: bool) -> None:
        """Schedule a node, and place its group, on the device where the node ends (``by_end``) or
        begins first; on a tie on the smaller device.
        """
        fixed, best = self.device[node], (NEVER, NEVER, -1, 0)
        for device, length in enumerate(self.instance.duration[node].tolist()):
            if length < 0 or fixed not in (-1, device):
                continue
            ready = self.data_ready(node, device)
            start = NEVER if ready == NEVER else begin(self.lines[device], ready, length)
            best = min(best, (start + length * by_end, start, device, length))
        _, start, device, length = best
        if device < 0:  # no route leads to its group's device: the oracle will say so
            device, start, length = max(fixed, 0), 0, 0
        for member in self.instance.groups[int(self.instance.group_of[node])].tolist():
            self.device[member] = device
        self.end[node] = start + length
        if length:
            self.lines[device].take(start, start + length)


def heft(trial: Trial) -> None:
    """HEFT (Topcuoglu, Hariri, Wu, TPDS 2002): nodes by descending upward rank, each on the device
    where it finishes first.

    Nodes are inserted into idle gaps; transfers take time but never wait for each other.
    """
    _schedule(trial, Timeline.gap, True)


def critical_path(trial: Trial) -> None:
    """Critical path list scheduling: of the ready nodes the one with the longest path to a sink, on
    the device where it starts first.

    The rule that DOPPLER (ICLR 2026) imitates first; here too transfers never wait for each other.
    """
    _schedule(trial, Timeline.free, False)


def _schedule(trial: Trial, begin: Callable[[Timeline, int, int], int], by_end: bool) -> None:
    def plan(limits: object) -> Ints:
        timetable = Timetable(trial.problem.instance)
        # A node's rank is at least its readers' ranks, so in this order every node is ready.
        for node in timetable.by_rank().tolist():
            trial.budget.require_time()
            timetable.put(node, begin, by_end)
        return np.array(timetable.device, np.int64)

    place_and_fit(trial, plan)
