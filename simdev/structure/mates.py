"""Which forward op a backward or update op belongs to."""

from __future__ import annotations

from collections.abc import Iterable

from ..graph import Graph
from ..semantics import traits_of

ROOTS = ("grad/", "update/", "gradients/")  # of the names of ops that were derived from forward ones


def mates(graph: Graph) -> list[int]:
    """For each op its forward op: itself for a forward op, -1 where none can be told.

    Told by the attribute ``forward`` (a name), by a colocation group that holds forward ops, or by what it reads: the
    forward op of the same scope, or else of any, that shares most operands with it. What is left goes with the forward
    op of an op that it reads, then of one that reads it.
    """
    forward = [op.phase == "forward" for op in graph.ops]
    found = [i if own else -1 for i, own in enumerate(forward)]
    grouped = {name: [i for i in members if forward[i]] for name, members in graph.groups.items()}
    readers = _forward_readers(graph, forward)
    for i, op in enumerate(graph.ops):
        if forward[i]:
            continue
        told = graph.index.get(str(op.attrs.get("forward", "")), -1)
        if told >= 0 and forward[told]:
            found[i] = told
        elif op.colocate is not None and grouped[op.colocate]:
            found[i] = grouped[op.colocate][-1]
        else:
            found[i] = _by_operands(graph, i, forward, readers)
    _spread(graph, found)
    return found


def _forward_readers(graph: Graph, forward: list[bool]) -> dict[tuple[int, int], list[int]]:
    """The forward ops that read each tensor."""
    found: dict[tuple[int, int], list[int]] = {}
    for i, reads in enumerate(graph.reads):
        if forward[i]:
            for key in reads:
                found.setdefault(key, []).append(i)
    return found


def _by_operands(graph: Graph, i: int, forward: list[bool], readers: dict[tuple[int, int], list[int]]) -> int:
    """The forward op that shares most tensors with op ``i``, its own outputs included; in the same scope if any is."""
    shared: dict[int, int] = {}
    for key in graph.reads[i]:
        if forward[key[0]]:
            for other in (key[0], *readers.get(key, ())):
                if traits_of(graph.ops[other].kind).leaf != "parameter":
                    shared[other] = shared.get(other, 0) + 1
    scope = _scope(graph.ops[i].name)
    here = [other for other in shared if scope and _scope(graph.ops[other].name) == scope]
    return max(here or shared, key=lambda other: (shared[other], other), default=-1)


def _scope(name: str) -> str:
    for root in ROOTS:
        name = name.removeprefix(root)
    return name.rpartition("/")[0]


def _spread(graph: Graph, found: list[int]) -> None:
    """Give ops without a mate that of an op they read, then of one that reads them."""
    producers: list[list[int]] = [[p for p, _ in reads if graph.ops[p].phase != "forward"] for reads in graph.reads]
    consumers: list[list[int]] = [[] for _ in graph.ops]
    for i, reads in enumerate(graph.reads):
        for producer, _ in reads:
            consumers[producer].append(i)
    for near, order in ((producers, range(len(found))), (consumers, range(len(found) - 1, -1, -1))):
        _fill(found, near, order)


def _fill(found: list[int], near: list[list[int]], order: Iterable[int]) -> None:
    for i in order:
        if found[i] < 0:
            found[i] = max((found[other] for other in near[i]), default=-1)
