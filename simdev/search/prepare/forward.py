"""Forward-operator-based placement: forward ops are placed, each backward op follows its forward
op.
"""

from __future__ import annotations

from dataclasses import replace

from ...graph import Graph, Op
from ...lowering.collective import is_collective
from ...structure import Groups, mates
from .grouped import Grouped


def forward(graph: Graph) -> Grouped:
    """The graph of the forward ops alone; the others go where their forward op goes (``mates``).

    What it is planned by covers the forward pass only (Jeon et al., SoCC 2020, section 3.1).
    Colocation groups hold: those of followers bind the ops that they follow. An op whose forward op
    cannot be told is planned too, and so are collectives over ranks and what they read, which
    stands on its rank. A graph in which nothing follows is left as it is.
    """
    ranked = {i for i, op in enumerate(graph.ops) if is_collective(op)}
    ranked |= {producer for i in ranked for producer, _ in graph.reads[i]}
    lead = [i if mate < 0 or i in ranked else mate for i, mate in enumerate(mates(graph))]
    keep = [i for i, other in enumerate(lead) if other == i]
    if len(keep) == len(lead):
        return Grouped.of(graph)
    row = {i: node for node, i in enumerate(keep)}
    follows: list[list[int]] = [[] for _ in keep]
    for i, other in enumerate(lead):
        if other != i:
            follows[row[other]].append(i)
    ops = tuple(_without(graph, graph.ops[i], row) for i in keep)
    members = [(i, *more) for i, more in zip(keep, follows, strict=True)]
    bound = Graph(f"{graph.name}, forward", _bound(graph, ops, members))
    return Grouped(bound, graph, tuple((i,) for i in keep), tuple(map(tuple, follows)))


def _without(graph: Graph, op: Op, row: dict[int, int]) -> Op:
    """The op without what it reads of ops that are left out."""
    return replace(
        op,
        inputs=tuple(text for text in op.inputs if graph.resolve(text)[0] in row),
        control_inputs=tuple(
            name for name in op.control_inputs if graph.index[name.removeprefix("^")] in row
        ),
    )


def _bound(graph: Graph, ops: tuple[Op, ...], members: list[tuple[int, ...]]) -> tuple[Op, ...]:
    """The ops with colocation groups that hold for all that goes with each."""
    groups, first = Groups(len(ops)), dict[str, int]()
    for node, each in enumerate(members):
        names = [graph.ops[i].colocate for i in each]
        groups.unite([(node, first.setdefault(name, node)) for name in names if name is not None])
    roots = groups.roots()
    told = {root: name for name, node in reversed(first.items()) for root in (roots[node],)}
    return tuple(replace(op, colocate=told.get(root)) for op, root in zip(ops, roots, strict=True))
