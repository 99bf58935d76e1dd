"""Which groups of devices cost the same: those at like places in nodes that are alike.

Asking the model of collectives once for all such groups is what makes thousands of devices quick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...nouns.cluster import Cluster

Flow = tuple[int, int]
OUTSIDE = -1


@dataclass(frozen=True, slots=True)
class Node:
    """Devices by their traits, and links: (place, other place or OUTSIDE, number of quantities)."""

    devices: list[Hashable]
    links: list[tuple[int, int, int]]


@dataclass(frozen=True)
class Alike:
    """Tells groups of a cluster apart by patterns: groups of one pattern cost the same."""

    cluster: Cluster

    def neighbourhood(self, device: int) -> int:
        """What devices share that may send over the same links: a node; all, if no nodes meet."""
        return self._local[device][0] if self.nodes_meet else 0

    def pattern(self, groups: Sequence[Sequence[Flow]]) -> tuple[Hashable, ...]:
        """Equal for flows that cost the same: in like nodes, with the same nodes and twins shared.

        Nodes are numbered in the order of their first device, and so are the twins in each node.
        """
        # Each group is then a pattern by itself: no answer is shared by mistake.
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

    @cached_property
    def _working(self) -> list[int]:
        """The nodes with devices that run ops."""
        return sorted({device.node for device in self.cluster.devices if device.runs_ops})

    @cached_property
    def _nodes_are_alike(self) -> bool:
        """Whether all working nodes hold equal devices, linked alike within and to the outside."""
        first, *others = (self._nodes[node] for node in self._working)
        return self.nodes_meet and all(node == first for node in others)

    @cached_property
    def nodes_meet(self) -> bool:
        """Whether working nodes meet in one device outside: no two then send over others' links."""
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
        """Of each device its node, and its place within it."""
        places, local = Counter[int](), []
        for device in self.cluster.devices:
            local.append((device.node, places[device.node]))
            places[device.node] += 1
        return local

    @cached_property
    def _nodes(self) -> dict[int, Node]:
        cluster, numbers = self.cluster, dict[Hashable, int]()
        nodes = {device.node: Node([], []) for device in cluster.devices}
        for device in cluster.devices:
            # Not the name: it is what must not matter.
            traits = device.kind, device.memory, device.staging, device.chunk, device.transit
            nodes[device.node].devices.append(traits)
        for link in cluster.links:
            (a, first), (b, second) = (self._local[cluster.index[end]] for end in link.ends)
            times = link.latency, link.gap, link.hold_latency
            quantities = link.bandwidth, *times, link.duplex, link.lanes
            number = numbers.setdefault(quantities, len(numbers))
            if a == b:
                nodes[a].links.append((first, second, number))
            else:
                nodes[a].links.append((first, OUTSIDE, number))
                nodes[b].links.append((second, OUTSIDE, number))
        return nodes

    @cached_property
    def _twins(self) -> list[int]:
        """For each place in a node a number that it shares with its twins.

        Swapping two changes nothing. Twins are of one kind and linked alike to the same devices,
        beside which each may have one to itself (its network adapter) that leads to the same ones.
        """
        node = self._nodes[self._working[0]]
        ends: list[list[tuple[int, int]]] = [[] for _ in node.devices]
        for first, second, number in node.links:
            ends[first].append((second, number))
            if second != OUTSIDE:
                ends[second].append((first, number))
        numbers: dict[Hashable, int] = {}
        traits = [_twin_traits(node, ends, place) for place in range(len(ends))]
        return [numbers.setdefault(trait, len(numbers)) for trait in traits]


def _twin_traits(node: Node, ends: list[list[tuple[int, int]]], place: int) -> Hashable:
    """What a place has in common with its twins."""
    links: list[tuple[Hashable, ...]] = []
    for other, number in ends[place]:
        # A device with one link inside the node belongs to this place alone.
        if other != OUTSIDE and sum(end != OUTSIDE for end, _ in ends[other]) == 1:
            beyond = tuple(sorted(end for end in ends[other] if end[0] != place))
            links.append(("private", node.devices[other], number, beyond))
        else:
            links.append(("shared", other, number))
    # By text, for numbers and names do not compare.
    return node.devices[place], tuple(sorted(links, key=repr))
