"""What a step releases in the next one: its updates, and the end of its devices' work."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..graph import Graph
from ..structure import readers_of, updated
from ..taskgraph import TaskGraph
from .collective import is_collective


def last_ops(graph: Graph, task_graph: TaskGraph, placement: Sequence[int]) -> dict[int, list[int]]:
    """By device its forward and backward ops that none of its others waits for.

    Collectives are none of them: a device computes on while it takes part in one.
    """
    count = len(graph.ops)
    works = [op.phase != "update" and not is_collective(op) for op in graph.ops]
    ends: dict[int, list[int]] = {}
    successors = task_graph.tasks.successors
    for i in range(count):
        if not works[i]:
            continue
        after = successors[i]
        if not any(int(j) < count and works[j] and placement[j] == placement[i] for j in after):
            ends.setdefault(placement[i], []).append(i)
    return ends


def following(
    graph: Graph,
    task_graph: TaskGraph,
    placement: Sequence[int],
    ends: Mapping[int, list[int]],
    gates: Collection[int] = (),
) -> list[tuple[int, int]]:
    """Pairs (op, op of the next step that waits for it), as positions in the graph.

    A parameter waits for its updates. What waits for nothing in its own step (the batch) waits for
    the last forward and backward ops of its device (``ends``), as the ops of an in-order stream do,
    and for updates that name no parameter there; on a device that holds nothing but such ops, for
    the ops that read it: a loader keeps one batch. ``gates`` wait for what is no op.
    """
    edges, unnamed = [], dict[int, list[int]]()
    known: set[int] = set(gates)
    for update, leaves in updated(graph).items():
        here = [leaf for leaf in leaves if placement[leaf] == placement[update]]
        edges += [(update, leaf) for leaf in here]
        known.update(here)
        if not here:
            unnamed.setdefault(placement[update], []).append(update)
    count = task_graph.predecessor_count
    roots = {i for i in range(len(graph.ops)) if not count[i]} - known
    readers = readers_of(graph)
    for i in roots:
        device = placement[i]
        before = [*ends.get(device, ()), *unnamed.get(device, ())]
        before += readers[i] if roots.issuperset(before) else []
        edges += [(op, i) for op in before if op != i]
    return sorted(edges)
