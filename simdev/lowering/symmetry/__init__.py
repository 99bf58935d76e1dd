"""Symmetry: devices and groups that behave equally in a step are simulated once, exactly.

``Symmetry`` has the representative of each device, ``quotient.py`` reduces a graph of ops to its
representatives, and ``Alike`` finds groups of devices of equal cost: the model of collectives
computes one of them, which makes thousands of devices fast. Large models use ``Alike``
(hybrid/durations.py); reports spread figures by ``Symmetry``. A new quantity of a device or link
that changes a cost belongs in the traits here and in ``quotient.traits``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from ...nouns.cluster import Cluster
from ...nouns.taskgraph import COLLECTIVE, Ints, TaskGraph

IDLE = -1
Member = TypeVar("Member")
Flow = tuple[int, int]
OUTSIDE = -1
Places = list[tuple[Hashable, list[tuple[int, int]]]]
"""The devices of a node in their order: traits, and links as (place of the other end or OUTSIDE,
number of quantities)."""


@dataclass(frozen=True, eq=False)
class Symmetry:
    """Devices of a cluster, with their representatives in a task graph.

    ``devices`` are the names of all devices. ``stands`` is by device the index of its
    representative in the task graph. ``queues`` are the names of all queues of transfers, and
    ``classes`` is by queue the number of its representative among those of the task graph (IDLE: no
    task ever holds it). ``replicas`` is the number of replicas.
    """

    devices: tuple[str, ...]
    stands: Ints
    queues: tuple[str, ...]
    classes: Ints
    replicas: int

    @cached_property
    def copies(self) -> Ints:
        """The number of devices that each device of the task graph represents, with itself."""
        return np.bincount(self.stands).astype(np.int64)

    def __repr__(self) -> str:
        return f"Symmetry({len(self.copies)} devices for {len(self.devices)})"

    def counts(self, task_graph: TaskGraph) -> Ints:
        """The number of tasks that each task represents; a collective represents only itself."""
        return np.where(task_graph.of_kind(COLLECTIVE), 1, self.copies[task_graph.tasks.source])

    def counted(self, task_graph: TaskGraph) -> int:
        """The number of tasks on all devices together."""
        return int(self.counts(task_graph).sum())

    def to_json(self, task_graph: TaskGraph) -> dict[str, Any]:
        """The entry ``symmetry`` of a report: the numbers of replicas, of simulated and of all
        devices, and of tasks.
        """
        steps = task_graph.steps
        return {
            "replicas": self.replicas,
            "simulated": len(self.copies),
            "devices": len(self.devices),
            "tasks": len(task_graph.tasks) // steps,
            "tasks_of_all_devices": self.counted(task_graph) // steps,
        }

    def spread(self, members: Sequence[Member]) -> Iterator[tuple[str, Member]]:
        """Every device by name, with the member of its representative."""
        for name, stand in zip(self.devices, self.stands.tolist(), strict=True):
            yield name, members[stand]


@dataclass(frozen=True, slots=True)
class Expanded:
    """Why every device was simulated where a symmetry was looked for."""

    why: str


@dataclass(frozen=True)
class Alike:
    """Assigns patterns to groups of devices: groups of equal patterns have equal costs."""

    cluster: Cluster

    def neighbourhood(self, device: int) -> int:
        """The node of a device: only devices of one node may send over the same links. 0 for all
        devices where nodes do not meet in one device.
        """
        return self._local[device][0] if self.nodes_meet else 0

    def pattern(self, groups: Sequence[Sequence[Flow]]) -> tuple[Hashable, ...]:
        """The pattern of groups of flows: equal patterns have equal costs, for their flows are
        between corresponding devices of equal nodes.

        Nodes are numbered in the order of their first device, and so are the twins in each node.
        """
        # Where nodes differ, each group has its own pattern, so no cost is shared by mistake.
        if not self._nodes_are_alike:
            return tuple(map(tuple, groups))
        nodes: dict[int, int] = {}
        places: dict[int, tuple[int, int, int]] = {}
        seen: Counter[tuple[int, int]] = Counter()
        for device in (device for flows in groups for flow in flows for device in flow):
            if device not in places:
                node, place = self._local[device]
                twin = self._twins[place]
                places[device] = nodes.setdefault(node, len(nodes)), twin, seen[node, twin]
                seen[node, twin] += 1
        return tuple(tuple(places[device] for flow in flows for device in flow) for flows in groups)

    def sort(self, devices: Sequence[int]) -> Hashable:
        """A key that is equal for lists of devices of equal kinds whose groups cost the same."""
        kinds = tuple(self.cluster.devices[device].kind for device in devices)
        return self.pattern([[(device, device) for device in devices]]), kinds

    @cached_property
    def _working(self) -> list[int]:
        """The nodes with devices that run ops."""
        return sorted({device.node for device in self.cluster.devices if device.runs_ops})

    @cached_property
    def _nodes_are_alike(self) -> bool:
        """Whether all working nodes have equal devices, with equal links inside and outside."""
        first, *others = (self._nodes[node] for node in self._working)
        return self.nodes_meet and all(node == first for node in others)

    @cached_property
    def nodes_meet(self) -> bool:
        """Whether working nodes meet in at most one outside device, so that no node's messages
        cross another node's links.
        """
        beyond, working = set[int](), set(self._working)
        for link in self.cluster.links:
            ends = [self.cluster.index[end] for end in link.ends]
            for inner, outer in (ends, ends[::-1]):
                node = self._local[inner][0]
                if node != self._local[outer][0] and node in working:
                    beyond.add(outer)
        return len(beyond) <= 1

    @cached_property
    def _local(self) -> list[tuple[int, int]]:
        """The node of each device, and its place within the node."""
        places, local = Counter[int](), []
        for device in self.cluster.devices:
            local.append((device.node, places[device.node]))
            places[device.node] += 1
        return local

    @cached_property
    def _nodes(self) -> dict[int, Places]:
        cluster, numbers = self.cluster, dict[Hashable, int]()
        nodes: dict[int, Places] = {device.node: [] for device in cluster.devices}
        for device in cluster.devices:
            # All but the name, which must make no difference.
            traits = device.kind, device.memory, device.staging, device.chunk, device.transit
            nodes[device.node].append((traits, []))
        for link in cluster.links:
            times = link.latency, link.gap, link.hold_latency
            quantities = link.bandwidth, *times, link.duplex, link.lanes
            number = numbers.setdefault(quantities, len(numbers))
            (a, first), (b, second) = (self._local[cluster.index[end]] for end in link.ends)
            nodes[a][first][1].append((second if a == b else OUTSIDE, number))
            nodes[b][second][1].append((first if a == b else OUTSIDE, number))
        return nodes

    @cached_property
    def _twins(self) -> list[int]:
        """For each place in a node, a number that it shares with its twins.

        Swapping twins changes nothing. Twins are of one kind and have equal links to the same
        devices; each may also have a device to itself (its network adapter), with equal links on.
        """
        node, numbers = self._nodes[self._working[0]], dict[Hashable, int]()
        traits = [_twin_traits(node, place) for place in range(len(node))]
        return [numbers.setdefault(trait, len(numbers)) for trait in traits]


def _twin_traits(node: Places, place: int) -> Hashable:
    """The traits of a place, equal for twins."""
    links: list[tuple[Hashable, ...]] = []
    for other, number in node[place][1]:
        traits, ends = node[other] if other != OUTSIDE else (None, [])
        # A device with one link inside the node belongs to this place alone.
        if sum(end != OUTSIDE for end, _ in ends) == 1:
            beyond = tuple(sorted(end for end in ends if end[0] != place))
            links.append(("private", traits, number, beyond))
        else:
            links.append(("shared", other, number))
    # By text, for numbers and names do not compare.
    return node[place][0], tuple(sorted(links, key=repr))
