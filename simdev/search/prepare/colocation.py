"""Which ops go together: TensorFlow's colocation, Baechi's co-placement, and a forward op with its
backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...graph import Graph
from ...lowering.collective import is_collective
from ...semantics import traits_of
from ...structure import declared, mates, regrouped
from .grouped import Grouped


def colocate(graph: Graph) -> Grouped:
    """The groups that the graph itself declares, by ``colocate`` or by TensorFlow's classes in its
    attributes.
    """
    return Grouped.of(regrouped(graph, declared(graph)))


def coplace(graph: Graph, control: bool = True) -> Grouped:
    """Co-placement: an op whose output has one consumer joins the group of that consumer.

    Starts from the declared groups (Jeon et al., SoCC 2020, section 3.1). What counts is how many
    ops read the op, not how many tensors they read; control inputs count too where ``control``.
    What a collective over ranks reads stands on its rank, and does not join it. Backward and update
    ops that share a group with a forward op (``pair``, or so declared) follow it: the forward graph
    alone is co-placed then. Else the backward of one layer, read by the next alone, would weld all
    layers together.
    """
    groups, follows = declared(graph), _following(graph)
    consumers: list[set[int]] = [set() for _ in graph.ops]
    for consumer, reads in enumerate(graph.reads):
        for producer, output in reads:
            if not follows[consumer] and (control or output >= 0):
                consumers[producer].add(consumer)
    ranked = {i for i, op in enumerate(graph.ops) if is_collective(op)}
    joins = [
        (i, min(found))
        for i, found in enumerate(consumers)
        if len(found) == 1 and not follows[i] and not found & ranked
    ]
    groups.unite(joins)
    return Grouped.of(regrouped(graph, groups))


def _following(graph: Graph) -> list[bool]:
    """Whether each op is a backward or update op in a group with a forward one, other than a leaf.

    An update that is only declared to stand with its parameter is matched with nothing.
    """
    leads = [op.phase == "forward" and traits_of(op.kind).leaf is None for op in graph.ops]
    led = {op.colocate for op, one in zip(graph.ops, leads, strict=True) if one} - {None}
    return [op.phase != "forward" and op.colocate in led for op in graph.ops]


def pair(graph: Graph) -> Grouped:
    """Each backward or update op goes with its forward op (``mates``), parameters with what reads
    them first.

    That is the first forward op that does; the declared groups hold too.
    """
    groups = declared(graph)
    groups.unite((i, mate) for i, mate in enumerate(mates(graph)) if mate >= 0)
    groups.unite(_first_readers(graph))
    return Grouped.of(regrouped(graph, groups))


def _first_readers(graph: Graph) -> Iterator[tuple[int, int]]:
    """Parameters with the first forward op that reads each."""
    seen: set[int] = set()
    for reader, reads in enumerate(graph.reads):
        if graph.ops[reader].phase == "forward":
            for producer, _ in reads:
                if traits_of(graph.ops[producer].kind).leaf == "parameter" and producer not in seen:
                    seen.add(producer)
                    yield producer, reader
