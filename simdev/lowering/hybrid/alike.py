"""Which groups of devices are alike: by their places in nodes that are alike, and by devices that
could be swapped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...cluster import Cluster

Flow = tuple[int, int]
OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Node:
    """Devices by what they are, and links: (place, other place or OUTSIDE, number of its
    quantities).
    """

    devices: list[Hashable]
    links: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Alike:
    """Tells groups of a cluster apart by patterns: groups of one pattern cost the same."""

    cluster: Cluster

    def node(self, device: int) -> int:
        """The node in which a device stands."""
        return self._local[device][0]

    def neighbourhood(self, device: int) -> int:
        """What devices share that may send over the same links: a node; all, if nodes do not
        meet.
        """
        return self._neighbourhoods[device]

    def pattern(self, groups: Sequence[Sequence[Flow]]) -> tuple[Hashable, ...]:
        """What tells flows apart: in like nodes, which share a node or a device of which kind.

        Nodes are numbered as they come up, and so are the twins in each node.
        """
        if not self.is_uniform:
            return tuple(map(tuple, groups))
        nodes: dict[int, int] = {}
        places: dict[int, tuple[int, int, int]] = {}
        seen: Counter[tuple[int, int]] = Counter()
        found = []
        for flows in groups:
            one = []
            for flow in flows:
                for device in flow:
                    if device not in places:
                        node, place = self._local[device]
                        twin = self._twins[place]
                        places[device] = nodes.setdefault(node, len(nodes)), twin, seen[node, twin]
                        seen[node, twin] += 1
                    one.append(places[device])
            found.append(tuple(one))
        return tuple(found)

    @cached_property
    def _neighbourhoods(self) -> tuple[int, ...]:
        return tuple(node if self.meet else 0 for node, _ in self._local)

    @cached_property
    def is_uniform(self) -> bool:
        """Whether all nodes with devices that run ops hold the same devices, linked alike within
        and to the outside.
        """
        nodes = [self._nodes[node] for node in sorted(self._working)]
        return self.meet and all(node == nodes[0] for node in nodes)

    @cached_property
    def meet(self) -> bool:
        """Whether these nodes meet in one device outside: no two then send over links of others."""
        beyond = set[int]()
        for link in self.cluster.links:
            first, second = (self.cluster.index[end] for end in link.ends)
            for inner, outer in ((first, second), (second, first)):
                if self.node(inner) != self.node(outer) and self.node(inner) in self._working:
                    beyond.add(outer)
        return len(beyond) <= 1

    @cached_property
    def _working(self) -> set[int]:
        """The nodes with devices that run ops."""
        return {device.node for device in self.cluster.devices if device.runs_ops}

    @cached_property
    def _local(self) -> tuple[tuple[int, int], ...]:
        """Of each device its node, and its place within it."""
        seen: Counter[int] = Counter()
        found = []
        for device in self.cluster.devices:
            found.append((device.node, seen[device.node]))
            seen[device.node] += 1
        return tuple(found)

    @cached_property
    def _nodes(self) -> dict[int, Node]:
        cluster, numbers = self.cluster, dict[Hashable, int]()
        found: dict[int, Node] = {}
        for device in cluster.devices:
            told = device.kind, device.memory, device.staging, device.chunk, device.transit
            found.setdefault(device.node, Node([], [])).devices.append(told)
        for link in cluster.links:
            (one, first), (other, second) = (self._local[cluster.index[end]] for end in link.ends)
            times = link.latency, link.gap, link.hold_latency
            quantities = link.bandwidth, *times, link.duplex, link.lanes
            number = numbers.setdefault(quantities, len(numbers))
            if one == other:
                found[one].links.append((first, second, number))
            else:
                found[one].links.append((first, OUTSIDE, number))
                found[other].links.append((second, OUTSIDE, number))
        return found

    @cached_property
    def _twins(self) -> tuple[int, ...]:
        """For each place in a node a number that it shares with its twins.

        Swapping two changes nothing. Twins are of one kind and linked alike to the same devices,
        beside which each may have one of its own (its network adapter) that leads to the same ones.
        """
        node = self._nodes[next(device.node for device in self.cluster.devices if device.runs_ops)]
        ends: list[list[tuple[int, int]]] = [[] for _ in node.devices]
        for first, second, number in node.links:
            ends[first].append((second, number))
            if second != OUTSIDE:
                ends[second].append((first, number))
        numbers: dict[Hashable, int] = {}
        return tuple(
            numbers.setdefault(_looks(node, ends, place), len(numbers))
            for place in range(len(ends))
        )


def _looks(node: Node, ends: list[list[tuple[int, int]]], place: int) -> Hashable:
    """What a place has in common with its twins."""
    found: list[tuple[Hashable, ...]] = []
    for other, number in ends[place]:
        inside = other != OUTSIDE and sum(end != OUTSIDE for end, _ in ends[other])
        if inside == 1:
            beyond = tuple(sorted(end for end in ends[other] if end[0] != place))
            found.append(("own", node.devices[other], number, beyond))
        else:
            found.append(("shared", other, number))
    return node.devices[place], tuple(sorted(found, key=repr))
