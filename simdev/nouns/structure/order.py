"""Topological order: producers before what reads them, under one of three rules where the edges
leave a choice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from ..graph import Graph

Rule = Literal["ready", "branch"]
Released = Callable[[int], list[int]]
"""The nodes that may be next once a node was taken."""


def topological(
    before: Sequence[Collection[int]], rule: Rule | Sequence[Any] = "ready"
) -> list[int]:
    """The nodes 0, 1, .. in an order in which each comes after those ``before`` it (distinct ones).

    Of the nodes that could be next comes, under ``ready``, the one that became so first (Kahn, CACM
    1962), those of one moment by their numbers; under ``branch`` the one that became so last, so
    that the order stays on a branch as long as it can; under a sequence of keys, one a node, the
    one of the smallest key, then number. Nodes on a cycle, and what comes after them, are left out.
    """
    waiting = [len(nodes) for nodes in before]
    after: list[list[int]] = [[] for _ in before]
    for node, nodes in enumerate(before):
        for other in nodes:
            after[other].append(node)
    first = [node for node, count in enumerate(waiting) if not count]

    def released(node: int) -> list[int]:
        ready = []
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
        return ready

    if isinstance(rule, str):
        return _by_turn(first, released, rule == "ready")
    return _by_key(first, released, rule)


def _by_turn(first: Iterable[int], released: Released, last_in_last: bool) -> list[int]:
    frontier, order = deque(first), list[int]()
    while frontier:
        order.append(frontier.popleft())
        nodes = released(order[-1])
        if last_in_last:
            frontier.extend(nodes)
        else:
            frontier.extendleft(reversed(nodes))  # in their order: extendleft turns it round
    return order


def _by_key(first: Iterable[int], released: Released, keys: Sequence[Any]) -> list[int]:
    heap, order = [(keys[node], node) for node in first], list[int]()
    heapify(heap)
    while heap:
        order.append(heappop(heap)[1])
        for node in released(order[-1]):
            heappush(heap, (keys[node], node))
    return order


def before_of(count: int, edges: Iterable[tuple[int, int]]) -> list[set[int]]:
    """For each of ``count`` nodes those before it, from edges (before, after)."""
    before: list[set[int]] = [set() for _ in range(count)]
    for first, second in edges:
        before[second].add(first)
    return before


def order_of(graph: Graph, rule: Rule | Sequence[Any] = "ready") -> list[int]:
    """The ops of a graph, producers and ops that are waited for first (``topological``)."""
    return topological([{producer for producer, _ in reads} for reads in graph.reads], rule)


def longest_behind(graph: Graph, lengths: Iterable[int]) -> list[int]:
    """By op its length and those of the longest path behind it."""
    whole, longest = list(lengths), [0] * len(graph.ops)
    for op in reversed(order_of(graph)):
        length = whole[op] = whole[op] + longest[op]
        for producer, _ in graph.reads[op]:
            longest[producer] = max(longest[producer], length)
    return whole


def readers_of(graph: Graph) -> list[list[int]]:
    """By op (position) those that read or wait for it, each once, in program order."""
    readers: list[list[int]] = [[] for _ in graph.ops]
    for reader, reads in enumerate(graph.reads):
        for producer in {producer for producer, _ in reads}:
            readers[producer].append(reader)
    return readers


def components(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """The strongly connected component of each of ``count`` nodes, numbered in a topological order.

    Where the order leaves a choice, components come by their smallest node.
    """
    # Loaded where it is used, for it takes long: `import simdev` must stay fast.
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph(edges)
    graph.add_nodes_from(range(count))
    condensed = nx.condensation(graph)
    members = [condensed.nodes[block]["members"] for block in range(len(condensed))]
    order = topological(before_of(len(members), condensed.edges), list(map(min, members)))
    number = {node: place for place, block in enumerate(order) for node in members[block]}
    return [number[node] for node in range(count)]
