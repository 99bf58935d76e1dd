"""Topological order: producers before what reads them, under one of three rules where the edges
leave a choice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from ..graph import Graph

Rule = Literal["ready", "branch"]


def topological(
    before: Sequence[Collection[int]], rule: Rule | Sequence[Any] = "ready"
) -> list[int]:
    """The nodes 0, 1, .. in an order in which each comes after those ``before`` it (distinct ones).

    Of the nodes that could be next comes, under ``ready``, the one that became so first (Kahn, CACM
    1962), those of one moment by their numbers; under ``branch`` the one that became so last, so
    that the order stays on a branch as long as it can; under a sequence of keys, one a node, the
    one of the smallest key, then number. Nodes on a cycle, and what comes after them, are left out.
    """
    waiting = [len(those) for those in before]
    after: list[list[int]] = [[] for _ in before]
    for node, those in enumerate(before):
        for other in those:
            after[other].append(node)
    first = [node for node, count in enumerate(waiting) if not count]
    if rule == "ready":
        return _by_turn(first, after, waiting)
    if rule == "branch":
        return _by_branch(first, after, waiting)
    return _by_key(first, after, waiting, rule)


def before_of(count: int, edges: Iterable[tuple[int, int]]) -> list[set[int]]:
    """For each of ``count`` nodes those before it, from edges (before, after)."""
    before: list[set[int]] = [set() for _ in range(count)]
    for first, second in edges:
        before[second].add(first)
    return before


def order_of(graph: Graph, rule: Rule | Sequence[Any] = "ready") -> list[int]:
    """The ops of a graph, producers and ops that are waited for first (``topological``)."""
    return topological([{producer for producer, _ in reads} for reads in graph.reads], rule)


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
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    condensed = nx.condensation(graph)
    least = {block: min(condensed.nodes[block]["members"]) for block in condensed.nodes}
    column, keys = [0] * count, [least[block] for block in range(len(least))]
    order = topological(before_of(len(keys), condensed.edges), keys)
    for number, block in enumerate(order):
        for node in condensed.nodes[block]["members"]:
            column[node] = number
    return column


def _by_turn(order: list[int], after: Sequence[Sequence[int]], waiting: list[int]) -> list[int]:
    for node in order:
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                order.append(other)
    return order


def _by_branch(first: list[int], after: Sequence[Sequence[int]], waiting: list[int]) -> list[int]:
    stack, order = first[::-1], []
    while stack:
        node = stack.pop()
        order.append(node)
        for other in reversed(after[node]):
            waiting[other] -= 1
            if not waiting[other]:
                stack.append(other)
    return order


def _by_key(
    first: list[int], after: Sequence[Sequence[int]], waiting: list[int], keys: Sequence[Any]
) -> list[int]:
    ready, order = [(keys[node], node) for node in first], []
    heapify(ready)
    while ready:
        _, node = heappop(ready)
        order.append(node)
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heappush(ready, (keys[other], other))
    return order
