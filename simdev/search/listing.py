"""List schedulers that plan by times alone, without queues or memory: HEFT and critical path."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

import numpy as np

from ..structure import before_of, topological
from ..taskgraph import Ints
from .fitting import place_and_fit
from .instance import Instance
from .trial import Trial

NEVER = 1 << 62


@dataclass(slots=True)
class Timeline:
    """What is planned on a device, in ps and in order: busy intervals, and the idle ones between
    and after them.
    """

    busy: list[tuple[int, int]] = field(default_factory=list)
    idle: list[tuple[int, float]] = field(default_factory=lambda: [(0, inf)])

    def gap(self, ready: int, length: int) -> int:
        """The first instant from ``ready`` on when the device is idle for ``length``.

        What takes no time fits between two ops that touch; for the others only idle intervals are
        looked at.
        """
        if not length:
            at = bisect_left(self.busy, (ready, ready))
            return max(ready, self.busy[at - 1][1]) if at else ready
        at = max(bisect_right(self.idle, (ready, inf)) - 1, 0)
        while max(ready, self.idle[at][0]) + length > self.idle[at][1]:
            at += 1
        return max(ready, self.idle[at][0])

    def free(self, ready: int, length: int) -> int:
        """The first instant from ``ready`` on after all that is planned."""
        return max(ready, self.busy[-1][1]) if self.busy else ready

    def take(self, start: int, end: int) -> None:
        """Make an interval busy that lies in an idle one."""
        insort(self.busy, (start, end))
        at = bisect_right(self.idle, (start, inf)) - 1
        first, last = self.idle[at]
        self.idle[at : at + 1] = [(a, b) for a, b in ((first, start), (end, last)) if a < b]


Begin = Callable[[Timeline, int, int], int]


@dataclass(slots=True)
class _Plan:
    """Nodes placed so far: device, end in ps, and what is planned on each device."""

    instance: Instance
    # of each node: producer, ps by class of route
    producers: list[list[tuple[int, tuple[int, ...]]]]
    device: list[int]
    end: list[int]
    lines: list[Timeline]
    mean_after: list[list[tuple[int, float]]] = field(default_factory=list)

    @classmethod
    def of(cls, instance: Instance) -> _Plan:
        nodes = len(instance.grouped.graph.ops)
        found = cls(
            instance,
            [[] for _ in range(nodes)],
            [-1] * nodes,
            [0] * nodes,
            [Timeline() for _ in instance.prepared.cluster.devices],
            [[] for _ in range(nodes)],
        )
        lag, carried = instance.routes.lag, instance.tensors[1]
        for edge, mean in zip(instance.edges, instance.edge_ps.tolist(), strict=True):
            each = instance.sending[carried[edge]].sum(axis=0) + lag
            found.producers[edge[1]].append((edge[0], tuple(each.tolist())))
            found.mean_after[edge[0]].append((edge[1], mean))
        return found

    def ranks(self) -> list[float]:
        """The longest path from each node to a sink: mean times of ops and transfers (HEFT's upward
        rank, b-level).
        """
        rank: list[float] = self.instance.mean.tolist()
        for node in np.argsort(-self.instance.numbers, kind="stable").tolist():
            rank[node] += max(
                (mean + rank[other] for other, mean in self.mean_after[node]), default=0.0
            )
        return rank

    def data_there(self, node: int, device: int) -> int:
        """When the inputs of a node would be on a device; NEVER where no route leads there."""
        found, devices = 0, len(self.lines)
        for producer, each in self.producers[node]:
            when, source = self.end[producer], self.device[producer]
            if source != device:
                kind = int(self.instance.routes.class_of[source * devices + device])
                if kind < 0:
                    return NEVER
                when += each[kind]
            found = max(found, when)
        return found

    def put(self, node: int, begin: Begin, by_end: bool) -> None:
        """Place a node, and its group, where it ends (or begins) first; ties go to the smaller
        device.
        """
        fixed, best = self.device[node], (NEVER, NEVER, -1, 0)
        for device, length in enumerate(self.instance.duration[node].tolist()):
            if length < 0 or fixed not in (-1, device):
                continue
            ready = self.data_there(node, device)
            start = NEVER if ready == NEVER else begin(self.lines[device], ready, length)
            best = min(best, (start + length * by_end, start, device, length))
        _, start, device, length = best
        if device < 0:  # no route leads to where its group stands: the oracle will say so
            device, start, length = max(fixed, 0), 0, 0
        for other in self.instance.groups[int(self.instance.group_of[node])].tolist():
            self.device[other] = device
        self.end[node] = start + length
        if length:
            self.lines[device].take(start, start + length)


def heft(trial: Trial) -> None:
    """HEFT (Topcuoglu, Hariri, Wu, TPDS 2002): by falling upward rank, to the device of the
    earliest finish.

    Ops are inserted into idle gaps; transfers take their time and never wait for each other.
    """
    instance = trial.instance

    def plan(limits: object) -> Ints:
        found = _Plan.of(instance)
        rank, number = found.ranks(), instance.numbers.tolist()
        for node in sorted(range(len(rank)), key=lambda one: (-rank[one], number[one])):
            trial.require_time()
            found.put(node, Timeline.gap, True)
        return np.array(found.device, np.int64)

    place_and_fit(trial, plan)


def critical_path(trial: Trial) -> None:
    """Critical path list scheduling: of the ready ops that of the longest path to a sink, to the
    earliest start.

    The rule that DOPPLER (ICLR 2026) imitates first; transfers never wait for each other here
    either.
    """
    instance = trial.instance

    def plan(limits: object) -> Ints:
        found = _Plan.of(instance)
        rank, number = found.ranks(), instance.numbers.tolist()
        keys = [(-longest, place) for longest, place in zip(rank, number, strict=True)]
        for node in topological(before_of(len(keys), instance.edges), keys):
            trial.require_time()
            found.put(node, Timeline.free, False)
        return np.array(found.device, np.int64)

    place_and_fit(trial, plan)
