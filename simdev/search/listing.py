"""List schedulers that plan by times alone, without queues or memory: HEFT and critical path."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..taskgraph import Ints
from .fitting import place_and_fit
from .instance import Instance
from .trial import Trial

NEVER = 1 << 62


@dataclass(slots=True)
class _Plan:
    """Nodes placed so far: device, end in ps, and the busy intervals of each device in order."""

    instance: Instance
    producers: list[list[tuple[int, tuple[int, ...]]]]  # of each node: producer, ps by class of route
    device: list[int]
    end: list[int]
    busy: list[list[tuple[int, int]]]
    waiting: list[int]
    after: list[list[int]]
    mean_after: list[list[tuple[int, float]]] = field(default_factory=list)

    @classmethod
    def of(cls, instance: Instance) -> _Plan:
        nodes = len(instance.grouped.graph.ops)
        found = cls(
            instance,
            [[] for _ in range(nodes)],
            [-1] * nodes,
            [0] * nodes,
            [[] for _ in instance.prepared.cluster.devices],
            [0] * nodes,
            [[] for _ in range(nodes)],
            [[] for _ in range(nodes)],
        )
        lag, carried = instance.routes.lag, instance.tensors[1]
        for edge, mean in zip(instance.edges, instance.edge_ps.tolist(), strict=True):
            each = instance.sending[carried[edge]].sum(axis=0) + lag
            found.producers[edge[1]].append((edge[0], tuple(each.tolist())))
            found.waiting[edge[1]] += 1
            found.after[edge[0]].append(edge[1])
            found.mean_after[edge[0]].append((edge[1], mean))
        return found

    def ranks(self) -> list[float]:
        """The longest path from each node to a sink: mean times of ops and transfers (HEFT's upward rank, b-level)."""
        rank: list[float] = self.instance.mean.tolist()
        for node in np.argsort(-self.instance.numbers, kind="stable").tolist():
            rank[node] += max((mean + rank[other] for other, mean in self.mean_after[node]), default=0.0)
        return rank

    def data_there(self, node: int, device: int) -> int:
        """When the inputs of a node would be on a device; NEVER where no route leads there."""
        found, devices = 0, len(self.busy)
        for producer, each in self.producers[node]:
            when, source = self.end[producer], self.device[producer]
            if source != device:
                kind = int(self.instance.routes.class_of[source * devices + device])
                if kind < 0:
                    return NEVER
                when += each[kind]
            found = max(found, when)
        return found

    def gap(self, device: int, ready: int, length: int) -> int:
        """The first instant from ``ready`` on when a device is idle for ``length``."""
        busy = self.busy[device]
        at = bisect_left(busy, (ready, ready))
        begin = max(ready, busy[at - 1][1]) if at else ready
        for start, end in busy[at:]:
            if begin + length <= start:
                return begin
            begin = max(begin, end)
        return begin

    def free(self, device: int, ready: int, length: int) -> int:
        """The first instant from ``ready`` on after all that is planned on a device."""
        return max(ready, self.busy[device][-1][1]) if self.busy[device] else ready

    def put(self, node: int, begin: Callable[[int, int, int], int], by_end: bool) -> None:
        """Place a node, and its group, where it ends (or begins) first; ties go to the smaller device."""
        fixed, best = self.device[node], (NEVER, NEVER, -1, 0)
        for device, length in enumerate(self.instance.duration[node].tolist()):
            if length < 0 or fixed not in (-1, device):
                continue
            ready = self.data_there(node, device)
            start = NEVER if ready == NEVER else begin(device, ready, length)
            best = min(best, (start + length * by_end, start, device, length))
        _, start, device, length = best
        if device < 0:  # no route leads to where its group stands: the oracle will say so
            device, start, length = max(fixed, 0), 0, 0
        for other in self.instance.groups[int(self.instance.group_of[node])].tolist():
            self.device[other] = device
        self.end[node] = start + length
        if length:
            insort(self.busy[device], (start, start + length))


def heft(trial: Trial) -> None:
    """HEFT (Topcuoglu, Hariri, Wu, TPDS 2002): by falling upward rank, to the device of the earliest finish.

    Ops are inserted into idle gaps; transfers take their time and never wait for each other.
    """

    def plan(limits: object) -> Ints:
        found = _Plan.of(trial.instance)
        rank, number = found.ranks(), trial.instance.numbers.tolist()
        for node in sorted(range(len(rank)), key=lambda one: (-rank[one], number[one])):
            found.put(node, found.gap, True)
        return np.array(found.device, np.int64)

    place_and_fit(trial, plan)


def critical_path(trial: Trial) -> None:
    """Critical path list scheduling: of the ready ops that of the longest path to a sink, to the earliest start.

    The rule that DOPPLER (ICLR 2026) imitates first; transfers never wait for each other here either.
    """

    def plan(limits: object) -> Ints:
        found = _Plan.of(trial.instance)
        rank, number = found.ranks(), trial.instance.numbers.tolist()
        ready = [(-rank[node], number[node], node) for node, count in enumerate(found.waiting) if not count]
        heapq.heapify(ready)
        while ready:
            _, _, node = heapq.heappop(ready)
            found.put(node, found.free, False)
            for other in found.after[node]:
                found.waiting[other] -= 1
                if not found.waiting[other]:
                    heapq.heappush(ready, (-rank[other], number[other], other))
        return np.array(found.device, np.int64)

    place_and_fit(trial, plan)
