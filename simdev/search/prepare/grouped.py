"""Grouped: a graph made smaller for a placer, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...graph import Graph, Op
from ...structure import owns_outputs
from ...taskgraph import Ints


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
        column = np.empty(len(self.original.ops), np.int64)
        for node, members in enumerate(self.members):
            column[list(members)] = node
        return column

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


def inner_peak(
    graph: Graph,
    ops: Sequence[int],
    leaving: Container[tuple[int, int]],
    rounded: Callable[[int], int] = int,
) -> int:
    """The peak in bytes of what ``ops``, run one by one in this order, hold beside the tensors that
    leave them.
    """
    last: dict[tuple[int, int], int] = {key: i for i in ops for key in graph.reads[i]}
    ends: dict[int, list[tuple[int, int]]] = {}
    for key, i in last.items():
        ends.setdefault(i, []).append(key)
    live, peak, held = 0, 0, dict[tuple[int, int], int]()
    for i in ops:
        for output, size in own_outputs(graph.ops[i]):
            if (i, output) not in leaving:
                held[i, output] = rounded(size)
                live += held[i, output]
                if (i, output) not in last:
                    ends.setdefault(i, []).append((i, output))
        peak = max(peak, live + rounded(graph.ops[i].workspace_bytes))
        live -= sum(held.pop(key, 0) for key in ends.get(i, ()))
    return peak


def own_outputs(op: Op) -> list[tuple[int, int]]:
    """(number, bytes) of the outputs that have memory of their own: no views, nor parameters handed
    out.
    """
    if owns_outputs(op):
        return []
    return [
        (output, tensor.bytes) for output, tensor in enumerate(op.outputs) if tensor.view_of is None
    ]
