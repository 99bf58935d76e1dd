"""Grouped: a graph made smaller for a placer, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...nouns.graph import Graph
from ...nouns.taskgraph import Ints


@dataclass(frozen=True)
class Grouped:
    """A graph whose ops stand for ops of ``original``.

    ``runs[i]`` are the positions in ``original`` that op i of ``graph`` runs, in their order;
    ``follows[i]`` those that go where it goes but are not planned (backward ops, where forward ops
    alone are placed). Each op of ``original`` occurs once. Ops of ``graph`` with one ``colocate``
    go to one device, as everywhere.
    """

    graph: Graph
    original: Graph
    runs: tuple[tuple[int, ...], ...]
    follows: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, graph: Graph) -> Grouped:
        """The graph as it is: each op stands for itself."""
        return cls(graph, graph, tuple((i,) for i in range(len(graph.ops))))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """What goes where each op goes: ``runs``, then ``follows``."""
        if not self.follows:
            return self.runs
        return tuple(run + more for run, more in zip(self.runs, self.follows, strict=True))

    @cached_property
    def node_of(self) -> Ints:
        """The op of ``graph`` that each op of ``original`` goes with."""
        nodes = np.empty(len(self.original.ops), np.int64)
        for node, members in enumerate(self.members):
            nodes[list(members)] = node
        return nodes

    def back(self, placement: Sequence[int] | Ints) -> Ints:
        """The placement of ``original`` (device by op) that a placement of ``graph`` means."""
        return np.asarray(placement, np.int64)[self.node_of]

    @cached_property
    def colocated(self) -> Graph:
        """``original`` with colocation groups that keep together what goes together here."""
        ops = list(self.original.ops)
        for node, members in enumerate(self.members):
            group = self.graph.ops[node].colocate
            if group is None and len(members) > 1:
                group = self.graph.ops[node].name
            for i in members:
                ops[i] = replace(ops[i], colocate=group)
        return Graph(self.original.name, tuple(ops))

    def __repr__(self) -> str:
        return f"Grouped({len(self.graph.ops)} ops for {self.original!r})"
