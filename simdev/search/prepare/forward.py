"""Forward-operator-based placement: forward ops are placed, each backward op follows its forward op."""

from __future__ import annotations

from dataclasses import replace

from ...errors import InputError
from ...graph import Graph, Op
from ...structure import Groups, mates
from .grouped import Grouped


def forward(graph: Graph) -> Grouped:
    """The graph of the forward ops alone; backward and update ops go where their forward op goes (``mates``).

    What it is planned by covers the forward pass only (Jeon et al., SoCC 2020, section 3.1). Colocation groups hold:
    those of followers bind the ops that they follow. Raises InputError for an op whose forward op cannot be told.
    """
    found = mates(graph)
    lost = [i for i, mate in enumerate(found) if mate < 0]
    if lost:
        raise InputError([f'ops[{i}]: the forward op of "{graph.ops[i].name}" cannot be told' for i in lost])
    keep = [i for i, mate in enumerate(found) if mate == i]
    row = {i: node for node, i in enumerate(keep)}
    follows: list[list[int]] = [[] for _ in keep]
    for i, mate in enumerate(found):
        if mate != i:
            follows[row[mate]].append(i)
    ops = tuple(_without(graph, graph.ops[i], row) for i in keep)
    bound = Graph(
        f"{graph.name}, forward", _bound(graph, ops, [(i, *more) for i, more in zip(keep, follows, strict=True)])
    )
    return Grouped(bound, graph, tuple((i,) for i in keep), tuple(map(tuple, follows)))


def _without(graph: Graph, op: Op, row: dict[int, int]) -> Op:
    """The op without what it reads of ops that are left out."""
    return replace(
        op,
        inputs=tuple(text for text in op.inputs if graph.resolve(text)[0] in row),
        control_inputs=tuple(name for name in op.control_inputs if graph.index[name.removeprefix("^")] in row),
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
