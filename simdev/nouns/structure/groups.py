"""Colocation: ops that stand on one device, as a graph says it, as TensorFlow declares it, and as
sets united.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

from ..graph import Graph

# attributes in which graphs exported from TensorFlow declare it
DECLARED = ("_class", "colocation")
PREFIX = "loc:@"


class Groups:
    """Disjoint sets of numbers, each represented by its smallest."""

    def __init__(self, count: int) -> None:
        self._above = list(range(count))

    def find(self, number: int) -> int:
        """The smallest of its set."""
        above = self._above
        while above[number] != number:
            # Halving the path keeps the next search short (Tarjan, van Leeuwen, JACM 1984).
            above[number] = above[above[number]]
            number = above[number]
        return number

    def unite(self, pairs: Iterable[tuple[int, int]]) -> bool:
        """Unite the sets of each pair; whether anything changed."""
        changed = False
        for a, b in pairs:
            low, high = sorted((self.find(a), self.find(b)))
            changed |= low != high
            self._above[high] = low
        return changed

    def roots(self) -> list[int]:
        """The set of each number."""
        return [self.find(number) for number in range(len(self._above))]


def units(graph: Graph) -> tuple[tuple[int, ...], ...]:
    """The units of placement: positions of the ops of each colocation group, and of each op without
    one.

    In the order of their first op.
    """
    groups = graph.groups
    sets = ((i,) if op.colocate is None else groups[op.colocate] for i, op in enumerate(graph.ops))
    return tuple(dict.fromkeys(sets))


def unit_of(graph: Graph) -> list[int]:
    """The number of each op's unit (``units``)."""
    numbers = [0] * len(graph.ops)
    for number, members in enumerate(units(graph)):
        for i in members:
            numbers[i] = number
    return numbers


def declared(graph: Graph) -> Groups:
    """The sets that the graph demands: equal ``colocate``, and TensorFlow's classes in attributes
    (``_class``).

    An op may declare several classes, which are then one set; ``loc:@name`` also means the op of
    that name.
    """
    first: dict[str, int] = {}
    groups = Groups(len(graph.ops))
    for i, op in enumerate(graph.ops):
        names = [] if op.colocate is None else [op.colocate]
        for key in DECLARED:
            classes = op.attrs.get(key, ())
            texts = [classes] if isinstance(classes, str) else classes
            names += (text for text in texts if isinstance(text, str))
        groups.unite((i, first.setdefault(name, i)) for name in names)
        meant = (name[len(PREFIX) :] for name in names if name.startswith(PREFIX))
        groups.unite((i, graph.index[name]) for name in meant if name in graph.index)
    return groups


def regrouped(graph: Graph, groups: Groups) -> Graph:
    """The graph with these sets as colocation groups.

    A set of several ops is named by the shortest, then alphabetically first of its groups' names,
    else by its first op.
    """
    roots, names = groups.roots(), defaultdict[int, set[str]](set)
    sizes = Counter(roots)
    for root, op in zip(roots, graph.ops, strict=True):
        if op.colocate is not None:
            names[root].add(op.colocate)
    ops = []
    for root, op in zip(roots, graph.ops, strict=True):
        # Not the first name met: the order of ops would decide where several groups become one.
        group = min(names[root], key=lambda name: (len(name), name), default=None)
        if group is None and sizes[root] > 1:
            group = graph.ops[root].name
        ops.append(op if op.colocate == group else replace(op, colocate=group))
    return Graph(graph.name, tuple(ops))
