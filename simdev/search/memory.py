"""What the ops of a grouped graph hold, for placers that plan: an estimate from above, which the oracle then judges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..taskgraph import Ints
from .instance import Instance
from .prepare.grouped import inner_peak, own_outputs


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Bytes. ``own`` by tensor between nodes: what counts at its producer; ``made`` by node: the sum of these.

    ``scratch`` by node: the peak beside them while it runs. ``persistent`` by group; ``reserve`` by group: the most
    that one of its nodes makes and needs.
    """

    own: Ints
    made: Ints
    scratch: Ints
    persistent: Ints
    reserve: Ints


def held_of(instance: Instance) -> Held:
    """What is held where."""
    prepared, grouped = instance.prepared, instance.grouped
    graph, rounded = prepared.graph, prepared.memory.rounded
    own = np.array([rounded(_own_bytes(instance, row)) for row in instance.tensors[0]], np.int64)
    leaving = {
        (int(prepared.reads.producer[row]), int(prepared.reads.output[row])): int(size)
        for row, size in zip(instance.tensors[0], own, strict=True)
    }
    nodes = len(grouped.graph.ops)
    made, scratch = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
    persistent, reserve = np.zeros(len(instance.groups), np.int64), np.zeros(len(instance.groups), np.int64)
    for (producer, _), size in leaving.items():
        made[instance.run_by[producer]] += size
    for node, ops in enumerate(grouped.runs):
        scratch[node] = inner_peak(graph, ops, leaving, rounded)
    for node, members in enumerate(grouped.members):
        group = instance.group_of[node]
        for i in members:
            op = graph.ops[i]
            persistent[group] += sum(map(rounded, (op.param_bytes, op.grad_bytes, op.state_bytes)))
        reserve[group] = max(reserve[group], made[node] + scratch[node])
    return Held(own, made, scratch, persistent, reserve)


def _own_bytes(instance: Instance, row: int) -> int:
    """What a tensor adds at its producer: views and what parameter ops hand out are counted elsewhere."""
    reads = instance.prepared.reads
    op, output = instance.prepared.graph.ops[int(reads.producer[row])], int(reads.output[row])
    return dict(own_outputs(op)).get(output, 0)
